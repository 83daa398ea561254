"""A local filter that a job keeps between its runs, never more durable than the job's queue.

Scrapy writes the state of its request queue only when a spider closes. If a kill destroyed a queued
request but not its mark, the page would be lost. So the filter, too, goes to the disk only when the
spider closes: after a kill it is what it was at the last clean stop.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.core.sizing import BLOCK_BYTES
from scrapy_bloom.core.state import FilterState
from scrapy_bloom.core.window import WindowedFilter, filter_of
from scrapy_bloom.errors import JobInUseError, StateError
from scrapy_bloom.options import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    WINDOW,
    OnUnclean,
    in_settings,
    write_span,
)
from scrapy_bloom.storage import scrapy_queue, seen_file
from scrapy_bloom.storage.files import remove
from scrapy_bloom.storage.past import (
    MARKER,
    REQUESTS,
    SNAPSHOT,
    Past,
    has_lost_requests,
    is_begun,
    is_outdated,
    note_kill,
    read_marker,
    read_past,
    write_marker,
)
from scrapy_bloom.storage.queue_record import record_of
from scrapy_bloom.storage.recovery import Recovery, recover
from scrapy_bloom.storage.snapshot import (
    Identity,
    PendingSnapshot,
    Snapshot,
    read_head,
    read_snapshot,
    write_snapshot,
)

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
    :param on_unclean: what to do if the last run was killed.
    :param on_growth: as for :class:`LocalFilter`.
    :param window: seconds that a mark is kept; None for ever. A stored filter gets this window;
        if it had another one, or none, all that is in it counts as added now.
    :param clock: tells the time in seconds since 1970.
    :param journaled: whether the marks since the last snapshot are kept with the requests, in
        ``requests.sqlite``. No kill can part them then, so that no marker is looked for, and
        :meth:`close` stores nothing: :meth:`freeze` does.
    :raises JobInUseError: if another process holds the job directory.
    :raises UncleanStopError: if the last run was killed and `on_unclean` is ``fail``.
    :raises StateError: if the folder or what is in it cannot be used; nothing is changed.

    Attributes:
        filter: the filter.
        folder: the job directory.
        identity: what the filter belongs to.
        generation: how many snapshots it has had.
        restored: how many fingerprints it started with.
        restored_from: name of the file that they came from, empty if there was none.
        unclean: whether the run before this one was killed.
        redated: whether its marks count as of now because the window is another one. So does each
            later run see it until the filter is stored.
        window_before: that of the stored filter; None if it had none, or if there is none.
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
        on_unclean: OnUnclean = OnUnclean.ROLLBACK,
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
            past = self._look(on_unclean)
            self.filter = make_filter(
                past.snapshot.state if past.snapshot else None,
                capacity=capacity,
                error_rate=error_rate,
                digests=digests,
                on_growth=on_growth,
                window=window,
                clock=clock,
            )
            self.window_before = past.snapshot.state.window if past.snapshot else None
            self.redated = bool(past.snapshot) and self.window_before != window
            if past.snapshot:
                self.filter.forget_many(past.snapshot.withdrawn)
            self._start(past)
        except OSError as error:
            self.release()
            raise unusable(folder, error) from error
        except BaseException:
            self.release()
            raise

    def close(self) -> None:
        """Store the filter and leave the job directory to others. A second call does nothing.

        In a process forked from the one that opened it nothing is stored: the job is not its own.

        :raises StateError: if the filter cannot be stored. What was stored before stays, and the
            next run starts from there and fetches again what came since.
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
            queue = record_of(self.folder)  # Scrapy has stored it: it closes the filter after that
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
                f"{path}: the filter could not be stored ({error.strerror}). What was stored before"
                f" is as it was: the next run goes on from there and fetches again what came"
                f" since. Make room, or give this user the right to write there, before it starts."
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
        write_marker(self.folder, self.generation, resumed=self.restored > 0, run=run)

    def freeze(self, withdrawn: Collection[bytes] = ()) -> PendingSnapshot:
        """Return the filter as it is now, to be stored beside the crawl.

        :param withdrawn: fingerprints that the next run is to let through.
        """
        self.generation += 1
        snapshot = Snapshot(
            self.identity, self.generation, self.filter.state(), withdrawn, journaled=True
        )
        return PendingSnapshot(self.folder / SNAPSHOT, snapshot)

    def release(self) -> None:
        """Leave the job directory to others without storing anything, as a kill does."""
        _HELD_HERE.pop(self.folder.resolve(), None)
        self._lock.release()

    def _look(self, on_unclean: OnUnclean) -> Past:
        """Return what to start from.

        :raises StateError: if requests and marks of the job are not where this run keeps them.
        """
        folder = self.folder
        requests = folder / REQUESTS
        if not requests.exists():
            if has_lost_requests(folder, read_head(folder / SNAPSHOT)):
                raise StateError(
                    f"{requests}: found no file, expected the requests of this job: without them,"
                    f" those that {SNAPSHOT} calls seen would never be fetched. Put it back, or"
                    f" delete the whole job directory to start afresh."
                )
            return self._recover(read_past(folder, self.identity), on_unclean)
        if not self._journaled:
            raise StateError(
                f"{requests}: found the requests of a crawl with scrapy_bloom.Scheduler, which this"
                f" crawl would not fetch. Set SCHEDULER = 'scrapy_bloom.Scheduler', or choose"
                f" another JOBDIR. It was left as it is."
            )
        self.unclean = False
        snapshot = read_snapshot(folder / SNAPSHOT, self.identity)
        # The fingerprints to be let through, too, are in the store of the requests.
        return Past(snapshot and replace(snapshot, withdrawn=()), take_seen=False)

    def _recover(self, past: Past, on_unclean: OnUnclean) -> Past:
        """Return what to start from; log it if the last run was killed.

        :raises StateError: if Scrapy cannot read its queue, or if that was deleted and the marks of
            its requests are to stay.
        """
        folder = self.folder
        self.unclean = bool(past.killed)
        self._keep_sign(past)
        if on_unclean is OnUnclean.RESET and (past.queue_gone or past.is_without_queue(folder)):
            # The user follows the advice of _consequence, perhaps after a clean stop.
            gone = f"The filter in {folder} has lost its {scrapy_queue.NAME}."
            past = replace(past, killed=past.killed or gone)
        elif past.queue_gone:
            raise _queue_gone(folder)
        if not past.killed:
            return past
        recovery = recover(past.killed, on_unclean, can_go_back=True)
        flaw = scrapy_queue.find_flaw(folder)
        if recovery is Recovery.GO_BACK and not past.known:  # only this promises to lose no page
            flaw = flaw or scrapy_queue.find_surplus_in_fifo(folder)
        if flaw:
            raise _unreadable_queue(folder, past.killed, flaw)
        logger.warning("%s %s", past.killed, _consequence(folder, past, recovery))
        if recovery is Recovery.START_EMPTY:
            remove(folder / SNAPSHOT)
            return Past(snapshot=None, take_seen=False)
        return past

    def _keep_sign(self, past: Past) -> None:
        """Have the next run see as well that the last one was killed, should this one be refused.

        At the end of a refused run Scrapy stores queue and state anew, and they would look clean.
        """
        stored, marker = past.snapshot, read_marker(self.folder)
        # A snapshot with a record of the queue shows itself that the queue is gone.
        needed = past.killed or (past.queue_gone and stored and not stored.queue)
        if needed and not self._journaled and (marker is None or is_outdated(marker, stored)):
            why = past.why or f"it was without its {scrapy_queue.NAME}"
            write_marker(
                self.folder,
                stored.generation if stored else 0,
                resumed=stored is not None,
                why=why,
            )

    def _start(self, past: Past) -> None:
        self.restored_from = ""
        self.filled_with: Mapping[str, Any] = {}
        self.generation = 0
        if past.snapshot:
            self.restored_from = SNAPSHOT
            self.filled_with = past.snapshot.identity.canonical
            self.generation = past.snapshot.generation
        elif past.take_seen:
            for fingerprint in seen_file.read_seen_file(self.folder):
                self.filter.add(fingerprint)
                self.restored_from = seen_file.NAME
        self.restored = self.filter.state().items
        if self.unclean and not self.restored:
            scrapy_queue.remove_leftovers(self.folder)
        if not self._journaled:
            self.mark_running()


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
        state, window, capacity, error_rate, on_growth=on_growth, clock=clock
    )


def tell_window(folder: Path, before: float | None, now: float | None) -> None:
    """Log that the window of a job is another one than before; None stands for none."""
    logger.info(
        "%(folder)s: %(setting)s was %(before)s and is %(now)s. What the filter has %(counts)s.",
        {
            "folder": folder,
            "setting": in_settings(WINDOW),
            "before": "not set" if before is None else write_span(before),
            "now": "not set" if now is None else write_span(now),
            "counts": "is seen for ever" if now is None else "counts as let through now",
        },
    )


def make_queue_openable(folder: Path) -> None:
    """Make sure that Scrapy can open the queue that a killed run has left in a job directory.

    To be called before Scrapy's scheduler is opened, which opens its queue before the filter. Does
    nothing if no run of ours was killed there, or while another process uses the folder.

    :raises StateError: if Scrapy would fail to open the queue.
    """
    try:
        if not is_begun(folder):
            return
        with _lock_of(folder):
            if note_kill(folder) is None:
                return
            scrapy_queue.remove_stumps(folder)
            flaw = scrapy_queue.find_flaw_at_opening(folder)
    except (Timeout, StateError):
        return  # the filter says so when it is opened
    except OSError as error:
        raise unusable(folder, error) from error
    if flaw:
        raise _unreadable_queue(folder, f"The last run in {folder} was killed.", flaw)


@dataclass(frozen=True)
class StoredJob:
    """What a job directory shows to somebody who only reads it.

    Attributes:
        filter: the filter at the last clean stop. It is a copy: what is added to it is not stored.
        identity: what the filter belongs to.
        generation: how many clean stops the job has had.
        clean: whether that stop was the last thing that happened. If not, a run is on now, or one
            was killed.
    """

    filter: LocalFilter
    identity: Identity
    generation: int
    clean: bool


def read_job(
    folder: Path,
    *,
    capacity: int = DEFAULT_CAPACITY,
    error_rate: float = DEFAULT_ERROR_RATE,
) -> StoredJob | None:
    """Read the filter in a job directory, also while a crawl uses it; None if there is none.

    Takes no lock, leaves no marker, and creates and changes nothing.

    :param capacity: as for :class:`LocalFilter`, for what is added to the copy.
    :param error_rate: likewise.
    :raises StateError: if the filter is not ours, damaged or newer, or cannot be read.
    """
    marker = read_marker(folder)  # before the snapshot: a run that ends in between is clean then
    snapshot = read_snapshot(folder / SNAPSHOT)
    if snapshot is None:
        return None
    return StoredJob(
        filter_of(snapshot.state, capacity, error_rate),
        snapshot.identity,
        snapshot.generation,
        clean=marker is None or is_outdated(marker, snapshot),
    )


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


def _unreadable_queue(folder: Path, killed: str, flaw: str) -> StateError:
    requests = folder / scrapy_queue.NAME
    return StateError(
        f"{killed} Scrapy cannot read the queue that it left: {flaw}. The queue was left as it is."
        f" To lose no page, delete {requests} and start once with BLOOM_ON_UNCLEAN = 'reset': the"
        f" crawl starts again."
    )


def _queue_gone(folder: Path) -> StateError:
    return StateError(
        f"{folder / scrapy_queue.NAME}: found no requests, expected those of the last clean stop:"
        f" {SNAPSHOT} calls them seen, so they would never be fetched. Put the folder back,"
        f" or start once with BLOOM_ON_UNCLEAN = 'reset': the crawl starts again and loses no page."
    )


def _consequence(folder: Path, past: Past, recovery: Recovery) -> str:
    requests = folder / scrapy_queue.NAME
    if recovery is Recovery.START_EMPTY:
        text = "The filter starts empty (BLOOM_ON_UNCLEAN is 'reset')."
        advice = f" With an empty {requests}, too, the crawl starts again and loses no page."
        return text + advice if past.resumed else text
    if not past.resumed or not past.known:
        return "The filter starts empty: no page is lost, some are fetched again."
    lost = (
        "the requests that were under way are lost"
        if scrapy_queue.survives_kills(folder)
        else "Scrapy's queue has lost requests"
    )
    return (
        "The filter goes back to the last clean stop: what was fetched since is fetched again. But"
        f" {lost}, and with them pages. To lose none, stop now, delete"
        f" {requests} and start once with BLOOM_ON_UNCLEAN = 'reset': the crawl starts again."
        " Only this run says so. You can still do it after this run or a later one."
    )
