"""How many bits, and how a filter grows: the arithmetic of blocked Bloom filters. No state, no I/O.

Symbols are the field's: *n* items, *p* error rate, *k* = :data:`HASHES` (bits per item), *B* blocks
of :data:`BLOCK_BITS` bits. All k bits of an item lie in one block (Putze, Sanders, Singler 2007).

A filter is a chain of slices. When a slice holds as many items as it is sized for, another is
added. A fingerprint is seen if any slice has it. The error rates of the slices add up, so each gets
a share of what the older ones have left (Almeida, Baquero, Preguiça, Hutchison 2007, "Scalable
Bloom Filters").

With a window, the slices of one date form a *generation*: it takes items for an eighth of the
window, and is dropped as a whole one window later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1, lgamma, log, log1p, sqrt
from typing import Final

BLOCK_BITS: Final = 1 << 16
"""Bits in one block: a position in it is exactly one unsigned 16-bit number of the digest."""

BLOCK_BYTES: Final = BLOCK_BITS // 8

HASHES: Final = 14
"""k, whatever the error rate: as many positions as fit into 32 bytes beside the number of a block.

Near the optimum ``log2(1 / p)`` (Bloom 1970) the space depends little on k. With the k that suits
its rate a filter would take 8 % less at 0.01, 1 % less at 0.001, and nothing less from 0.0001 on.
"""

PARTS: Final = 8
"""A generation takes items for the window divided by this."""

MOST_GENERATIONS: Final = PARTS + 1
"""Most generations live at once: those of one window, and the one about to expire."""

SHARE: Final = 0.4
"""Share of the remaining error rate that the next slice may use.

A larger one makes the first slice smaller and later ones larger. At 1e-6, slices that double a
filter three times take 4.1, 4.3 and 4.5 bytes per item.
"""

STEP: Final = 2.2
"""A slice added beyond the capacity holds this many times what all slices before it hold.

So a filter reaches ten times its capacity with two more slices, and a hundred times with four.
Smaller steps waste less memory right after growth, but make every check slower.
"""


def blocks_for(capacity: int, error_rate: float) -> int:
    """Return B, the fewest blocks that hold `capacity` items at `error_rate`."""
    # The m / n for which (1 - e^(-kn/m))^k is the error rate.
    bits_per_item = -HASHES / log1p(-(error_rate ** (1 / HASHES)))
    low, high = 0, max(1, ceil(capacity * bits_per_item / BLOCK_BITS))
    while false_positive_rate(capacity, high) > error_rate:
        low, high = high, high + max(1, high // 16)
    return bisect_left(
        range(high), -error_rate, low + 1, key=lambda blocks: -false_positive_rate(capacity, blocks)
    )


def false_positive_rate(items: float, blocks: int) -> float:
    """Return the chance that an item never added is called seen.

    The number of items in a block has a binomial distribution. Blocks with more items than the mean
    add more errors than blocks with fewer items save. So the textbook's ``(1 - e^(-kn/m))^k`` is
    averaged over that distribution (Putze, Sanders, Singler 2007), here within 8 standard
    deviations of its mean.
    """
    if items <= 0:
        return 0.0
    mean = items / blocks
    if blocks == 1:
        return _fill(mean) ** HASHES
    deviation = sqrt(mean)
    spread = 8 * deviation + 8
    # The terms are so smooth that four per deviation give the same sum, to nine digits.
    step = max(1, int(deviation / 4))
    loads = range(max(0, int(mean - spread)), int(mean + spread) + 1, step)
    log_mean = log(mean)
    # Poisson, the limit of the binomial distribution: exact enough for more than one block.
    return step * sum(
        exp(load * log_mean - mean - lgamma(load + 1)) * _fill(load) ** HASHES for load in loads
    )


def expected_false_positives(items: int, blocks: int) -> float:
    """Return how many of `items` distinct items were wrongly called seen while they filled a slice.

    This is the integral of :func:`false_positive_rate` from 0 to `items`, by Simpson's rule with 32
    intervals. The rate grows like the k-th power of the items; the error is below 0.5 %.
    """
    if items <= 0:
        return 0.0
    step = items / 32
    rates = [false_positive_rate(i * step, blocks) for i in range(33)]
    return step / 3 * (rates[0] + 4 * sum(rates[1:-1:2]) + 2 * sum(rates[2:-1:2]) + rates[-1])


def estimated_items(ones: int, blocks: int) -> float:
    """Return how many items set `ones` bits: ``-(m / k) ln(1 - X / m)`` (Swamidass, Baldi 2007)."""
    bits = blocks * BLOCK_BITS
    return -bits / HASHES * log1p(-ones / bits)


def _fill(load: float) -> float:
    """Return the share of bits set in one block that holds `load` items."""
    return -expm1(-HASHES * load / BLOCK_BITS)


@dataclass(frozen=True)
class SliceSpec:
    """The geometry of one slice.

    Attributes:
        capacity: items it is sized for.
        error_rate: its false-positive rate when it holds that many.
        blocks: its size in blocks of 64 Kbit.
    """

    capacity: int
    error_rate: float
    blocks: int


def next_slice(slices: Sequence[SliceSpec], capacity: int, error_rate: float) -> SliceSpec:
    """Return the geometry of the slice to add to `slices`.

    :param slices: the slices so far. They may have been made for another `capacity` or
        `error_rate`, if the user changed the settings between runs.
    :param capacity: items that the user expects.
    :param error_rate: bound for the sum of the error rates of all slices, however many follow. If
        the older slices alone exceed it, the new ones together stay below it.
    """
    items, share = next_share(slices, capacity, error_rate)
    return SliceSpec(items, share, blocks_for(items, share))


def next_share(slices: Sequence[SliceSpec], capacity: int, error_rate: float) -> tuple[int, float]:
    """Return the capacity and the error rate of the slice to add.

    Parameters are those of :func:`next_slice`.
    """
    held = sum(spec.capacity for spec in slices)
    return max(capacity - held, ceil(STEP * held)), SHARE * _unspent(slices, error_rate)


def generation_capacity(items: int, capacity: int) -> int:
    """Return how many items a new generation is sized for.

    That is an eighth of what the window holds, or of `capacity` if that is more. So after a burst,
    all further generations together are at most as large as the burst.

    :param items: how many items the other generations have.
    :param capacity: what the user expects in a whole window. A filter without items gets all of it:
        how items spread over the window is not known yet.
    """
    return ceil(max(capacity, items) / PARTS) if items else capacity


def generation_rate(others: Sequence[SliceSpec], error_rate: float) -> float:
    """Return the bound for the sum of the error rates of one generation's slices.

    It is an equal share, but never more than the others have left.

    :param others: the slices of all other generations, which no longer grow.
    :param error_rate: bound for all generations together.
    """
    return min(error_rate / MOST_GENERATIONS, _unspent(others, error_rate))


def _unspent(slices: Sequence[SliceSpec], error_rate: float) -> float:
    spent = sum(spec.error_rate for spec in slices)
    return error_rate - spent if spent < error_rate else error_rate / 2 ** len(slices)
