"""What every filter can do, and what it tells about itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class FilterInfo:
    """The state of a filter at one moment.

    Attributes:
        capacity: items that all slices made so far are sized for.
        error_rate: highest share of new items that may be called seen, in total, as set.
        items: items added, without those that were called seen.
        estimated_items: the same number, estimated from the bits alone.
        fill_ratio: share of all bits that are set, 0 to 1.
        estimated_fp_rate: chance that the next new item is called seen, from the bits as they are.
        expected_lost: how many items were wrongly called seen so far, as an expectation.
        bytes: memory that the bits take now, bookkeeping included.
        bytes_at_capacity: memory that they take when all slices made so far are full.
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


class Filter(Protocol):
    """A set of fingerprints that never forgets one and rarely invents one.

    One that was added is always seen. One that was not is called seen with a chance of at most the
    error rate.
    """

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before.

        The second of two equal fingerprints in one batch was there before.
        """

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added. Changes nothing."""

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added. Changes nothing."""

    def info(self) -> FilterInfo:
        """Return the state of the filter now. Reads every bit: not for the hot path."""

    def clear(self) -> bool:
        """Forget everything; return False, with nothing done, if others use the filter."""

    def close(self) -> None:
        """Keep what is to be kept and give back what is held. A second call does nothing."""
