"""The failed list of a job: requests that failed, each with its reason, in a table of its own.

A request moves there in the commit that would have deleted its row. The next run puts it back, in
the commit that deletes it here.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from scrapy_bloom import file
from scrapy_bloom.crawl.failed import Failed
from scrapy_bloom.crawl.outcomes import MOST_TRIES

_COLUMNS: Final = "id, run, kind, message, date, tries, start, body, crc"
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
        (self.left,) = database.execute(due, (run, MOST_TRIES)).fetchone()
        self._new: dict[int, tuple[Failed, bytes | None]] = {}
        self._gone: dict[int, None] = {}
        self._after = -1  # ids up to this one were put back, or cannot be read
        starts = "SELECT start, id FROM failed WHERE start IS NOT NULL AND run < ? AND tries < ?"
        self._starts: dict[bytes, list[int]] = {}  # one page may have several callbacks
        for mark, id_ in database.execute(starts, (run, MOST_TRIES)):
            self._starts.setdefault(mark, []).append(id_)

    def __len__(self) -> int:
        """Return how many requests are on it."""
        return self.reasons.total()

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._new or self._gone)

    def add(self, id_: int, failed: Failed, start: bytes | None = None) -> None:
        """Add a request.

        :param id_: of its row among those that are not done.
        :param start: its mark, if ``start()`` yields it in each run.
        """
        self._new[id_] = failed, start
        self.reasons[failed.kind] += 1

    def due(self, most: int, *, starts: bool) -> Iterator[tuple[int, Failed | None]]:
        """Yield requests of earlier runs to be put back, each once; None if one is damaged.

        Call :meth:`remove` for those that were put back; the others stay.

        :param starts: whether ``start()`` is through: what it has not yielded again is put back.
        :raises sqlite3.Error: if they cannot be read.
        """
        asked = (
            f"SELECT {_COLUMNS} FROM failed WHERE id > ? AND run < ? AND tries < ?"
            " AND start IS NULL ORDER BY id LIMIT ?"
        )
        found = self._database.execute(asked, (self._after, self.run, MOST_TRIES, most)).fetchall()
        for row in found:
            self._after, self.left = row[0], self.left - 1
            yield row[0], _read(row)
        if not found:
            self._after = _LAST  # or each call would look through all that have failed
        if not found and starts:
            for mark in [*islice(self._starts, most)]:
                yield self._pop_start(mark)
            if not self._starts:
                self.left = 0

    def take_start(self, mark: bytes) -> Failed | None:
        """Remove and return a start request that has failed in an earlier run, if there is one."""
        if mark not in self._starts:
            return None
        id_, failed = self._pop_start(mark)
        if failed is not None:
            self.remove(id_, failed)
        return failed

    def _pop_start(self, mark: bytes) -> tuple[int, Failed | None]:
        id_ = self._starts[mark].pop(0)
        if not self._starts[mark]:
            del self._starts[mark]
        self.left -= 1
        asked = f"SELECT {_COLUMNS} FROM failed WHERE id = ?"
        return id_, _read(self._database.execute(asked, (id_,)).fetchone())

    def remove(self, id_: int, failed: Failed) -> None:
        """Remove a request."""
        self._gone[id_] = None
        self.reasons[failed.kind] -= 1
        if not self.reasons[failed.kind]:
            del self.reasons[failed.kind]

    def stored(self) -> Iterator[tuple[int, Failed | None, bytes | None]]:
        """Yield all that is in the file, the oldest first, with the marks of start requests.

        A damaged one is None.
        """
        asked = f"SELECT {_COLUMNS} FROM failed ORDER BY id"
        for row in self._database.execute(asked):
            yield row[0], _read(row), row[6]

    def retry(self, id_: int, failed: Failed, start: bytes | None) -> None:
        """Have the next run fetch a request again, as if it had never failed.

        Call it outside of a run.
        """
        self.remove(id_, failed)
        self.run = 0  # an earlier one than the next
        self.add(id_, failed.retried(), start)

    def write(self) -> Callable[[], None]:
        """Write all changes in the transaction that is open.

        :returns: what to call once it is committed.
        """
        gone, new = [*self._gone], {**self._new}
        self._database.executemany("DELETE FROM failed WHERE id = ?", ((id_,) for id_ in gone))
        rows = ((id_, self.run, *each[:4], start, each.body) for id_, (each, start) in new.items())
        file.put(self._database, "failed", rows)

        def keep() -> None:
            for id_ in gone:
                del self._gone[id_]
            for id_ in new:
                del self._new[id_]

        return keep


def _read(row: tuple[object, ...]) -> Failed | None:
    *values, checksum = row
    if checksum != file.crc(*values):  # type: ignore[arg-type]
        return None
    _, _, kind, message, date, tries, _, body = values
    return Failed(kind, message, date, tries, "", body)  # type: ignore[arg-type]
