"""Start requests that are not filtered: each is one page, although it comes with each run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

from scrapy_bloom import file

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
        """Return where one was last, 0 if it is only counted, None if it never came."""
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
