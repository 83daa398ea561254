"""The job directory: who holds it, whose it is, how the last run in it ended.

Two doors use its file, :data:`NAME`. With ``scrapy_bloom.Scheduler`` it has requests and marks, and
every commit is a moment from which a crawl resumes. A plain filter under another scheduler writes
it twice a run: it is worth something only if that scheduler has stored its queue as well. If not,
file and queue are moved away, and the crawl starts over.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock, Timeout

from scrapy_bloom.crawl.rules import difference
from scrapy_bloom.errors import JobInUseError, StateError
from scrapy_bloom.filter import file
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local.store import NAME, Store
from scrapy_bloom.options import CAPACITY, ERROR_RATE, EXACT, WINDOW

if TYPE_CHECKING:
    from scrapy_bloom.settings import Settings

logger = logging.getLogger(__name__)

LOCK: Final = "bloom.lock"
QUEUE: Final = "requests.queue"  # this and the following are Scrapy's
SEEN: Final = "requests.seen"
STATE: Final = "spider.state"
"""Scrapy's file, and the key of a note: the spider's state as of the last commit, pickled."""

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
IN_FLIGHT: Final = "in flight"
"""Key of a note: how many requests were in flight at the last commit."""
_TAKEN_OVER: Final = "taken over"


@dataclass(frozen=True)
class Identity:
    """What the marks of a job belong to.

    Attributes:
        spider: name of the spider.
        fingerprinter: import path of the class that the fingerprints follow.
        made_by: rules and versions of libraries that they were made with.
    """

    spider: str
    fingerprinter: str
    made_by: dict[str, Any]


class Job:
    """A job directory, held by this process from the beginning.

    :param folder: the job directory; made if it is not there.
    :param identity: what its marks belong to.
    :raises JobInUseError: if another crawl holds it.
    :raises StateError: if it cannot be held.

    Attributes:
        folder: its absolute path: a crawl may change the working directory.
        kind: whose requests its file was for, :data:`REQUESTS` or :data:`FILTER`; empty if it has
            none yet, or if :meth:`check` was not called.
        store: what is in its file, once it is opened.
        restored: how many fingerprints were there.
        killed: whether the last run was killed.
        in_flight: how many requests were in flight then.
    """

    store: Store

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.folder = folder.absolute()
        self.path = self.folder / NAME
        self.identity = identity
        self.kind = ""
        self.restored = self.in_flight = 0
        self.killed = False
        self._pid = os.getpid()
        self._lock = lock_of(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            effective = os.access in os.supports_effective_ids
            if not os.access(self.folder, os.W_OK, effective_ids=effective):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.folder))
            self._lock.acquire()
        except Timeout:
            raise in_use(self.folder) from None
        except OSError as error:
            raise unusable(self.folder, error) from error

    def check(self, *, requests: bool) -> None:
        """Look whether a crawl may use the file.

        :param requests: whether the crawl keeps its requests in it.
        :raises StateError: if not. Everything is left as it is.
        """
        if not self.path.exists():
            return
        meta, _ = read_meta(self.path)
        if not meta:  # it was made, and then its run was killed
            return
        self.kind = str(meta.get(KIND, ""))
        if self.kind == REQUESTS and not requests:
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
        store = self.store = open_store(self.path, settings, digests=digests)
        self.restored = store.filter.items
        self.killed = not store.clean
        self.in_flight = int(store.meta.get(IN_FLIGHT, 0)) if self.killed else 0

    def begin(self, *, requests: bool) -> None:
        """Note in the file that a run is on.

        :param requests: whether the crawl keeps its requests in it.
        :raises StateError: if that cannot be written.
        """
        store = self.store
        if self.killed and not requests:  # since Scrapy has opened its queue, it is too late
            raise StateError(
                f"{self.path}: the last run was killed, and Scrapy's queue may have lost requests."
                f" Everything was left as it is. Start the crawl again."
            )
        try:
            state = b""
            if requests:
                state = read_state(self.folder, store.meta.get(STATE), killed=self.killed)
                store.note(STATE, state or None)
                self._remove_taken_over(store)
            self.note_owner(store, REQUESTS if requests else FILTER)
            store.note(PID, os.getpid())
            # That a plain filter is not closed must be known before Scrapy pops its first request.
            store.commit(sync=not requests)
            restore_state(self.folder, state)
            if not requests:
                store.commit_at_close_only()
        except OSError as error:
            raise unusable(self.folder, error) from error
        except sqlite3.Error as error:
            raise file.unusable(self.path, error) from error

    def note_owner(self, store: Store, kind: str) -> None:
        """Note in a store whose it is, and what it is for."""
        for key, value in owner_notes(self.identity, kind).items():
            store.note(key, value)

    def note_taken_over(self, store: Store) -> None:
        """Note in a store that it has what Scrapy's queue had: nobody needs that any more."""
        self.note_owner(store, REQUESTS)
        store.note(_TAKEN_OVER, 1)

    def _remove_taken_over(self, store: Store) -> None:
        """Remove what Scrapy's own scheduler left. Marks without their requests would hide pages.

        :raises OSError: if the marks cannot be removed.
        """
        if store.meta.get(_TAKEN_OVER):
            (self.folder / SEEN).unlink(missing_ok=True)  # first: after a kill no marks stay alone
            shutil.rmtree(self.folder / QUEUE, ignore_errors=True)
            store.note(_TAKEN_OVER, None)

    def close(self) -> bool:
        """Write everything, and leave the job directory to others; return whether it was written.

        :raises sqlite3.Error: if it cannot be written; the job directory is still held.
        :raises OSError: likewise.
        """
        if os.getpid() != self._pid:
            logger.warning(
                "%s belongs to process %d, and this process is a fork of that one, so it stores"
                " nothing.",
                self.path,
                self._pid,
            )
            return False
        self.store.close()
        self.release()
        return True

    def abandon(self) -> None:
        """Leave the job directory to others and write nothing more, as a kill does."""
        self.store.abandon()
        self.release()

    def release(self) -> None:
        """Leave the job directory, whose file was not opened, to others."""
        if os.getpid() == self._pid:
            self._lock.release()


def owner_notes(identity: Identity, kind: str) -> dict[str, str]:
    """Return the notes that say whose a file is, and what it is for."""
    return {KIND: kind, IDENTITY: json.dumps(asdict(identity), sort_keys=True)}


def open_store(path: Path, settings: Settings, *, digests: bool) -> Store:
    """Open the file of a job as the settings say, or make it.

    :param digests: whether all fingerprints are SHA-1 digests.
    :raises StateError: if it cannot be used. It is left as it is.
    :raises SettingError: if it was made for other settings; likewise.
    """
    return Store(path, new_filter(settings, digests=digests), exact=settings[EXACT])


def new_filter(settings: Settings, *, digests: bool) -> LocalFilter:
    """Return an empty filter as the settings want it.

    :param digests: whether all fingerprints are SHA-1 digests.
    """
    return LocalFilter(
        settings[CAPACITY],
        settings[ERROR_RATE],
        window=settings[WINDOW],
        digests=digests,
        clock=time.time,
    )


def read_meta(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the notes in a job's file, and whether its last run has closed it. Changes nothing.

    :raises StateError: if it cannot be read.
    """
    with file.reading(path) as database:
        _, clean, *_ = file.read_counters(database)
        return dict(file.rows(database, "meta")), bool(clean)


def is_finished(job: Job, *, waiting: bool) -> bool:
    """Return whether all pages of a job were done before this run.

    :param waiting: whether requests are waiting in it.
    """
    return bool(job.restored) and not waiting and not job.killed and job.store.filter.window is None


def read_state(folder: Path, noted: object, *, killed: bool) -> bytes:
    """Return the state of a spider, pickled: the noted one, unless Scrapy has written it since.

    Scrapy does so after the file of the job was closed. Empty if there is none.

    :raises OSError: if Scrapy's file cannot be read.
    """
    path = folder / STATE
    content = path.read_bytes() if path.exists() else b""
    whole = _is_pickle(content)
    if isinstance(noted, bytes) and (killed or not whole or content.endswith(_MARK)):
        return noted
    if path.exists() and not whole:
        # Scrapy cannot read it, and a spider without a state would fail in its callbacks.
        return pickle.dumps({}, protocol=4)
    return content


def restore_state(folder: Path, state: bytes) -> None:
    """Put the state of a spider where Scrapy reads it, with a mark that Scrapy replaces.

    :raises OSError: if it cannot be written.
    """
    if state:
        write_whole(folder / STATE, state.removesuffix(_MARK) + _MARK)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file at once: after a kill it is the old file or the new one.

    :raises OSError: if that fails; the old file is still there.
    """
    beside = path.with_name(path.name + ".tmp")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def unusable(folder: Path, error: OSError) -> StateError:
    """Return the error that refuses a job directory that cannot be used."""
    return StateError(
        f"{error.filename or folder}: {error.strerror}. Expected a job directory in which this user"
        f" can write, with room on the disk; give it those rights or choose another JOBDIR. What is"
        f" in it was left as it is."
    )


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Hold a job directory as a crawl does, so that none can start in it.

    :raises JobInUseError: if a crawl holds it.
    """
    try:
        with lock_of(folder):
            yield
    except Timeout:
        raise in_use(folder) from None


def lock_of(folder: Path) -> FileLock:
    """Return the lock of a job directory, which does not wait."""
    # Not bound to a thread: the file may be closed in another thread than it was opened in.
    return FileLock(folder / LOCK, timeout=0, thread_local=False)


def in_use(folder: Path) -> JobInUseError:
    """Return the error that refuses a job directory which another crawl holds."""
    pid = None
    with suppress(StateError, OSError, sqlite3.Error):
        pid = read_meta(folder / NAME)[0].get(PID)
    if pid == os.getpid():
        return JobInUseError(
            f"{folder}: another spider of this process is using this job directory. Only one crawl"
            f" at a time can use it. Give each spider its own JOBDIR."
        )
    who = f"process {pid}" if pid else "another process"
    return JobInUseError(
        f"{folder}: {who} is using this job directory. Only one crawl at a time can use it. Wait"
        f" until it has stopped, or choose another JOBDIR."
    )


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


def _is_pickle(content: bytes) -> bool:
    try:
        pickle.loads(content)  # noqa: S301 - as Scrapy does a moment later
    except Exception:  # noqa: BLE001 - a file that was cut off raises all sorts of things
        return False
    return True
