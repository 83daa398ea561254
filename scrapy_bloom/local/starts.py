"""Start requests that are not filtered: each is one page, although it comes with each run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Final

from scrapy_bloom import file

ONLY_COUNTED: Final = 0
UNSTORED_DONE: Final = -1
"""In place of a row: its request was not stored."""

_DONE = """
SELECT id FROM starts WHERE row AND row NOT IN (SELECT id FROM requests)
  AND row NOT IN (SELECT id FROM failed)
"""


class Starts:
    """By their ids, the rows of a job's start requests that are not filtered, in a table.

    A row is where the request was last: it waits there, is in flight, has failed, or is done. What
    changes is collected in memory; :meth:`write` writes it.

    :param database: the file.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._new: dict[bytes, int] = {}

    def done(self) -> Iterator[bytes]:
        """Yield those in the file that are done."""
        return (id_ for (id_,) in self._database.execute(_DONE))

    def __getitem__(self, id_: bytes) -> int | None:
        """Return its last row, or one of the above; None if it never came."""
        if id_ in self._new:
            return self._new[id_]
        found = self._database.execute("SELECT row FROM starts WHERE id = ?", (id_,)).fetchone()
        return int(found[0]) if found else None

    def __setitem__(self, id_: bytes, row: int) -> None:
        self._new[id_] = row

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._new)

    def write(self) -> Callable[[], None]:
        """Write all changes in the transaction that is open.

        :returns: what to call once it is committed.
        """
        file.put(self._database, "starts", self._new.items())
        return self._new.clear
