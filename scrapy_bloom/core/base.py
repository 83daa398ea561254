"""What every filter can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from scrapy_bloom.core.info import FilterInfo

if TYPE_CHECKING:
    from typing_extensions import Self


class Filter(Protocol):
    """A set of fingerprints that rarely takes a new one for one that it has.

    A fingerprint that was added, and not forgotten since, is always called seen. One that was not
    added is called seen with a probability of at most the error rate. A ``with`` statement closes
    the filter at its end.
    """

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before.

        The second of two equal fingerprints in one batch was there before.
        """

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this method let a fingerprint through less than `max_age` seconds ago.

        If not, add it, and remember the time. What came by other methods only is let through.
        """

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added. Changes nothing."""

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added. Changes nothing."""

    def forget(self, fingerprint: bytes) -> bool:
        """Make one fingerprint new once more; return whether it was there."""

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make a batch new once more; return for each, in order, whether it was there.

        The second of two equal fingerprints in one batch was not there any more.
        """

    def info(self) -> FilterInfo:
        """Return the state of the filter now. Reads every bit: not for the hot path."""

    def clear(self) -> bool:
        """Forget everything; return False, with nothing done, if others use the filter."""

    def close(self) -> None:
        """Release what the filter holds, such as a connection. A second call does nothing."""

    def __enter__(self) -> Self:
        """Return the filter itself."""

    def __exit__(self, *_: object) -> None:
        """Close the filter."""
