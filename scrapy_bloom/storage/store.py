"""A local filter that a job keeps between its runs, never more durable than the job's queue.

Scrapy writes the state of its request queue only when a spider closes. If a kill destroyed a queued
request but not its mark, the page would be lost. So the filter, too, goes to the disk only when the
spider closes, and after a kill both are put aside: see `unclean`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.core.sizing import BLOCK_BYTES
from scrapy_bloom.core.state import FilterState
from scrapy_bloom.core.window import WindowedFilter
from scrapy_bloom.errors import JobInUseError, StateError
from scrapy_bloom.options import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
)
from scrapy_bloom.storage import scrapy_queue, seen_file
from scrapy_bloom.storage.files import remove
from scrapy_bloom.storage.marker import (
    MARKER,
    REQUESTS,
    SNAPSHOT,
    has_lost_requests,
    read_marker,
    write_marker,
    write_stopped,
)
from scrapy_bloom.storage.snapshot import (
    Identity,
    PendingSnapshot,
    Snapshot,
    check_window,
    read_head,
    read_snapshot,
    write_snapshot,
)
from scrapy_bloom.storage.unclean import is_plain, put_aside, why_unclean

logger = logging.getLogger(__name__)

LOCK: Final = "requests.bloom.lock"


class JobStore:
    """Holds a :class:`LocalFilter`, and the job directory that keeps it between runs.

    ``requests.bloom``
        The filter at the last clean stop.
    ``requests.bloom.running``
        Stands there while a run is on. A run that finds it knows that the last one was killed.
    ``requests.bloom.lock``
        Is locked while a run is on.

    :param folder: the job directory; made if it is not there. It is locked for this process.
    :param identity: what the filter belongs to.
    :param capacity: items in the first slice, and at least in each further one.
    :param error_rate: bound for the total error rate.
    :param digests: as for :class:`LocalFilter`; a stored filter keeps its own.
    :param on_growth: as for :class:`LocalFilter`.
    :param window: seconds that a mark is kept; None for ever. A stored filter must have the same.
    :param clock: tells the time in seconds since 1970.
    :param journaled: whether the marks since the last snapshot are kept with the requests, in
        ``requests.sqlite``. No kill can part them then, and :meth:`close` stores nothing:
        :meth:`freeze` does.
    :raises JobInUseError: if another process holds the job directory.
    :raises StateError: if the folder or what is in it cannot be used, or should have been put aside
        by :func:`put_aside_if_unclean`; nothing is changed.

    Attributes:
        filter: the filter.
        folder: the job directory.
        identity: what the filter belongs to.
        generation: how many snapshots it has had.
        restored: how many fingerprints it started with.
        restored_from: name of the file that they came from, empty if there was none.
        filled_with: what the restored fingerprints were made with, as in its `identity`; empty if
            there are none of ours.
    """

    filter: LocalFilter

    def __init__(  # noqa: PLR0913 - one for each thing that users may choose
        self,
        folder: Path,
        identity: Identity,
        *,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        digests: bool = True,
        on_growth: Callable[[int], object] | None = None,
        window: float | None = None,
        clock: Callable[[], float] = time.time,
        journaled: bool = False,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self._journaled = journaled
        self._pid = os.getpid()
        self._lock = _take(folder, identity.spider)
        try:
            snapshot = self._look(window)
            self.filter = make_filter(
                snapshot.state if snapshot else None,
                capacity=capacity,
                error_rate=error_rate,
                digests=digests,
                on_growth=on_growth,
                window=window,
                clock=clock,
            )
            if snapshot and not self._has_requests():
                # Else the fingerprints to be let through, too, are in the store of the requests.
                self.filter.forget_many(snapshot.withdrawn)
            self._start(snapshot)
        except OSError as error:
            self.release()
            raise unusable(folder, error) from error
        except BaseException:
            self.release()
            raise

    def close(self) -> None:
        """Store the filter and leave the job directory to others. A second call does nothing.

        In a process forked from the one that opened it nothing is stored: the job is not its own.

        :raises StateError: if the filter cannot be stored: the next run starts over then.
        """
        if os.getpid() != self._pid:
            logger.warning(
                "The filter in %(folder)s belongs to process %(pid)d, and this process is a fork of"
                " that one, so it stores nothing.",
                {"folder": self.folder, "pid": self._pid},
            )
            return
        if not self._lock.is_locked:
            return
        if self._journaled:
            with suppress(OSError):  # the marker only says whose the lock was
                remove(self.folder / MARKER)
            self.release()
            return
        path = self.folder / SNAPSHOT
        state = self.filter.state()
        try:
            queue = scrapy_queue.digest(self.folder)  # Scrapy has stored it before
            forgotten = self.filter.forgotten
            write_snapshot(
                path,
                Snapshot(
                    self.identity,
                    self.generation + 1,
                    state,
                    forgotten,
                    queue,
                ),
            )
            remove(self.folder / MARKER)
        except OSError as error:
            raise StateError(
                f"{path}: the filter could not be stored ({error.strerror}), so the next run starts"
                f" the crawl over. Make room, or give this user the right to write there, before it"
                f" starts."
            ) from error
        finally:
            self.release()

    @property
    def size(self) -> int:
        """How many bytes the filter takes in a file, at most."""
        return sum(slice_.spec.blocks for slice_ in self.filter.state().slices) * BLOCK_BYTES

    def mark_running(self, run: int = 0) -> None:
        """Say that a run of this process is on; a second process reads there whose it is.

        :param run: its number in the store of its requests.
        :raises OSError: if that cannot be written.
        """
        write_marker(self.folder, self.generation, run=run)

    def freeze(self, *, queue: str | None = None) -> PendingSnapshot:
        """Return the filter as it is now, to be stored beside the crawl.

        :param queue: Scrapy's queue, as for :class:`Snapshot`; None if it is not in use.
        """
        self.generation += 1
        snapshot = Snapshot(
            self.identity,
            self.generation,
            self.filter.state(),
            queue=queue or "",
            journaled=queue is None,
        )
        return PendingSnapshot(self.folder / SNAPSHOT, snapshot)

    def release(self) -> None:
        """Leave the job directory to others without storing anything, as a kill does."""
        _HELD_HERE.pop(self.folder.resolve(), None)
        self._lock.release()

    def _has_requests(self) -> bool:
        return (self.folder / REQUESTS).exists()

    def _look(self, window: float | None) -> Snapshot | None:
        """Return what to start from.

        :param window: as for the class.
        :raises StateError: if requests and marks of the job are not where this run keeps them, if
            they do not fit each other, or if the filter has another window.
        """
        folder = self.folder
        requests = folder / REQUESTS
        if self._has_requests() and not self._journaled:
            raise StateError(
                f"{requests}: found the requests of a crawl with scrapy_bloom.Scheduler, which this"
                f" crawl would not fetch. Set SCHEDULER = 'scrapy_bloom.Scheduler', or choose"
                f" another JOBDIR. It was left as it is."
            )
        snapshot = read_snapshot(folder / SNAPSHOT, self.identity)
        if snapshot:
            check_window(folder / SNAPSHOT, snapshot.state.window, window)
        if self._has_requests():
            return snapshot
        if has_lost_requests(folder, snapshot):
            raise StateError(
                f"{requests}: found no file, expected the requests of this job: without them,"
                f" those that {SNAPSHOT} calls seen would never be fetched. Put it back, or"
                f" delete the whole job directory to start afresh."
            )
        if is_plain(folder) and (why := why_unclean(folder)):
            raise StateError(
                f"{folder}: {why}, and Scrapy has opened its queue already. It was left as it"
                f" is. Start the crawl again: filter and queue are put aside then, and the"
                f" crawl starts over."
            )
        if not snapshot and self._journaled and (why := seen_file.why_unclean(folder)):
            raise StateError(
                f"{folder}: found a crawl of Scrapy's own scheduler that was killed, or still runs:"
                f" {why}. Only one that has stopped cleanly can be taken over. It was left as it"
                f" is. To crawl again from the start, choose another JOBDIR."
            )
        return snapshot

    def _start(self, snapshot: Snapshot | None) -> None:
        self.restored_from = ""
        self.filled_with: Mapping[str, Any] = {}
        self.generation = 0
        if snapshot:
            self.restored_from = SNAPSHOT
            self.filled_with = snapshot.identity.canonical
            self.generation = snapshot.generation
        elif seen_file.exists(self.folder) and not self._has_requests():
            self._start_beside_seen_file()
        self.restored = self.filter.state().items
        if not self._journaled:
            self.mark_running()

    def _start_beside_seen_file(self) -> None:
        """Take over the marks of Scrapy's own filter, if its requests are taken over as well."""
        if not self._journaled:
            logger.warning(
                "%s: the marks of Scrapy's own filter stay unread, so pages are fetched again."
                " SCHEDULER = 'scrapy_bloom.Scheduler' takes them over.",
                self.folder / seen_file.NAME,
            )
            return
        for fingerprint in seen_file.read_seen_file(self.folder):
            self.filter.add(fingerprint)
            self.restored_from = seen_file.NAME


def make_filter(
    state: FilterState | None,
    *,
    capacity: int,
    error_rate: float,
    digests: bool,
    on_growth: Callable[[int], object] | None,
    window: float | None,
    clock: Callable[[], float] = time.time,
) -> LocalFilter:
    """Return a filter with what is stored, if anything is; arguments as for :class:`JobStore`."""
    if window is None:
        if state is None:
            return LocalFilter(
                capacity, error_rate, digests=digests, on_growth=on_growth, clock=clock
            )
        return LocalFilter.from_state(state, capacity, error_rate, on_growth=on_growth, clock=clock)
    if state is None:
        return WindowedFilter(
            window, capacity, error_rate, digests=digests, on_growth=on_growth, clock=clock
        )
    return WindowedFilter.windowed_from_state(
        state, capacity, error_rate, on_growth=on_growth, clock=clock
    )


def put_aside_if_unclean(folder: Path, spider: str, *, filter_too: bool = True) -> bool:
    """Put a job of our filter aside if its queue may have lost requests; return whether it was.

    To be called before Scrapy's scheduler is opened, which opens its queue before the filter. A
    job directory that our filter has never used is not touched.

    :param filter_too: whether the filter is in the job directory as well.
    :raises JobInUseError: if another process holds the job directory.
    :raises StateError: if what is there cannot be read or moved.
    """
    try:
        if not is_plain(folder):
            return False
        if not filter_too and (folder / SNAPSHOT).exists():
            return False  # which is refused when the filter is opened
        with holding(folder, spider):
            head = read_head(folder / SNAPSHOT)
            if head and head.identity.spider != spider:
                return False  # which is refused when the filter is opened
            why = why_unclean(folder)
            if not why:
                return False
            aside = put_aside(folder, filter_too=filter_too)
    except OSError as error:
        raise unusable(folder, error) from error
    logger.warning(
        "%s: %s. Scrapy's queue may have lost requests, so the crawl starts over: no page is lost,"
        " but all are fetched again. The old files are in %s. With"
        " SCHEDULER = 'scrapy_bloom.Scheduler' the crawl would have resumed.",
        folder,
        why,
        aside,
    )
    return True


class JobHold:
    """Holds a job directory whose filter is elsewhere, and notes in it that a run is on.

    In a process forked from the one that made it nothing is done.

    :raises JobInUseError: if another process holds it.
    :raises StateError: if it cannot be held.

    Attributes:
        is_first: whether there is no sign of an earlier run.
    """

    def __init__(self, folder: Path, spider: str) -> None:
        self._folder = folder
        self._pid = os.getpid()
        self._lock = _take(folder, spider)
        try:
            self.is_first = not is_plain(folder)
            write_marker(folder, 0)
        except OSError as error:
            self.release()
            raise unusable(folder, error) from error

    def note_clean_stop(self) -> None:
        """Note that the run stops cleanly, and how Scrapy has stored its queue.

        If that fails, the next run starts over.
        """
        if os.getpid() == self._pid:
            with suppress(OSError):
                write_stopped(self._folder, scrapy_queue.digest(self._folder))
                remove(self._folder / MARKER)

    def take_back(self) -> None:
        """Leave the notes as they were before, since the run does not come about."""
        with suppress(OSError):
            remove(self._folder / MARKER)

    def release(self) -> None:
        """Leave the job directory to others."""
        if os.getpid() == self._pid:
            _HELD_HERE.pop(self._folder.resolve(), None)
            self._lock.release()


_HELD_HERE: Final[dict[Path, str]] = {}
"""The job directories that this process holds, and the spider of each."""


def _lock_of(folder: Path) -> FileLock:
    # Not bound to a thread: Scrapy may close the filter in another thread than it opened it in.
    return FileLock(folder / LOCK, timeout=0, thread_local=False)


def _take(folder: Path, spider: str) -> FileLock:
    """Lock the job directory for a spider of this process."""
    lock = _lock_of(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        holder = read_marker(folder)
        other = _HELD_HERE.get(folder.resolve())
        if other and (holder is None or holder.pid == os.getpid()):
            raise JobInUseError(
                f"{folder}: spider {other!r} of this process is using this job directory. Only one"
                f" crawl at a time can use it. Give each spider its own JOBDIR."
            ) from None
        who = f"process {holder.pid} on {holder.host}" if holder else "another process"
        raise JobInUseError(
            f"{folder}: {who} is using this job directory. Only one crawl at a time can use it."
            f" Wait until it has stopped; a crawl can have another JOBDIR."
        ) from None
    except OSError as error:
        raise unusable(folder, error) from error
    _HELD_HERE[folder.resolve()] = spider
    return lock


@contextmanager
def holding(folder: Path, who: str) -> Iterator[None]:
    """Hold a job directory as a crawl does, so that none can start in it; makes the directory.

    :param who: what holds it, for the messages of others in this process.
    :raises JobInUseError: if a crawl holds it.
    :raises StateError: if it cannot be held.
    """
    lock = _take(folder, who)
    try:
        yield
    finally:
        _HELD_HERE.pop(folder.resolve(), None)
        lock.release()


def unusable(folder: Path, error: OSError) -> StateError:
    """Return what to tell the user about a job directory that cannot be used."""
    return StateError(
        f"{error.filename or folder}: {error.strerror}. Expected a job directory in which this user"
        f" can write; give it those rights or choose another JOBDIR. Nothing in it was changed."
    )
