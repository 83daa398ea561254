"""Filters in files: in the job directory of a crawl, or in one file by itself."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock, Timeout

from scrapy_bloom.commands.requests import Waiting, WaitingRequest, readable, summed
from scrapy_bloom.commands.target import (
    Contents,
    Finding,
    Information,
    NewFilter,
    Owner,
    SliceInfo,
    Target,
    check_spider,
)
from scrapy_bloom.errors import BloomError, JobInUseError, SettingError, StateError
from scrapy_bloom.filter import file
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.info import count_bits
from scrapy_bloom.filter.sizing import BLOCK_BITS, BLOCK_BYTES
from scrapy_bloom.filter.state import Slice
from scrapy_bloom.local.job import (
    ELSEWHERE,
    FILTER,
    IDENTITY,
    IN_FLIGHT,
    KIND,
    LOCK,
    PID,
    QUEUE,
    REQUESTS,
    Identity,
    holding,
    identity_of,
    open_store,
    owner_notes,
    read_meta,
)
from scrapy_bloom.local.store import NAME, Store
from scrapy_bloom.local.unclean import ACTIVE, DIGEST, digest

if TYPE_CHECKING:
    from scrapy_bloom.commands.output import Output

CLEAN: Final = "stopped cleanly"
RUNNING: Final = "running"
KILLED: Final = "killed"

_AT_ONCE: Final = 1_000  # requests
_SIGMAS: Final = 6.0  # how far a count may be from what its bits say
_COMPANIONS: Final = ("-journal", "-wal", "-shm", "-checkpoint", ".new", ".adding", ".taking-over")


class LocalTarget(Target):
    """A filter in a file, as it was at the last commit of its crawl.

    :param path: the file.
    :param folder: the job directory that it is in; None for a file by itself.
    """

    def __init__(self, path: Path, folder: Path | None) -> None:
        self.path, self.folder = path, folder
        self.name = str(folder or path)

    @classmethod
    def at(cls, path: Path) -> LocalTarget:
        """Return the place that a path means, see :meth:`Project.target`."""
        try:
            is_job = path.is_dir() or not (path.exists() or path.suffix)
        except OSError as error:  # the folder around it cannot be searched
            raise StateError(
                f"{path}: {error.strerror}. Give this user the right to read it."
            ) from error
        if path.name == NAME:
            path, is_job = path.parent, True
        return cls(path / NAME, path) if is_job else cls(path, None)

    # Looking

    def exists(self) -> bool:
        """Return whether there is a file, or what is left of one."""
        return self.path.exists() or file.log_size(self.path) > 0

    def info(self) -> Information:
        """Return what is known of the filter."""
        with self._reading() as store:
            state, meta, identity = store.filter.state, store.meta, _identity(store.meta)
            crawl = ""
            if KIND in meta and self.folder:
                crawl = CLEAN if store.clean else _liveness(meta.get(PID))
            has_queue = meta.get(KIND) == REQUESTS
            return Information(
                self.name,
                "job" if self.folder else "file",
                store.filter.info(),
                state.hashes,
                state.digests,
                [_described(one) for one in state.slices],
                identity.fingerprinter,
                identity.made_by,
                spider=identity.spider,
                let_through=len(state.again),
                exact=bool(meta.get("exact")),
                crawl=crawl,
                process=0 if store.clean else int(meta.get(PID, 0)),
                written=datetime.fromtimestamp(self.path.stat().st_mtime, tz=timezone.utc),
                journal=store.journal,
                waiting=len(store) if has_queue else None,
                under_way=_in_flight(store) if has_queue else None,
            )

    def check(self) -> Iterator[Finding]:
        """Read all of the file."""
        if not self.exists():
            raise self.missing()
        try:
            with file.reading(self.path) as database:
                if (found := database.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise file.damaged(self.path, found)
            with self._reading() as store:
                yield from _check(store)
                if not store.clean and self.folder:
                    yield _check_last_run(store)
        except BloomError as error:
            yield Finding("bad", self.path.name, str(error))
        for path in sorted(self.path.parent.glob(f"{self.path.name}.*")):
            if path.name.startswith(tuple(f"{self.path.name}{end}" for end in _COMPANIONS)):
                left = "left by a process that was killed"
                yield Finding("note", path.name, left, "It is of no use, and may be deleted.")

    @contextmanager
    def asking(self) -> Iterator[_Asked]:
        """Read the file."""
        with self._reading() as store:
            yield _Asked(store, _identity(store.meta))

    def read(self, output: Output) -> Contents:  # noqa: ARG002 - it takes no time
        """Read the file."""
        with self._reading() as store:
            meta, kept = store.meta, store.filter
            sizes = int(meta["capacity"]), float(meta["error_rate"])
            return Contents(_identity(meta), *sizes, kept.state, tuple(self._warnings(store)))

    def requests_waiting(self) -> str:
        """Return the job directory, or Scrapy's own queue in it."""
        if self.folder is None or not self.folder.exists():
            return ""
        if self.path.exists():
            with self._reading() as store:
                if len(store):
                    return self.name
        return waiting_in(self.folder)

    def queue(
        self, output: Output, *, peek: int, most: int, failed: bool, newest_first: bool
    ) -> Waiting:
        """Return what waits; those in flight are among them."""
        del failed  # those that cannot be read are told anyhow
        with self._reading() as store:
            if store.meta.get(KIND) != REQUESTS:
                own = f"; Scrapy's own queue is not read here ({self.path.parent / QUEUE})"
                raise StateError(
                    f"{self.name}: found a filter without requests, expected those of"
                    f" scrapy_bloom.Scheduler{own if self.folder else ''}."
                )
            with output.progress("reading requests", min(len(store), most), "requests") as told:
                found = _waiting(store, newest_first=newest_first, most=most, told=told)
                waiting = summed(self.name, len(store), _in_flight(store), found, peek)
            if len(store) <= most:
                return waiting
            # The sizes of all queues are known without reading them.
            sizes: dict[int, int] = {}
            for queue in store.queues.values():
                priority = _priority(queue.path)
                sizes[priority] = sizes.get(priority, 0) + queue.size
            return replace(waiting, by_priority=dict(sorted(sizes.items(), reverse=True)))

    def retry(self) -> int:
        """Refuse: there is no failed list in a file."""
        raise SettingError(
            f"{self.name}: --retry is for crawls in Redis. Requests in a job directory that cannot"
            f" be read stay there, and the right code reads them in the next run"
        )

    # Changing

    @contextmanager
    def changing(self, new: NewFilter | None) -> Iterator[_Asked]:
        """Change marks in memory; the file is written at the end, in one commit."""
        if self.exists():
            new = None
        elif new is None:
            raise self.missing()
        elif self.folder:
            check_spider(new.identity)
        with self._held():
            path = self.path.with_name(f"{self.path.name}.adding") if new else self.path
            store = self._made(path, new) if new else self._opened()
            try:
                yield _Asked(store, new.identity if new else _identity(store.meta))
                if store.clean:
                    store.close()
                else:  # a killed run stays one
                    store.commit(sync=True)
                    store.abandon()
                if new:
                    path.replace(self.path)
            except BaseException as error:
                store.abandon()
                if new:
                    _remove(path)
                if isinstance(error, sqlite3.Error):
                    raise file.unusable(self.path, error) from error
                raise

    def write(self, contents: Contents, owner: Owner, output: Output) -> None:  # noqa: ARG002
        """Write the file, whole or not at all."""
        if self.folder:
            check_spider(contents.identity)
        with self._held():
            if self.exists():
                raise self.occupied()
            sizes: dict[str, Any] = {
                "capacity": contents.capacity,
                "error_rate": contents.error_rate,
                "exact": 0,
            }
            file.save(self.path, contents.state, {**self._owner_notes(contents.identity), **sizes})

    def delete(self, output: Output) -> None:  # noqa: ARG002 - it takes no time
        """Delete the file, with the requests of ``scrapy_bloom.Scheduler``."""
        if not self.exists():
            raise self.missing()
        with self._held():
            _remove(self.path)

    def leftovers(self) -> list[str]:
        """Return nothing: what is left of a file is deleted with it."""
        return []

    def delete_leftovers(self) -> int:
        """Refuse."""
        raise SettingError(f"{self.name} is not in Redis: leftovers are looked for there only")

    # Within

    @contextmanager
    def _reading(self) -> Iterator[Store]:
        if not self.path.exists():
            raise self.missing()
        try:
            store = Store(self.path, read_only=True)
            try:
                self._check_here(store.meta)
                yield store
            finally:
                store.close()
        except sqlite3.Error as error:
            raise file.unusable(self.path, error) from error

    def _opened(self) -> Store:
        meta, _ = read_meta(self.path)
        self._check_here(meta)
        sizes = meta.get("capacity", 1), meta.get("error_rate", 0.5)
        fresh = LocalFilter(*sizes, window=meta.get("window"), clock=time.time)
        return Store(self.path, fresh, exact=bool(meta.get("exact")))

    def _check_here(self, meta: dict[str, Any]) -> None:
        if meta.get(KIND) == ELSEWHERE:
            raise StateError(
                f"{self.name}: found no filter: that of this crawl is in Redis. Give the URL of its"
                f" server with --key."
            )

    def _made(self, path: Path, new: NewFilter) -> Store:
        _remove(path)
        store = open_store(path, new.settings, digests=new.digests)
        for key, value in self._owner_notes(new.identity).items():
            store.note(key, value)
        return store

    def _owner_notes(self, identity: Identity) -> dict[str, str]:
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

    def _warnings(self, store: Store) -> Iterator[str]:
        if waiting := len(store):
            yield (
                f"{self.name}: {waiting:,} requests wait there. Its filter calls their pages seen,"
                f" but the requests are not copied: a crawl with the copy alone would not fetch"
                f" them."
            )
        elif beside := waiting_in(self.folder) if self.folder else "":
            yield (
                f"Requests wait in {beside}. The filter calls their pages seen, but the requests"
                f" are not copied: a crawl with the copy alone would not fetch them."
            )
        if store.meta.get("exact"):
            yield "The list of BLOOM_EXACT is not copied: the copy is a filter without one."


class _Asked:
    """The marks in a file."""

    def __init__(self, store: Store, identity: Identity) -> None:
        self.identity = identity
        self._store = store

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        return [self._store.contains(one) for one in fingerprints]

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        return [self._store.mark(one) for one in fingerprints]

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        return self._store.filter.forget_many(fingerprints)


def waiting_in(folder: Path) -> str:
    """Return Scrapy's own queue in a job directory if Scrapy would read some from it; else ""."""
    active = folder / QUEUE / ACTIVE
    try:
        waits = active.exists() and json.loads(active.read_bytes())
    except ValueError:
        waits = True
    return str(folder / QUEUE) if waits else ""


def _remove(path: Path) -> None:
    """Delete a file and what belongs to it. Without the file, the rest is of no use."""
    for end in ("", *_COMPANIONS):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


def _identity(meta: dict[str, Any]) -> Identity:
    return identity_of(Path(), meta) if IDENTITY in meta else Identity("", "", {})


def _liveness(pid: object) -> str:
    """Return whether a process runs, as far as this machine can tell."""
    try:
        os.kill(int(str(pid)), 0)  # asks only whether it is there
    except (ProcessLookupError, ValueError):
        return KILLED
    except OSError:
        pass  # it is there, and somebody else's
    return RUNNING


def _in_flight(store: Store) -> int:
    return int(store.meta.get(IN_FLIGHT, 0))


def _fill(slice_: Slice) -> list[float]:
    return [block.count() / BLOCK_BITS for block in slice_.blocks]


def _described(slice_: Slice) -> SliceInfo:
    fills, spec = _fill(slice_), slice_.spec
    size = spec.blocks * BLOCK_BYTES
    fill = sum(fills) / len(fills)
    return SliceInfo(0, spec.capacity, slice_.items, size, spec.error_rate, fill)


def _priority(path: str) -> int:
    """Return Scrapy's priority of the requests in a queue: it is in its name, negated."""
    return -int(path.rpartition("/")[2].rstrip("s"))


def _waiting(store: Store, *, newest_first: bool, most: int, told: Any) -> Iterator[WaitingRequest]:
    """Yield requests in the order of priorities and, within one, of the queues."""
    queues = sorted(store.queues.items(), key=lambda each: (-_priority(each[1].path), each[1].path))
    for number, queue in queues:
        beyond = None
        while rows := store.read(number, min(_AT_ONCE, most), newest=newest_first, beyond=beyond):
            yield from (readable(body, _priority(queue.path)) for _, body in rows)
            beyond = rows[-1][0]
            told(len(rows))
            most -= len(rows)
            if most <= 0:
                return


def _check(store: Store) -> Iterator[Finding]:
    kept = store.filter
    info = kept.info()
    yield Finding("good", "filter", f"whole: {info.items:,} items, {info.bytes:,} bytes")
    for slice_ in kept.state.slices:
        yield _check_count(slice_, kept.state.hashes)
    sizes = bad = 0
    for number, queue in store.queues.items():
        sizes += queue.size
        beyond, count = None, 0
        while rows := store.read(number, _AT_ONCE, newest=False, beyond=beyond):
            bad += sum(body is None for _, body in rows)
            count, beyond = count + len(rows), rows[-1][0]
        if count != queue.size:
            raise file.damaged(
                store.path, f"queue {queue.path} has {count:,} requests, and counts {queue.size:,}"
            )
    if bad:
        yield Finding(
            "bad",
            "requests",
            f"{bad:,} of {sizes:,} requests do not match their checksums",
            "Their pages are not fetched, the others are. Restore the job from a copy to have them"
            " all.",
        )
    elif store.meta.get(KIND) == REQUESTS:
        yield Finding("good", "requests", f"whole: {sizes:,} wait")
    if again := len(kept.state.again):
        yield Finding("note", "forgotten", f"{again:,} pages are eligible again")


def _check_count(slice_: Slice, hashes: int) -> Finding:
    """Compare the items that were counted with those that the bits show."""
    counted = count_bits(slice_.spec, slice_.items, _fill(slice_), hashes)
    estimate = round(min(counted.estimated_items, 2.0**62))
    name, items = f"slice {slice_.id}", slice_.items
    spread = _SIGMAS * sqrt(max(items, 1)) + 0.01 * items + 10
    found = f"{items:,} items counted, its bits show {estimate:,}"
    if abs(estimate - items) <= spread:
        return Finding("good", name, found)
    if estimate < items:
        return Finding("bad", name, found, "Marks are missing: their pages are fetched again.")
    return Finding("note", name, found, "It is fuller than it counts: see 'error rate now'.")


def _check_last_run(store: Store) -> Finding:
    pid = store.meta.get(PID)
    if _liveness(pid) == RUNNING:
        return Finding("note", "last run", f"process {pid} is on")
    advice = "The next run resumes it."
    if store.meta.get(KIND) == FILTER:
        advice = "The next run moves filter and queue away, and the crawl starts over."
    return Finding("note", "last run", f"process {pid} was killed", advice)
