"""What is done beside the crawl: snapshots of the filter, and commits brought into the file.

A snapshot must never hold a mark whose request could still be lost. It is made in these steps:

1. Remember the newest mark of the journal; freeze the filter. Blocks are shared with the crawl, so
   the snapshot may get marks that came later.
2. In a thread: write it to the disk, under another name.
3. Commit. Every mark that can be in the snapshot now has its request in the store.
4. In the thread: bring the commits to the disk, then give the snapshot its name.
5. Delete the journal up to the remembered mark, with the next commit.

A kill between two steps leaves the old snapshot with its whole journal, or the new one with more of
the journal than it needs.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Final, Protocol

from scrapy_bloom.frontier import file
from scrapy_bloom.frontier.store import Store

logger = logging.getLogger(__name__)

GENERATION: Final = "generation"
"""Key of a note: generation of the newest snapshot that may have its name."""

_COMMITS: Final = 100
_TRIES: Final = 10


class Frozen(Protocol):
    """A filter as it is at one moment, to be stored."""

    generation: int

    def write(self) -> None:
        """Write it to the disk under another name; in any thread."""

    def put_in_place(self) -> None:
        """Give it its name; in any thread."""

    def written(self) -> Mapping[str, str | bytes]:
        """Return notes to be committed when it is written, and before it has its name."""

    def placed(self) -> None:
        """Learn that it has its name, and that the notes are committed."""


class Task:
    """Something that is done beside the crawl. No exception is lost.

    Attributes:
        error: what it raised.
    """

    def __init__(self, do: Callable[[], None]) -> None:
        self.error: Exception | None = None
        self._do = do
        # Not to be waited for where a user wants the process to end at once.
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether it has ended, in one way or the other."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._do()
        except Exception as error:  # noqa: BLE001 - the crawl looks at it
            self.error = error


class Upkeep:
    """Makes snapshots and checkpoints, one at a time; to be stepped around each commit.

    :param freeze: returns the filter as it is now.
    :param journal: makes a snapshot when the journal has more marks than this.
    :param at_once: whether to make one as soon as possible.

    Attributes:
        due: whether a snapshot is needed that was not begun yet.
    """

    def __init__(
        self, store: Store, freeze: Callable[[], Frozen], journal: int, *, at_once: bool = False
    ) -> None:
        self._store = store
        self.due = at_once
        self._freeze = freeze
        self._journal = journal
        self._task: Task | None = None
        self._then: Callable[[], None] | None = None  # what comes after the task
        self._next: Callable[[], None] | None = None  # what comes after the next commit
        self._checkpointed = store.commits
        self._failed = False

    @property
    def busy(self) -> bool:
        """Whether something is going on."""
        return self._task is not None or self._next is not None

    @property
    def waits_for_commit(self) -> bool:
        """Whether something goes on after the next commit, even if there is nothing to write."""
        return self._next is not None

    def before_commit(self) -> None:
        """Look whether the thread has ended. To be called before each commit."""
        task = self._task
        if task is None or not task.ended:
            return
        self._task = None
        then, self._then = self._then, None
        if task.error is not None:
            self._say_failed(task.error)
            return
        self._failed = False
        if then is not None:
            then()

    def after_commit(self) -> None:
        """Go on, or begin something. To be called after each commit that was made."""
        if self._next is not None:
            do, self._next = self._next, None
            do()
        elif self._task is None:
            if (self.due or self._store.journal > self._journal) and not self._failed:
                self.begin_snapshot()
            elif self._store.commits - self._checkpointed >= _COMMITS:
                self._begin_checkpoint()

    def begin_snapshot(self) -> None:
        """Begin a snapshot; nothing else may be going on."""
        self.due = False
        newest = self._store.newest_mark()
        frozen = self._freeze()

        def written() -> None:
            self._store.note(GENERATION, frozen.generation)
            for key, value in frozen.written().items():
                self._store.note(key, value)
            self._next = place

        def place() -> None:
            self._start(lambda: self._place(frozen), placed)

        def placed() -> None:
            frozen.placed()
            self._store.forget(newest)

        self._start(frozen.write, written)

    def _begin_checkpoint(self) -> None:
        self._checkpointed = self._store.commits
        self._start(lambda: _ignore(file.checkpoint(self._store.path)), None)

    def _start(self, do: Callable[[], None], then: Callable[[], None] | None) -> None:
        self._then = then
        self._task = Task(do)

    def _place(self, frozen: Frozen) -> None:
        for _ in range(_TRIES):
            if file.checkpoint(self._store.path):
                frozen.put_in_place()
                return
        raise sqlite3.OperationalError("the commits do not get into the file: is it being read?")

    def _say_failed(self, error: Exception) -> None:
        if not self._failed:
            logger.warning(
                "%s: the filter could not be stored in mid-crawl (%s). Nothing is lost; the next"
                " start takes longer.",
                self._store.path,
                error,
            )
        self._failed = True


def _ignore(_: object) -> None:
    """Drop a value: a checkpoint that is not complete is followed by another one."""
