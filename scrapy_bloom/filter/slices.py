"""The bits of a filter, and what has changed in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import is_not
from typing import Final

from bitarray import bitarray
from bitarray.util import zeros

from scrapy_bloom.filter.sizing import BLOCK_BITS, SliceSpec, estimated_items

EMPTY: Final = zeros(BLOCK_BITS, "big")
"""The block in place of every one without items, so that only used blocks take memory.

It is recognised by identity (``is``), and never written to.
"""


@dataclass(eq=False, slots=True)
class Slice:
    """A part of a filter, created at one time for a number of items.

    Attributes:
        id: its number in the filter, never reused; a younger slice has a higher one.
        since: when its generation began, in seconds since 1970; 0 without a window.
        spec: its geometry.
        items: items added to it.
        blocks: `spec.blocks` bit arrays of 65,536 bits each, in Redis's bit order; untouched ones
            are :data:`EMPTY` itself.
        dirty: a bit for each block: whether it has changed since it was last stored.
    """

    id: int
    since: float
    spec: SliceSpec
    items: int = 0
    blocks: list[bitarray] = field(init=False, repr=False)
    dirty: bitarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.blocks = [EMPTY] * self.spec.blocks
        self.dirty = zeros(self.spec.blocks)

    def has(self, probe: list[int]) -> bool:
        """Return whether all bits of an item are set; `probe` is as from :data:`hashing.Probe`."""
        *positions, h = probe
        return self.blocks[h * len(self.blocks) >> 32][positions].all()

    def put(self, probe: list[int]) -> None:
        """Set the bits of an item. It is not counted."""
        *positions, h = probe
        index = h * len(self.blocks) >> 32
        self.writable(index)[positions] = 1
        self.dirty[index] = 1

    def writable(self, index: int) -> bitarray:
        """Return a block that may be written to."""
        if self.blocks[index] is EMPTY:
            self.blocks[index] = zeros(BLOCK_BITS, "big")
        return self.blocks[index]

    def touched(self) -> dict[int, bitarray]:
        """Return the blocks that hold items, by number."""
        return {index: block for index, block in enumerate(self.blocks) if block is not EMPTY}

    @property
    def used(self) -> int:
        """How many blocks hold items."""
        return sum(map(partial(is_not, EMPTY), self.blocks))

    def changed(self) -> Iterator[int]:
        """Yield the numbers of the blocks that are dirty by then, in order."""
        index = self.dirty.find(1)
        while index >= 0:
            yield index
            index = self.dirty.find(1, index + 1)

    def united(self, other: Slice) -> Slice:
        """Return a slice with the number of this one that has all items of both.

        How many items these are is estimated from the bits.
        """
        united = Slice(self.id, self.since, self.spec)
        for index, (mine, theirs) in enumerate(zip(self.blocks, other.blocks, strict=True)):
            if mine is not EMPTY or theirs is not EMPTY:
                united.blocks[index] = mine | theirs
                united.dirty[index] = 1
        ones = sum(block.count() for block in united.touched().values())
        estimate = round(estimated_items(ones, self.spec.blocks))
        least, most = max(self.items, other.items), self.items + other.items
        united.items = min(max(estimate, least), most)
        return united

    def block_rows(self, indexes: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Yield blocks as rows of a file."""
        return ((self.id << 32 | index, self.blocks[index].tobytes()) for index in indexes)


@dataclass(eq=False)
class Changes:
    """What has changed in a filter since this object was assigned to it.

    Attributes:
        marks: fingerprints whose bits were set, oldest first, by the number of their slice; None
            if they are not recorded.
        again: fingerprints added to :attr:`DatedSlices.again`, or removed from it.
        ages: likewise for :attr:`DatedSlices.ages`.
        over: fingerprints that expired in either: possibly very many, which need not be
            dealt with at once.
    """

    marks: dict[int, list[bytes]] | None = field(default_factory=dict)
    again: set[bytes] = field(default_factory=set)
    ages: set[bytes] = field(default_factory=set)
    over: list[bytes] = field(default_factory=list)

    def mark(self, id_: int, fingerprint: bytes) -> None:
        """Record that bits were set in a slice."""
        if self.marks is not None:
            self.marks.setdefault(id_, []).append(fingerprint)
