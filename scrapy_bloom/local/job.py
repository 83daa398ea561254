"""The job directory: who is using it, whose it is, and how its last run ended.

Its file, :data:`NAME`, is used in two ways. With ``scrapy_bloom.Scheduler`` it holds requests and
marks, and a crawl resumes from the last commit. Under another scheduler it holds only marks, and is
written twice a run. Scrapy stores its queue only when a spider closes, so a kill loses requests
whose marks may be stored already, and there is no telling which. Filter and queue are then moved
away together, and the crawl starts over.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import AcquireReturnProxy, FileLock, Timeout

from scrapy_bloom import file
from scrapy_bloom.canonical.rules import difference
from scrapy_bloom.crawl.whose import warn_of_another
from scrapy_bloom.errors import BloomError, JobInUseError, StateError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local.feeds import NOTHING
from scrapy_bloom.local.metadata import (
    DIGEST,
    DUE,
    FILTER,
    IDENTITY,
    IN_FLIGHT,
    KIND,
    PID,
    REQUESTS,
    RUNS,
    read_metadata,
)
from scrapy_bloom.local.scrapys import (
    SCRAPYS_MARKS,
    SCRAPYS_QUEUE,
    STATE,
    digest,
    waits_with_scrapy,
)
from scrapy_bloom.local.store import NAME, Store
from scrapy_bloom.settings import BACKEND, CAPACITY, ERROR_RATE, WINDOW
from scrapy_bloom.values import write_size

if TYPE_CHECKING:
    from scrapy_bloom.settings import Settings

logger = logging.getLogger(__name__)

LOCK: Final = "bloom.lock"
PATIENCE: Final = 0.5
"""Seconds for which a crawl waits for it: commands may try it for a moment."""
_MARK: Final = b"# put here by scrapy-bloom"
"""Appended to the pickle in Scrapy's file until Scrapy rewrites it; pickle ignores it."""

_CHANGED: Final = (
    "Choose another JOBDIR, or go back to that one, or delete the whole job directory to start"
    " over."
)


@dataclass(frozen=True)
class Identity:
    """What the marks of a job belong to.

    Attributes:
        spider: name of the spider.
        fingerprinter: import path of the class that the fingerprints follow.
        made_by: the rules they were made with.
        writer: the spider's class and digests of its arguments, see :func:`writer_of`; empty if
            not known.
    """

    spider: str
    fingerprinter: str
    made_by: dict[str, Any]
    writer: str = ""


class Job:
    """A job directory, locked by this process from the start.

    :param folder: the job directory; created if missing.
    :param identity: what its marks belong to.
    :param kind: what this run stores in its file: :data:`REQUESTS` or :data:`FILTER`.
    :raises JobInUseError: if another crawl is using it.
    :raises StateError: if it cannot be used for that. Everything is left as it is.

    Attributes:
        folder: its absolute path: a crawl may change the working directory.
        path: path of its file, also where a link to that is in the folder.
        previous: the kind of the last run; empty if there was none.
        store: the contents of its file, once opened.
        restored: how many fingerprints were there.
        killed: whether the last run was killed.
        in_flight: how many requests were in flight then.
    """

    store: Store

    def __init__(self, folder: Path, identity: Identity, kind: str) -> None:
        self.folder = folder.absolute()
        self.path = file_in(self.folder)
        self.identity = identity
        self.kind = kind
        self.previous = ""
        self.restored = self.in_flight = 0
        self.killed = False
        with file.refusing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_job(self.path.parent).lock
        with self.opening():
            self._check()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Release the job directory, as it was, if the block raises."""
        try:
            yield
        except BaseException:
            self.abandon()
            raise

    def _check(self) -> None:
        meta, _ = read_meta(self.path)
        self.previous = str(meta.get(KIND, ""))
        if self.kind == REQUESTS != self.previous:
            _refuse_scrapys(self.folder, plain=self.previous == FILTER)
        if IDENTITY not in meta:  # the run that created it was killed; commands may have come since
            return
        if self.previous == REQUESTS != self.kind:
            raise StateError(
                f"{self.path}: found the requests of a crawl with scrapy_bloom.Scheduler, which"
                f" this crawl would not fetch. Set SCHEDULER = 'scrapy_bloom.Scheduler', or choose"
                f" another JOBDIR. It was left as it is."
            )
        stored = identity_of(self.path, meta)
        for what, theirs, ours in (
            ("spider", stored.spider, self.identity.spider),
            ("fingerprinter", stored.fingerprinter, self.identity.fingerprinter),
        ):
            if theirs != ours and theirs and ours:
                own = f'custom_settings = {{"JOBDIR": "{self.folder.name}-{ours}"}}'
                way = f"Give each spider its own: {own}." if what == "spider" else _CHANGED
                raise StateError(
                    f"{self.path}: found the filter of {what} {theirs!r}, expected {what} {ours!r}:"
                    f" its marks do not apply here. It was left as it is. {way}"
                )
        changed = difference(stored.made_by, self.identity.made_by)
        if changed and stored.made_by and self.identity.made_by:
            logger.warning("%s", changed)
        warn_of_another(self.path, stored.writer, self.identity.writer, setting="JOBDIR")

    def open(self, settings: Settings, *, digests: bool) -> None:
        """Open the file, or create it. An existing one is not changed.

        :param digests: whether all fingerprints are SHA-1 digests.
        :raises StateError: if it cannot be used.
        :raises SettingError: if it was made for other settings.
        """
        self.store = Store(self.path, new_filter(settings, digests=digests))
        self.restored = self.store.filter.items
        self.killed = not self.store.clean
        self.in_flight = int(self.store.meta.get(IN_FLIGHT, 0)) if self.killed else 0

    def begin(self) -> None:
        """Record in the file that a run has begun.

        :raises StateError: if that cannot be written.
        """
        store, plain = self.store, self.kind != REQUESTS
        with file.refusing(self.path):
            state = b"" if plain else self._read_state()
            store.meta |= {**owner_metadata(self.identity, self.kind), PID: os.getpid()}
            if not plain:
                store.meta[RUNS] = store.failed.run
                store.meta[DUE] = NOTHING
                store.fail_redirected()
            # A plain filter must be on disk as not closed before Scrapy pops its first request.
            store.commit(sync=plain)
            if state:
                beside = self.folder / f"{STATE}.tmp"
                beside.write_bytes(state.removesuffix(_MARK) + _MARK)
                beside.replace(self.folder / STATE)
        if plain:
            store.marks.write_blocks_only()  # at the end: until then they would fill the memory

    def _read_state(self) -> bytes:
        """Return and record the spider's state."""
        state = self.store.meta[STATE] = spider_state(self.folder, self.store.meta)
        return state

    def close(self) -> bool:
        """Write everything and release the job directory; return whether everything was written.

        (1) Beside another scheduler, record what Scrapy's queue is now
        (2) Close the file
        (3) Unlock the job directory

        If not, that is logged, and the job is left as after a kill. Call it after Scrapy has stored
        its queue.
        """
        try:
            self.store.fail_redirected()
            if self.kind != REQUESTS:
                self.store.meta[DIGEST] = digest(self.folder)
            self.store.close()
        except BloomError as error:
            logger.error("%s", error)  # noqa: TRY400 - the message says it all
            self.abandon()
            return False
        except (sqlite3.Error, OSError) as error:
            resumes = "resumes from the last commit. No page is lost, but some are fetched again"
            logger.error(  # noqa: TRY400 - the message says it all
                "%s: the last changes could not be stored (%s), so the next run %s. Make room, or"
                " give this user the right to write there.",
                self.path,
                error,
                resumes if self.kind == REQUESTS else "starts over",
            )
            self.abandon()
            return False
        self._lock.release()
        return True

    def abandon(self) -> None:
        """Release the job directory without writing anything more, as a kill would."""
        if hasattr(self, "store"):
            self.store.abandon()
        self._lock.release()


def spider_state(folder: Path, meta: dict[str, Any]) -> bytes:
    """Return the spider's state, pickled: that of the last commit, or what Scrapy wrote since.

    Scrapy writes it after our file is closed. A file that Scrapy cannot read would leave the spider
    without a state, and its callbacks would fail.

    :param meta: the metadata of a job's file.
    """
    path = folder / STATE
    state = path.read_bytes() if path.exists() else _MARK
    try:
        pickle.loads(state)  # noqa: S301 - as Scrapy does when it resumes
    except Exception:  # a truncated file may raise anything
        state = _MARK
    if state.endswith(_MARK):
        state = meta.get(STATE) or pickle.dumps({}, protocol=4)
    return state


def set_aside_if_unclean(folder: Path, spider: str) -> bool:
    """Move the job of a plain filter away if its last run was killed or its queue has changed.

    Call it before Scrapy's scheduler opens its queue. Jobs that only others have used, those of
    another spider, and those in use are not touched: a job in use looks like a killed one.

    :returns: whether it was moved away.
    :raises JobInUseError: if another process is using it. What Scrapy reads then must not be used.
    :raises StateError: if something cannot be read or moved.
    """
    path = file_in(folder)
    if not path.exists():
        return False
    with file.refusing(folder), lock_job(path.parent):
        meta, clean = read_meta(path)
        if meta.get(KIND) != FILTER or identity_of(path, meta).spider != spider:
            return False  # `Job` reports what is wrong when opened
        if not clean:
            why = f"the last run (process {meta.get(PID)}) was killed"
        elif meta.get(DIGEST) != digest(folder):
            why = f"{SCRAPYS_QUEUE} is not as the last run with this filter left it"
        else:
            return False
        aside = _set_aside(folder)
    logger.warning(
        "%s: %s, so requests that the filter calls seen may be lost. Filter and queue are in %s"
        " now, and the crawl starts over: no page is lost. With SCHEDULER ="
        " 'scrapy_bloom.Scheduler' a killed crawl resumes.",
        folder,
        why,
        aside,
    )
    return True


def _set_aside(folder: Path) -> Path:
    """Move all of a job to a folder of its own, from which nothing is ever deleted."""
    parent = folder / "unclean"
    aside = next(each for number in count(1) if not (each := parent / str(number)).exists())
    aside.mkdir(parents=True)
    logs = sorted(path.name for path in folder.glob(f"{NAME}-*"))
    # The file goes last: until it is gone, an interrupted move is repeated. The spider's state goes
    # too: if it records progress, it would keep the crawl from starting over.
    for name in (SCRAPYS_QUEUE, SCRAPYS_MARKS, STATE, *logs, NAME):
        if (folder / name).exists():
            (folder / name).rename(aside / name)
    return aside


def check_unused(folder: Path) -> None:
    """Check that a crawl whose requests and marks are in Redis may use a job directory.

    :raises StateError: if it has requests or marks. Everything is left as it is.
    """
    stored = file_in(folder)
    way = f"remove BLOOM_REDIS_URL, or set {BACKEND.setting} = 'local'"
    if not read_meta(stored)[0]:
        stored, way = folder / SCRAPYS_QUEUE, "remove your SCHEDULER"
        if not waits_with_scrapy(folder):
            return
    raise StateError(
        f"JOBDIR = {str(folder)!r} holds a crawl, in {stored.name}, but the settings say that it is"
        f" in Redis (BLOOM_REDIS_URL, or {BACKEND.setting} = 'redis'). It was left as it is. To"
        f" resume it from disk, {way}. To start over, choose another JOBDIR."
    )


def _refuse_scrapys(folder: Path, *, plain: bool) -> None:
    """Refuse a job that Scrapy's own scheduler has begun.

    :param plain: whether it ran with our filter, whose file has the marks.
    :raises StateError: in that case. Everything is left as it is.
    """
    with file.refusing(folder):
        marks = folder / SCRAPYS_MARKS
        marked = not plain and marks.exists() and marks.stat().st_size > 0
        if not (marked or waits_with_scrapy(folder)):
            return
    raise StateError(
        f"{folder}: found a job of Scrapy's own scheduler, which was left as it is: finish it"
        f" without scrapy_bloom.Addon and scrapy_bloom.Scheduler, or choose another JOBDIR."
    )


def new_filter(settings: Settings, *, digests: bool) -> LocalFilter:
    """Return an empty filter with these settings; warn if it would outgrow the machine's memory.

    :param digests: whether all fingerprints are SHA-1 digests.
    """
    filter_ = LocalFilter(
        settings[CAPACITY],
        settings[ERROR_RATE],
        window=settings[WINDOW],
        digests=digests,
        clock=time.time,
    )
    size = filter_.info().bytes_at_capacity
    if hasattr(os, "sysconf") and size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        logger.warning(
            "%s = %s: when full, the filter takes %s, which is more than this machine's memory.",
            CAPACITY.setting,
            f"{settings[CAPACITY]:,}",
            write_size(size),
        )
    return filter_


def owner_metadata(identity: Identity, kind: str) -> dict[str, str]:
    """Return the metadata that tell whose a file is, and what it is for."""
    return {KIND: kind, IDENTITY: json.dumps(asdict(identity), sort_keys=True)}


def file_in(folder: Path) -> Path:
    """Return the path of the file of a job directory."""
    return file.followed(folder / NAME)


def read_meta(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the metadata in a job's file, if there is any, and whether its last run closed it.

    :raises StateError: if it cannot be read.
    """
    if not path.exists():
        return {}, True
    with file.reading(path) as database:
        clean = bool(file.read_counters(database).clean)
        return read_metadata(database), clean


def identity_of(path: Path, meta: dict[str, Any]) -> Identity:
    """Return what the marks of a file belong to, from its metadata.

    :raises StateError: if the metadata is invalid.
    """
    with file.refusing(path):
        return Identity(**json.loads(meta[IDENTITY]))


def lock_job(
    folder: Path, way: str = "Wait until it has stopped, or choose another JOBDIR."
) -> AcquireReturnProxy[FileLock]:
    """Lock a job directory as a crawl does, so that no crawl can start in it.

    :param folder: where its file is, which a job directory may only link to.
    :param way: what to do if a crawl is using it.
    :raises JobInUseError: if a crawl is using it.
    :raises StateError: if it cannot be locked.
    """
    try:
        # Not thread-local: the file may be closed in a different thread.
        return FileLock(folder / LOCK, timeout=PATIENCE, thread_local=False).acquire()
    except Timeout:
        pid = None
        with suppress(StateError, OSError):
            pid = read_meta(folder / NAME)[0].get(PID)
        who = f"process {pid}" if pid else "another process"
        if pid == os.getpid():
            who = "another spider of this process"
        raise JobInUseError(
            f"{folder}: {who} is using this job directory. Only one crawl at a time can use it."
            f" {way}"
        ) from None
    except OSError as error:
        raise file.unusable(folder, error) from error


def is_in_use(folder: Path) -> bool:
    """Return whether a crawl uses a job directory, or may do so: its lock cannot be opened.

    :param folder: where its file is.
    """
    path = folder / LOCK
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except (Timeout, OSError):
        return True
