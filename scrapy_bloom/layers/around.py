"""What the filters around a local one have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from scrapy_bloom.core.local import LocalFilter

if TYPE_CHECKING:
    from typing_extensions import Self

    from scrapy_bloom.core.info import FilterInfo


class FilterAround(ABC):
    """A :class:`Filter` around a local one, which is not to be used by anybody else.

    :param inner: the filter.

    Attributes:
        inner: the filter.
        since: None: there is no window.
    """

    since: ClassVar[None] = None

    def __init__(self, inner: LocalFilter) -> None:
        self.inner = inner

    @abstractmethod
    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

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
