"""What the filters around a local one have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from scrapy_bloom.core.local import LocalFilter

if TYPE_CHECKING:
    from typing_extensions import Self

    from scrapy_bloom.core.info import FilterInfo


class FilterAround(ABC):
    """A :class:`Filter` around a local one, which is not to be used by anybody else.

    :param inner: the filter, with a window or without.

    Attributes:
        inner: the filter.
    """

    def __init__(self, inner: LocalFilter) -> None:
        self.inner = inner

    @property
    def old(self) -> float:
        """What was in the filter before this one came, as :meth:`LocalFilter.until_now` says it."""
        return self.inner.old

    @abstractmethod
    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

    @property
    def since(self) -> float | None:
        """When the generation began that takes items now; None without a window."""
        return self.inner.since

    def restore(self, fingerprints: Iterable[bytes], since: float | None = None) -> bool:
        """Add marks of an earlier run; return False if their time is over.

        :param since: when the generation began that they were added to; None if that is not known.
        """
        fingerprints, newest = list(fingerprints), self.inner.until_now()
        if not self.inner.restore(fingerprints, since):
            return False
        if self.old and self.old == newest and self.inner.window is not None:
            self.inner.old = self.inner.until_now()  # what is old may have got another date by that
        self.restored(fingerprints, since)
        return True

    @abstractmethod
    def restored(self, fingerprints: list[bytes], since: float | None) -> None:
        """Note marks that were restored."""

    def restore_ages(self, ages: Mapping[bytes, float]) -> None:
        """Take over when an earlier run has let pages through for their age."""
        self.inner.restore_ages(ages)

    def info(self) -> FilterInfo:
        """Return the state of the filter, as if it were alone."""
        return self.inner.info()

    def close(self) -> None:
        """Close the filter."""
        self.inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
