"""How a filter grows: a chain of slices, each sized for its share of items and of errors.

A filter starts with one slice. When a slice holds as many items as it is sized for, a further slice
takes the new items. A fingerprint is seen if any slice has it (Almeida, Baquero, Preguiça,
Hutchison 2007). The error rates of the slices add up, so each one gets a share of what the older
ones left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Protocol, TypeVar

from scrapy_bloom.core import sizing


@dataclass(frozen=True)
class SliceSpec:
    """The geometry of one slice.

    Attributes:
        capacity: items it is sized for.
        error_rate: its false-positive rate when it holds that many.
        blocks: its size in blocks of 64 Kbit; in the Redis layout ``sets``, in buckets.
    """

    capacity: int
    error_rate: float
    blocks: int


class _Dated(Protocol):
    @property
    def since(self) -> float | None:
        """When its generation began, in seconds since 1970; None without dates."""


_S = TypeVar("_S", bound=_Dated)

PARTS: Final = 8
"""A window has so many parts: a generation takes items for one part of it."""

MOST_GENERATIONS: Final = PARTS + 1
"""Most generations that are live at once: those of a window, and the one that is about to end."""

SHARE: Final = 0.2
"""The next slice may use this part of the error rate that is left over.

Measured at 1e-6, from 1 to 100 times the capacity: a filter whose first slice is full takes 4.4
bytes per item, and at the worst moment of its growth it takes 9.9. With a share of 0.3 the worst
moment takes 10.3; with 0.1 the full first slice takes 4.7.
"""

_TYPICAL_SHARE: Final = 0.05
"""The part that a slice in the middle of that range uses. The number of hashes suits it best."""


def filter_hashes(error_rate: float) -> int:
    """Return k for a filter of this total error rate: all its slices use the same k."""
    return sizing.hashes_for(_TYPICAL_SHARE * error_rate)


def outgrown(items: int, error_rate: float, option: str) -> str:
    """Return what a user is told when the first slice is full and the filter begins to grow.

    :param option: what the reader calls the capacity.
    """
    return (
        f"it holds {items:,} fingerprints, as many as it was sized for. It grows from here and"
        f" keeps its error rate of {error_rate:g}, but checks get slower little by little. Next"
        f" time, set {option} to the number that you expect."
    )


def next_slice(
    slices: Sequence[SliceSpec], capacity: int, error_rate: float, hashes: int
) -> SliceSpec:
    """Return the geometry of the slice to add to `slices`.

    It is as large as all older slices together, but never smaller than `capacity`. So each new
    slice doubles the filter, and never more than half of the filter is unused.

    :param slices: the slices so far. They may have been made with other values of `capacity` and
        `error_rate`, if the user changed the settings between runs.
    :param capacity: items in the first slice.
    :param error_rate: bound for the sum of the error rates of all slices, however many follow. If
        the older slices alone exceed it, the new slices together stay below it.
    :param hashes: k.
    """
    size, share = next_share(slices, capacity, error_rate)
    return SliceSpec(size, share, sizing.blocks_for(size, share, hashes))


def next_share(slices: Sequence[SliceSpec], capacity: int, error_rate: float) -> tuple[int, float]:
    """Return how many items the slice to add holds, and the error rate that it may have.

    Arguments are those of :func:`next_slice`.
    """
    unspent = _unspent(slices, error_rate)
    return max(capacity, sum(spec.capacity for spec in slices)), SHARE * unspent


def generation_length(window: float) -> float:
    """Return for how many seconds a generation takes items."""
    return window / PARTS


def generation_life(window: float) -> float:
    """Return how many seconds after its beginning a generation is dropped.

    An item that came at its beginning has been there for 9/8 of the window then, and one that came
    at its end for the window.
    """
    return window + generation_length(window)


def live_slices(slices: Sequence[_S], window: float, now: float) -> list[_S]:
    """Return the slices whose generations are not over; one without a date never is."""
    end = now - generation_life(window)
    return [slice_ for slice_ in slices if slice_.since is None or slice_.since > end]


def generation_capacity(items: int, capacity: int) -> int:
    """Return how many items the first slice of a generation is sized for.

    That is what came on average in the window, at least what `capacity` means. So after a burst all
    further generations together are at most as large as the burst, and a small generation in a
    large filter does not grow many times.

    :param items: how many items the other generations have.
    :param capacity: as the user gave it: for the whole window, and for a filter without items.
    """
    return ceil(max(capacity, items) / PARTS) if items else capacity


def generation_rate(others: Sequence[SliceSpec], error_rate: float) -> float:
    """Return the bound for the sum of the error rates of one generation's slices.

    It is an equal share, but never more than what the others leave: those may be older than the
    window, and have been made for another error rate.

    :param others: the slices of all other generations. None of them grows any more.
    :param error_rate: bound for all generations together.
    """
    return min(error_rate / MOST_GENERATIONS, _unspent(others, error_rate))


def _unspent(slices: Sequence[SliceSpec], error_rate: float) -> float:
    spent = sum(spec.error_rate for spec in slices)
    return error_rate - spent if spent < error_rate else error_rate / 2 ** len(slices)
