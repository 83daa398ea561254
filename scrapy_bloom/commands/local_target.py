"""Filters in files: in the job directory of a crawl, or in one file by itself."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from scrapy_bloom.commands.places import (
    Contents,
    Finding,
    Marks,
    check_spider,
    described,
    missing,
    occupied,
    requests_stay,
)
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import WaitingRequest, readable
from scrapy_bloom.errors import BloomError, JobInUseError, SettingError, StateError
from scrapy_bloom.filter import file
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local.job import (
    ACTIVE,
    DIGEST,
    FILTER,
    IDENTITY,
    IN_FLIGHT,
    KIND,
    LOCK,
    PID,
    QUEUE,
    REQUESTS,
    Identity,
    digest,
    holding,
    identity_of,
    open_store,
    owner_notes,
    read_meta,
    waits_with_scrapy,
)
from scrapy_bloom.local.store import NAME, Store

_AT_ONCE: Final = 1_000  # requests
_COMPANIONS: Final = ("-journal", "-wal", "-shm", "-checkpoint", ".new", ".adding")


class LocalTarget:
    """A filter in a file, as it was at the last commit of its crawl.

    Methods that look create, lock and change nothing. All raise :class:`BloomError` if the place
    cannot be used, or has no filter.

    :param path: a file, a job directory, or ``bloom.sqlite`` in one, see :func:`target.target_of`.

    Attributes:
        path: the file.
        folder: the job directory that it is in; None for a file by itself.
        name: what people call it.
    """

    def __init__(self, path: Path) -> None:
        try:
            is_job = path.is_dir() or not (path.exists() or path.suffix)
        except OSError as error:  # the folder around it cannot be searched
            raise StateError(
                f"{path}: {error.strerror}. Give this user the right to read it."
            ) from error
        if path.name == NAME:
            path, is_job = path.parent, True
        self.folder = path if is_job else None
        self.path = path / NAME if is_job else path
        self.name = str(path)

    # Looking

    def exists(self) -> bool:
        """Return whether there is a file, or what is left of one."""
        return self.path.exists() or file.log_size(self.path) > 0

    def info(self) -> dict[str, object]:
        """Return what is known of the filter."""
        with self._reading() as store:
            meta, waits = store.meta, KIND in store.meta
            has_queue = meta.get(KIND) == REQUESTS
            return described(
                self.name,
                "job" if self.folder else "file",
                store.filter.info(),
                _identity(meta),
                hashes=store.filter.hashes,
                forgotten=len(store.filter.again),
                exact=bool(meta.get("exact")) or None,
                crawl=_crawl(store) if waits and self.folder else None,
                process=None if store.clean else meta.get(PID),
                written=datetime.fromtimestamp(self.path.stat().st_mtime, tz=timezone.utc),
                journal=store.journal,
                waiting=len(store) if has_queue else None,
                in_flight=_in_flight(store) if has_queue else None,
            )

    def check(self) -> Iterator[Finding]:
        """Read all of the file; yield what was found."""
        if not self.exists():
            raise missing(self.name)
        try:
            with file.reading(self.path) as database:
                if (found := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise file.damaged(self.path, found)
            with self._reading() as store:
                yield Finding("good", "filter", f"whole: {store.filter.items:,} items")
                yield from _check_requests(store)
        except BloomError as error:
            yield Finding("bad", self.path.name, str(error))

    @contextmanager
    def asking(self) -> Iterator[Marks]:
        """Open the filter to ask it what a crawl would call seen."""
        with self._reading() as store:
            yield _identity(store.meta), lambda some: [store.contains(one) for one in some]

    def read(self) -> Contents:
        """Read all of the filter."""
        with self._reading() as store:
            meta, warnings = store.meta, requests_stay(self.name, len(store))
            if not warnings and self.folder and (beside := waiting_in(self.folder)):
                warnings.append(
                    f"Requests wait in {beside}. The filter calls their pages seen, but the"
                    f" requests are not copied: a crawl with the copy alone would not fetch them."
                )
            if meta.get("exact"):
                warnings.append(
                    "The list of BLOOM_EXACT is not copied: the copy is a filter without one."
                )
            return Contents(_identity(meta), store.filter, warnings)

    def requests_waiting(self) -> str:
        """Return where requests wait whose pages the filter calls seen; empty if none do."""
        if self.folder is None or not self.folder.exists():
            return ""
        if self.path.exists():
            with self._reading() as store:
                if len(store):
                    return self.name
        return waiting_in(self.folder)

    @contextmanager
    def requests(
        self, *, failed: bool, newest_first: bool
    ) -> Iterator[tuple[int, int, Iterator[WaitingRequest]]]:
        """Yield how many requests are not done, how many are in flight of them, and the requests.

        :param failed: whether to yield only those that cannot be read.
        :param newest_first: the order of requests of one priority.
        """
        with self._reading() as store:
            if store.meta.get(KIND) != REQUESTS:
                own = f"; Scrapy's own queue is not read here ({self.path.parent / QUEUE})"
                raise StateError(
                    f"{self.name}: found a filter without requests, expected those of"
                    f" scrapy_bloom.Scheduler{own if self.folder else ''}."
                )
            found = _requests(store, newest_first=newest_first)
            shown = (one for one in found if one.problem or not failed)
            yield len(store), _in_flight(store), shown

    # Changing

    def retry(self) -> int:
        """Refuse: there is no failed list in a file."""
        raise SettingError(
            f"{self.name}: --retry is for crawls in Redis. Requests in a job directory that cannot"
            f" be read stay there, and the right code reads them in the next run"
        )

    @contextmanager
    def changing(self, project: Project, *, forget: bool) -> Iterator[Marks]:
        """Open the filter to add to it, or to forget pages; make it, to add, where there is none.

        The file is written at the end, all of it or nothing.
        """
        new = not self.exists()
        if new and forget:
            raise missing(self.name)
        if new and self.folder:
            check_spider(project.identity)
        with self._held():
            beside = self.path.with_name(f"{self.path.name}.adding") if new else self.path
            store = self._made(beside, project) if new else self._opened()
            try:
                change = store.filter.forget_many if forget else _adder(store)
                yield _identity(store.meta), change
                if store.clean:
                    store.close()
                else:  # a killed run stays one
                    store.commit(sync=True)
                    store.abandon()
                if new:
                    beside.replace(self.path)
            except BaseException as error:
                store.abandon()
                if new:
                    _remove(beside)
                if isinstance(error, sqlite3.Error):
                    raise file.unusable(self.path, error) from error
                raise

    def write(self, contents: Contents) -> None:
        """Write the file, whole or not at all.

        :raises StateError: if something is there.
        """
        if self.folder:
            check_spider(contents.identity)
        with self._held():
            if self.exists():
                raise occupied(self.name)
            contents.filter.save(self.path, {**self._notes(contents.identity), "exact": 0})

    def delete(self) -> Sequence[str]:
        """Delete the file, with the requests of ``scrapy_bloom.Scheduler``; nothing to report."""
        if not self.exists():
            raise missing(self.name)
        with self._held():
            _remove(self.path)
        return ()

    # Within

    @contextmanager
    def _reading(self) -> Iterator[Store]:
        if not self.path.exists():
            raise missing(self.name)
        try:
            store = Store(self.path, read_only=True)
            try:
                yield store
            finally:
                store.close()
        except sqlite3.Error as error:
            raise file.unusable(self.path, error) from error

    def _opened(self) -> Store:
        meta, _ = read_meta(self.path)
        sizes = meta.get("capacity", 1), meta.get("error_rate", 0.5)
        fresh = LocalFilter(*sizes, window=meta.get("window"), clock=time.time)
        return Store(self.path, fresh, exact=bool(meta.get("exact")))

    def _made(self, path: Path, project: Project) -> Store:
        _remove(path)
        store = open_store(path, project.settings, digests=project.fingerprinter.digests)
        for key, value in self._notes(project.identity).items():
            store.note(key, value)
        return store

    def _notes(self, identity: Identity) -> dict[str, str]:
        notes = owner_notes(identity, FILTER)
        return {**notes, DIGEST: digest(self.folder)} if self.folder else notes

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the place, so that no crawl and no other command changes it."""
        if self.folder:
            new = not self.folder.exists()
            try:
                with holding(self.folder):
                    yield
            finally:
                if new and not self.exists():
                    with suppress(OSError):
                        (self.folder / LOCK).unlink(missing_ok=True)
                        self.folder.rmdir()
            return
        if not self.path.parent.is_dir():
            raise StateError(
                f"{self.path.parent}: found no such folder. Make it, or correct the path. Nothing"
                f" was changed."
            )
        lock = FileLock(self.path.with_name(f"{self.path.name}.lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise JobInUseError(
                f"{self.path}: another process is changing this file. Wait until it has finished."
            ) from None
        try:
            yield
        finally:
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)


def waiting_in(folder: Path) -> str:
    """Return Scrapy's own queue in a job directory if Scrapy would read some from it; else ""."""
    stopped = (folder / QUEUE / ACTIVE).exists()
    return str(folder / QUEUE) if stopped and waits_with_scrapy(folder) else ""


def _adder(store: Store) -> Any:
    return lambda some: [store.mark(one) for one in some]


def _remove(path: Path) -> None:
    """Delete a file and what belongs to it. Without the file, the rest is of no use."""
    for end in ("", *_COMPANIONS):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


def _identity(meta: dict[str, Any]) -> Identity:
    return identity_of(Path(), meta) if IDENTITY in meta else Identity("", "", {})


def _crawl(store: Store) -> str:
    """Return whether the crawl has stopped or runs, as far as this machine can tell."""
    if store.clean:
        return "stopped cleanly"
    try:
        os.kill(int(str(store.meta.get(PID))), 0)  # asks only whether it is there
    except (ProcessLookupError, ValueError):
        return "killed"
    except OSError:
        pass  # it is there, and somebody else's
    return "running"


def _in_flight(store: Store) -> int:
    return int(store.meta.get(IN_FLIGHT, 0))


def _priority(path: str) -> int:
    """Return Scrapy's priority of the requests in a queue: it is in its name, negated."""
    return -int(path.rpartition("/")[2].rstrip("s"))


def _requests(store: Store, *, newest_first: bool) -> Iterator[WaitingRequest]:
    """Yield requests in the order of priorities and, within one, of the queues."""
    queues = sorted(store.queues.items(), key=lambda each: (-_priority(each[1].path), each[1].path))
    for number, queue in queues:
        for body in _bodies(store, number, newest_first=newest_first):
            yield readable(body, _priority(queue.path))


def _bodies(store: Store, number: int, *, newest_first: bool = False) -> Iterator[bytes | None]:
    """Yield the requests of a queue; None for those that do not match their checksums."""
    beyond = None
    while rows := store.read(number, _AT_ONCE, newest=newest_first, beyond=beyond):
        yield from (body for _, body in rows)
        beyond = rows[-1][0]


def _check_requests(store: Store) -> Iterator[Finding]:
    bad = 0
    for number, queue in store.queues.items():
        bodies = [body is not None for body in _bodies(store, number)]
        if len(bodies) != queue.size:
            found = f"queue {queue.path} has {len(bodies):,} requests, and counts {queue.size:,}"
            raise file.damaged(store.path, found)
        bad += bodies.count(False)
    if bad:
        found = f"{bad:,} of {len(store):,} requests do not match their checksums"
        advice = "Their pages are not fetched, the others are. A copy of the job has them all."
        yield Finding("bad", "requests", found, advice)
    elif store.meta.get(KIND) == REQUESTS:
        yield Finding("good", "requests", f"whole: {len(store):,} wait")
