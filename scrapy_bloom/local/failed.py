"""The failed list of a job: a table of requests that have failed, or are unparsed.

A request moves there in the commit that would have deleted its row. The next run puts those that
have failed back, in the commit that deletes them here; the others stay until somebody says so.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Container, Iterator
from typing import Any, Final, NamedTuple

from scrapy_bloom import file
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.outcomes import MOST_UNPARSED, REDIRECTED, Reason
from scrapy_bloom.errors import STRANGE

_COLUMNS: Final = "id, run, kind, message, date, tries, unparsed, way, body, crc"
_LAST: Final = 2**63 - 1  # the highest id


class Reasons(NamedTuple):
    """How many requests there are for each reason.

    Attributes:
        failures: of those that have failed.
        decisions: of those that are unparsed.
    """

    failures: Counter[str]
    decisions: Counter[str]


def reasons_in(database: sqlite3.Connection) -> Reasons:
    """Return how many requests have failed, and how many are unparsed, for each reason."""
    reasons = Reasons(Counter(), Counter())
    query = "SELECT unparsed, kind, count(*) FROM failed GROUP BY 1, 2"
    for unparsed, kind, count in database.execute(query):
        reasons[bool(unparsed)][str(kind)] = count
    return reasons


class FailedPages:
    """That table. Changes are collected in memory; :meth:`write` writes them.

    :param database: the file.

    Attributes:
        run: the number of this run. What failed in it is left alone.
        reasons: how many requests there are for each reason.
        left: how many requests this run has yet to put back.
    """

    def __init__(self, database: sqlite3.Connection, run: int) -> None:
        self._database, self.run = database, run
        self.reasons = reasons_in(database)
        due = "SELECT count(*) FROM failed WHERE run < ? AND NOT unparsed"
        (self.left,) = database.execute(due, (run,)).fetchone()
        self._new: dict[int, FailedPage] = {}
        self._gone: set[int] = set()
        self._earlier: set[int] = set()  # of the new ones, those that an earlier run has left
        self._after = -1  # ids up to this one were put back, or cannot be read

    def __len__(self) -> int:
        """Return how many requests it has."""
        return self.reasons.failures.total() + self.reasons.decisions.total()

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._new or self._gone)

    def add(self, id_: int, failed: FailedPage) -> bool:
        """Add a request; return whether it is stored: of very many unparsed ones it is not.

        :param id_: of its row among those that are not done.
        """
        if failed.unparsed and self.reasons.decisions.total() >= MOST_UNPARSED:
            return False
        self._new[id_] = failed
        self._count(failed, 1)
        return True

    def led_to(self) -> set[bytes]:
        """Return the marks of where redirects of what has failed led, by the last commit."""
        query = f"SELECT {_COLUMNS} FROM failed WHERE NOT unparsed AND way != ''"
        read = map(_read, self._database.execute(query))
        return {mark for failed in read if failed is not None for mark in failed.way}

    def leading_to(self, marks: Container[bytes]) -> list[int]:
        """Return the ids of what was redirected to one of these as that was seen, likewise."""
        query = (
            f"SELECT {_COLUMNS} FROM failed WHERE unparsed AND kind = ? AND NOT tries AND way != ''"
        )
        rows = ((row[0], _read(row)) for row in self._database.execute(query, (REDIRECTED,)))
        return [id_ for id_, failed in rows if failed and failed.way[-1] in marks]

    def let_fail(self, id_: int) -> tuple[bytes, ...]:
        """Let an unparsed request fail, as if an earlier run had left it; return its way."""
        if (unparsed := self.pop(id_)) is None:
            return ()
        reason, way = Reason(unparsed.kind, unparsed.message), unparsed.way
        failed = FailedPage.of(unparsed.body, reason, unparsed.date)
        self._new[id_] = failed._replace(way=way)
        self._earlier.add(id_)
        self._count(failed, 1)
        self.left += 1
        return way

    def pop_due(self) -> tuple[int, FailedPage | None] | None:
        """Return the next request of an earlier run to be put back; None if there is none.

        Call :meth:`remove` if it was put back; else it stays. A damaged one is None itself.

        :raises sqlite3.Error: if it cannot be read.
        """
        query = (
            f"SELECT {_COLUMNS} FROM failed WHERE id > ? AND run < ? AND NOT unparsed ORDER BY id"
            " LIMIT 1"
        )
        while row := self._database.execute(query, (self._after, self.run)).fetchone():
            self._after = row[0]
            if row[0] not in self._gone:
                self.left -= 1
                return row[0], _read(row)
        self._after, self.left = _LAST, 0  # or each call would look through all that have failed
        return None

    def pop(self, id_: int) -> FailedPage | None:
        """Remove and return a request; None if it is not there, or damaged."""
        if id_ in self._new:
            self._count(new := self._new.pop(id_), -1)
            return new
        query = f"SELECT {_COLUMNS} FROM failed WHERE id = ?"
        row = self._database.execute(query, (id_,)).fetchone()
        failed = None if row is None or id_ in self._gone else _read(row)
        if failed is not None:
            self.left -= id_ > self._after and row[1] < self.run and not failed.unparsed
            self.remove(id_, failed)
        return failed

    def remove(self, id_: int, failed: FailedPage) -> None:
        """Remove a request."""
        self._gone.add(id_)
        self._count(failed, -1)

    def _count(self, failed: FailedPage, by: int) -> None:
        reasons = self.reasons[failed.unparsed]
        reasons[failed.kind] += by
        if not reasons[failed.kind]:
            del reasons[failed.kind]

    def stored(self) -> Iterator[tuple[int, FailedPage | None]]:
        """Yield all that is in the file, the oldest first; a damaged one is None."""
        query = f"SELECT {_COLUMNS} FROM failed ORDER BY id"
        for row in self._database.execute(query):
            yield row[0], _read(row)

    def write(self) -> tuple[Callable[[], None], int]:
        """Write all changes in the transaction that is open.

        :returns: what to call once it is committed, and the tally's change.
        """
        gone = ((id_,) for id_ in self._gone)
        self._database.executemany("DELETE FROM failed WHERE id = ?", gone)
        file.put(self._database, "failed", map(self._row, self._new, self._new.values()))
        change = sum(map(file.weight, self._new)) - sum(map(file.weight, self._gone))

        def committed() -> None:
            for each in self._gone, self._earlier, self._new:
                each.clear()

        return committed, change

    def _row(self, id_: int, failed: FailedPage) -> tuple[file.Value, ...]:
        kind, message, date, tries, _, unparsed, way, body = failed
        marks = json.dumps([mark.hex() for mark in way]) if way else ""
        run = self.run - (id_ in self._earlier)
        return id_, run, kind, message, date, tries, int(unparsed), marks, body


def _read(row: tuple[Any, ...]) -> FailedPage | None:
    *values, checksum = row
    if checksum != file.crc(*values):
        return None
    kind, message, date, tries, unparsed, way, body = values[2:]
    try:
        marks = _marks(way) if way else ()
        failed = FailedPage(kind, message, float(date), tries, "", bool(unparsed), marks, body)
    except STRANGE:
        return None
    is_whole = all(map(isinstance, (kind, message, tries, body), (str, str, int, bytes)))
    return failed if is_whole else None


def _marks(way: str) -> tuple[bytes, ...]:
    return (*map(bytes.fromhex, json.loads(way)),)
