"""What a local filter consists of: the bits, and the numbers that give them a meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from bitarray import bitarray
from bitarray.util import zeros

from scrapy_bloom.core.growth import SliceSpec, live_slices
from scrapy_bloom.core.info import SliceCount, count_bits
from scrapy_bloom.core.sizing import BLOCK_BITS, BLOCK_BYTES

EMPTY: Final = zeros(BLOCK_BITS, "big")
"""Stands for every block that has no item yet, so that a block takes memory only when it is used.

It is recognised by identity (``is``), and nobody writes to it.
"""


@dataclass(frozen=True)
class Slice:
    """One slice with its bits.

    Attributes:
        spec: its geometry.
        items: items added to it.
        blocks: `spec.blocks` bit arrays of 65,536 bits each, in Redis's bit order; untouched ones
            are :data:`EMPTY` itself.
        since: when its generation began, in seconds since 1970; None without a window.
    """

    spec: SliceSpec
    items: int
    blocks: list[bitarray]
    since: float | None = None

    @classmethod
    def new(cls, spec: SliceSpec) -> Slice:
        """Return a slice without items."""
        return cls.of(spec, 0, {})

    @classmethod
    def of(
        cls,
        spec: SliceSpec,
        items: int,
        touched: Mapping[int, bitarray],
        since: float | None = None,
    ) -> Slice:
        """Return a slice with the given blocks, each by its number. All others are empty."""
        blocks = [EMPTY] * spec.blocks
        for number, block in touched.items():
            blocks[number] = block
        return cls(spec, items, blocks, since)

    def count(self, hashes: int) -> SliceCount:
        """Return what is known of it, from a count of all of its bits."""
        fills = [0.0 if block is EMPTY else block.count() / BLOCK_BITS for block in self.blocks]
        return count_bits(self.spec, self.items, fills, hashes)

    def __reduce__(self) -> tuple[Callable[..., Slice], tuple[Any, ...]]:
        # If EMPTY were copied, all empty places would share that copy, and items be written to it.
        touched = {i: block for i, block in enumerate(self.blocks) if block is not EMPTY}
        return Slice.of, (self.spec, self.items, touched, self.since)


@dataclass(frozen=True)
class FilterState:
    """All that a local filter consists of, apart from the plan for its growth.

    Attributes:
        layout: ``bitmap``, the layout in Redis that has the same bits.
        secret: the key of its probes, 16 bytes.
        hashes: k, positions per probe.
        digests: whether 20-byte fingerprints are taken as SHA-1 digests (see `hashing`).
        slices: its slices, oldest first. Those of one generation have the same date.
        ages: when pages with a greatest age were last let through, in seconds since 1970.
        window: seconds that items are kept for, at least; None for ever.
        error_rate: bound for the total error rate; None without a window, where slices tell it.
    """

    layout: ClassVar[str] = "bitmap"
    secret: bytes = field(repr=False)
    hashes: int
    digests: bool
    slices: Sequence[Slice]
    ages: Mapping[bytes, float] = field(default_factory=dict, repr=False)
    window: float | None = None
    error_rate: float | None = None

    def live(self, now: float) -> FilterState:
        """Return it without the generations that are over; with one that begins now if all are."""
        if self.window is None:
            return self
        slices = live_slices(self.slices, self.window, now)
        return replace(self, slices=slices or [replace(Slice.new(self.slices[-1].spec), since=now)])

    def count(self) -> list[SliceCount]:
        """Return what is known of each slice, from a count of all of its bits."""
        return [slice_.count(self.hashes) for slice_ in self.slices]

    @property
    def items(self) -> int:
        """How many items were added."""
        return sum(slice_.items for slice_ in self.slices)

    @property
    def memory(self) -> int:
        """Bytes of its bits, of those blocks that have any."""
        touched = sum(block is not EMPTY for slice_ in self.slices for block in slice_.blocks)
        return touched * BLOCK_BYTES
