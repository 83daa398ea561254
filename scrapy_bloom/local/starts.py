"""Start requests that are not filtered: each is one page, although it comes with each run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from scrapy_bloom import file


class Start(NamedTuple):
    """What is known of a start request.

    Attributes:
        row: of the request, which waits, is in flight or has failed; or where it was; 0 if unknown.
        done: whether it counts as done; not if it has not ended since it came last.
    """

    row: int = 0
    done: bool = False


_UNKNOWN: Final = Start()


class Starts:
    """The start requests of a job that are not filtered, by their ids, in a table of its own.

    Changes are collected in memory; :meth:`write` writes them.

    :param database: the file.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._new: dict[bytes, Start] = {}

    def __iter__(self) -> Iterator[tuple[bytes, Start]]:
        """Yield what is in the file."""
        rows = file.rows(self._database, "starts")
        return ((id_, Start(row, bool(done))) for id_, row, done in rows)

    def __getitem__(self, id_: bytes) -> Start:
        """Return what is known of one."""
        if id_ in self._new:
            return self._new[id_]
        asked = "SELECT row, done FROM starts WHERE id = ?"
        row, done = self._database.execute(asked, (id_,)).fetchone() or _UNKNOWN
        return Start(row, bool(done))

    def __setitem__(self, id_: bytes, start: Start) -> None:
        self._new[id_] = start

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._new)

    def write(self) -> Callable[[], None]:
        """Write all changes in the transaction that is open.

        :returns: what to call once it is committed.
        """
        rows = ((id_, start.row, int(start.done)) for id_, start in self._new.items())
        file.put(self._database, "starts", rows)
        return self._new.clear
