"""How many bits: the arithmetic of blocked Bloom filters. No state, no I/O.

Symbols are the field's: *n* items, *p* error rate, *k* hashes (bits per item), *B* blocks of
:data:`BLOCK_BITS` bits. All k bits of an item lie in one block (Putze, Sanders, Singler 2007).
"""

from __future__ import annotations

from math import ceil, exp, expm1, lgamma, log, log1p, sqrt

BLOCK_BITS = 1 << 16
"""Bits in one block: a position in it is exactly one unsigned 16-bit number of the digest."""

BLOCK_BYTES = BLOCK_BITS // 8

MAX_HASHES = 14
"""How many positions fit into a 32-byte digest, beside the 4 bytes that pick the block."""


def hashes_for(error_rate: float) -> int:
    """Return k, the bits to set per item, for a false-positive rate of `error_rate`.

    Near the optimum ``log2(1 / p)`` (Bloom 1970) the space depends little on k, and a smaller k
    makes each check faster. So this is the smallest k that takes at most 5 % more space than the
    optimum, and never more than :data:`MAX_HASHES`.
    """
    best = min(_bits_per_item(error_rate, k) for k in range(1, 64))
    return next(
        k
        for k in range(1, MAX_HASHES + 1)
        if k == MAX_HASHES or _bits_per_item(error_rate, k) <= 1.05 * best
    )


def blocks_for(capacity: int, error_rate: float, hashes: int) -> int:
    """Return B, the fewest blocks that hold `capacity` items at `error_rate` with k = `hashes`."""
    low, high = 0, max(1, ceil(capacity * _bits_per_item(error_rate, hashes) / BLOCK_BITS))
    while false_positive_rate(capacity, high, hashes) > error_rate:
        low, high = high, high + max(1, high // 16)
    while high - low > 1:
        middle = (low + high) // 2
        if false_positive_rate(capacity, middle, hashes) > error_rate:
            low = middle
        else:
            high = middle
    return high


def false_positive_rate(items: float, blocks: int, hashes: int) -> float:
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
        return _fill(mean, hashes) ** hashes
    deviation = sqrt(mean)
    spread = 8 * deviation + 8
    # The terms are so smooth that four for each deviation give the same sum, to nine digits.
    step = max(1, int(deviation / 4))
    loads = range(max(0, int(mean - spread)), int(mean + spread) + 1, step)
    log_mean = log(mean)
    # Poisson, the limit of the binomial distribution: exact enough for more than one block.
    return step * sum(
        exp(load * log_mean - mean - lgamma(load + 1)) * _fill(load, hashes) ** hashes
        for load in loads
    )


def expected_false_positives(items: int, blocks: int, hashes: int) -> float:
    """Return how many of `items` distinct items were wrongly called seen while they filled a slice.

    This is the integral of :func:`false_positive_rate` from 0 to `items`, by Simpson's rule with 32
    intervals. The rate grows like the k-th power of the items; the error is below 0.5 %.
    """
    if items <= 0:
        return 0.0
    step = items / 32
    rates = [false_positive_rate(i * step, blocks, hashes) for i in range(33)]
    return step / 3 * (rates[0] + 4 * sum(rates[1:-1:2]) + 2 * sum(rates[2:-1:2]) + rates[-1])


def estimated_items(ones: int, blocks: int, hashes: int) -> float:
    """Return how many items set `ones` bits: ``-(m / k) ln(1 - X / m)`` (Swamidass, Baldi 2007)."""
    bits = blocks * BLOCK_BITS
    return -bits / hashes * log1p(-ones / bits)


def _bits_per_item(error_rate: float, hashes: int) -> float:
    """Return m / n for which ``(1 - e^(-kn/m))^k`` is `error_rate`."""
    return -hashes / log1p(-(error_rate ** (1 / hashes)))


def _fill(load: float, hashes: int) -> float:
    """Return the share of bits set in one block that holds `load` items."""
    return -expm1(-hashes * load / BLOCK_BITS)
