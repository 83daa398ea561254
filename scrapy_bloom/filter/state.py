"""What a filter consists of: its slices with their bits, and the two lists beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from bitarray import bitarray
from bitarray.util import zeros

from scrapy_bloom.filter.growth import SliceSpec
from scrapy_bloom.filter.sizing import BLOCK_BITS

EMPTY: Final = zeros(BLOCK_BITS, "big")
"""Stands for every block that has no item yet, so that only used blocks take memory.

It is recognised by identity (``is``), and nobody writes to it.
"""


@dataclass(eq=False, slots=True)
class Slice:
    """A part of a filter, made at one time for so many items.

    Attributes:
        id: its number in the filter, never given twice; a younger slice has a higher one.
        since: when its generation began, in seconds since 1970; 0 without a window.
        spec: its geometry.
        items: items added to it.
        blocks: `spec.blocks` bit arrays of 65,536 bits each, in Redis's bit order; untouched ones
            are :data:`EMPTY` itself.
        dirty: numbers of the blocks that changed since they were last stored.
    """

    id: int
    since: float
    spec: SliceSpec
    items: int = 0
    blocks: list[bitarray] = field(default_factory=list, repr=False)
    dirty: set[int] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        self.blocks = self.blocks or [EMPTY] * self.spec.blocks

    def has(self, probe: list[int]) -> bool:
        """Return whether all bits of an item are set; `probe` as :data:`hashing.Probe` returns."""
        *positions, h = probe
        return self.blocks[h * len(self.blocks) >> 32][positions].all()

    def put(self, probe: list[int]) -> None:
        """Set the bits of an item. It is not counted."""
        *positions, h = probe
        index = h * len(self.blocks) >> 32
        self.writable(index)[positions] = 1
        self.dirty.add(index)

    def writable(self, index: int) -> bitarray:
        """Return a block that may be written to."""
        if self.blocks[index] is EMPTY:
            self.blocks[index] = zeros(BLOCK_BITS, "big")
        return self.blocks[index]

    def touched(self) -> dict[int, bitarray]:
        """Return the blocks that hold items, by number."""
        return {index: block for index, block in enumerate(self.blocks) if block is not EMPTY}

    def copy(self) -> Slice:
        """Return a slice with the same items in bits of its own."""
        twin = Slice(self.id, self.since, self.spec, self.items)
        for index, block in self.touched().items():
            twin.blocks[index] = block.copy()
            twin.dirty.add(index)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled EMPTY would come back as one block that all untouched places share.
        parts = self.id, self.since, self.spec, self.items
        return _unpickle, (*parts, self.touched(), self.dirty)


def _unpickle(
    id_: int,
    since: float,
    spec: SliceSpec,
    items: int,
    touched: dict[int, bitarray],
    dirty: set[int],
) -> Slice:
    slice_ = Slice(id_, since, spec, items, dirty=dirty)
    for index, block in touched.items():
        slice_.blocks[index] = block
    return slice_


@dataclass(eq=False)
class FilterState:
    """All that a filter consists of, but for the plan of its growth.

    Attributes:
        secret: the key of its hash, 16 bytes.
        hashes: k, positions per probe.
        digests: whether fingerprints of 20 bytes are taken as SHA-1 digests, see `hashing`.
        window: seconds that items are kept, at least; None for ever.
        slices: its slices, oldest first.
        next_id: the number of the next slice.
        again: fingerprints that are let through once although their bits are set, each with the
            date of the youngest slice that has it.
        ages: when pages with a greatest age were last let through, in seconds since 1970.
    """

    secret: bytes = field(repr=False)
    hashes: int
    digests: bool
    window: float | None
    slices: list[Slice] = field(default_factory=list)
    next_id: int = 1
    again: dict[bytes, float] = field(default_factory=dict, repr=False)
    ages: dict[bytes, float] = field(default_factory=dict, repr=False)

    def new_slice(self, since: float, spec: SliceSpec) -> Slice:
        """Return a new slice, the youngest one."""
        slice_ = Slice(self.next_id, since, spec)
        self.next_id += 1
        self.slices.append(slice_)
        return slice_


@dataclass(eq=False)
class Changes:
    """What has changed in a filter since somebody last took note.

    Attributes:
        marks: fingerprints whose bits were set, oldest first, by the number of their slice; None if
            there were more than there is room for.
        room: how many more marks are wanted.
        again: fingerprints that came to `FilterState.again`, or left it.
        ages: likewise of `FilterState.ages`.
    """

    marks: dict[int, list[bytes]] | None = field(default_factory=dict)
    again: set[bytes] = field(default_factory=set)
    ages: set[bytes] = field(default_factory=set)
    room: float = inf

    def mark(self, id_: int, fingerprint: bytes) -> None:
        """Note that bits were set in a slice."""
        if self.marks is None:
            return
        if not self.room:
            self.marks = None
            return
        self.room -= 1
        marks = self.marks.get(id_)
        if marks is None:
            self.marks[id_] = [fingerprint]
        else:
            marks.append(fingerprint)
