"""Transactions that write to the file of a job: each is one commit, or nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os.path import samestat
from pathlib import Path

from scrapy_bloom import file
from scrapy_bloom.errors import JobInUseError, StateError
from scrapy_bloom.file import Counters


class Transactions:
    """Writes to a file that stays where it is, and to which nobody else writes.

    :param path: of the file.
    :param database: a connection to it.
    :param commits: how many there were so far.
    :param tally: as of the last one, see :func:`file.tally`.

    Attributes:
        commits: how many there were so far.
    """

    def __init__(self, path: Path, database: sqlite3.Connection, commits: int, tally: int) -> None:
        self._path, self._database = path, database
        self.commits, self._tally = commits, tally
        self._place = path.stat()
        self._syncs: bool | None = None  # whether the connection syncs each commit

    @contextmanager
    def begin(
        self, clean: int, request: int, slice_: int, *, sync: bool | None
    ) -> Iterator[Callable[[int], None]]:
        """Write what the block writes, or nothing; what is yielded takes changes of the tally.

        :param clean: see :class:`Counters`, as the next two.
        :param request: the number of the next request.
        :param slice_: that of the next slice.
        :param sync: whether to sync to disk; None: as the last one.
        :raises sqlite3.Error: if it cannot be written.
        :raises StateError: if the file was moved or deleted.
        :raises JobInUseError: if another process has written to it.
        """
        database, changes = self._database, [self._tally]
        self._check_place()
        if database.in_transaction:
            database.execute("ROLLBACK")
        if sync is not None and sync is not self._syncs:  # each costs as much as a small commit
            database.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}").fetchone()
            database.execute(f"PRAGMA fullfsync = {int(sync)}").fetchone()  # needed on macOS
            self._syncs = sync
        database.execute("BEGIN IMMEDIATE")
        try:
            self._check_alone()
            yield changes.append
            counters = Counters(self.commits + 1, clean, request, slice_)
            file.put_counters(database, counters, sum(changes))
            database.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # the next commit retries it
                database.execute("ROLLBACK")
            raise
        self.commits, self._tally = self.commits + 1, sum(changes)

    def _check_place(self) -> None:
        """Check that the file is still where it was: elsewhere a commit would be of no use."""
        try:
            there = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            there = None
        if there is None or not samestat(there, self._place):
            raise StateError(
                f"{self._path}: found {'another file' if there else 'no file'}, expected the one"
                f" that this crawl has opened: it was moved or deleted. Nothing more is stored."
                f" Start the crawl again where it is now, with all files of its job directory; if"
                f" they are gone, restore them from a copy, or start over."
            )

    def _check_alone(self) -> None:
        """Check that nobody else has written to the file, because the lock was deleted, say."""
        found = file.read_counters(self._database).commits
        if found != self.commits:
            raise JobInUseError(
                f"{self._path}: found {found:,} commits, expected {self.commits:,}: another process"
                f" writes to it as well. This one ends and stores nothing more. Run one crawl at a"
                f" time, on a local disk, and leave bloom.lock alone."
            )
