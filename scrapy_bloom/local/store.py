"""A crawl in one SQLite file: its filter, requests and metadata. Each commit is one transaction.

A row of ``requests`` is a request that is not done: taking it from a queue writes nothing, and the
row is deleted when it is done. At each commit, every page that the filter calls seen is done, has a
row, is one of very many unparsed ones, or is listed in ``again``. So a kill leaves the state of
the last commit, and nothing is lost.

How marks are written is documented in :mod:`~scrapy_bloom.local.marks`.

Usage, in one thread, under a lock that keeps other processes out::

    store = Store(path, LocalFilter(capacity=1_000_000))  # on StateError, nothing has changed
    store.clean                    # whether the last run closed the file; true of a new file
    store.meta["kind"]             # metadata; what is changed here is written by the next commit
    store.filter.add(fingerprint)  # was it seen?
    queue = store.queue("0", None)     # the number of a queue, created if new
    row = store.push(queue, body)      # add a waiting request
    store.rows(queue, newest=True)     # waiting rows
    store.get(row), store.take(row), store.delete(row)
    store.commit()                 # sqlite3.Error or OSError: nothing written, all changes kept
    store.close()

Nothing is written before the first commit, which also records that a run has begun.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

from scrapy_bloom import file
from scrapy_bloom.crawl.backend import EACH
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.outcomes import REDIRECTED
from scrapy_bloom.errors import SettingError
from scrapy_bloom.file import Counters, Value, crc
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.slices import Changes
from scrapy_bloom.filter.stored import StoredFilter, metadata_of, read_filter
from scrapy_bloom.local.failed import FailedPages
from scrapy_bloom.local.log import TRUNCATED_BYTES, Log
from scrapy_bloom.local.marks import Marks
from scrapy_bloom.local.metadata import RUNS, STORED, read_metadata
from scrapy_bloom.local.starts import Starts
from scrapy_bloom.local.transactions import Transactions
from scrapy_bloom.values import encodable, write_span

NAME: Final = "bloom.sqlite"
"""Name of the file in a job directory."""

NUMBER_BITS: Final = 40
"""A row's id is the number of its queue followed by its own number, in this many lower bits."""

CHECKED_BYTES: Final = 64 << 20
"""A file of up to this size is always checked in full on opening: about 0.1 s."""

NEVER_MISSING: Final = "requests", "failed", "queues", "again"
"""Tables that are checked even in a larger file that was closed: a row missing there loses a page.
Checksums cover only rows that exist; rows missing elsewhere cause pages to be fetched again."""

_AT_ONCE: Final = 1000
"""Rows of the failed list that one commit changes at most, so that they are not all in memory."""

_PRAGMAS: Final = (
    "journal_mode = WAL",
    "wal_autocheckpoint = 0",  # see Log
    f"journal_size_limit = {TRUNCATED_BYTES}",
    "cache_size = -16000",  # kB
    "secure_delete = OFF",  # ON would overwrite deleted content
)


@dataclass(eq=False)
class StoredQueue:
    """A queue of requests in the file.

    Attributes:
        path: its name.
        slot: the download slot of its requests, if they share one.
        size: how many requests it has that are not done.
        taken: how many of them are no longer waiting.
        new: uncommitted requests by row, oldest first.
        stored: whether it has a row, as of the last commit.
    """

    path: str
    slot: str | None
    size: int = 0
    taken: int = 0
    new: dict[int, bytes] = field(default_factory=dict)
    stored: bool = False


class Store:
    """The file of one job. Changes are collected in memory; :meth:`commit` writes them together.

    :param path: of the file; created if missing.
    :param fresh: an empty filter for a new file; that of an existing file grows as this one would.
        Without it, a file is opened with the settings it was made for.
    :param reading: a connection that reads an existing file, perhaps during a crawl. Then only what
        is asked for is read and checked, nothing can be changed, and there is `stored` in place of
        `filter` and `marks`.
    :raises StateError: if the file cannot be used; it is left as it is.
    :raises SettingError: if it was made for another window; likewise.

    Attributes:
        path: as given.
        stored: the filter as it is in the file, if that is only read.
        filter: the filter; its marks are written by the next commit.
        marks: what is stored of it.
        failed: the failed list.
        starts: start requests that are not filtered.
        log: SQLite's, beside the file.
        meta: metadata; what is changed in it is written by the next commit.
        stored_meta: those of the last one.
        clean: whether the last run closed the file.
        queues: by number, the queues with requests that are not done at the last commit, or now.
        unreadable: how many of those that were taken cannot be read.
        new_bytes: size of the requests that the next commit writes, with :data:`EACH` for each:
            until then they are in memory.
    """

    def __init__(
        self,
        path: Path,
        fresh: LocalFilter | None = None,
        *,
        reading: sqlite3.Connection | None = None,
    ) -> None:
        self.path, self._read_only = path, reading is not None
        self.log = Log(path)
        if reading is not None:
            self._database = reading
            self._read(reading, file.read_counters(reading))
            meta = self.meta or metadata_of(LocalFilter())  # of one killed before its first commit
            self.stored = StoredFilter(reading, meta, time.time())
            self._read_lists()
            return
        if not path.exists():
            file.write(path)
        with file.reading(path) as database:
            self.log.check(database)
            _check_pages(path, database)
            counters = file.read_counters(database)
            self._read(database, counters)
            tally = file.check_tally(database)
            self.filter, journal = _read_filter(path, database, self.meta, fresh)
        with file.refusing(path):
            self._database = file.connect(path, "rw")
            for pragma in _PRAGMAS:
                self._database.execute(f"PRAGMA {pragma}").fetchone()
            self._read_lists()
            self._transactions = Transactions(path, self._database, counters.commits, tally)
            self.marks = Marks(self.filter, self._database, journal=journal)

    def _read_lists(self) -> None:
        self.starts = Starts(self._database)
        self.failed = FailedPages(self._database, self.meta.get(RUNS, 0) + 1)

    def __len__(self) -> int:
        """Return how many requests are not done."""
        return self._size

    # Requests

    @property
    def in_flight(self) -> int:
        """How many requests were taken and are not done. What cannot be read waits."""
        return len(self._taken) - self.unreadable

    def queue(self, path: str, slot: str | None) -> int:
        """Return the number of a queue, which is created if new.

        Ask for it each time: a queue that is empty at a commit is dropped.

        :raises UnicodeEncodeError: if its name cannot be written.
        """
        number = self._numbers.get(path)
        if number is None:
            path.encode()  # unlike a slot it is looked up: what it names could not be found again
            slot = slot and encodable(slot)
            number = self._numbers[path] = self._free.pop() if self._free else self._next_queue
            self._next_queue += number == self._next_queue
            self.queues[number] = StoredQueue(path, slot)
        return number

    def find(self, path: str) -> int | None:
        """Return the number of a queue, or None if there is none."""
        return self._numbers.get(path)

    def waiting(self, number: int) -> int:
        """Return how many requests of a queue are neither done nor taken."""
        queue = self.queues[number]
        return queue.size - queue.taken

    def push(self, number: int, body: bytes) -> int:
        """Add a waiting request; return its row. Within a queue, younger requests have higher rows.

        A row identifies a body, and is never reused.
        """
        row = number << NUMBER_BITS | self._request
        self._request += 1
        queue = self.queues[number]
        self._touched.add(number)
        queue.new[row] = body
        queue.size += 1
        self.new_bytes += len(body) + EACH
        self._size += 1
        return row

    def take(self, row: int) -> None:
        """Record that a request is no longer waiting; it stays in the file until it is done."""
        if row not in self._taken:
            self._taken.add(row)
            self.queues[row >> NUMBER_BITS].taken += 1

    def delete(self, row: int) -> None:
        """Delete a request, taken or not."""
        number = row >> NUMBER_BITS
        queue = self.queues[number]
        if (body := queue.new.pop(row, None)) is None:
            self._gone.add(row)
        else:
            self.new_bytes -= len(body) + EACH
        if row in self._taken:
            self._taken.remove(row)
            queue.taken -= 1
        queue.size -= 1
        self._size -= 1
        self._touched.add(number)

    def fail(self, row: int, failed: FailedPage) -> bool:
        """Move a request to what has failed or is unparsed; its row identifies it there, too.

        :returns: whether it is stored: see :meth:`FailedPages.add`.
        """
        self.delete(row)
        return self.failed.add(row, failed)

    def fail_redirected(self) -> None:
        """Let what was redirected to seen pages fail if these have failed; commit that.

        :raises sqlite3.Error: as :meth:`commit` does.
        """
        if not self.failed.reasons.decisions[REDIRECTED]:
            return
        self.commit()
        marks = self.failed.led_to()
        while marks:
            forgotten = {mark for mark in marks if mark not in self.filter}  # not marked since
            marks = set[bytes]()
            for count, id_ in enumerate(self.failed.leading_to(forgotten), 1):
                marks.update(way := self.failed.let_fail(id_))
                self.filter.forget_many(way)
                if count % _AT_ONCE == 0:
                    self.commit()
            self.commit()

    def rows(self, number: int, *, newest: bool) -> Iterator[int]:
        """Yield the rows of the waiting requests of a queue, in order.

        Consume what you need before changing anything.

        :param newest: whether the newest request comes first, else the oldest.
        """
        low, high = number << NUMBER_BITS, (number + 1) << NUMBER_BITS
        order = "DESC" if newest else "ASC"
        query = f"SELECT id FROM requests WHERE id > ? AND id < ? ORDER BY id {order}"
        committed = (row for (row,) in self._database.execute(query, (low, high)))
        new = self.queues[number].new
        rows = chain(reversed(new), committed) if newest else chain(committed, new)
        return (row for row in rows if row not in self._taken and row not in self._gone)

    def read(self, number: int, *, newest: bool) -> Iterator[tuple[int, bytes | None]]:
        """Yield the waiting requests of a queue, in order, with their rows. See :meth:`get`."""
        return ((row, self.get(row)) for row in self.rows(number, newest=newest))

    def has(self, row: int) -> bool:
        """Return whether a request is not done."""
        queue = self.queues.get(row >> NUMBER_BITS)
        if queue is None or row in self._gone or row in queue.new:
            return queue is not None and row in queue.new
        query = "SELECT 1 FROM requests WHERE id = ?"
        return self._database.execute(query, (row,)).fetchone() is not None

    def get(self, row: int) -> bytes | None:
        """Return a waiting request, None if it does not match its checksum.

        :raises sqlite3.Error: if it cannot be read, or is missing.
        """
        if (body := self.queues[row >> NUMBER_BITS].new.get(row)) is not None:
            return body
        query = "SELECT body, crc FROM requests WHERE id = ?"
        stored = self._database.execute(query, (row,)).fetchone()
        if stored is None:
            raise file.DamageError("a request is missing")
        body, checksum = stored
        return body if checksum == crc(row, body) else None

    # Commits

    @property
    def dirty(self) -> bool:
        """Whether there is something to commit."""
        parts = self.marks.changed, self.failed.changed, self.starts.changed
        return bool(self._touched or any(parts) or self._new_metadata())

    def _new_metadata(self) -> dict[str, Value]:
        """Return the metadata that has changed since the last commit."""
        stored = self.stored_meta
        return {key: value for key, value in self.meta.items() if stored.get(key) != value}

    def commit(self, *, sync: bool = False) -> None:
        """Write all changes. After an error nothing is written, and no change is lost.

        :param sync: whether to sync to disk, so that the commit survives a power failure.
        :raises sqlite3.Error: if it cannot be written, because the disk is full, say.
        :raises StateError: if the file was moved or deleted.
        :raises JobInUseError: if another process has written to it.
        """
        self.marks.begin_pass_if_due()
        self._commit(clean=0, sync=sync)

    def close(self) -> None:
        """Write everything and close the file. After an error it is open: try again, or abandon it.

        (1) Commit what has changed
        (2) Complete the pass, if one is in progress or due, and delete obsolete rows
        (3) Commit that the run was stopped cleanly
        (4) Return unused space, if that is little work
        (5) Copy the log into the file, and remove it

        :raises sqlite3.Error: as :meth:`commit` does.
        """
        self.marks.begin_pass_if_due()
        self._commit(clean=0)
        while self.marks.passing or self.marks.sweeping:
            self._commit(clean=0)
        self._commit(clean=1)
        self.log.wait()
        _compact(self._database)
        self.log.checkpoint()
        self._database.close()  # which checkpoints the rest and removes the log

    def abandon(self) -> None:
        """Close the file as after the last commit; the next run finds that this one was killed."""
        self.log.wait()
        self._database.close()

    # Opening

    def _read(self, database: sqlite3.Connection, counters: Counters) -> None:
        self.meta = read_metadata(database)
        self.stored_meta = dict(self.meta)
        self.clean = bool(counters.clean)
        self._request = counters.request
        self.unreadable = self.new_bytes = 0
        self._touched: set[int] = set()
        self._gone: set[int] = set()
        self._taken: set[int] = set()
        sizes = sizes_in(database)
        self.queues = {
            number: StoredQueue(path, slot, sizes.get(number, 0), stored=True)
            for number, path, slot in file.rows(database, "queues")
        }
        for number, queue in self.queues.items():
            if not isinstance(queue.path, str) or not isinstance(queue.slot, str | None):
                raise file.DamageError(f"queue {number}: {queue.path!r:.80} is no name")
        if self.queues.keys() != sizes.keys():
            raise file.DamageError("a queue has no requests, or requests have no queue")
        self._numbers = {queue.path: number for number, queue in self.queues.items()}
        self._next_queue = max(self.queues, default=0) + 1
        self._free: list[int] = []  # numbers of queues that were dropped
        self._size = sum(sizes.values())

    # Writing

    def _commit(self, *, clean: int, sync: bool = False) -> None:
        self.meta[STORED] = self._size
        with self._transaction(clean, sync=sync) as change:
            change(self._write_requests())
            file.put(self._database, "meta", self._new_metadata().items())
            marks_committed, by_marks = self.marks.write()
            change(by_marks)
            failed_committed, by_failed = self.failed.write()
            change(by_failed)
            starts_committed = self.starts.write()
        self._committed()
        marks_committed()
        failed_committed()
        starts_committed()
        self.log.checkpoint_if_due(self._transactions.commits)

    def _transaction(
        self, clean: int = 0, *, sync: bool | None = None
    ) -> AbstractContextManager[Callable[[int], None]]:
        return self._transactions.begin(clean, self._request, self.filter.next_id, sync=sync)

    def _write_requests(self) -> int:
        """Write new requests, and delete those that are done; return the tally's change."""
        touched = sorted(self._touched)
        change = -sum(map(file.weight, self._gone))
        for number in touched:
            new = self.queues[number].new
            file.put(self._database, "requests", new.items())
            change += sum(map(file.weight, new))
        gone = ((row,) for row in sorted(self._gone))
        self._database.executemany("DELETE FROM requests WHERE id = ?", gone)
        return change + self._write_queues(touched)

    def _write_queues(self, touched: Iterable[int]) -> int:
        """Write the queues that are new, delete the empty ones; return the tally's change.

        With many hosts, a row that changed with each request would be most of what is written.
        """
        change = 0
        for number in touched:
            queue = self.queues[number]
            row = number, queue.path, queue.slot
            if queue.size and not queue.stored:
                file.put(self._database, "queues", [row])
                change += file.crc(*row)
            elif queue.stored and not queue.size:
                self._database.execute("DELETE FROM queues WHERE id = ?", (number,))
                change -= file.crc(*row)
        return change

    def _committed(self) -> None:
        """Drop the changes that are committed."""
        for number in self._touched:
            queue = self.queues[number]
            queue.new.clear()
            queue.stored = True
            if not queue.size:  # nor has it a row any more
                del self.queues[number], self._numbers[queue.path]
                self._free.append(number)
        self.new_bytes = 0
        self._touched.clear()
        self._gone.clear()
        self.stored_meta = dict(self.meta)


@contextmanager
def reading(path: Path) -> Iterator[Store]:
    """Open the last commit of a file for reading only, perhaps during a crawl.

    :raises StateError: if the file cannot be used.
    """
    with file.reading(path) as database:
        yield Store(path, reading=database)


def _span(window: float | None) -> str | None:
    return None if window is None else write_span(window)


def sizes_in(database: sqlite3.Connection) -> dict[int, int]:
    """Return how many requests the queues have that are not done, by their numbers."""
    query = "SELECT id >> ?, count(*) FROM requests GROUP BY 1"
    return dict(database.execute(query, (NUMBER_BITS,)))


def count_in(database: sqlite3.Connection, queue: int) -> int:
    """Return how many requests a queue has that are not done."""
    query = "SELECT count(*) FROM requests WHERE id >= ? AND id < ?"
    between = queue << NUMBER_BITS, queue + 1 << NUMBER_BITS
    return int(database.execute(query, between).fetchone()[0])


def _check_pages(path: Path, database: sqlite3.Connection) -> None:
    """Have SQLite check a file.

    :raises DamageError: if it finds anything.
    """
    small = path.stat().st_size <= CHECKED_BYTES
    for what in (1,) if small or not file.read_counters(database).clean else NEVER_MISSING:
        damage = database.execute(f"PRAGMA quick_check({what})").fetchone()[0]
        if damage != "ok":
            raise file.DamageError(damage)


def _read_filter(
    path: Path,
    database: sqlite3.Connection,
    meta: dict[str, Any],
    fresh: LocalFilter | None,
) -> tuple[LocalFilter, int]:
    """Return the filter, whose metadata is recorded, and how many marks the journal has."""
    if "secret" not in meta and not file.read_counters(database).commits:
        filter_, journal = LocalFilter() if fresh is None else fresh, 0
    else:
        filter_ = LocalFilter(meta["capacity"], meta["error_rate"]) if fresh is None else fresh
        window, filter_.changes = filter_.window, Changes()
        journal = read_filter(filter_, database, meta)
        if fresh is not None:
            _check_window(path, meta, window)
    meta.update(metadata_of(filter_))
    return filter_, journal


def _check_window(path: Path, meta: dict[str, Any], window: float | None) -> None:
    stored, expected = _span(meta.get("window")), _span(window)
    if stored != expected:
        raise SettingError(
            f"BLOOM_WINDOW = {expected!r}: {path} was made with BLOOM_WINDOW = {stored!r}. It was"
            f" left as it is: set {stored!r} again, or choose another JOBDIR."
        )


def _compact(database: sqlite3.Connection) -> None:
    """Return unused space to the file system, if that is little work."""
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    if free * 4 > pages and (pages - free) * size <= CHECKED_BYTES:
        with suppress(sqlite3.Error):  # only the size is at stake
            database.execute("VACUUM")
