"""A crawl in one SQLite file: its filter, requests and notes. Each commit is one transaction.

A row of ``requests`` is a request that is not done: taking it from a queue writes nothing, and the
row is deleted when it is done. At each commit, every page that the filter calls seen is done, has a
row, or is listed in ``again``. So a kill leaves the state of the last commit, and nothing is lost.

A new mark goes to the journal, about 20 bytes, with the next commit. When the journal is long, a
*pass* writes the blocks that have changed, a few with each commit, and then deletes the part of the
journal that was there when it began. Blocks may be newer than that part: bits are only ever set, so
replaying it is harmless. Item counts are stored with each commit; a replay does not count.

Usage, in one thread, under a lock that keeps other processes out::

    store = Store(path, LocalFilter(capacity=1_000_000))  # on StateError, nothing has changed
    store.clean                    # whether the last run closed the file; true of a new file
    store.meta["kind"]             # notes of earlier runs, read-only
    store.add(fingerprint)         # was it seen? `filter.add`, and the exact list if there is one
    queue = store.queue("0", None)     # the number of a queue, created if new
    row = store.push(queue, body)      # add a waiting request
    store.read(queue, newest=True)     # waiting rows, to be taken with `take`
    store.take(row), store.done(row)
    store.note("spider.state", data)
    store.commit()                 # sqlite3.Error or OSError: nothing written, all changes kept
    store.close()

Nothing is written before the first commit, which also records that a run has begun.
"""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from pathlib import Path
from threading import Thread
from typing import Any, Final

from scrapy_bloom import file
from scrapy_bloom.errors import SettingError
from scrapy_bloom.file import Counters, Value, crc
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.hashing import SHA1_BYTES
from scrapy_bloom.filter.slices import Changes, Slice
from scrapy_bloom.values import write_span

NAME: Final = "bloom.sqlite"
"""Name of the file in a job directory."""

NUMBER_BITS: Final = 40
"""A row's id is the number of its queue followed by its own number, in this many lower bits."""

LEAST_JOURNAL: Final = 200_000
"""A pass begins when the journal has more marks than this, and than 1 / :data:`JOURNAL_SHARE` of
all items. After a kill they are replayed, at 3 µs each; but each pass writes nearly every block."""

JOURNAL_SHARE: Final = 20

SMALL_JOURNAL: Final = 20_000
"""A journal of at most this many marks stays at a clean stop: it is smaller than their blocks."""

BLOCKS_AT_ONCE: Final = 64  # blocks written by one commit of a pass: 0.5 MB
SWEPT_AT_ONCE: Final = 128  # most rows that one commit deletes from each table
MARKS_A_ROW: Final = 1_000  # most marks in one row of the journal

LISTED_AT_ONCE: Final = 1_000
"""Fingerprints that a commit of a pass adds to `exact`, at least; and expired ones that any commit
deletes from `again` and `ages`, at most."""

ROWS_AT_ONCE: Final = 100
"""Rows of `exact` per statement: each takes half the time that a statement of its own would."""

MOST_UNLISTED: Final = 1_000_000
"""With an exact list, a pass begins at this many marks at the latest: until then all are in memory,
at some 160 bytes each."""

_ENTRY_BYTES: Final = 16

CHECKPOINT_COMMITS: Final = 100
"""Commits between checkpoints, which copy the log into the file and sync both."""

LOG_BYTES: Final = 16 << 20
"""A longer log is checkpointed at once. At four times this size, a commit waits for that."""

_KEPT_LOG: Final = 4 << 20  # a log that is restarted is truncated to this size
CHECKED_BYTES: Final = 64 << 20
"""A file of up to this size is always checked in full on opening: about 0.1 s."""

NEVER_MISSING: Final = "requests", "queues", "again"
"""Tables that are checked even in a larger file that was closed: a row missing there loses a page.
Checksums cover only rows that exist; rows missing elsewhere cause pages to be fetched again."""


_PRAGMAS: Final = (
    "journal_mode = WAL",
    "wal_autocheckpoint = 0",  # see Store._checkpoint
    f"journal_size_limit = {_KEPT_LOG}",
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
    """

    path: str
    slot: str | None
    size: int = 0
    taken: int = 0
    new: dict[int, bytes] = field(default_factory=dict)


class Store:
    """The file of one job. Changes are collected in memory; :meth:`commit` writes them together.

    :param path: of the file; created if missing.
    :param fresh: an empty filter for a new file; that of an existing file grows as this one would.
        Without it, a file is opened with the settings it was made for.
    :param exact: whether to list fingerprints as well, so that false positives are caught.
    :param read_only: whether to open the last commit for reading only, perhaps during a crawl.
    :raises StateError: if the file cannot be used; it is left as it is.
    :raises SettingError: if it was made for another window or `exact`; likewise.

    Attributes:
        path: as given.
        filter: the filter. Marks made with :meth:`add` are written by the next commit.
        meta: notes; changed by :meth:`note` only.
        clean: whether the last run closed the file.
        withheld: how often each fingerprint is withheld.
        queues: by number, the queues with requests that are not done at the last commit, or now.
    """

    def __init__(
        self,
        path: Path,
        fresh: LocalFilter | None = None,
        *,
        exact: bool = False,
        read_only: bool = False,
    ) -> None:
        self.path, self._read_only = path, read_only
        self._marker = path.with_name(f"{path.name}-checkpoint")
        self._thread: Thread | None = None
        self._syncs: bool | None = None  # whether the connection syncs each commit
        if not read_only and not path.exists():
            file.write(path)
        with file.reading(path) as database:
            self._check(database)
            self._read(database)
            self._read_filter(database, fresh, exact=exact)
        with file.refusing(path):
            self._database = file.connect(path, "ro" if read_only else "rw")
            for pragma in () if read_only else _PRAGMAS:
                self._database.execute(f"PRAGMA {pragma}").fetchone()

    def __len__(self) -> int:
        """Return how many requests are not done."""
        return self._size

    # Marks

    def add(self, fingerprint: bytes) -> bool:
        """Mark a fingerprint; return whether it was marked before."""
        seen = self.filter.add(fingerprint)
        if self._exact and seen and not self._is_listed(fingerprint):
            self.filter.add_to_newest(fingerprint)
            seen = False
        if self._exact and not seen:
            self._list(self.filter.slices[-1].id, fingerprint)
        return seen

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this let it through in the last `max_age` seconds; if not, mark it."""
        seen = self.filter.add_aged(fingerprint, max_age)
        if self._exact and not seen:
            self._list(self.filter.slices[-1].id, fingerprint)
        return seen

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make fingerprints eligible again; return for each whether it was there."""
        return self.filter.forget_many(fingerprints)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether a fingerprint was marked. Changes nothing."""
        there = fingerprint in self.filter
        return there and (not self._exact or self._is_listed(fingerprint))

    def withhold(self, fingerprints: Iterable[bytes]) -> None:
        """Make the next run fetch these pages: their requests are in memory only."""
        for fingerprint in fingerprints:
            self.withheld[fingerprint] += 1
            self._changes.again.add(fingerprint)

    def release(self, fingerprints: Iterable[bytes]) -> None:
        """Undo one :meth:`withhold` of each: the request is done."""
        for fingerprint in fingerprints:
            self.withheld[fingerprint] -= 1
            if not self.withheld[fingerprint]:
                del self.withheld[fingerprint]
            self._changes.again.add(fingerprint)

    # Requests

    @property
    def in_flight(self) -> int:
        """How many requests were taken and are not done."""
        return len(self._taken)

    def queue(self, path: str, slot: str | None) -> int:
        """Return the number of a queue, which is created if new.

        Ask for it each time: a queue that is empty at a commit is dropped.
        """
        number = self._numbers.get(path)
        if number is None:
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
        queue.new[row] = body
        queue.size += 1
        self._size += 1
        self._touched.add(number)
        return row

    def take(self, row: int) -> None:
        """Record that a request is no longer waiting; it stays in the file until it is done."""
        if row not in self._taken:
            self._taken.add(row)
            self.queues[row >> NUMBER_BITS].taken += 1

    def done(self, row: int) -> None:
        """Delete a request, taken or not."""
        number = row >> NUMBER_BITS
        queue = self.queues[number]
        if queue.new.pop(row, None) is None:
            self._gone.add(row)
        if row in self._taken:
            self._taken.remove(row)
            queue.taken -= 1
        queue.size -= 1
        self._size -= 1
        self._touched.add(number)

    def read(self, number: int, *, newest: bool) -> Iterator[tuple[int, bytes | None]]:
        """Yield the waiting requests of a queue, in order, with their rows.

        A body that does not match its checksum is None. Consume what you need before changing
        anything.

        :param newest: whether the newest request comes first, else the oldest.
        """
        low, high = number << NUMBER_BITS, (number + 1) << NUMBER_BITS
        order = "DESC" if newest else "ASC"
        asked = f"SELECT id, body, crc FROM requests WHERE id > ? AND id < ? ORDER BY id {order}"  # noqa: S608
        committed = (
            (row, body if checksum == crc(row, body) else None)
            for row, body, checksum in self._database.execute(asked, (low, high))
        )
        new = self.queues[number].new
        later = ((row, new[row]) for row in (reversed(new) if newest else new))
        found = chain(later, committed) if newest else chain(committed, later)
        return (one for one in found if one[0] not in self._taken and one[0] not in self._gone)

    # Commits

    def commit_at_close_only(self) -> None:
        """Commit nothing until :meth:`close`, and collect no more marks than the journal keeps."""
        self._changes.room = max(0, SMALL_JOURNAL - self.journal)

    def note(self, key: str, value: Value) -> None:
        """Store a note with the next commit."""
        if self.meta.get(key) != value:
            self._notes[key] = self.meta[key] = value

    @property
    def dirty(self) -> bool:
        """Whether there is something to commit."""
        changes = self._changes
        return bool(self._touched or self._notes or changes.marks or changes.again or changes.ages)

    @property
    def passing(self) -> bool:
        """Whether a pass is writing blocks."""
        return self._pass is not None

    def commit(self, *, sync: bool = False) -> None:
        """Write all changes. After an error nothing is written, and no change is lost.

        :param sync: whether to sync to disk, so that the commit survives a power failure.
        :raises sqlite3.Error: if it cannot be written, because the disk is full, say.
        """
        self._commit(clean=0, sync=sync)

    def close(self) -> None:
        """Write everything and close the file. After an error it is open: try again, or abandon it.

        :raises sqlite3.Error: as :meth:`commit` does.
        """
        if self._read_only:
            self._database.close()
            return
        self._commit(clean=0)
        while self._pass is not None:  # a new pass would leave its blocks out
            self._commit(clean=0)
        if self.journal > SMALL_JOURNAL or self._changes.marks is None:
            self._begin_pass()
        while self._pass is not None or self._sweeping:
            self._commit(clean=0)
        self._commit(clean=1)
        self.wait()
        self._compact()
        self._checkpoint()
        self._database.close()  # which checkpoints the rest and removes the log
        if not file.log_size(self.path):
            self._marker.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Close the file without writing anything more, as a kill would."""
        self.wait()
        with suppress(sqlite3.Error):
            # The last connection to close checkpoints the log, unless it is read-only.
            if file.log_size(self.path):
                other = file.connect(self.path, "ro")
                other.execute("SELECT count(*) FROM counters").fetchone()
                self._database.close()
                other.close()
        self._database.close()

    def wait(self) -> None:
        """Wait for the checkpoint thread, if one is running."""
        if self._thread is not None:
            self._thread.join()

    # Opening

    def _check(self, database: sqlite3.Connection) -> None:
        """Refuse a damaged file, by reading only."""
        before = 0
        if not self._read_only:
            with closing(file.connect(self.path, "immutable")) as alone:
                # An interrupted checkpoint leaves a file that is shorter than its header says.
                alone.execute("PRAGMA writable_schema = ON")  # else SQLite reports damage
                before = file.read_counters(alone).commits
        counters = file.read_counters(database)
        # SQLite ignores the log after a damaged frame. But later frames may be in the file already,
        # where older pages from before the damage would hide them.
        if counters.commits < before or (self._marker.exists() and not self._logged()):
            raise file.DamageError(f"{self.path.name}-wal has lost commits")
        small = self.path.stat().st_size <= CHECKED_BYTES
        for what in (1,) if small or not counters.clean else NEVER_MISSING:
            found = database.execute(f"PRAGMA quick_check({what})").fetchone()[0]
            if found != "ok":
                raise file.DamageError(found)

    def _logged(self) -> int:
        """Return how many frames of the log SQLite uses; the file must be open."""
        if not file.log_size(self.path):
            return 0
        with self.path.with_name(f"{self.path.name}-shm").open("rb") as index:
            return int.from_bytes(index.read(20)[16:], sys.byteorder)  # "mxFrame", see walformat

    def _read(self, database: sqlite3.Connection) -> None:
        self.meta: dict[str, Any] = dict(file.rows(database, "meta"))
        counters = file.read_counters(database)
        self.clean = bool(counters.clean)
        self._commits, self._request = counters.commits, counters.request
        self._notes: dict[str, Value] = {}
        self._touched: set[int] = set()
        self._gone: set[int] = set()
        self._taken: set[int] = set()
        self.queues = {number: StoredQueue(*row) for number, *row in file.rows(database, "queues")}
        self._numbers = {queue.path: number for number, queue in self.queues.items()}
        self._next_queue = max(self.queues, default=0) + 1
        self._free: list[int] = []  # numbers of queues that were dropped
        sizes = {number: queue.size for number, queue in self.queues.items()}
        asked = "SELECT id >> ?, count(*) FROM requests GROUP BY 1"
        if sizes != dict(database.execute(asked, (NUMBER_BITS,))):
            raise file.DamageError("a queue has not as many requests as were recorded")
        self._size = sum(sizes.values())

    def _read_filter(
        self, database: sqlite3.Connection, fresh: LocalFilter | None, *, exact: bool
    ) -> None:
        meta = self.meta
        self.withheld: Counter[bytes] = Counter()
        self._unlisted: defaultdict[bytes, dict[bytes, int]] = defaultdict(dict)
        self._pass: Pass | None = None
        self._swept = self._last_mark = self.journal = 0
        self._sweeping = True  # a kill may have left expired rows behind
        self._stored: set[tuple[Any, ...]] = {*file.rows(database, "slices")}
        if "secret" not in meta and not self._commits:
            self.filter = fresh or LocalFilter()
            self.note("exact", int(exact))
            self._changes = self.filter.changes = Changes()
        else:
            self.filter = fresh or LocalFilter(meta["capacity"], meta["error_rate"])
            window = self.filter.window
            self._changes = self.filter.changes = Changes()
            self.journal = self.filter.read(database, meta)
            if fresh is not None:
                self._check_settings(window, exact=exact)
            asked = "SELECT coalesce(max(id), 0) FROM marks"
            self._last_mark = database.execute(asked).fetchone()[0]
        self._exact = bool(meta.get("exact"))
        for key, value in self.filter.notes().items():
            self.note(key, value)
        for id_, fingerprints in file.journal(database) if self._exact else ():
            for fingerprint in fingerprints:
                self._list(id_, fingerprint)

    def _check_settings(self, window: float | None, *, exact: bool) -> None:
        for name, found, expected in (
            ("BLOOM_WINDOW", _span(self.meta.get("window")), _span(window)),
            ("BLOOM_EXACT", bool(self.meta.get("exact")), exact),
        ):
            if found != expected:
                raise SettingError(
                    f"{name} = {expected!r}: {self.path} was made with {name} = {found!r}. It was"
                    f" left as it is: set {found!r} again, or choose another JOBDIR."
                )

    # The exact list

    def _list(self, id_: int, fingerprint: bytes) -> None:
        """List a fingerprint in memory until the next pass; under its slice if that expires.

        Buckets go by the first byte: each is sorted and written at once, so that a page of the
        table is written once for all its new entries.
        """
        entry = self._entry(fingerprint)
        self._unlisted[entry[:1]][entry] = id_ if self.filter.window else 0

    def _is_listed(self, fingerprint: bytes) -> bool:
        entry = self._entry(fingerprint)
        if entry in self._unlisted.get(entry[:1], ()):
            return True
        homes = [one.id for one in self.filter.slices] if self.filter.window else [0]
        asked = "SELECT 1 FROM exact WHERE slice = ? AND fingerprint = ?"
        run = self._database.execute
        return any(run(asked, (home, entry)).fetchone() for home in homes)

    def _entry(self, fingerprint: bytes) -> bytes:
        """Return a fingerprint's entry in the exact list: of a digest, the first 128 bits."""
        whole = not self.filter.digests or len(fingerprint) != SHA1_BYTES
        return fingerprint if whole else fingerprint[:_ENTRY_BYTES]

    # Writing

    def _commit(self, *, clean: int, sync: bool = False) -> None:
        database = self._database
        if database.in_transaction:
            database.execute("ROLLBACK")
        if sync is not self._syncs:  # each costs as much as a small commit
            database.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}").fetchone()
            database.execute(f"PRAGMA fullfsync = {int(sync)}").fetchone()  # needed on macOS
            self._syncs = sync
        limit = max(LEAST_JOURNAL, self.filter.items // JOURNAL_SHARE)
        if self._exact:
            limit = min(limit, MOST_UNLISTED)
        if self.journal > limit and self._pass is None:
            self._begin_pass()  # with committed marks only: this commit may fail
        slices, before = {*self.filter.slice_rows()}, (self.journal, self._last_mark)
        database.execute("BEGIN IMMEDIATE")
        try:
            self._write_requests()
            file.put(database, "meta", self._notes.items())
            counters = Counters(self._commits + 1, clean, self._request, self.filter.next_id)
            file.put(database, "counters", [(1, *counters)])
            self._write_slices(slices)
            self._write_marks()
            self._write_lists()
            blocks, buckets = self._write_pass()
            self._sweep()
            database.execute("COMMIT")
        except BaseException:
            self.journal, self._last_mark = before
            with suppress(sqlite3.Error):  # the next commit retries it
                database.execute("ROLLBACK")
            raise
        self._discard_written(slices, blocks, buckets)
        self._tend_log()

    def _write_requests(self) -> None:
        database, touched = self._database, sorted(self._touched)
        for number in touched:
            file.put(database, "requests", self.queues[number].new.items())
        gone = ((row,) for row in sorted(self._gone))
        database.executemany("DELETE FROM requests WHERE id = ?", gone)
        for number in touched:
            queue = self.queues[number]
            if queue.size:
                file.put(database, "queues", [(number, queue.path, queue.slot, queue.size)])
            else:
                database.execute("DELETE FROM queues WHERE id = ?", (number,))

    def _write_slices(self, slices: set[tuple[Any, ...]]) -> None:
        gone = {row[0] for row in self._stored} - {row[0] for row in slices}
        self._database.executemany("DELETE FROM slices WHERE id = ?", ((id_,) for id_ in gone))
        file.put(self._database, "slices", slices - self._stored)
        self._sweeping = self._sweeping or bool(gone)

    def _write_marks(self) -> None:
        for id_, marks in (self._changes.marks or {}).items():
            for size, group in groupby(sorted(marks, key=len), len):
                while some := [*islice(group, MARKS_A_ROW)]:
                    self._last_mark += 1
                    row = self._last_mark, id_, size, b"".join(some)
                    file.put(self._database, "marks", [row])
            self.journal += len(marks)

    def _write_lists(self) -> None:
        """Write the changes to `again` and `ages`."""
        for table, changed in ("again", self._changes.again), ("ages", self._changes.ages):
            dates = {one: self._date(table, one) for one in sorted(changed)}
            listed = ((one, date) for one, date in dates.items() if date is not None)
            file.put(self._database, table, listed)
            gone = ((one,) for one, date in dates.items() if date is None)
            self._database.executemany(f"DELETE FROM {table} WHERE fingerprint = ?", gone)  # noqa: S608

    def _date(self, table: str, fingerprint: bytes) -> float | None:
        """Return a fingerprint's date in `again` or `ages`; None if it is not there."""
        if table == "ages":
            return self.filter.ages.get(fingerprint)
        held = self.filter.slices[-1].since if fingerprint in self.withheld else None
        return self.filter.again.get(fingerprint, held)

    def _sweep(self) -> None:
        """Delete some of the rows that are obsolete: a long delete would be a long commit.

        Rows that an error brings back are harmless, and go with the next pass or in the next run.
        """
        ended = self._changes.over[-LISTED_AT_ONCE:]
        if not (self._sweeping or ended):
            return
        oldest, found = self.filter.slices[0].id, len(ended)
        for table in ("again", "ages"):
            gone = ((one,) for one in ended if self._date(table, one) is None)
            self._database.executemany(f"DELETE FROM {table} WHERE fingerprint = ?", gone)  # noqa: S608
        for table, key, over in (
            ("marks", "id", f"id <= {self._swept}"),
            ("blocks", "id", f"id < {oldest << 32}"),
            ("exact", "slice, fingerprint", f"slice > 0 AND slice < {oldest}"),
        ):
            some = f"SELECT {key} FROM {table} WHERE {over} LIMIT {SWEPT_AT_ONCE}"  # noqa: S608
            asked = f"DELETE FROM {table} WHERE ({key}) IN ({some})"  # noqa: S608
            found += self._database.execute(asked).rowcount
        self._sweeping = found > 0

    def _discard_written(
        self, slices: set[tuple[Any, ...]], blocks: int, buckets: Collection[bytes]
    ) -> None:
        """Drop the changes that have been written.

        :param blocks: how many blocks of the pass were written.
        :param buckets: the buckets of the exact list that were written.
        """
        self._commits += 1
        self._stored = slices
        for number in self._touched:
            queue = self.queues[number]
            queue.new.clear()
            if not queue.size:  # nor has it a row any more
                del self.queues[number], self._numbers[queue.path]
                self._free.append(number)
        self._touched.clear()
        self._gone.clear()
        self._notes.clear()
        over = self._changes.over[:-LISTED_AT_ONCE]
        self._changes = self.filter.changes = Changes(
            None if self._changes.marks is None else {}, over=over
        )
        if self._pass is not None:
            del self._pass.blocks[len(self._pass.blocks) - blocks :]
            for bucket in buckets:
                self._pass.buckets.remove(bucket)
                self._unlisted.pop(bucket)
            if not (self._pass.blocks or self._pass.buckets):
                self.journal -= self._pass.marks
                self._swept, self._pass, self._sweeping = self._pass.upto, None, True

    # The pass

    def _begin_pass(self) -> None:
        """Start writing all blocks that have changed so far, a few with each commit."""
        blocks = [(one, index) for one in self.filter.slices for index in sorted(one.dirty)]
        for slice_ in self.filter.slices:
            slice_.dirty.clear()
        blocks.reverse()  # they are taken from the end
        self._pass = Pass(blocks, sorted(self._unlisted), self._last_mark, self.journal)

    def _write_pass(self) -> tuple[int, list[bytes]]:
        """Write a part of the pass; return its number of blocks, and its exact-list buckets."""
        if self._pass is None:
            return 0, []
        part = self._pass.blocks[-BLOCKS_AT_ONCE:]
        for slice_, index in reversed(part):
            if slice_.id >= self.filter.slices[0].id:  # else it has expired
                file.put(self._database, "blocks", slice_.block_rows([index]))
        buckets, listed = [], 0
        for bucket in self._pass.buckets:
            if listed >= LISTED_AT_ONCE:
                break
            found = sorted((home, one) for one, home in self._unlisted[bucket].items())
            for start in range(0, len(found), ROWS_AT_ONCE):
                some = found[start : start + ROWS_AT_ONCE]
                places = ",".join(["(?,?)"] * len(some))
                asked = f"INSERT OR IGNORE INTO exact VALUES {places}"  # noqa: S608
                self._database.execute(asked, [*chain.from_iterable(some)])
            buckets.append(bucket)
            listed += len(found)
        return len(part), buckets

    # The log

    def _tend_log(self) -> None:
        """Checkpoint the log now and then, and at once if it is long."""
        size = file.log_size(self.path)
        running = self._thread is not None and self._thread.is_alive()
        if size > 4 * LOG_BYTES:  # costs little if a reader blocks it
            self.wait()
            self._checkpoint()
        elif not running and (size > LOG_BYTES or self._commits % CHECKPOINT_COMMITS == 0):
            self._thread = Thread(target=self._checkpoint, daemon=True)
            self._thread.start()

    def _checkpoint(self) -> None:
        """Copy the log into the file, as far as readers allow. May run in a thread.

        A marker file exists meanwhile. If it is found later, the log is required: some pages of the
        file are newer than others.
        """
        with suppress(OSError, sqlite3.Error), closing(file.connect(self.path, "rw")) as database:
            self._marker.touch(mode=0o600)
            database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._marker.unlink()

    def _compact(self) -> None:
        """Return unused space to the file system, if that is little work."""
        ask = self._database.execute
        pages, free, size = (
            ask(f"PRAGMA {one}").fetchone()[0]
            for one in ("page_count", "freelist_count", "page_size")
        )
        if free * 4 > pages and (pages - free) * size <= CHECKED_BYTES:
            with suppress(sqlite3.Error):  # only the size is at stake
                ask("VACUUM")


def _span(window: float | None) -> str | None:
    return None if window is None else write_span(window)


@dataclass(eq=False)
class Pass:
    """A pass in progress.

    Attributes:
        blocks: slice and number of each block still to be written, the first one last.
        buckets: buckets of the exact list still to be written.
        upto: the last row of the journal when the pass began.
        marks: how many marks the journal had then.
    """

    blocks: list[tuple[Slice, int]]
    buckets: list[bytes]
    upto: int
    marks: int
