"""The job directory: who holds it, whose it is, how the last run in it ended.

Its file, :data:`NAME`, is used in two ways. With ``scrapy_bloom.Scheduler`` it has requests and
marks, and every commit is a moment from which a crawl resumes. Under another scheduler it has the
marks, and is written twice a run. Scrapy stores its queue only when a spider closes, so a kill
loses requests whose marks an earlier filter may have, and nobody can say which. So filter and queue
are moved away together then, and the crawl starts over.
"""

from __future__ import annotations

import hashlib
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
from scrapy.pqueues import _path_safe

from scrapy_bloom.canonical.rules import difference
from scrapy_bloom.errors import JobInUseError, StateError
from scrapy_bloom.filter import file
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local.store import NAME, Store
from scrapy_bloom.options import BACKEND, CAPACITY, ERROR_RATE, EXACT, WINDOW, write_size

if TYPE_CHECKING:
    from scrapy_bloom.settings import Settings

logger = logging.getLogger(__name__)

LOCK: Final = "bloom.lock"
SCRAPYS_QUEUE: Final = "requests.queue"  # this and the following are Scrapy's
SCRAPYS_MARKS: Final = "requests.seen"
STATE: Final = "spider.state"
"""Scrapy's file, and the key of a note: the spider's state as of the last commit, pickled."""
ACTIVE: Final = "active.json"
"""The file in Scrapy's queue that says which of the others to read; written at a clean stop."""

_MARK: Final = b"# put here by scrapy-bloom"
"""Stands behind the pickle in Scrapy's file until Scrapy writes that anew; pickle ignores it."""

KIND: Final = "kind"
"""Key of a note: :data:`REQUESTS` or :data:`FILTER`."""
REQUESTS: Final = "scheduler"
"""Requests and marks are in the file."""
FILTER: Final = "filter"
"""Marks are in the file, and the requests in Scrapy's queue."""

IDENTITY: Final = "identity"
PID: Final = "pid"
DIGEST: Final = "queue"
"""Key of a note: Scrapy's queue at the last clean stop, see :func:`digest`."""
IN_FLIGHT: Final = "in flight"
"""Key of a note: how many requests were in flight at the last commit."""

_COUNT: Final = 4  # bytes: what an empty file of a queue starts with
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Identity:
    """What the marks of a job belong to.

    Attributes:
        spider: name of the spider.
        fingerprinter: import path of the class that the fingerprints follow.
        made_by: the rules that they were made with.
    """

    spider: str
    fingerprinter: str
    made_by: dict[str, Any]


class Job:
    """A job directory, held by this process from the beginning.

    :param folder: the job directory; made if it is not there.
    :param identity: what its marks belong to.
    :param kind: what this run keeps in its file: :data:`REQUESTS` or :data:`FILTER`.
    :raises JobInUseError: if another crawl holds it.
    :raises StateError: if it cannot be used for that. Everything is left as it is.

    Attributes:
        folder: its absolute path: a crawl may change the working directory.
        path: that of its file.
        previous: the kind of the last run; empty if there was none.
        store: what is in its file, once it is opened.
        restored: how many fingerprints were there.
        killed: whether the last run was killed.
        in_flight: how many requests were in flight then.
    """

    store: Store

    def __init__(self, folder: Path, identity: Identity, kind: str) -> None:
        self.folder = folder.absolute()
        self.path = self.folder / NAME
        self.identity = identity
        self.kind = kind
        self.previous = ""
        self.restored = self.in_flight = 0
        self.killed = False
        self._pid = os.getpid()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(self.folder, error) from error
        self._lock = hold(self.folder).lock
        with self.opening():
            self._check()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Leave the job directory to others, as it was, if what follows raises."""
        try:
            yield
        except BaseException:
            self.abandon()
            raise

    def _check(self) -> None:
        meta = read_meta(self.path)[0] if self.path.exists() else {}
        if not meta:  # it was made, and then its run was killed
            return
        self.previous = str(meta.get(KIND, ""))
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
                raise StateError(
                    f"{self.path}: found the filter of {what} {theirs!r}, expected {what} {ours!r}:"
                    f" its marks mean nothing here. It was left as it is. Choose another JOBDIR, or"
                    f" go back to {theirs!r}, or delete the whole job directory to start over."
                )
        changed = difference(stored.made_by, self.identity.made_by)
        if changed and stored.made_by and self.identity.made_by:
            logger.warning("%s", changed)

    def open(self, settings: Settings, *, digests: bool) -> None:
        """Open the file, or make it. Nothing of an old one is changed.

        :param digests: whether all fingerprints are SHA-1 digests.
        :raises StateError: if it cannot be used.
        :raises SettingError: if it was made for other settings.
        """
        self.store = open_store(self.path, settings, digests=digests)
        self.restored = self.store.filter.items
        self.killed = not self.store.clean
        self.in_flight = int(self.store.meta.get(IN_FLIGHT, 0)) if self.killed else 0

    def begin(self) -> None:
        """Note in the file that a run is on.

        :raises StateError: if that cannot be written.
        """
        store, plain = self.store, self.kind != REQUESTS
        if self.killed and plain:  # since Scrapy has opened its queue, it is too late
            raise StateError(
                f"{self.path}: the last run was killed, and Scrapy's queue may have lost requests."
                f" Everything was left as it is. Start the crawl again."
            )
        try:
            state = b"" if plain else self._read_state()
            for key, value in owner_notes(self.identity, self.kind).items():
                store.note(key, value)
            store.note(PID, os.getpid())
            # That a plain filter is not closed must be known before Scrapy pops its first request.
            store.commit(sync=plain)
            if state:
                beside = self.folder / f"{STATE}.tmp"
                beside.write_bytes(state.removesuffix(_MARK) + _MARK)
                beside.replace(self.folder / STATE)
        except OSError as error:
            raise unusable(self.folder, error) from error
        except sqlite3.Error as error:
            raise file.unusable(self.path, error) from error
        if plain:
            store.commit_at_close_only()

    def _read_state(self) -> bytes:
        """Return and note the spider's state as of the last commit, or what Scrapy wrote since.

        It does so when our file is closed. What it cannot read would leave the spider without a
        state, and its callbacks would fail.
        """
        path = self.folder / STATE
        state = path.read_bytes() if path.exists() else _MARK
        try:
            pickle.loads(state)  # noqa: S301 - as Scrapy does a moment later
        except Exception:  # noqa: BLE001 - a file that was cut off raises all sorts of things
            state = _MARK
        if state.endswith(_MARK):
            state = self.store.meta.get(STATE) or pickle.dumps({}, protocol=4)
        self.store.note(STATE, state)
        return state

    def is_finished(self, *, waiting: bool) -> bool:
        """Return whether all pages were done before this run, and none is to be fetched again.

        :param waiting: whether requests are waiting.
        """
        filter_ = self.store.filter
        again = filter_.window is not None or filter_.ages
        return bool(self.restored) and not (waiting or self.killed or again)

    def close(self) -> bool:
        """Write everything, and leave the job directory to others; return whether it was written.

        If not, that is logged, and it is as after a kill. To be called after Scrapy has stored its
        queue.
        """
        if os.getpid() != self._pid:
            logger.warning(
                "%s belongs to process %d, and this process is a fork of that one, so it stores"
                " nothing.",
                self.path,
                self._pid,
            )
            return False
        try:
            if self.kind != REQUESTS:
                self.store.note(DIGEST, digest(self.folder))
            self.store.close()
        except (sqlite3.Error, OSError) as error:
            resumes = "resumes from the last commit. No page is lost, but some are fetched again"
            logger.error(  # noqa: TRY400 - in plain words
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
        """Leave the job directory to others and write nothing more, as a kill does."""
        if hasattr(self, "store"):
            self.store.abandon()
        if os.getpid() == self._pid:
            self._lock.release()


def set_aside_if_unclean(folder: Path, spider: str) -> bool:
    """Start a job of a plain filter over if its last run was killed, or its queue has changed.

    To be called before Scrapy's scheduler opens its queue. A job that only others have used is not
    touched, nor that of another spider, nor one that is in use: it only looks like a killed one.

    :returns: whether it was moved away.
    :raises JobInUseError: if another process is using it. What Scrapy reads then is not to be used.
    :raises StateError: if something cannot be read or moved.
    """
    path = folder / NAME
    if not path.exists():
        return False
    try:
        with hold(folder):
            meta, clean = read_meta(path)
            if meta.get(KIND) != FILTER or identity_of(path, meta).spider != spider:
                return False  # `Job` says what is wrong when the crawl opens it
            if not clean:
                why = f"the last run (process {meta.get(PID)}) was killed"
            elif meta.get(DIGEST) != digest(folder):
                why = f"{SCRAPYS_QUEUE} is not as the last run with this filter left it"
            else:
                return False
            aside = _set_aside(folder)
    except OSError as error:
        raise unusable(folder, error) from error
    logger.warning(
        "%s: %s, so requests may be lost that the filter calls seen. Filter and queue are in %s"
        " now, and the crawl starts over: no page is lost. With SCHEDULER ="
        " 'scrapy_bloom.Scheduler' a killed crawl resumes.",
        folder,
        why,
        aside,
    )
    return True


def _set_aside(folder: Path) -> Path:
    """Move all that a job has to a folder of its own, from which nothing is ever deleted."""
    parent = folder / "unclean"
    aside = next(each for number in count(1) if not (each := parent / str(number)).exists())
    aside.mkdir(parents=True)
    logs = sorted(path.name for path in folder.glob(f"{NAME}-*"))
    # The file goes last: until it is gone, a move that was killed is done again. A spider's state
    # goes, too: one that says what is done would keep the crawl from starting over.
    for name in (SCRAPYS_QUEUE, SCRAPYS_MARKS, STATE, *logs, NAME):
        if (folder / name).exists():
            (folder / name).rename(aside / name)
    return aside


def digest(folder: Path) -> str:
    """Return what tells Scrapy's queue from any other that holds requests.

    It depends on contents, not on times, so that a job directory may be copied, and not on whether
    Scrapy has opened the queue.

    :raises OSError: if a file cannot be read.
    """
    root, found = folder / SCRAPYS_QUEUE, hashlib.sha256()
    active = root / ACTIVE
    found.update(active.read_bytes() if waits_with_scrapy(folder) and active.exists() else b"")
    for path in queue_files(folder):
        found.update(path.relative_to(root).as_posix().encode("utf-8", "surrogateescape") + b"\0")
        with path.open("rb") as content:
            while chunk := content.read(_CHUNK):
                found.update(chunk)
    return found.hexdigest()


def waits_with_scrapy(folder: Path) -> bool:
    """Return whether requests wait in a job's queue of Scrapy's.

    :raises OSError: if a file cannot be read.
    """
    active = folder / SCRAPYS_QUEUE / ACTIVE
    named = active.exists() and active.read_bytes().strip() not in (b"[]", b"{}")
    return named or any(queue_files(folder))


def queue_files(folder: Path) -> Iterator[Path]:
    """Yield the files in Scrapy's queue that hold requests: it leaves some that do not."""
    for path in sorted((folder / SCRAPYS_QUEUE).rglob("*")):
        if path.name == ACTIVE or not path.is_file():
            continue
        if path.stat().st_size > _COUNT or any(path.read_bytes()):
            yield path


def saved_queues(folder: Path) -> Iterator[tuple[str | None, str]]:
    """Yield the queues that Scrapy is going to read: download slot, and path in the queue's folder.

    Start requests are perhaps in one beside it, which has an ``s`` after its name.

    :raises ValueError: if ``active.json`` makes no sense.
    :raises TypeError: likewise.
    """
    path = folder / SCRAPYS_QUEUE / ACTIVE
    state: Any = json.loads(path.read_bytes()) if path.exists() else []
    slots = state if isinstance(state, dict) else {None: state}
    for slot, priorities in slots.items():
        before = "" if slot is None else _path_safe(slot) + "/"
        for priority in priorities:
            yield slot, f"{before}{int(priority)}"


def check_unused(folder: Path) -> None:
    """Look whether a crawl whose requests and marks are in Redis may use a job directory.

    :raises StateError: if it has requests or marks. Everything is left as it is.
    """
    stored, way = folder / NAME, f"set {BACKEND.setting} = 'local'"
    if not stored.exists() or not read_meta(stored)[0]:
        stored, way = folder / SCRAPYS_QUEUE, "remove your SCHEDULER"
        if not waits_with_scrapy(folder):
            return
    raise StateError(
        f"{stored}: found requests or marks of this job's earlier runs, expected none, because with"
        f" scrapy_bloom.Scheduler and the filter in Redis they are kept there. They were left as"
        f" they are. To resume with them {way}; if they were copied to Redis, remove your"
        f" JOBDIR; to start over choose another one."
    )


def open_store(path: Path, settings: Settings, *, digests: bool) -> Store:
    """Open the file of a job as the settings say, or make it.

    :param digests: whether all fingerprints are SHA-1 digests.
    :raises StateError: if it cannot be used. It is left as it is.
    :raises SettingError: if it was made for other settings; likewise.
    """
    return Store(path, new_filter(settings, digests=digests), exact=settings[EXACT])


def new_filter(settings: Settings, *, digests: bool) -> LocalFilter:
    """Return an empty filter as the settings want it; warn of one that memory cannot hold.

    :param digests: whether all fingerprints are SHA-1 digests.
    """
    made = LocalFilter(
        settings[CAPACITY],
        settings[ERROR_RATE],
        window=settings[WINDOW],
        digests=digests,
        clock=time.time,
    )
    size = made.info().bytes_at_capacity
    if hasattr(os, "sysconf") and size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        logger.warning(
            "%s = %s: when full, the filter takes %s, which is more than this machine's memory.",
            CAPACITY.setting,
            f"{settings[CAPACITY]:,}",
            write_size(size),
        )
    return made


def owner_notes(identity: Identity, kind: str) -> dict[str, str]:
    """Return the notes that say whose a file is, and what it is for."""
    return {KIND: kind, IDENTITY: json.dumps(asdict(identity), sort_keys=True)}


def read_meta(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the notes in a job's file, and whether its last run has closed it. Changes nothing.

    :raises StateError: if it cannot be read.
    """
    with file.reading(path) as database:
        _, clean, *_ = file.read_counters(database)
        return dict(file.rows(database, "meta")), bool(clean)


def identity_of(path: Path, meta: dict[str, Any]) -> Identity:
    """Return what the marks of a file belong to, from its notes.

    :raises StateError: if they do not say.
    """
    try:
        return Identity(**json.loads(meta[IDENTITY]))
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path}: found invalid metadata ({error!r}), expected that of a crawl. It was left as"
            f" it is. Restore the job directory from a copy, or delete it and crawl again."
        ) from error


def hold(folder: Path) -> AcquireReturnProxy[FileLock]:
    """Hold a job directory as a crawl does, so that none can start in it.

    :raises JobInUseError: if a crawl holds it.
    :raises StateError: if it cannot be locked.
    """
    try:
        # Not bound to a thread: the file may be closed in another thread than it was opened in.
        return FileLock(folder / LOCK, timeout=0, thread_local=False).acquire()
    except Timeout:
        pid = None
        with suppress(StateError, OSError, sqlite3.Error):
            pid = read_meta(folder / NAME)[0].get(PID)
        ours, unknown = "another spider of this process", "another process"
        who = {os.getpid(): ours, None: unknown}.get(pid, f"process {pid}")
        raise JobInUseError(
            f"{folder}: {who} is using this job directory. Only one crawl at a time can use it."
            f" Wait until it has stopped, or choose another JOBDIR."
        ) from None
    except OSError as error:
        raise unusable(folder, error) from error


def unusable(folder: Path, error: OSError) -> StateError:
    """Return the error that refuses a job directory that cannot be used."""
    return StateError(
        f"{error.filename or folder}: {error.strerror}. Expected a job directory in which this user"
        f" can write, with room on the disk; give it those rights or choose another JOBDIR. What is"
        f" in it was left as it is."
    )
