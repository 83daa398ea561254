"""What a filter reports about itself, computed from the geometry of its slices and their items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import expm1, prod

from scrapy_bloom.filter.sizing import (
    BLOCK_BITS,
    HASHES,
    SliceSpec,
    expected_false_positives,
    false_positive_rate,
)


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


SliceItems = tuple[SliceSpec, int]
"""The geometry of a slice, and how many items were added to it."""


def filter_info(
    slices: Sequence[SliceItems],
    *,
    capacity: int,
    error_rate: float,
    memory: int,
    forgotten: int,
    window: float | None = None,
    dates: Sequence[float] = (),
) -> FilterInfo:
    """Return the state of a filter.

    :param slices: of the filter, oldest first.
    :param capacity: items that it is sized for. With a window, nine generations of an eighth each
        may be live; the extra one is not growth.
    :param error_rate: as the user set it.
    :param memory: bytes that the filter takes now.
    :param forgotten: how many of its items were made new again.
    :param dates: with a window, when the slices began.
    """
    sized, items = sum(spec.capacity for spec, _ in slices), sum(count for _, count in slices)
    bits = [spec.blocks * BLOCK_BITS for spec, _ in slices]
    used = (
        -room * expm1(-HASHES * count / room) for room, (_, count) in zip(bits, slices, strict=True)
    )
    return FilterInfo(
        capacity=capacity if window and items <= capacity else max(capacity, sized),
        error_rate=error_rate,
        items=max(0, items - forgotten),
        fill_ratio=sum(used) / sum(bits),
        estimated_fp_rate=1 - prod(1 - _rate(slice_) for slice_ in slices),
        expected_lost=expected_lost(slices),
        bytes=memory,
        bytes_at_capacity=round(sum(bits) / 8 * max(1.0, capacity / sized)),
        slices=len(slices),
        window=window,
        generations=len({*dates}) if window else None,
        oldest=min(dates) if window else None,
        newest=max(dates) if window else None,
    )


def expected_lost(slices: Iterable[SliceItems]) -> float:
    """Return the expected number of items that were wrongly called seen while a filter filled.

    Each item was checked against its own slice, while that filled, and against the older slices,
    which were full.

    :param slices: the slices of the filter, oldest first.
    """
    lost = full_rate = 0.0
    for spec, count in slices:
        lost += count * full_rate + expected_false_positives(count, spec.blocks)
        full_rate += _rate((spec, count))
    return lost


def _rate(slice_: SliceItems) -> float:
    """Return the chance that a slice calls a new item seen."""
    spec, count = slice_
    return false_positive_rate(count, spec.blocks)
