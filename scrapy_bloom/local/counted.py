"""Start requests that are not filtered: each counts once, although it comes with each run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

from scrapy_bloom import file


class Counted:
    """Their marks, in a table of its own.

    Changes are collected in memory; :meth:`write` writes them.

    :param database: the file.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._new: dict[bytes, None] = {}

    def __contains__(self, mark: bytes) -> bool:
        """Return whether a request was counted."""
        if mark in self._new:
            return True
        asked = "SELECT 1 FROM starts WHERE mark = ?"
        return self._database.execute(asked, (mark,)).fetchone() is not None

    def __iter__(self) -> Iterator[bytes]:
        """Yield the marks that are in the file."""
        return (mark for (mark,) in self._database.execute("SELECT mark FROM starts"))

    def add(self, mark: bytes) -> bool:
        """Count a request; return whether it was counted before."""
        if mark in self:
            return True
        self._new[mark] = None
        return False

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._new)

    def write(self) -> Callable[[], None]:
        """Write all changes in the transaction that is open.

        :returns: what to call once it is committed.
        """
        new = [*self._new]
        file.put(self._database, "starts", ((mark,) for mark in new))

        def keep() -> None:
            for mark in new:
                del self._new[mark]

        return keep
