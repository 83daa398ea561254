"""The failed list of a job: requests that failed, each with its reason, in a table of its own.

A request moves there in the commit that would have deleted its row. The next run puts it back, in
the commit that deletes it here.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from scrapy_bloom import file
from scrapy_bloom.crawl.failed import Failed
from scrapy_bloom.crawl.outcomes import MOST_RUNS

_COLUMNS: Final = "id, run, kind, message, date, tries, body, crc"
_LAST: Final = 2**63 - 1  # the highest id


def reasons_in(database: sqlite3.Connection) -> Counter[str]:
    """Return how many requests have failed for each reason."""
    kinds = database.execute("SELECT kind, count(*) FROM failed GROUP BY kind")
    return Counter(dict(kinds))


class FailedList:
    """The failed list of a job. Changes are collected in memory; :meth:`write` writes them.

    :param database: the file.

    Attributes:
        run: the number of this run. What failed in it is left alone.
        reasons: how many requests have failed for each reason.
        left: how many requests this run has yet to put back.
    """

    def __init__(self, database: sqlite3.Connection, run: int) -> None:
        self._database, self.run = database, run
        self.reasons = reasons_in(database)
        due = "SELECT count(*) FROM failed WHERE run < ? AND tries < ?"
        (self.left,) = database.execute(due, (run, MOST_RUNS)).fetchone()
        self._new: dict[int, Failed] = {}
        self._gone: set[int] = set()
        self._after = -1  # ids up to this one were put back, or cannot be read

    def __len__(self) -> int:
        """Return how many requests are on it."""
        return self.reasons.total()

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._new or self._gone)

    def add(self, id_: int, failed: Failed) -> None:
        """Add a request.

        :param id_: of its row among those that are not done.
        """
        self._new[id_] = failed
        self.reasons[failed.kind] += 1

    def pop_due(self) -> tuple[int, Failed | None] | None:
        """Return the next request of an earlier run to be put back; None if there is none.

        Call :meth:`remove` if it was put back; else it stays. A damaged one is None itself.

        :raises sqlite3.Error: if it cannot be read.
        """
        asked = (
            f"SELECT {_COLUMNS} FROM failed WHERE id > ? AND run < ? AND tries < ? ORDER BY id"
            " LIMIT 1"
        )
        bounds = self.run, MOST_RUNS
        while row := self._database.execute(asked, (self._after, *bounds)).fetchone():
            self._after = row[0]
            if row[0] not in self._gone:
                self.left -= 1
                return row[0], _read(row)
        self._after, self.left = _LAST, 0  # or each call would look through all that have failed
        return None

    def take(self, id_: int) -> Failed | None:
        """Remove and return a request; None if it is not there, or damaged."""
        if id_ in self._new:
            self._uncount(new := self._new.pop(id_))
            return new
        asked = f"SELECT {_COLUMNS} FROM failed WHERE id = ?"
        row = self._database.execute(asked, (id_,)).fetchone()
        failed = None if row is None or id_ in self._gone else _read(row)
        if failed is not None:
            self.left -= id_ > self._after and row[1] < self.run and failed.tries < MOST_RUNS
            self.remove(id_, failed)
        return failed

    def remove(self, id_: int, failed: Failed) -> None:
        """Remove a request."""
        self._gone.add(id_)
        self._uncount(failed)

    def _uncount(self, failed: Failed) -> None:
        self.reasons[failed.kind] -= 1
        if not self.reasons[failed.kind]:
            del self.reasons[failed.kind]

    def stored(self) -> Iterator[tuple[int, Failed | None]]:
        """Yield all that is in the file, the oldest first; a damaged one is None."""
        asked = f"SELECT {_COLUMNS} FROM failed ORDER BY id"
        for row in self._database.execute(asked):
            yield row[0], _read(row)

    def write(self) -> Callable[[], None]:
        """Write all changes in the transaction that is open.

        :returns: what to call once it is committed.
        """
        gone = ((id_,) for id_ in self._gone)
        self._database.executemany("DELETE FROM failed WHERE id = ?", gone)
        rows = ((id_, self.run, *each[:4], each.body) for id_, each in self._new.items())
        file.put(self._database, "failed", rows)

        def keep() -> None:
            self._gone.clear()
            self._new.clear()

        return keep


def _read(row: tuple[object, ...]) -> Failed | None:
    *values, checksum = row
    if checksum != file.crc(*values):  # type: ignore[arg-type]
        return None
    _, _, kind, message, date, tries, body = values
    return Failed(kind, message, date, tries, "", body)  # type: ignore[arg-type]
