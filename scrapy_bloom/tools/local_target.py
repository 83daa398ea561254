"""Filters in files: in the job directory of a crawl, or in one file by itself."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from scrapy_bloom.core.info import FilterInfo
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.core.numbers import AnyState, NumbersState
from scrapy_bloom.core.state import FilterState
from scrapy_bloom.core.window import WindowedFilter, filter_of
from scrapy_bloom.errors import JobInUseError, SettingError, StateError
from scrapy_bloom.frontier import file
from scrapy_bloom.frontier.reader import StoreLook, StoreReader
from scrapy_bloom.frontier.store import Store
from scrapy_bloom.layers.exact import NOTE, remove_lists, with_old_slices
from scrapy_bloom.redis.sharding import picker
from scrapy_bloom.storage import scrapy_queue
from scrapy_bloom.storage.files import open_regular, remove, write_whole
from scrapy_bloom.storage.frame import MAGIC, layout_at
from scrapy_bloom.storage.marker import MARKER, REQUESTS, SNAPSHOT, STOPPED
from scrapy_bloom.storage.numbers_file import read_numbers
from scrapy_bloom.storage.snapshot import Identity, read_snapshot
from scrapy_bloom.storage.store import LOCK, holding
from scrapy_bloom.tools.contents import Contents, error_rate_of
from scrapy_bloom.tools.progress import Progress, Told, silent
from scrapy_bloom.tools.target import Adder, Change, Open, Target

_US: Final = "scrapy bloom"
_QUIET: Final = int  # a filter that grows here need not say so


class FileChange(Change):
    """A file that is held.

    Attributes:
        contents: what is there; None if nothing is.
    """

    def __init__(self, path: Path, contents: Contents | None) -> None:
        self.path = path
        self.contents = contents

    def put(self, contents: Contents, progress: Progress = silent) -> None:
        """Write the file, whole or not at all."""
        path, written = self.path, contents.chunks(self.contents)
        with progress(f"writing {path}", contents.bytes, "bytes") as told:
            write_file(path, written, told)


def write_file(path: Path, content: Iterable[bytes], told: Told) -> None:
    """Write a file with a filter, whole or not at all.

    :raises StateError: if it cannot be written.
    """

    def chunks() -> Iterator[bytes]:
        for chunk in content:
            yield chunk
            told(len(chunk))

    try:
        write_whole(path, chunks())
    except OSError as error:
        raise StateError(
            f"{error.filename or path}: {error.strerror}. The file was not written, and what was"
            f" there before is as it was. Make room, or give this user the right to write there."
        ) from error


class FileTarget(Target):
    """A filter in one file, as ``scrapy bloom copy`` writes it.

    :param path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The path of the file."""
        return str(self.path)

    def exists(self) -> bool:
        """Return whether there is a file."""
        with _told(self.path):
            return self.path.exists()

    def read(self, progress: Progress = silent) -> Contents:  # noqa: ARG002 - it takes no time
        """Read the file."""
        contents = self._read()
        if contents is None:
            raise self.missing()
        return contents

    @contextmanager
    def open(self) -> Iterator[Open]:
        """Read the file."""
        contents = self.read()
        yield Open(Sharded(contents), contents.identity, contents.let_through)

    @contextmanager
    def making(self) -> Iterator[Change]:
        """Lock the file."""
        with self._change(make=True) as change:
            yield _empty(self, change)

    @contextmanager
    def _change(self, *, make: bool = False) -> Iterator[FileChange]:
        if not self.path.parent.is_dir():
            raise StateError(
                f"{self.path.parent}: found no such folder. Make it, or correct the path. Nothing"
                f" was changed."
            )
        try:
            lock = FileLock(self.path.with_name(self.path.name + ".lock"), timeout=0)
            lock.acquire()
        except Timeout:
            raise JobInUseError(
                f"{self.path}: another process is changing this file. Wait until it has finished."
            ) from None
        except OSError as error:
            raise StateError(
                f"{error.filename or self.path}: {error.strerror}. Give a folder in which this user"
                f" can write. Nothing was changed."
            ) from error
        try:
            contents = self._read()
            if contents is None and not make:
                raise self.missing()
            yield FileChange(self.path, contents)
        finally:
            lock.release()
            with suppress(OSError):
                Path(lock.lock_file).unlink(missing_ok=True)

    @contextmanager
    def adding(self) -> Iterator[Adder]:
        """Add to a copy in memory; the file is replaced at the end."""
        with self._change() as change:
            yield from _adding(change, self.name)

    def delete(self, progress: Progress = silent) -> None:  # noqa: ARG002 - it takes no time
        """Delete the file."""
        with self._change(), _told(self.path):
            remove(self.path)

    def _read(self) -> Contents | None:
        self._check_ours()
        if layout_at(self.path) == NumbersState.layout:
            numbers = read_numbers(self.path)
            return Contents.of_numbers(numbers) if numbers else None
        snapshot = read_snapshot(self.path, sharded=True)
        return Contents.of(snapshot) if snapshot else None

    def _check_ours(self) -> None:
        """Refuse a file of somebody else, whatever it is."""
        opened = open_regular(self.path)
        if opened is None:
            return
        with opened as file_:
            start = file_.read(len(MAGIC))
        if start != MAGIC:
            raise StateError(
                f"{self.path}: found a file that starts with {start!r}, expected a filter of"
                f" scrapy-bloom. It was left as it is. Give the job directory of a crawl, a"
                f" file that 'scrapy bloom copy' has written, or the URL of a Redis server and a"
                f" --key."
            )


class JobTarget(Target):
    """The filter in the job directory of a crawl.

    With ``scrapy_bloom.Scheduler`` that is its snapshot and the marks that were committed since;
    else it is the filter at the last clean stop.

    :param folder: the job directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        """The path of the job directory."""
        return str(self.folder)

    @property
    def requests(self) -> Path:
        """The file with the requests of ``scrapy_bloom.Scheduler``."""
        return self.folder / REQUESTS

    def exists(self) -> bool:
        """Return whether the folder has a filter."""
        with _told(self.folder):
            return (self.folder / SNAPSHOT).exists() or self.requests.exists()

    def read(self, progress: Progress = silent) -> Contents:  # noqa: ARG002 - it takes no time
        """Read the filter and, if there is one, its journal."""
        contents = self._read()
        if contents is None:
            raise self.missing()
        return contents

    def check_identity(self, identity: Identity) -> None:
        """Look whether it is known whose filter it is."""
        check_spider(identity)

    def has_requests(self) -> bool:
        """Return whether requests wait in the job, ours or those of Scrapy's own scheduler."""
        look = self.look()
        return bool(look and look.waiting) or not scrapy_queue.is_empty(self.folder)

    def look(self) -> StoreLook | None:
        """Return what ``scrapy_bloom.Scheduler`` keeps beside the filter; None without it."""
        if not self.requests.exists():
            return None
        with StoreReader(self.requests) as reader:
            return reader.look()

    @contextmanager
    def open(self) -> Iterator[Open]:
        """Read the filter."""
        contents = self.read()
        yield Open(Sharded(contents), contents.identity, contents.let_through)

    @contextmanager
    def making(self) -> Iterator[Change]:
        """Hold the job directory, as a crawl does."""
        with self._change(make=True) as change:
            yield _empty(self, change)

    @contextmanager
    def _change(self, *, make: bool = False) -> Iterator[FileChange]:
        if not make and not self.exists():
            raise self.missing()
        new = not self.folder.exists()
        try:
            with holding(self.folder, _US):
                yield JobChange(self.folder, self._read())
        finally:
            if new and not self.exists():
                with suppress(OSError):
                    (self.folder / LOCK).unlink(missing_ok=True)
                    self.folder.rmdir()

    @contextmanager
    def adding(self) -> Iterator[Adder]:
        """Add to a copy in memory; the snapshot is replaced at the end."""
        with self._change() as change:
            yield from _adding(change, self.name)

    def delete(self, progress: Progress = silent) -> None:  # noqa: ARG002 - it takes no time
        """Delete the filter, with the requests of ``scrapy_bloom.Scheduler``."""
        if not self.exists():
            raise self.missing()
        with holding(self.folder, _US), _told(self.folder):
            # The requests last: those without marks are only fetched again.
            for name in (SNAPSHOT, MARKER, STOPPED):
                remove(self.folder / name)
            remove_lists(self.folder)
            for end in ("", "-wal", "-shm"):
                remove(self.requests.with_name(self.requests.name + end))

    def _read(self) -> Contents | None:
        if not self.requests.exists():
            snapshot = read_snapshot(self.folder / SNAPSHOT)
            empty = scrapy_queue.is_empty(self.folder)
            beside = "" if empty else str(self.folder / scrapy_queue.NAME)
            return replace(Contents.of(snapshot), beside=beside) if snapshot else None
        with StoreReader(self.requests) as reader:
            look = reader.look()
            # Before the snapshot: a new one, which has them, may come at any moment.
            marks = list(reader.marks())
            ages = reader.ages()
        snapshot = read_snapshot(self.folder / SNAPSHOT)
        kept = LocalFilter(on_growth=_QUIET)
        if snapshot:
            first = snapshot.state.slices[0].spec.capacity
            rate = error_rate_of(snapshot.state)
            state = snapshot.state
            kept = filter_of(state, first, rate, on_growth=_QUIET, clock=time.time)
        elif look.window is not None:
            kept = WindowedFilter(look.window, on_growth=_QUIET, clock=time.time)
        for row in marks:
            kept.restore(row.fingerprints, row.since)
        kept.restore_ages(ages)
        state = kept.state()
        return Contents(
            look.identity,
            error_rate_of(state),
            [state],
            look.withheld,
            snapshot.generation if snapshot else 0,
            snapshot.written_by if snapshot else "",
            journaled=True,
            waiting=look.waiting,
        )


class JobChange(FileChange):
    """A job directory that is held."""

    def __init__(self, folder: Path, contents: Contents | None) -> None:
        super().__init__(folder / SNAPSHOT, contents)
        self._requests = folder / REQUESTS

    def put(self, contents: Contents, progress: Progress = silent) -> None:
        """Replace the snapshot; refuse what a job cannot hold."""
        if len(contents.shards) > 1:
            raise SettingError(
                f"a filter of {len(contents.shards)} shards cannot be kept in a job directory:"
                f" each shard hashes with a secret of its own. Copy it to Redis, or to a file."
            )
        contents.bits()  # refuses what has none
        check_spider(contents.identity)
        before = self.contents.let_through if self.contents else frozenset[bytes]()
        stopped = self.path.stat().st_mtime_ns if self.path.exists() else None
        super().put(contents, progress)
        if stopped is not None:
            os.utime(self.path, ns=(stopped, stopped))  # the time of the last clean stop
        if self._requests.exists():
            # The scheduler keeps the list itself; that in the snapshot is for a job without it.
            try:
                store = Store(self._requests)
                try:
                    store.withhold(set(contents.let_through) - set(before))
                    store.let_be(set(before) - set(contents.let_through))
                    if not (self.contents and self.contents.items == contents.items):
                        _note_marks(store, len(contents.shards[0].slices))
                    store.commit()
                finally:
                    store.close()
            except sqlite3.Error as error:
                raise file.unusable(self._requests, error) from error


def _note_marks(store: Store, slices: int) -> None:
    """Note that exact lists lack what was marked by hand."""
    if noted := store.noted(NOTE):
        store.note(NOTE, with_old_slices(str(noted), slices))


def check_spider(identity: Identity) -> None:
    """Look whether a filter can be kept in a job directory.

    :raises SettingError: if nobody knows whose it is.
    """
    if not identity.spider:
        raise SettingError(
            "it is not known whose marks these are, and a job directory belongs to one spider:"
            " give its name with --spider, such as --spider books."
        )


class Sharded:
    """Asks a filter that is in memory, of one shard or several.

    :param contents: the filter.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._shards = [_asking(state) for state in contents.shards]
        self._pick = picker(self._shards)

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added."""
        if len(self._shards) == 1:
            return self._shards[0](fingerprints)
        return [self._pick(fingerprint)([fingerprint])[0] for fingerprint in fingerprints]

    def info(self) -> FilterInfo:
        """Return the state of the filter."""
        return self._contents.info()

    def close(self) -> None:
        """Do nothing: memory is all that it holds."""


def _asking(state: AnyState) -> Callable[[Iterable[bytes]], list[bool]]:
    """Return what tells of fingerprints whether they were added."""
    if isinstance(state, FilterState):
        return filter_of(state, on_growth=_QUIET).contains_many
    find = state.finder()
    return lambda fingerprints: [*map(find, fingerprints)]


class LocalAdder:
    """Adds to a filter in memory.

    :param contents: the filter; its bits are changed.
    :param name: where it is.

    Attributes:
        identity: what the filter belongs to.
    """

    def __init__(self, contents: Contents, name: str) -> None:
        if len(contents.shards) > 1:
            raise SettingError(
                f"{name}: the filter has {len(contents.shards)} shards. Copy it to Redis to add to"
                f" it."
            )
        state = contents.bits()[0]
        capacity = state.slices[0].spec.capacity
        self.identity = contents.identity
        self._contents = contents
        self._kept = filter_of(state, capacity, contents.error_rate, on_growth=_QUIET)
        self._kept.forgotten.update(contents.let_through)

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; what was to be let through is seen from now on."""
        return self._kept.add_many(fingerprints)

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make a batch new once more."""
        return self._kept.forget_many(fingerprints)

    def contents(self) -> Contents:
        """Return the filter as it is now."""
        let_through = frozenset(self._kept.forgotten)
        return replace(self._contents, shards=[self._kept.state()], let_through=let_through)


def _empty(target: Target, change: FileChange) -> FileChange:
    if change.contents is not None:
        raise target.occupied()
    return change


def _adding(change: FileChange, name: str) -> Iterator[Adder]:
    """Yield what adds to a filter in memory, and put that in its place when all went well."""
    assert change.contents is not None  # noqa: S101 - it was asked for one that is there
    adder = LocalAdder(change.contents, name)
    yield adder
    change.put(adder.contents())


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(
            f"{error.filename or path}: {error.strerror}. Give this user the right to it."
        ) from error
