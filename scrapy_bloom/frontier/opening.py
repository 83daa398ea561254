"""What a run does with the job directory before its first request."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue

from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.frontier import file, spider_state
from scrapy_bloom.frontier.local import CLEAN, UNDER_WAY
from scrapy_bloom.frontier.migration import remove_queue, take_over
from scrapy_bloom.frontier.requests import QueueKind
from scrapy_bloom.frontier.store import Store
from scrapy_bloom.frontier.upkeep import GENERATION
from scrapy_bloom.storage import scrapy_queue
from scrapy_bloom.storage.marker import REQUESTS, SNAPSHOT, read_marker
from scrapy_bloom.storage.snapshot import Identity, check_identity, check_window
from scrapy_bloom.storage.store import JobStore

logger = logging.getLogger(__name__)

IDENTITY: Final = "identity"
"""Key of a note: what the marks belong to, as JSON."""

WINDOW: Final = "window"
"""Key of a note: for how many seconds the marks are kept; empty for ever."""

_RUN: Final = "run"
_SILENT: Final = 3.0  # seconds


@dataclass(frozen=True)
class Found:
    """What earlier runs left.

    Attributes:
        waiting: requests that are not done.
        under_way: how many of them were under way when the last run was killed.
        killed: whether it was.
        taken_over: how many of them were in Scrapy's own queue.
        filled_with: what the marks were made with, as in an identity.
    """

    waiting: int
    under_way: int
    killed: bool
    taken_over: int
    filled_with: dict[str, Any]

    def __str__(self) -> str:
        if not self.waiting:
            return "no requests waiting"
        text = f"{self.waiting:,} requests waiting"
        if self.taken_over:
            text += f", {self.taken_over:,} of them from Scrapy's {scrapy_queue.NAME}"
        if self.killed:
            text += f", {self.under_way:,} of them were under way and are fetched again"
        return text


def open_store(
    job: JobStore, plain: QueueKind, start: QueueKind | None, *, every_commit: bool
) -> tuple[Store, Found]:
    """Open the store of a job; make it in the job's first run.

    :param plain: what Scrapy's own queue was written by, if there is one to take over.
    :param start: likewise for start requests; None if they are among the others.
    :param every_commit: whether each commit goes to the disk itself.
    :raises StateError: if something cannot be used. It is left as it is.
    """
    path = job.folder / REQUESTS
    taken_over = None  # not the first run
    try:
        if not path.exists():
            taken_over = _create(path, job, plain, start)
        store = Store(path, every_commit=every_commit)
        try:
            found = _look(store, job, taken_over)
            spider_state.restore(store, job.folder, killed=found.killed)
            job.mark_running(_begin_run(store, job.folder))
        except BaseException:
            store.abandon()
            raise
    except OSError as error:
        raise StateError(
            f"{error.filename or path}: {error.strerror}. Expected a job directory in which this"
            f" user can write, with room on the disk. What is in it was left as it is."
        ) from error
    except sqlite3.Error as error:
        raise file.unusable(path, error) from error
    return store, found


class Restores(Protocol):
    """A filter that takes over what an earlier run has added."""

    def restore(self, fingerprints: Iterable[bytes], since: float | None = None) -> bool:
        """Add marks of a generation that began then, or nobody knows when; False if it is over."""

    def restore_ages(self, ages: Mapping[bytes, float]) -> None:
        """Take over when pages with a greatest age were last let through."""


def replay(
    store: Store,
    into: Restores,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Give all marks of the journal to a filter; return how many of them are not over.

    What takes more than a few seconds shows its progress in the log.

    :param clock: tells the time in seconds.
    :raises StateError: if the journal is damaged.
    """
    total, done, live, last = store.journal, 0, 0, clock()
    try:
        into.restore_ages(store.ages())
        for batch, since in store.marks():
            if into.restore(batch, since):
                live += len(batch)
            done += len(batch)
            if clock() - last > _SILENT:
                last = clock()
                logger.info("%s: %s of %s marks read", store.path, f"{done:,}", f"{total:,}")
    except sqlite3.Error as error:
        raise file.unusable(store.path, error) from error
    return live


def start_priorities(store: Store, queue_class: type[Any]) -> Any:
    """Return the state from which one of Scrapy's priority queues opens the queues in a store.

    :raises SettingError: if it is none of Scrapy's, nor derived from one.
    :raises StateError: if the requests were stored by the other one.
    """
    by_slot = issubclass(queue_class, DownloaderAwarePriorityQueue)
    if not by_slot and not issubclass(queue_class, ScrapyPriorityQueue):
        raise SettingError(
            f"SCHEDULER_PRIORITY_QUEUE = '{queue_class.__module__}.{queue_class.__qualname__}':"
            f" scrapy_bloom.Scheduler knows Scrapy's two priority queues and what is derived from"
            f" them. Give one of these."
        )
    slots: dict[str | None, set[int]] = {}
    for path, slot in store.paths().items():
        if (slot is not None) != by_slot:
            raise _other_queues(store)
        slots.setdefault(slot, set()).add(int(path.rpartition("/")[2].rstrip("s")))
    if by_slot:
        return {slot: sorted(priorities) for slot, priorities in slots.items()}
    return sorted(slots.get(None, ()))


def check_complete(store: Store, queue: Any) -> None:
    """Look whether the priority queue has found all requests of the store.

    :raises StateError: if some are in queues that it does not open.
    """
    if len(queue) != len(store):
        raise _other_queues(store)


def identity_of(store: Store) -> Identity:
    """Return what the marks of a store belong to.

    :raises ValueError: if it is not noted in a way that makes sense.
    :raises TypeError: likewise.
    """
    return Identity(**json.loads(str(store.noted(IDENTITY))))


def window_of(noted: object) -> float | None:
    """Return the window that a note tells of.

    :raises ValueError: if it makes no sense.
    """
    return float(str(noted)) if noted else None


def _other_queues(store: Store) -> StateError:
    return StateError(
        f"{store.path}: found requests in queues that this run would not read, expected those of"
        f" its settings. It was left as it is. Give SCHEDULER_PRIORITY_QUEUE and"
        f" SCHEDULER_START_DISK_QUEUE the values that they had in the last run."
    )


def _create(path: Path, job: JobStore, plain: QueueKind, start: QueueKind | None) -> int:
    """Make the store with what earlier runs with Scrapy's own queue have left."""
    if job.restored and job.restored_from != SNAPSHOT:
        # The store has only the marks since a snapshot: so these must be in one.
        snapshot = job.freeze(queue=scrapy_queue.digest(job.folder))
        snapshot.write()
        snapshot.put_in_place()
    count = 0

    def fill(beside: Path) -> None:
        nonlocal count
        count = take_over(job.folder, beside, plain, start)
        store = Store(beside)
        store.note(IDENTITY, json.dumps(asdict(job.identity)))
        store.note(WINDOW, "" if job.filter.window is None else repr(job.filter.window))
        store.note(GENERATION, job.generation)
        store.note(CLEAN, 1)
        store.withhold(job.filter.forgotten)
        store.commit()
        store.close()

    file.create(path, fill)
    remove_queue(job.folder)
    return count


def _begin_run(store: Store, folder: Path) -> int:
    """Note the number of this run in the store, and return it; warn if the last one is missing.

    The commits of a run are in the log until a checkpoint. The marker outlives a kill beside it.
    """
    try:
        last, marker = int(str(store.noted(_RUN) or 0)), read_marker(folder)
    except ValueError as error:
        raise file.damaged(store.path, f"notes that make no sense, {error!r}") from error
    if marker and marker.run > last:
        logger.warning(
            "%s: found nothing of what the last run (process %d) has stored, expected it in"
            " %s-wal. It was deleted, or a power failure took it. The crawl goes on from an earlier"
            " commit: no page is lost, but more are fetched again.",
            store.path,
            marker.pid,
            store.path.name,
        )
        last = marker.run
    store.note(_RUN, last + 1)
    store.note(CLEAN, 0)
    try:
        store.commit()
    except sqlite3.Error:  # the disk is full, say; it is said when it matters
        return 0
    return last + 1


def _look(store: Store, job: JobStore, taken_over: int | None) -> Found:
    """Look whether store and filter belong together and to this crawl.

    :param taken_over: how many requests were taken over in the job's first run, None in any other.
    """
    try:
        identity, window = identity_of(store), window_of(store.noted(WINDOW))
        generation = int(str(store.noted(GENERATION)))
        killed = not int(str(store.noted(CLEAN)))
        under_way = int(str(store.noted(UNDER_WAY) or 0)) if killed else 0
    except (TypeError, ValueError) as error:
        raise file.damaged(store.path, f"notes that make no sense, {error!r}") from error
    check_identity(store.path, identity, job.identity)
    check_window(store.path, window, job.filter.window)
    if job.generation > generation:
        raise StateError(
            f"{store.path}: found requests that are older than {SNAPSHOT}, expected newer ones: it"
            f" calls pages seen whose requests are not here. It was left as it is. Put back both"
            f" files of the same time; or delete {SNAPSHOT}, and pages are fetched again."
        )
    if taken_over is None and generation and job.restored_from != SNAPSHOT:
        logger.warning(
            "%s: found no %s, so marks are missing. No page is lost, but some are fetched again.",
            job.folder,
            SNAPSHOT,
        )
    if dict(identity.canonical) != dict(job.identity.canonical):
        store.note(IDENTITY, json.dumps(asdict(job.identity)))
    return Found(len(store), under_way, killed, taken_over or 0, dict(identity.canonical))
