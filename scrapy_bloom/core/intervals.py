"""What a count of rare events says about how often they happen."""

from __future__ import annotations

from math import sqrt
from typing import Final

_Z: Final = 1.959964
"""Standard deviations on each side of the mean that hold 95 % of a normal distribution."""


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return the interval that holds a rate with a probability of 95 % (Wilson 1927).

    It is of use for rare events, too: none of 1,000 gives 0 to 0.0038.

    :param count: how often it has happened.
    :param total: how often it could have happened; with 0 nothing is known, and it is 0 to 1.
    """
    if not total:
        return 0.0, 1.0
    rate, square = count / total, _Z * _Z
    middle = rate + square / (2 * total)
    half = _Z * sqrt(rate * (1 - rate) / total + square / (4 * total * total))
    low, high = ((middle + sign * half) / (1 + square / total) for sign in (-1, 1))
    return (low if count else 0.0), (high if count < total else 1.0)
