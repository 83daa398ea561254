"""How a filter grows: a chain of slices, each sized for its share of items and of errors.

A filter starts with one slice. When that has taken the items it is sized for, the next one takes
the new items, and a fingerprint is seen if any slice has it (Almeida, Baquero, Preguiça, Hutchison
2007). The chances of error add up, so each slice is given a share of what the ones before it left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scrapy_bloom.core import sizing


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


SHARE: Final = 0.2
"""Part of the error rate still unspent that the next slice may spend.

Measured from 1 to 100 times the capacity at 1e-6: a filter full to its capacity takes 4.4 bytes per
item and the worst moment on the way 9.9; with 0.3 it is 10.3, with 0.1 it starts at 4.7.
"""

_TYPICAL_SHARE: Final = 0.05
"""What a slice in the middle of that way spends: the number of hashes is best for this one."""


def filter_hashes(error_rate: float) -> int:
    """Return k for a filter of this total error rate: all its slices use the same k."""
    return sizing.hashes_for(_TYPICAL_SHARE * error_rate)


def outgrown(items: int, error_rate: float, option: str) -> str:
    """Return what a user is told when the first slice is full and the filter begins to grow.

    :param option: what the reader calls the capacity.
    """
    return (
        f"{items:,} fingerprints, as many as it was sized for. It grows from here and keeps its"
        f" error rate of {error_rate:g}; checks get slower little by little. Next time,"
        f" set {option} to the number that you expect."
    )


def next_slice(
    slices: Sequence[SliceSpec], capacity: int, error_rate: float, hashes: int
) -> SliceSpec:
    """Return the geometry of the slice to add to `slices`.

    It is as large as all before it together, so the filter doubles, and at no moment is more than
    half of it unused; but never smaller than `capacity`.

    :param slices: the slices made so far; they may come from other values of `capacity` and
        `error_rate`, when a user changes the settings between runs.
    :param capacity: items in the first slice.
    :param error_rate: bound for the sum of the error rates of all slices, however many follow.
        Where older slices alone exceed it, the new ones stay below it among themselves.
    :param hashes: k.
    """
    spent = sum(spec.error_rate for spec in slices)
    unspent = error_rate - spent if spent < error_rate else error_rate / 2 ** len(slices)
    share = SHARE * unspent
    size = max(capacity, sum(spec.capacity for spec in slices))
    return SliceSpec(size, share, sizing.blocks_for(size, share, hashes))
