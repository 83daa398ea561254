"""How a filter grows: a chain of slices, each sized for its share of items and of errors.

When a slice holds as many items as it is sized for, another slice takes the new ones. A fingerprint
is seen if any slice has it. The error rates of the slices add up, so each gets a share of what the
older ones left over (Almeida, Baquero, Preguiça, Hutchison 2007, "Scalable Bloom Filters").

With a window, the slices of one date are a *generation*: it takes items for an eighth of the window
and is dropped whole when the window has passed since then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from scrapy_bloom.filter import sizing

PARTS: Final = 8
"""A generation takes items for this part of a window."""

MOST_GENERATIONS: Final = PARTS + 1
"""Generations that are live at once: those of a window, and the one that is about to end."""

SHARE: Final = 0.4
"""Part of the error rate left over that the next slice may use.

More makes the first slice smaller and later ones larger. At 1e-6, slices that double a filter three
times take 4.1, 4.3 and 4.5 bytes per item.
"""

STEP: Final = 2.2
"""A slice beyond the capacity holds this many times what all slices before it hold.

So a filter reaches ten times its capacity with two more slices, and a hundred times with four.
Smaller steps waste less memory just after one, and make every check slower.
"""

_TYPICAL_SHARE: Final = 0.05
"""Part of the error rate that an average slice of a grown filter uses. k is chosen for it."""


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


def filter_hashes(error_rate: float) -> int:
    """Return k for a filter, or a generation, of this error rate: all its slices use the same k."""
    return sizing.hashes_for(_TYPICAL_SHARE * error_rate)


def next_slice(
    slices: Sequence[SliceSpec], capacity: int, error_rate: float, hashes: int
) -> SliceSpec:
    """Return the geometry of the slice to add to `slices`.

    :param slices: the slices so far. They may have been made for another `capacity` or
        `error_rate`, if the user changed the settings between runs.
    :param capacity: items that the user expects.
    :param error_rate: bound for the sum of the error rates of all slices, however many follow. If
        the older slices alone exceed it, the new ones together stay below it.
    :param hashes: k.
    """
    items, share = next_share(slices, capacity, error_rate)
    return SliceSpec(items, share, sizing.blocks_for(items, share, hashes))


def next_share(slices: Sequence[SliceSpec], capacity: int, error_rate: float) -> tuple[int, float]:
    """Return how many items the slice to add holds, and the error rate that it may have.

    Parameters are those of :func:`next_slice`.
    """
    held = sum(spec.capacity for spec in slices)
    return max(capacity - held, ceil(STEP * held)), SHARE * _unspent(slices, error_rate)


def generation_capacity(items: int, capacity: int) -> int:
    """Return how many items a new generation is sized for.

    That is an eighth of what the window holds, and at least of what `capacity` means. So after a
    burst all further generations together are at most as large as the burst.

    :param items: how many items the other generations have.
    :param capacity: what the user expects in a whole window. A filter without items gets all of
        it: nobody knows yet how items spread over the window.
    """
    return ceil(max(capacity, items) / PARTS) if items else capacity


def generation_rate(others: Sequence[SliceSpec], error_rate: float) -> float:
    """Return the bound for the sum of the error rates of one generation's slices.

    It is an equal share, and never more than what the others leave over.

    :param others: the slices of all other generations, none of which grows any more.
    :param error_rate: bound for all generations together.
    """
    return min(error_rate / MOST_GENERATIONS, _unspent(others, error_rate))


def _unspent(slices: Sequence[SliceSpec], error_rate: float) -> float:
    spent = sum(spec.error_rate for spec in slices)
    return error_rate - spent if spent < error_rate else error_rate / 2 ** len(slices)
