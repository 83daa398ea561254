"""The marks of a filter in the file of a store: a journal of new ones, and passes over blocks.

A new mark goes to the journal, about 20 bytes, with the next commit. When the journal is long, a
*pass* writes the blocks that have changed, a few with each commit, and then deletes the part of the
journal that was there when it began. Blocks may be newer than that part: bits are only ever set, so
replaying it is harmless. Item counts are stored with each commit; a replay does not count.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, Final

from scrapy_bloom import file
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.slices import Changes, Slice
from scrapy_bloom.filter.stored import slice_rows

LEAST_JOURNAL: Final = 200_000
"""A pass begins when the journal has more marks than this, and than 1 / :data:`JOURNAL_SHARE` of
all items. After a kill they are replayed, at 3 µs each; but each pass writes nearly every block."""

JOURNAL_SHARE: Final = 20

BLOCKS_AT_ONCE: Final = 32  # blocks written by one commit of a pass: 0.25 MB
SWEPT_AT_ONCE: Final = 128  # most rows that one commit deletes from each table
OVER_AT_ONCE: Final = 1_000  # most expired fingerprints that one commit deletes from each list
MARKS_A_ROW: Final = 1_000  # most marks in one row of the journal


@dataclass(eq=False)
class Pass:
    """A pass in progress.

    Attributes:
        blocks: yields slice and number of each block still to be written: all that changed before
            the pass began, and some that have changed since.
        upto: the last row of the journal when the pass began.
        marks: how many marks the journal had then.
        part: those that the next commit writes.
    """

    blocks: Iterator[tuple[Slice, int]]
    upto: int
    marks: int
    part: list[tuple[Slice, int]] = field(default_factory=list)


class Marks:
    """What is stored of a filter. :meth:`write` its changes in each transaction.

    :param filter_: as read from the file. It records its changes, perhaps since it was read.
    :param database: the file.
    :param journal: how many marks the journal has.

    Attributes:
        journal: as above, at the last commit.
        sweeping: whether obsolete rows may be left.
        withheld: fingerprints that the next run must fetch, although they are marked: how many of
            their requests are in memory only.
    """

    def __init__(
        self,
        filter_: LocalFilter,
        database: sqlite3.Connection,
        *,
        journal: int,
    ) -> None:
        self._filter, self._database = filter_, database
        self.journal = journal
        self.withheld: Counter[bytes] = Counter()
        self._changes = filter_.changes = filter_.changes or Changes()
        self._pass: Pass | None = None
        self._stored: set[tuple[Any, ...]] = {*file.rows(database, "slices")}
        query = "SELECT coalesce(max(id), 0) FROM marks"
        self._last_row: int = database.execute(query).fetchone()[0]
        self._swept = 0
        self.sweeping = True  # a kill may have left expired rows behind

    @property
    def changed(self) -> bool:
        """Whether there is something to write."""
        changes = self._changes
        return bool(changes.marks or changes.again or changes.ages)

    @property
    def passing(self) -> bool:
        """Whether a pass is writing blocks."""
        return self._pass is not None

    def withhold(self, fingerprints: Iterable[bytes], *, is_over: bool = False) -> None:
        """Record that the next run must fetch these, or that one request for each is done."""
        for each in fingerprints:
            self.withheld[each] += -1 if is_over else 1
            if not self.withheld[each]:
                del self.withheld[each]
            self._changes.again.add(each)

    def write_blocks_only(self) -> None:
        """Collect no marks for the journal: passes write all that has changed."""
        self._changes.marks = None

    def begin_pass_if_due(self) -> None:
        """Begin a pass if the journal is long. It takes what is committed: the next may fail."""
        limit = max(LEAST_JOURNAL, self._filter.items // JOURNAL_SHARE)
        if self._pass is None and (self.journal > limit or self._changes.marks is None):
            self.begin_pass()

    def begin_pass(self) -> None:
        """Start writing all blocks that have changed so far, a few with each commit.

        They are looked for as they are written: listing them would take long in a large filter.
        """
        slices = (*self._filter.slices,)
        blocks = ((slice_, index) for slice_ in slices for index in slice_.changed())
        self._pass = Pass(blocks, self._last_row, self.journal)

    def write(self) -> tuple[Callable[[], None], int]:
        """Write all changes, and some of the pass, in the transaction that is open.

        :returns: what to call once that is committed, to drop from memory what was written; and by
            how much :func:`file.tally` has changed.
        """
        listed = {*self._changes.again, *self._changes.over[-OVER_AT_ONCE:]}
        before = self._checksums(listed)
        slices = {*slice_rows(self._filter)}
        may_sweep = self._write_slices(slices)
        last_row, marks = self._write_journal()
        self._write_lists()
        self._write_pass()
        sweeping = (may_sweep or bool(self._changes.over)) and self._sweep()

        def committed() -> None:
            self._stored, self.sweeping, self._last_row = slices, sweeping, last_row
            self.journal += marks
            over = self._changes.over[:-OVER_AT_ONCE]
            self._changes = self._filter.changes = Changes(
                None if self._changes.marks is None else {}, over=over
            )
            if self._pass is not None:
                self._record_blocks_written(self._pass)

        return committed, self._checksums(listed) - before

    def _checksums(self, fingerprints: Iterable[bytes]) -> int:
        """Return the sum of the checksums of their rows in `again`."""
        query = "SELECT crc FROM again WHERE fingerprint = ?"
        rows = (self._database.execute(query, (each,)).fetchone() for each in fingerprints)
        return sum(row[0] for row in rows if row)

    def _record_blocks_written(self, current: Pass) -> None:
        """Record what a commit has written of a pass, which may be complete now."""
        for slice_, index in current.part:
            slice_.dirty[index] = 0
        if len(current.part) == BLOCKS_AT_ONCE:
            current.part = []
        else:
            self.journal -= current.marks
            self._swept, self._pass, self.sweeping = current.upto, None, True

    # The parts of a transaction

    def _write_slices(self, slices: set[tuple[Any, ...]]) -> bool:
        """Write the slices that have changed; return whether obsolete rows may be left."""
        gone = {row[0] for row in self._stored} - {row[0] for row in slices}
        self._database.executemany("DELETE FROM slices WHERE id = ?", ((id_,) for id_ in gone))
        file.put(self._database, "slices", slices - self._stored)
        return self.sweeping or bool(gone)

    def _write_journal(self) -> tuple[int, int]:
        """Add the new marks to the journal; return its last row, and how many marks were added."""
        row, count = self._last_row, 0
        for id_, marks in (self._changes.marks or {}).items():
            for size, group in groupby(sorted(marks, key=len), len):
                while part := [*islice(group, MARKS_A_ROW)]:
                    row += 1
                    file.put(self._database, "marks", [(row, id_, size, b"".join(part))])
            count += len(marks)
        return row, count

    def _write_lists(self) -> None:
        """Write what has changed in `again` and `ages`."""
        for table, changed in ("again", self._changes.again), ("ages", self._changes.ages):
            dates = {mark: self._date(table, mark) for mark in sorted(changed)}
            listed = ((mark, date) for mark, date in dates.items() if date is not None)
            file.put(self._database, table, listed)
            gone = ((mark,) for mark, date in dates.items() if date is None)
            self._database.executemany(f"DELETE FROM {table} WHERE fingerprint = ?", gone)

    def _date(self, table: str, fingerprint: bytes) -> float | None:
        """Return a fingerprint's date in `again` or `ages`; None if it is not there."""
        if table == "ages":
            return self._filter.ages.get(fingerprint)
        since = self._filter.slices[-1].since if fingerprint in self.withheld else None
        return self._filter.again.get(fingerprint, since)

    def _write_pass(self) -> None:
        """Write a part of the pass: the same as before if that commit has failed."""
        if self._pass is None:
            return
        self._pass.part = self._pass.part or [*islice(self._pass.blocks, BLOCKS_AT_ONCE)]
        for slice_, index in self._pass.part:
            if slice_.id >= self._filter.slices[0].id:  # else it has expired
                file.put(self._database, "blocks", slice_.block_rows([index]))

    def _sweep(self) -> bool:
        """Delete some of the rows that are obsolete: a long delete would be a long commit.

        Rows that an error brings back are harmless, and go with the next pass or in the next run.

        :returns: whether any were found, so that more may be left.
        """
        expired = self._changes.over[-OVER_AT_ONCE:]
        oldest, count = self._filter.slices[0].id, len(expired)
        for table in ("again", "ages"):
            gone = ((mark,) for mark in expired if self._date(table, mark) is None)
            self._database.executemany(f"DELETE FROM {table} WHERE fingerprint = ?", gone)
        for table, key, over in (
            ("marks", "id", f"id <= {self._swept}"),
            ("blocks", "id", f"id < {oldest << 32}"),
        ):
            obsolete = f"SELECT {key} FROM {table} WHERE {over} LIMIT {SWEPT_AT_ONCE}"
            delete = f"DELETE FROM {table} WHERE ({key}) IN ({obsolete})"
            count += self._database.execute(delete).rowcount
        return count > 0
