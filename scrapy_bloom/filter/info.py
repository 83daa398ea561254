"""What a filter reports about itself, computed from the geometry of its slices and their items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import expm1, prod

from scrapy_bloom.filter import sizing
from scrapy_bloom.filter.sizing import SliceSpec


@dataclass(frozen=True)
class FilterInfo:
    """The state of a filter at one moment.

    Attributes:
        capacity: items that the filter is sized for, including any growth.
        error_rate: the bound for the share of new items that are called seen, in total.
        items: items added, not counting those that were called seen.
        fill_ratio: share of bits set, 0 to 1.
        estimated_fp_rate: probability that the next new item is called seen.
        expected_lost: expected number of items that were wrongly called seen.
        bytes: memory that the filter takes now, in bytes.
        bytes_at_capacity: memory that it takes when it is full, in bytes.
        slices: number of slices.
        window: seconds that items are kept, at least; None, like the fields below, if forever.
        generations: number of generations.
        oldest: when the oldest generation began, in seconds since 1970.
        newest: when the newest one began.
    """

    capacity: int
    error_rate: float
    items: int
    fill_ratio: float
    estimated_fp_rate: float
    expected_lost: float
    bytes: int
    bytes_at_capacity: int
    slices: int
    window: float | None = None
    generations: int | None = None
    oldest: float | None = None
    newest: float | None = None


@dataclass(frozen=True)
class SliceCount:
    """Figures that follow from the number of items in one slice.

    Attributes:
        capacity: items it is sized for.
        items: items added to it.
        used: how many of its bits are set, or of its places taken.
        room: how many bits or places it has.
        rate: chance that it calls a new item seen.
        lost_alone: expected number of items that it wrongly called seen while it filled.
        bytes_at_capacity: bytes of memory that it takes when it is full.
    """

    capacity: int
    items: int
    used: float
    room: float
    rate: float
    lost_alone: float
    bytes_at_capacity: int


def count_bits(spec: SliceSpec, items: int) -> SliceCount:
    """Return the figures of a slice of bits with a number of items."""
    bits = spec.blocks * sizing.BLOCK_BITS
    return SliceCount(
        spec.capacity,
        items,
        used=bits * -expm1(-sizing.HASHES * items / bits),
        room=bits,
        rate=sizing.false_positive_rate(items, spec.blocks),
        lost_alone=sizing.expected_false_positives(items, spec.blocks),
        bytes_at_capacity=bits // 8,
    )


def filter_info(
    slices: Sequence[SliceCount],
    *,
    capacity: int,
    error_rate: float,
    memory: int,
    window: float | None = None,
    dates: Sequence[float] = (),
) -> FilterInfo:
    """Return the state of a filter.

    :param slices: of the filter, oldest first.
    :param capacity: items that it is sized for. With a window, nine generations of an eighth each
        may be live; the extra one is not growth.
    :param error_rate: as the user set it.
    :param memory: bytes that the filter takes now.
    :param dates: with a window, when the slices began.
    """
    sized, items = sum(count.capacity for count in slices), sum(count.items for count in slices)
    full = sum(count.bytes_at_capacity for count in slices)
    return FilterInfo(
        capacity=capacity if window and items <= capacity else max(capacity, sized),
        error_rate=error_rate,
        items=items,
        fill_ratio=sum(slice_.used for slice_ in slices) / sum(slice_.room for slice_ in slices),
        estimated_fp_rate=1 - prod(1 - slice_.rate for slice_ in slices),
        expected_lost=expected_lost(slices),
        bytes=memory,
        bytes_at_capacity=round(full * max(1.0, capacity / sized)),
        slices=len(slices),
        window=window,
        generations=len({*dates}) if window else None,
        oldest=min(dates) if window else None,
        newest=max(dates) if window else None,
    )


def expected_lost(slices: Iterable[SliceCount]) -> float:
    """Return the expected number of items that were wrongly called seen while a filter filled.

    Each item was checked against its own slice, while that filled, and against the older slices,
    which were full.

    :param slices: the slices of the filter, oldest first.
    """
    lost = full_rate = 0.0
    for slice_ in slices:
        lost += slice_.items * full_rate + slice_.lost_alone
        full_rate += slice_.rate
    return lost
