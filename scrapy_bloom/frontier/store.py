"""Requests, marks and state of a crawl in one SQLite file, changed a window at a time.

A row is a request that is not done. Taking one off a queue changes nothing here: its row is deleted
when it is done. So a kill leaves the last commit, in which everything that was under way waits.

Three rules hold at each commit, and the scheduler above keeps them: a mark comes with the row of
its request, or after it; the row of a page goes with the rows of what the page led to, or after
them; and so every marked page is done or has a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from scrapy_bloom.frontier import file

NUMBER_BITS: Final = 40
"""A row's id is the number of its bucket and, in this many lower bits, its own number."""

_NUMBER: Final = (1 << NUMBER_BITS) - 1
_WITHHELD: Final = "withheld"
"""The note that has the number of withheld marks."""

Value = str | int | float | bytes


class Marks(NamedTuple):
    """Fingerprints of one row of the journal.

    Attributes:
        fingerprints: the fingerprints, oldest first.
        since: when the generation began that they were added to; None without a window.
    """

    fingerprints: list[bytes]
    since: float | None


class Dates(Protocol):
    """A filter as the journal sees it: what it tells of marks that were made just now."""

    @property
    def since(self) -> float | None:
        """When the generation began that takes marks now; None without a window."""

    @property
    def ages(self) -> Mapping[bytes, float]:
        """When pages with a greatest age were last let through."""


class Watcher(Protocol):
    """A queue over a bucket. It is told when its rows are on the disk."""

    def committed(self) -> None:
        """Note that all rows are on the disk."""

    def forgotten(self) -> None:
        """Note that the bucket is empty, and that its number may go to another bucket."""


class Store:
    """The file of one crawl. Changes are gathered in memory; :meth:`commit` writes them together.

    Not for several threads. Every method may raise :class:`sqlite3.Error`; what was gathered is
    then still there.

    :param path: the file, which :func:`file.create` has made.
    :param every_commit: whether each commit goes to the disk itself.
    :raises StateError: if the file is not ours, newer, or damaged. It is left as it is.

    Attributes:
        path: the file.
        busy: rows that were taken and are not done.
        commits: how many commits were made.
        journal: how many marks are stored since the last snapshot of the filter.
        withheld: fingerprints whose requests are neither done nor stored.
    """

    def __init__(self, path: Path, *, every_commit: bool = False) -> None:
        self.path = path
        self._database = file.connect_to_read(path)  # what cannot be used is left as it is
        self.busy: set[int] = set()
        self.commits = 0
        self._new: dict[int, bytes] = {}
        self._gone: set[int] = set()
        self._dates: Dates | None = None
        self._marks: dict[float | None, list[bytes]] = {}
        self._new_ages: dict[bytes, float] = {}
        self._withheld_changes: dict[bytes, bool] = {}
        self._meta: dict[str, Value] = {}
        self._forget: int | None = None
        self._touched: set[int] = set()
        self._watchers: dict[int, Watcher] = {}
        try:
            self._read()
        except sqlite3.Error as error:
            raise file.unusable(path, error) from error
        finally:
            self._database.close()
        self._database = file.connect(path, every_commit=every_commit)

    def __len__(self) -> int:
        """Return how many requests are not done, including those under way."""
        return self._total

    @property
    def dirty(self) -> bool:
        """Whether there are changes to commit."""
        return bool(
            self._new
            or self._gone
            or self._marks
            or self._new_ages
            or self._withheld_changes
            or self._meta
            or self._forget is not None
        )

    @property
    def gathered(self) -> int:
        """How many changed rows wait for the next commit."""
        return len(self._new) + len(self._gone)

    @property
    def queues(self) -> int:
        """How many queues are open."""
        return len(self._watchers)

    @property
    def size(self) -> int:
        """Bytes of the file, without its log."""
        return self.path.stat().st_size

    # Buckets: each is one queue of one priority.

    def paths(self) -> dict[str, str | None]:
        """Return the buckets that hold requests, each with its download slot."""
        return {path: self._slots[number] for path, number in self._numbers.items()}

    def find(self, path: str) -> int | None:
        """Return the number of the bucket with this path, or None if there is none."""
        return self._numbers.get(path)

    def make(self, path: str, slot: str | None) -> int:
        """Return the number of a new bucket."""
        number = self._free.pop() if self._free else len(self._numbers) + 1
        self._numbers[path] = number
        self._paths[number], self._slots[number], self._sizes[number] = path, slot, 0
        return number

    def waiting(self, number: int) -> int:
        """Return how many requests of a bucket are neither done nor under way."""
        return self._sizes[number] - sum(1 for row in self.busy if row >> NUMBER_BITS == number)

    def watch(self, number: int, watcher: Watcher) -> None:
        """Tell `watcher` about commits that concern a bucket. Each bucket has one watcher."""
        self._watchers[number] = watcher

    def unwatch(self, number: int, watcher: Watcher) -> None:
        """Stop telling `watcher` about commits."""
        if self._watchers.get(number) is watcher:
            del self._watchers[number]

    def watchers(self) -> list[Watcher]:
        """List all queues that are open."""
        return list(self._watchers.values())

    # Requests

    def add(self, number: int, body: bytes) -> int:
        """Add a request to a bucket; return the id of its row."""
        row = self.reserve(number, 1)
        self._new[row] = body
        return row

    def reserve(self, number: int, count: int) -> int:
        """Make room for some requests in a bucket; return the id of the first row.

        All of them must be put in place.
        """
        row = number << NUMBER_BITS | self._next
        self._next += count
        self._sizes[number] += count
        self._total += count
        self._touched.add(number)
        return row

    def put(self, row: int, body: bytes) -> None:
        """Put a request into a row that was reserved for it."""
        self._new[row] = body

    def done(self, row: int) -> None:
        """Delete the row of a request that is done."""
        if self._new.pop(row, None) is None:
            self._gone.add(row)
        self.busy.discard(row)
        number = row >> NUMBER_BITS
        self._sizes[number] -= 1
        self._total -= 1
        self._touched.add(number)

    def read(
        self, low: int, high: int, limit: int, *, newest_first: bool
    ) -> list[tuple[int, bytes]]:
        """Return committed rows between two ids, both excluded, that wait: at most `limit`."""
        order = "DESC" if newest_first else "ASC"
        rows: list[tuple[int, bytes]] = []
        last = high if newest_first else low
        cursor = self._database.execute(
            f"SELECT id, body FROM requests WHERE id > ? AND id < ? ORDER BY id {order}",  # noqa: S608
            (low, high),
        )
        try:
            for row in cursor:
                # Each id lies between the one before it and the end: else a page is damaged.
                if not (low < row[0] < last if newest_first else last < row[0] < high):
                    raise file.DamageError(f"request {row[0]} is where it does not belong")
                last = row[0]
                if row[0] not in self.busy and row[0] not in self._gone:
                    rows.append(row)
                    if len(rows) == limit:
                        break
        finally:
            cursor.close()  # an open one would hold up the checkpoints
        return rows

    # Marks

    def follow(self, dates: Dates) -> None:
        """Store from now on with each mark when it was made, as far as the filter knows."""
        self._dates = dates

    def mark(self, fingerprints: Iterable[bytes]) -> None:
        """Add marks of requests that are stored or done; they are withheld no longer."""
        since, ages = (self._dates.since, self._dates.ages) if self._dates else (None, {})
        marks = self._marks.setdefault(since, [])
        for fingerprint in fingerprints:
            marks.append(fingerprint)
            if fingerprint in ages:
                self._new_ages[fingerprint] = ages[fingerprint]
            if fingerprint in self.withheld:
                self.withheld.remove(fingerprint)
                self._withheld_changes[fingerprint] = False

    def withhold(self, fingerprints: Iterable[bytes]) -> None:
        """List marks whose request cannot be stored: the next run takes them for new."""
        for fingerprint in fingerprints:
            self.withheld.add(fingerprint)
            self._withheld_changes[fingerprint] = True

    def let_be(self, fingerprints: Iterable[bytes]) -> None:
        """Take marks off that list: the next run finds them in its filter."""
        for fingerprint in fingerprints:
            self.withheld.discard(fingerprint)
            self._withheld_changes[fingerprint] = False

    def marks(self) -> Iterator[Marks]:
        """Yield the committed marks since the last snapshot, oldest first."""
        cursor = self._database.execute(
            "SELECT size, fingerprints, since, checksum FROM marks ORDER BY id"
        )
        try:
            for size, packed, since, checksum in cursor:
                check_row("marks", checksum, size, packed, since)
                yield Marks(unpacked(size, packed), since)
        finally:
            cursor.close()

    def ages(self) -> dict[bytes, float]:
        """Return when pages with a greatest age were last let through, as it is committed."""
        ages = {}
        query = "SELECT fingerprint, last, checksum FROM ages"
        for fingerprint, last, checksum in self._database.execute(query):
            check_row("age", checksum, fingerprint, last)
            ages[fingerprint] = last
        return ages

    def newest_mark(self) -> int:
        """Return the place of the newest committed mark in the journal, for :meth:`forget`."""
        newest: int = self._database.execute("SELECT coalesce(max(id), 0) FROM marks").fetchone()[0]
        return newest

    def forget(self, newest: int) -> None:
        """Delete the marks up to a place in the journal: a snapshot of the filter has them."""
        self._forget = newest

    # Notes on the crawl

    def note(self, key: str, value: Value) -> None:
        """Store a note with the next commit."""
        self._meta[key] = value

    def noted(self, key: str) -> Value | None:
        """Return a stored note, or None if there is none."""
        row = self._database.execute(
            "SELECT value, checksum FROM meta WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        value: Value = row[0]
        check_row("note", row[1], key, value)
        return value

    def commit(self) -> None:
        """Write all gathered changes in one transaction. After an error none of them is written.

        :raises sqlite3.Error: if it cannot be written.
        """
        self._roll_back()
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._write()
            journal = self._journal_now()  # what is asked after the commit cannot undo it
            self._database.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # the next commit tries again
                self._roll_back()
            raise
        self.journal = journal
        self._settle()
        self.commits += 1

    def close(self) -> None:
        """Bring all commits to the disk and close the file. Uncommitted changes are dropped."""
        try:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
        finally:
            self._database.close()

    def abandon(self) -> None:
        """Close the file and write nothing more, as a kill does."""
        file.close_as_it_is(self.path, self._database)

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def _read(self) -> None:
        run = self._database.execute
        self._numbers: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        self._slots: dict[int, str | None] = {}
        self._sizes: dict[int, int] = {}
        newest = 0
        for *bucket, checksum in run("SELECT id, path, slot, size, checksum FROM buckets"):
            check_row("queue", checksum, *bucket)
            number, path, slot, size = bucket
            self._numbers[path] = number
            self._paths[number], self._slots[number], self._sizes[number] = path, slot, size
        for number, last in self._newest_rows():
            if number not in self._paths:
                raise file.DamageError(f"the requests of queue {number} belong to no queue")
            newest = max(newest, last & _NUMBER)
        self._next = newest + 1
        self._total = sum(self._sizes.values())
        used = self._paths.keys()
        self._free = [number for number in range(1, max(used, default=0)) if number not in used]
        self.journal = self._count_marks()
        self.withheld = set()
        for fingerprint, checksum in run("SELECT fingerprint, checksum FROM withheld"):
            check_row("withheld mark", checksum, fingerprint)
            self.withheld.add(fingerprint)
        # A page of another table in place of this one is sound for SQLite, and can be empty.
        if len(self.withheld) != (self.noted(_WITHHELD) or 0):
            raise file.DamageError("there are not as many withheld marks as were stored")

    def _newest_rows(self) -> Iterator[tuple[int, int]]:
        """Yield the number of each bucket that has rows, with the id of its newest row."""
        end = (1 << 63) - 1
        while True:
            sought = "SELECT max(id) FROM requests WHERE id < ?"
            last = self._database.execute(sought, (end,)).fetchone()[0]
            if last is None:
                return
            number = last >> NUMBER_BITS
            yield number, last
            end = number << NUMBER_BITS

    def _count_marks(self) -> int:
        count: int = self._database.execute(
            "SELECT coalesce(sum(length(fingerprints) / size), 0) FROM marks"
        ).fetchone()[0]
        return count

    def _journal_now(self) -> int:
        """Return how many marks are stored once this transaction is committed."""
        if self._forget is None:
            return self.journal + sum(map(len, self._marks.values()))
        return self._count_marks()

    def _write(self) -> None:
        many = self._database.executemany
        if self._new:
            # In order: an id below the others would leave half of each page of the file empty.
            many("INSERT INTO requests VALUES (?, ?)", sorted(self._new.items()))
        if self._gone:
            many("DELETE FROM requests WHERE id = ?", [(row,) for row in self._gone])
        self._write_buckets()
        if self._forget is not None:
            self._database.execute("DELETE FROM marks WHERE id <= ?", (self._forget,))
        self._write_marks()
        for fingerprint, withheld in self._withheld_changes.items():
            if withheld:
                row = fingerprint, row_checksum(fingerprint)
                self._database.execute("INSERT OR IGNORE INTO withheld VALUES (?, ?)", row)
            else:
                gone = "DELETE FROM withheld WHERE fingerprint = ?"
                self._database.execute(gone, (fingerprint,))
        if self._withheld_changes:
            self._meta[_WITHHELD] = len(self.withheld)
        if self._meta:
            rows = [(*note, row_checksum(*note)) for note in self._meta.items()]
            many("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", rows)

    def _write_marks(self) -> None:
        for since, marks in self._marks.items():
            rows = [(*row, since) for row in _pack(marks)]
            self._database.executemany(
                "INSERT INTO marks (size, fingerprints, since, checksum) VALUES (?, ?, ?, ?)",
                [(*row, row_checksum(*row)) for row in rows],
            )
        if self._new_ages:
            self._database.executemany(
                "INSERT OR REPLACE INTO ages VALUES (?, ?, ?)",
                [(*row, row_checksum(*row)) for row in self._new_ages.items()],
            )

    def _write_buckets(self) -> None:
        rows = []
        for number in self._touched:
            if self._sizes[number]:
                row = (number, self._paths[number], self._slots[number], self._sizes[number])
                rows.append((*row, row_checksum(*row)))
            else:
                self._write_empty(number)
        if rows:
            self._database.executemany(
                "INSERT OR REPLACE INTO buckets VALUES (?, ?, ?, ?, ?)", rows
            )

    def _write_empty(self, number: int) -> None:
        """Delete a bucket all of whose requests are done."""
        ends = (number << NUMBER_BITS, (number + 1) << NUMBER_BITS)
        left = "SELECT id FROM requests WHERE id > ? AND id < ? LIMIT 1"
        if self._database.execute(left, ends).fetchone() is not None:
            raise file.DamageError(f"queue {self._paths[number]!r} has more requests than its size")
        self._database.execute("DELETE FROM buckets WHERE id = ?", (number,))

    def _settle(self) -> None:
        """Forget what has been written."""
        self._new.clear()
        self._gone.clear()
        self._withheld_changes.clear()
        self._meta.clear()
        self._forget = None
        self._marks.clear()
        self._new_ages.clear()
        touched, self._touched = self._touched, set()
        for number in touched:
            watcher = self._watchers.get(number)
            if self._sizes[number]:
                if watcher is not None:
                    watcher.committed()
            else:
                self._drop(number)
                if watcher is not None:
                    watcher.forgotten()

    def _drop(self, number: int) -> None:
        self._watchers.pop(number, None)
        del self._numbers[self._paths.pop(number)], self._slots[number], self._sizes[number]
        self._free.append(number)


def _pack(marks: list[bytes]) -> list[tuple[int, bytes]]:
    """Return the marks in one row for each length that occurs."""
    by_size: dict[int, list[bytes]] = {}
    for mark in marks:
        by_size.setdefault(len(mark), []).append(mark)
    return [(size, b"".join(group)) for size, group in by_size.items()]


def unpacked(size: int, packed: bytes) -> list[bytes]:
    """Return the fingerprints of a row, each of `size` bytes."""
    return [packed[start : start + size] for start in range(0, len(packed), size)]


def row_checksum(*values: Value | None) -> int:
    """Return the checksum of a row."""
    checksum = 0
    for value in values:
        checksum = crc32(value if isinstance(value, bytes) else repr(value).encode(), checksum)
    return checksum


def check_row(what: str, found: object, *values: Value | None) -> None:
    """Compare a row with its checksum.

    :param what: what the row holds, in words.
    :raises DamageError: if they do not match.
    """
    if row_checksum(*values) != found:
        raise file.DamageError(f"a {what} does not match its checksum")
