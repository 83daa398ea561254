"""A crawl in one SQLite file: its filter, its requests, and notes; one transaction a commit.

A row of ``requests`` is a request that is not done: taking one off a queue writes nothing, its row
is deleted when it is done. At each commit every page that the filter calls seen is done, or has a
row, or is listed in ``again``. So a kill leaves the last commit, and nothing is lost.

A new mark goes to the journal at once, about 20 bytes. When the journal is long, a *pass* writes
the blocks that have changed, some with each commit, and then deletes the part of the journal that
was there when it began. Blocks may be newer than that: bits are only ever set, and setting them
again from the journal is harmless. Counts of items are stored with each commit, and a replay does
not count.

Used like this, in one thread, under a lock that keeps other processes away::

    store = Store(path, LocalFilter(capacity=1_000_000))  # raises StateError, changes nothing then
    store.clean                    # whether the last run closed the file; also in a new file
    store.meta["kind"]             # notes of earlier runs, read only
    store.add(fingerprint)         # was it seen? `filter.add`, and the exact list if there is one
    queue = store.queue("0", None)     # the number of a queue; made if it is new
    row = store.push(queue, body)      # a request, waiting
    store.read(queue, newest=True)     # rows that wait, to be taken with `take`
    store.take(row), store.done(row)
    store.note("spider.state", data)
    store.commit()                 # sqlite3.Error or OSError: nothing written, nothing forgotten
    store.close()

Nothing is written before the first commit, which also notes that a run has begun.
"""

from __future__ import annotations

import os
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

from scrapy_bloom.errors import SettingError
from scrapy_bloom.filter import file
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.file import Counters, Value, crc
from scrapy_bloom.filter.hashing import SHA1_BYTES
from scrapy_bloom.filter.slices import Changes, Slice
from scrapy_bloom.options import write_span

NAME: Final = "bloom.sqlite"
"""Name of the file in a job directory."""

NUMBER_BITS: Final = 40
"""A row's id is the number of its queue and, in this many lower bits, its own number."""

LEAST_JOURNAL: Final = 200_000
"""A pass begins when the journal has more marks than this, and than an :data:`JOURNAL_SHARE`-th of
all items: a kill costs reading them again, 3 µs each, and each pass writes nearly every block."""

JOURNAL_SHARE: Final = 20

SMALL_JOURNAL: Final = 20_000
"""A journal of at most so many marks stays at a clean stop: it is smaller than their blocks."""

BLOCKS_AT_ONCE: Final = 64  # a commit of a pass writes so many blocks, 0.5 MB
SWEPT_AT_ONCE: Final = 128  # and deletes so many rows of each table; those of the journal have
MARKS_A_ROW: Final = 1_000  # at most so many marks

LISTED_AT_ONCE: Final = 1_000
"""Fingerprints that a commit of a pass brings into `exact`, at least; and that any commit deletes
of what is over in `again` and `ages`, at most."""

ROWS_AT_ONCE: Final = 100
"""Rows of `exact` in one statement: a row takes half the time of one that has its own."""

MOST_UNLISTED: Final = 1_000_000
"""With an exact list, a pass begins at this many marks at the latest: till then all are in memory,
with some 160 bytes each."""

_ENTRY_BYTES: Final = 16

CHECKPOINT_COMMITS: Final = 100
"""Commits between two checkpoints; they bring the log into the file, and both to the disk."""

LOG_BYTES: Final = 16 << 20
"""A longer log is checkpointed at once. At four times this size a commit waits for that."""

_KEPT_LOG: Final = 4 << 20  # a log that starts over is cut to this size
CHECKED_BYTES: Final = 64 << 20
"""A file of up to this size is always read through when it is opened: about 0.1 s."""

NEVER_MISSING: Final = "requests", "queues", "again"
"""Of a larger one that was closed, these tables are: a row that is missing loses a page. Checksums
see only what is there, and rows that are missing elsewhere have pages fetched again."""


_PRAGMAS: Final = (
    "journal_mode = WAL",
    "wal_autocheckpoint = 0",  # see Store._checkpoint
    f"journal_size_limit = {_KEPT_LOG}",
    "cache_size = -16000",  # kB
    "secure_delete = OFF",  # which would write what is deleted
)


@dataclass(eq=False)
class StoredQueue:
    """A queue of requests in the file.

    Attributes:
        path: its name.
        slot: the download slot of its requests, if they all have one.
        size: how many requests it has that are not done.
        taken: how many of them do not wait any more.
        new: requests that are not committed, oldest first, by row.
    """

    path: str
    slot: str | None
    size: int = 0
    taken: int = 0
    new: dict[int, bytes] = field(default_factory=dict)


class Store:
    """The file of one job. Changes are gathered in memory; :meth:`commit` writes them together.

    :param path: of the file; a new one is made if there is none.
    :param fresh: an empty filter, which a new file gets; that of an old one grows as this would.
        Without it a file is opened for what it was made for.
    :param exact: whether fingerprints are listed, too, so that the filter's errors are caught.
    :param read_only: whether to open it as it was at its last commit, beside a crawl perhaps, to
        read it only.
    :raises StateError: if the file cannot be used; it is left as it is.
    :raises SettingError: if it was made for another window or `exact`; likewise.

    Attributes:
        path: as given.
        filter: the filter. Marks made with :meth:`add` go with the next commit.
        meta: notes; changed by :meth:`note` only.
        clean: whether the last run closed the file.
        withheld: how often each fingerprint is withheld.
        queues: all queues that have had requests in this run, by number.
    """

    def __init__(
        self,
        path: Path,
        fresh: LocalFilter | None = None,
        *,
        exact: bool = False,
        read_only: bool = False,
    ) -> None:
        self.path, self._read_only, self._process = path, read_only, os.getpid()
        self._marker = path.with_name(f"{path.name}-checkpoint")
        self._thread: Thread | None = None
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
            self.filter.put(fingerprint)
            seen = False
        if self._exact and not seen:
            self._list(self.filter.slices[-1].id, fingerprint)
        return seen

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this let a fingerprint through lately; if not, mark it."""
        seen = self.filter.add_aged(fingerprint, max_age)
        if self._exact and not seen:
            self._list(self.filter.slices[-1].id, fingerprint)
        return seen

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Let a batch through again; return for each whether it was there."""
        return self.filter.forget_many(fingerprints)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether a fingerprint was marked. Changes nothing."""
        there = fingerprint in self.filter
        return there and (not self._exact or self._is_listed(fingerprint))

    def withhold(self, fingerprints: Iterable[bytes]) -> None:
        """Let the next run fetch these pages: their requests are in memory only."""
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
        """Return the number of a queue; make it if it is new."""
        number = self._numbers.get(path)
        if number is None:
            number = self._numbers[path] = self._next_queue
            self._next_queue += 1
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
        """Add a request that waits; return its row. In a queue a younger request has a higher one.

        A row says what a body is about: it is never given twice.
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
        """Note that a request does not wait any more; it stays in the file until it is done."""
        if row not in self._taken:
            self._taken.add(row)
            self.queues[row >> NUMBER_BITS].taken += 1

    def done(self, row: int) -> None:
        """Delete a request, which was taken or not."""
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
        """Yield the requests of a queue that wait, in its order, with their rows.

        The body of a row that does not match its checksum is None. Take what is needed before
        anything is changed.

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
        """Have nothing be committed until :meth:`close`. So marks beyond a few are not gathered."""
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
        """Whether blocks are being written, some with each commit."""
        return self._pass is not None

    def commit(self, *, sync: bool = False) -> None:
        """Write all that has changed. After an error nothing is written, and nothing forgotten.

        :param sync: whether to bring it to the disk, so that it survives a power failure.
        :raises sqlite3.Error: if it cannot be written, because the disk is full, say.
        """
        self._commit(clean=0, sync=sync)

    def close(self) -> None:
        """Write everything and close the file. After an error it is open; try again, or abandon it.

        :raises sqlite3.Error: as :meth:`commit` does.
        """
        if os.getpid() != self._process:
            return  # a forked child has the file of its parent
        if self._read_only:
            self._database.close()
            return
        self._commit(clean=0)
        while self._pass is not None:  # else its blocks would be left out
            self._commit(clean=0)
        if self.journal > SMALL_JOURNAL or self._changes.marks is None:
            self._begin_pass()
        while self._pass is not None or self._sweeping:
            self._commit(clean=0)
        self._commit(clean=1)
        self.wait()
        self._compact()
        self._checkpoint()
        self._database.close()  # which brings the rest into the file, and removes the log
        if not file.log_size(self.path):
            self._marker.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Close the file and write nothing more, as a kill would."""
        self.wait()
        with suppress(sqlite3.Error):
            # The last connection to be closed brings the log into the file, unless it may not.
            if file.log_size(self.path):
                other = file.connect(self.path, "ro")
                other.execute("SELECT count(*) FROM counters").fetchone()
                self._database.close()
                other.close()
        self._database.close()

    def wait(self) -> None:
        """Wait for the checkpoint that is being made beside, if any."""
        if self._thread is not None:
            self._thread.join()

    # Opening

    def _check(self, database: sqlite3.Connection) -> None:
        """Refuse what is damaged, by reading only."""
        before = 0
        if not self._read_only:
            with closing(file.connect(self.path, "immutable")) as alone:
                # A checkpoint that was interrupted leaves a file that is shorter than it says.
                alone.execute("PRAGMA writable_schema = ON")  # else SQLite takes that for damage
                before = file.read_counters(alone).commits
        counters = file.read_counters(database)
        # Behind a damaged place SQLite drops the log. But what was behind it may have been brought
        # into the file already, and older pages from before it would cover that.
        if counters.commits < before or (self._marker.exists() and not self._logged()):
            raise file.DamageError(f"{self.path.name}-wal has lost commits")
        small = self.path.stat().st_size <= CHECKED_BYTES
        for what in (1,) if small or not counters.clean else NEVER_MISSING:
            found = database.execute(f"PRAGMA quick_check({what})").fetchone()[0]
            if found != "ok":
                raise file.DamageError(found)

    def _logged(self) -> int:
        """Return how many pages SQLite takes from the log; the file must be open."""
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
        sizes = {number: queue.size for number, queue in self.queues.items()}
        asked = "SELECT id >> ?, count(*) FROM requests GROUP BY 1"
        if sizes != dict(database.execute(asked, (NUMBER_BITS,))):
            raise file.DamageError("the queues have not the requests they had")
        self._size = sum(sizes.values())

    def _read_filter(
        self, database: sqlite3.Connection, fresh: LocalFilter | None, *, exact: bool
    ) -> None:
        meta = self.meta
        self.withheld: Counter[bytes] = Counter()
        self._unlisted: defaultdict[bytes, dict[bytes, int]] = defaultdict(dict)
        self._pass: Pass | None = None
        self._swept = self._last_mark = self.journal = 0
        self._sweeping = True  # a kill may have come before what is over was deleted
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
        """List a fingerprint in memory till the next pass; under its slice if that expires.

        In buckets by the first byte: each is sorted and written at once, so that a page of the
        table is written once for all that come into it.
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
        """Return what stands for a fingerprint in the exact list: of a digest, 128 bits."""
        whole = not self.filter.digests or len(fingerprint) != SHA1_BYTES
        return fingerprint if whole else fingerprint[:_ENTRY_BYTES]

    # Writing

    def _commit(self, *, clean: int, sync: bool = False) -> None:
        if os.getpid() != self._process:
            return  # a forked child has the file of its parent
        database = self._database
        if database.in_transaction:
            database.execute("ROLLBACK")
        database.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}").fetchone()
        database.execute(f"PRAGMA fullfsync = {int(sync)}").fetchone()  # macOS's own word for it
        limit = max(LEAST_JOURNAL, self.filter.items // JOURNAL_SHARE)
        if self._exact:
            limit = min(limit, MOST_UNLISTED)
        if self.journal > limit and self._pass is None:
            self._begin_pass()  # with what is committed: what follows may fail
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
            with suppress(sqlite3.Error):  # the next commit tries again
                database.execute("ROLLBACK")
            raise
        self._settle(slices, blocks, buckets)
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
        """Write `again` and `ages`, as far as they changed."""
        for table, changed in ("again", self._changes.again), ("ages", self._changes.ages):
            dates = {one: self._date(table, one) for one in sorted(changed)}
            listed = ((one, date) for one, date in dates.items() if date is not None)
            file.put(self._database, table, listed)
            gone = ((one,) for one, date in dates.items() if date is None)
            self._database.executemany(f"DELETE FROM {table} WHERE fingerprint = ?", gone)  # noqa: S608

    def _date(self, table: str, fingerprint: bytes) -> float | None:
        """Return what `again` or `ages` has for a fingerprint; None if it is not there."""
        if table == "ages":
            return self.filter.ages.get(fingerprint)
        held = self.filter.slices[-1].since if fingerprint in self.withheld else None
        return self.filter.again.get(fingerprint, held)

    def _sweep(self) -> None:
        """Delete a part of what nobody will read: a long delete would be a long commit.

        What an error brings back is harmless, and goes with the next pass or in the next run.
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

    def _settle(
        self, slices: set[tuple[Any, ...]], blocks: int, buckets: Collection[bytes]
    ) -> None:
        """Forget what has been written.

        :param blocks: how many of the pass.
        :param buckets: those of the exact list.
        """
        self._commits += 1
        self._stored = slices
        for number in self._touched:
            self.queues[number].new.clear()
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
        """Have all blocks that have changed so far be written, some with each commit."""
        blocks = [(one, index) for one in self.filter.slices for index in sorted(one.dirty)]
        for slice_ in self.filter.slices:
            slice_.dirty.clear()
        blocks.reverse()  # they are taken off the end
        self._pass = Pass(blocks, sorted(self._unlisted), self._last_mark, self.journal)

    def _write_pass(self) -> tuple[int, list[bytes]]:
        """Write a part; return how many blocks it had, and which buckets of the exact list."""
        if self._pass is None:
            return 0, []
        part = self._pass.blocks[-BLOCKS_AT_ONCE:]
        for slice_, index in reversed(part):
            if slice_.id >= self.filter.slices[0].id:  # else it is over
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
        """Bring the log into the file now and then, and at once if it is long."""
        size = file.log_size(self.path)
        running = self._thread is not None and self._thread.is_alive()
        if size > 4 * LOG_BYTES:  # which costs little if a reader holds it up
            self.wait()
            self._checkpoint()
        elif not running and (size > LOG_BYTES or self._commits % CHECKPOINT_COMMITS == 0):
            self._thread = Thread(target=self._checkpoint, daemon=True)
            self._thread.start()

    def _checkpoint(self) -> None:
        """Bring the log into the file, as far as no reader needs it. May run in a thread.

        A marker stands beside the file meanwhile. If it is found there, a log is necessary: a part
        of the pages is newer than the others.
        """
        with suppress(OSError, sqlite3.Error), closing(file.connect(self.path, "rw")) as database:
            self._marker.touch(mode=0o600)
            database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._marker.unlink()

    def _compact(self) -> None:
        """Give room that is not used any more back to the disk, if that is little work."""
        ask = self._database.execute
        pages, free, size = (
            ask(f"PRAGMA {one}").fetchone()[0]
            for one in ("page_count", "freelist_count", "page_size")
        )
        if free * 4 > pages and (pages - free) * size <= CHECKED_BYTES:
            with suppress(sqlite3.Error):  # it is a matter of size only
                ask("VACUUM")


def _span(window: float | None) -> str | None:
    return None if window is None else write_span(window)


@dataclass(eq=False)
class Pass:
    """Blocks on their way into the file.

    Attributes:
        blocks: slice and number of those still to be written, the first one last.
        buckets: likewise of the exact list.
        upto: the last row of the journal when the pass began.
        marks: how many marks the journal had then.
    """

    blocks: list[tuple[Slice, int]]
    buckets: list[bytes]
    upto: int
    marks: int
