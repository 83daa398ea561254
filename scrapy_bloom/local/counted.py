"""Start requests that are not filtered: each counts once, although it comes with each run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

from scrapy_bloom import file


class Counted:
    """As what those that have ended count, by their marks, in a table of its own.

    Changes are collected in memory; :meth:`write` writes them.

    :param database: the file.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._new: dict[bytes, str | None] = {}

    def __iter__(self) -> Iterator[tuple[bytes, str]]:
        """Yield what is in the file."""
        return file.rows(self._database, "starts")

    def get(self, mark: bytes) -> str | None:
        """Return as what a request counts; None if it has not ended since it came last."""
        if mark in self._new:
            return self._new[mark]
        asked = "SELECT ended FROM starts WHERE mark = ?"
        found = self._database.execute(asked, (mark,)).fetchone()
        return None if found is None else str(found[0])

    def set(self, mark: bytes, ended: str | None) -> None:
        """Note as what a request counts; None if it comes again."""
        self._new[mark] = ended

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._new)

    def write(self) -> Callable[[], None]:
        """Write all changes in the transaction that is open.

        :returns: what to call once it is committed.
        """
        new = {**self._new}
        gone = ((mark,) for mark, ended in new.items() if ended is None)
        self._database.executemany("DELETE FROM starts WHERE mark = ?", gone)
        ended = ((mark, ended) for mark, ended in new.items() if ended is not None)
        file.put(self._database, "starts", ended)

        def keep() -> None:
            for mark in new:
                del self._new[mark]

        return keep
