"""A local filter that a job keeps between its runs, never more durable than the job's queue.

Scrapy writes the state of its request queue only when a spider closes. A mark that survives a kill
which its queued request does not survive is a lost page; so the filter, too, goes to the disk only
then, and after a kill it is what it was at the last clean stop.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.errors import JobInUseError, StateError, UncleanStopError
from scrapy_bloom.options import OnUnclean
from scrapy_bloom.storage import scrapy_queue, seen_file
from scrapy_bloom.storage.files import open_regular, remove, write_whole
from scrapy_bloom.storage.snapshot import Identity, Snapshot, read_snapshot, write_snapshot

logger = logging.getLogger(__name__)

SNAPSHOT: Final = "requests.bloom"
MARKER: Final = "requests.bloom.running"
LOCK: Final = "requests.bloom.lock"


@dataclass(frozen=True)
class Marker:
    """Stands in the job directory while a run is on; one that is found there is of a killed run.

    Attributes:
        pid: process of the run.
        host: machine of the run.
        generation: generation of the snapshot that it started from, 0 if from none.
        resumed: whether it started with marks of an earlier run.
    """

    pid: int
    host: str
    generation: int
    resumed: bool


@dataclass(frozen=True)
class Past:
    """What earlier runs left.

    Attributes:
        snapshot: the filter at the last clean stop.
        take_seen: whether Scrapy's own ``requests.seen`` may be taken over in its stead.
        killed: what shows that the last run was killed, in words; empty if it was not.
        resumed: whether that killed run had resumed an earlier one.
    """

    snapshot: Snapshot | None
    take_seen: bool
    killed: str = ""
    resumed: bool = False


class JobFilter(LocalFilter):
    """A :class:`LocalFilter` with a place in a job directory, which it takes for this process.

    :param folder: the job directory; made if it is not there.
    :param identity: what the filter belongs to.
    :param capacity: items in the first slice, and at least in each further one.
    :param error_rate: bound for the total error rate.
    :param digests: as for :class:`LocalFilter`; a stored filter keeps its own.
    :param on_unclean: what to do if the last run was killed.
    :raises JobInUseError: if another process holds the job directory.
    :raises UncleanStopError: if the last run was killed and `on_unclean` is ``fail``.
    :raises StateError: if the folder or what is in it cannot be used; nothing is changed.

    Attributes:
        restored: how many fingerprints it started with.
        restored_from: name of the file that they came from, empty if there was none.
        unclean: whether the run before this one was killed.
        filled_with: what the restored fingerprints were made with, as in its `identity`; empty if
            there are none of ours.
    """

    __slots__ = (
        "_folder",
        "_generation",
        "_identity",
        "_lock",
        "_pid",
        "filled_with",
        "restored",
        "restored_from",
        "unclean",
    )

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        *,
        capacity: int,
        error_rate: float,
        digests: bool,
        on_unclean: OnUnclean,
    ) -> None:
        super().__init__(capacity, error_rate, digests=digests)
        self._folder = folder
        self._identity = identity
        self._pid = os.getpid()
        self._lock = _take(folder)
        try:
            self._start(on_unclean)
        except OSError as error:
            self._lock.release()
            raise _unusable(folder, error) from error
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Store the filter and leave the job directory to others. A second call does nothing.

        In a process forked from the one that opened it nothing is stored: the job is not its own.

        :raises StateError: if the filter cannot be stored. What was stored before stays, and the
            next run starts from there and fetches again what came since.
        """
        if os.getpid() != self._pid:
            logger.warning(
                "The filter in %(folder)s belongs to process %(pid)d, of which this one is a fork:"
                " nothing is stored from here.",
                {"folder": self._folder, "pid": self._pid},
            )
            return
        if not self._lock.is_locked:
            return
        path = self._folder / SNAPSHOT
        try:
            write_snapshot(path, Snapshot(self._identity, self._generation + 1, self.state()))
            remove(self._folder / MARKER)
        except OSError as error:
            raise StateError(
                f"{path}: the filter could not be stored ({error.strerror}). What was stored before"
                f" is as it was: the next run goes on from there and fetches again what came"
                f" since. Make room, or give this user the right to write there, before it starts."
            ) from error
        finally:
            self._lock.release()

    def _start(self, on_unclean: OnUnclean) -> None:
        past = _read_past(self._folder, self._identity)
        if on_unclean is OnUnclean.RESET and past.snapshot and scrapy_queue.is_gone(self._folder):
            # Somebody follows the advice that _consequence gives, after a clean stop perhaps.
            gone = f"The filter in {self._folder} has lost its {scrapy_queue.NAME}."
            past = replace(past, killed=past.killed or gone)
        self.unclean = bool(past.killed)
        if past.killed and on_unclean is OnUnclean.FAIL:
            raise UncleanStopError(f"{past.killed} {_FAIL}")
        if past.killed:
            logger.warning("%s %s", past.killed, _consequence(self._folder, past, on_unclean))
        if past.killed and on_unclean is OnUnclean.RESET:
            remove(self._folder / SNAPSHOT)
            past = Past(snapshot=None, take_seen=False)
        self._restore(past)
        if past.killed and not self.restored:
            scrapy_queue.remove_leftovers(self._folder)
        self._generation = past.snapshot.generation if past.snapshot else 0
        marker = Marker(self._pid, socket.gethostname(), self._generation, self.restored > 0)
        write_whole(self._folder / MARKER, [json.dumps(asdict(marker)).encode()])

    def _restore(self, past: Past) -> None:
        self.restored_from = ""
        self.filled_with: Mapping[str, Any] = {}
        if past.snapshot:
            self._load(past.snapshot.state)
            self.restored_from = SNAPSHOT
            self.filled_with = past.snapshot.identity.canonical
        elif past.take_seen:
            for fingerprint in seen_file.read_seen_file(self._folder):
                self.add(fingerprint)
                self.restored_from = seen_file.NAME
        self.restored = self.state().items


def _take(folder: Path) -> FileLock:
    """Lock the job directory for this process."""
    # Not bound to a thread: Scrapy may close in another one than it opened in.
    lock = FileLock(folder / LOCK, timeout=0, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        holder = _read_marker(folder)
        who = f"process {holder.pid} on {holder.host}" if holder else "another process"
        raise JobInUseError(
            f"{folder}: {who} is using this job directory, and one crawl at a time can. Wait until"
            f" it has stopped, or give this crawl another JOBDIR."
        ) from None
    except OSError as error:
        raise _unusable(folder, error) from error
    return lock


def _unusable(folder: Path, error: OSError) -> StateError:
    return StateError(
        f"{error.filename or folder}: {error.strerror}. Expected a job directory in which this user"
        f" can write; give it those rights or choose another JOBDIR. Nothing in it was changed."
    )


def _read_past(folder: Path, identity: Identity) -> Past:
    snapshot = read_snapshot(folder / SNAPSHOT, identity)
    marker = _read_marker(folder)
    why = "" if snapshot else seen_file.why_unclean(folder)
    take_seen = not snapshot and not why
    # A run that was killed between its snapshot and the removal of its marker did stop cleanly:
    # Scrapy stores its queue before it closes the filter.
    if marker and not (snapshot and snapshot.generation == marker.generation + 1):
        killed = f"The last run in {folder} (process {marker.pid}) did not close cleanly"
        killed += ", after it had resumed an earlier one." if marker.resumed else "."
        return Past(snapshot, take_seen, killed, marker.resumed)
    if why:
        killed = (
            f"The last run in {folder}, with Scrapy's own filter, did not close cleanly: {why}."
        )
        return Past(snapshot, take_seen, killed, resumed=scrapy_queue.is_saved(folder))
    return Past(snapshot, take_seen)


def _read_marker(folder: Path) -> Marker | None:
    file = open_regular(folder / MARKER)
    if file is None:
        return None
    with file:
        try:
            return Marker(**json.load(file))
        except (TypeError, ValueError):  # a mark all the same; the worse of the two cases
            return Marker(pid=0, host="", generation=-1, resumed=True)


_FAIL: Final = (
    "BLOOM_ON_UNCLEAN is 'fail', so this run does not start. With 'rollback' it goes on from the"
    " last clean stop, with 'reset' it starts with an empty filter."
)


def _consequence(folder: Path, past: Past, on_unclean: OnUnclean) -> str:
    requests = folder / scrapy_queue.NAME
    if on_unclean is OnUnclean.RESET:
        text = "The filter starts empty (BLOOM_ON_UNCLEAN is 'reset')."
        advice = f" With an empty {requests}, too, the crawl starts again and loses no page."
        return text + advice if past.resumed else text
    if not past.resumed:
        return "Filter and crawl start anew: no page is lost, some are fetched again."
    return (
        "The filter goes back to the last clean stop: what was fetched since is fetched again. But"
        " Scrapy's queue has lost requests, and with them pages. To lose none, stop now, delete"
        f" {requests} and start once with BLOOM_ON_UNCLEAN = 'reset': the crawl starts again."
    )
