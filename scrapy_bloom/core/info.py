"""What a filter tells about itself, from the geometry of its slices and a count of their bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from scrapy_bloom.core import sizing
from scrapy_bloom.core.growth import SliceSpec


@dataclass(frozen=True)
class FilterInfo:
    """The state of a filter at one moment.

    Attributes:
        capacity: items that all slices made so far are sized for.
        error_rate: bound for the share of new items that are called seen, in total, as set.
        items: items added, without those that were called seen.
        estimated_items: the same number, estimated from the bits alone.
        fill_ratio: share of all bits that are set, 0 to 1.
        estimated_fp_rate: probability that the next new item is called seen, estimated from the
            bits.
        expected_lost: expected number of items that were wrongly called seen so far.
        bytes: bytes of memory that the bits take now, bookkeeping included.
        bytes_at_capacity: bytes of memory that they take when all slices made so far are full.
        slices: how many slices the filter has grown to.
    """

    capacity: int
    error_rate: float
    items: int
    estimated_items: float
    fill_ratio: float
    estimated_fp_rate: float
    expected_lost: float
    bytes: int
    bytes_at_capacity: int
    slices: int


@dataclass(frozen=True)
class SliceCount:
    """What was counted in one slice.

    Attributes:
        spec: its geometry.
        items: items added to it.
        fills: share of the bits that are set, 0 to 1, in each block or in an even sample of the
            blocks; at least one.
    """

    spec: SliceSpec
    items: int
    fills: Sequence[float]

    @property
    def ones(self) -> float:
        """How many of its bits are set."""
        return sum(self.fills) / len(self.fills) * self.bits

    @property
    def bits(self) -> int:
        """How many bits it has."""
        return self.spec.blocks * sizing.BLOCK_BITS


def filter_info(
    shards: Sequence[Sequence[SliceCount]], hashes: int, *, error_rate: float, memory: int
) -> FilterInfo:
    """Return the state of a filter whose items are spread evenly over shards.

    :param shards: for each shard its slices, oldest first; a local filter has one shard.
    :param hashes: k, the same in all of them.
    :param error_rate: as the user set it.
    :param memory: bytes that the bits take now.
    """
    slices = [slice_ for shard in shards for slice_ in shard]
    bits = sum(slice_.bits for slice_ in slices)
    return FilterInfo(
        capacity=sum(slice_.spec.capacity for slice_ in slices),
        error_rate=error_rate,
        items=sum(slice_.items for slice_ in slices),
        estimated_items=sum(
            sizing.estimated_items(round(slice_.ones), slice_.spec.blocks, hashes)
            for slice_ in slices
        ),
        fill_ratio=sum(slice_.ones for slice_ in slices) / bits,
        estimated_fp_rate=sum(_rate(shard, hashes) for shard in shards) / len(shards),
        expected_lost=sum(
            expected_lost(((slice_.spec, slice_.items) for slice_ in shard), hashes)
            for shard in shards
        ),
        bytes=memory,
        bytes_at_capacity=bits // 8,
        slices=max(map(len, shards)),
    )


def expected_lost(slices: Iterable[tuple[SliceSpec, int]], hashes: int) -> float:
    """Return the expected number of items that were wrongly called seen while a filter filled.

    Each item was checked against its own slice, while that filled, and against the older slices,
    which were full.

    :param slices: geometry of each slice and the items in it, oldest first.
    :param hashes: k.
    """
    lost = full_rate = 0.0
    for spec, items in slices:
        lost += items * full_rate
        lost += sizing.expected_false_positives(items, spec.blocks, hashes)
        full_rate += sizing.false_positive_rate(items, spec.blocks, hashes)
    return lost


def _rate(slices: Sequence[SliceCount], hashes: int) -> float:
    """Return the chance that a new item is called seen by any of these slices."""
    # It is looked up in one random block of each slice, at k bits.
    found = (sum(fill**hashes for fill in s.fills) / len(s.fills) for s in slices)
    return 1 - prod(1 - rate for rate in found)
