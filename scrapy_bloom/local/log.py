"""SQLite's log beside the file of a store: whether it is whole, and when it is checkpointed."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Final

from scrapy_bloom import file

CHECKPOINT_COMMITS: Final = 100
"""Commits between checkpoints, which copy the log into the file and sync both."""

LOG_BYTES: Final = 16 << 20
"""A longer log is checkpointed at once. At four times this size, a commit waits for that, and at
twice this size a crawl does, beside the event loop."""

TRUNCATED_BYTES: Final = 4 << 20
"""A log that is restarted is truncated to this size."""


class Log:
    """The log of one file, which must have been opened at least once.

    A checkpoint copies the log into the file, page by page, and the counters first. If it was
    interrupted the log is needed, because other pages of the file are older; whether it was needed
    and is gone shows :func:`file.check_tally`.

    :param path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: Thread | None = None

    def check(self, database: sqlite3.Connection) -> None:
        """Check that no commit of the log is missing, by reading only.

        SQLite ignores the log after a damaged frame. But later frames may be in the file already,
        where older pages from before the damage would hide them.

        :param database: the file, with its log.
        :raises DamageError: if one is missing.
        """
        before, connected = 0, closing(file.connect(self._path, "immutable"))
        with suppress(sqlite3.Error, ValueError), connected as without_log:
            # An interrupted checkpoint leaves a file that is shorter than its header says, and
            # with a power failure half a page: then the log has the whole one.
            without_log.execute("PRAGMA writable_schema = ON")  # else SQLite reports damage
            before = file.read_counters(without_log).commits
        if file.read_counters(database).commits < before:
            raise file.DamageError(f"{self._path.name}-wal has lost commits")

    def checkpoint_if_due(self, commits: int) -> None:
        """Checkpoint the log now and then, and at once if it is long.

        :param commits: how many there were so far.
        """
        size = file.log_size(self._path)
        running = self._thread is not None and self._thread.is_alive()
        if size > 4 * LOG_BYTES:  # costs little if a reader blocks it
            self.catch_up()
        elif not running and (size > LOG_BYTES or commits % CHECKPOINT_COMMITS == 0):
            self._thread = Thread(target=self.checkpoint, daemon=True)
            self._thread.start()

    def checkpoint(self) -> None:
        """Copy the log into the file, as far as readers allow. May run in a thread."""
        with suppress(OSError, sqlite3.Error), closing(file.connect(self._path, "rw")) as database:
            database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    @property
    def is_long(self) -> bool:
        """Whether what writes to it should wait for :meth:`catch_up`."""
        return file.log_size(self._path) > 2 * LOG_BYTES

    def catch_up(self) -> None:
        """Wait until what is in the log by now is in the file, as far as readers allow."""
        self.wait()
        self.checkpoint()

    def wait(self) -> None:
        """Wait for the checkpoint thread, if one is running."""
        if self._thread is not None:
            self._thread.join()
