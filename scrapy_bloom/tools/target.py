"""What every place of a filter can do, be it a job directory, a file or a key in Redis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from scrapy_bloom.core.info import FilterInfo
from scrapy_bloom.errors import StateError
from scrapy_bloom.storage.snapshot import Identity
from scrapy_bloom.tools.contents import Contents
from scrapy_bloom.tools.progress import Progress, silent


class Readable(Protocol):
    """A filter that is open for reading only."""

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added."""

    def info(self) -> FilterInfo:
        """Return the state of the filter."""

    def close(self) -> None:
        """Release what the filter holds."""


@dataclass(frozen=True)
class Open:
    """A filter that was opened to be asked.

    Attributes:
        filter: the filter.
        identity: what it belongs to.
        let_through: fingerprints that it calls seen, but that are new once more.
    """

    filter: Readable
    identity: Identity
    let_through: Collection[bytes] = field(default=frozenset(), repr=False)

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether a crawl would call it seen."""
        if not self.let_through:
            return self.filter.contains_many(fingerprints)
        fingerprints = list(fingerprints)
        found = self.filter.contains_many(fingerprints)
        return [
            seen and fingerprint not in self.let_through
            for fingerprint, seen in zip(fingerprints, found, strict=True)
        ]


class Adder(Protocol):
    """Marks in a filter; what it does to a file is kept when its ``with`` statement ends well.

    Attributes:
        identity: what the filter belongs to.
    """

    identity: Identity

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before."""

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make a batch new once more; return for each, in order, whether it was there."""


class Change(ABC):
    """A place that is held, so that nobody else can put a filter there meanwhile."""

    @abstractmethod
    def put(self, contents: Contents, progress: Progress = silent) -> None:
        """Put a filter there, all of it or, if that fails, nothing.

        :raises BloomError: if that cannot be done.
        """


class Target(ABC):
    """A place where a filter is, or may come to be.

    Every method raises :class:`BloomError` if the place cannot be used. Those that look create,
    lock and change nothing, and may be called while a crawl uses the filter.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What people call it."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether a filter is there, or anything that is in its place."""

    def check_identity(self, identity: Identity) -> None:  # noqa: B027 - most take any
        """Look whether a filter that belongs to `identity` may be put there.

        :raises SettingError: if it may not.
        """

    @abstractmethod
    def read(self, progress: Progress = silent) -> Contents:
        """Read all of the filter.

        :raises StateError: if there is none.
        """

    @abstractmethod
    def open(self) -> AbstractContextManager[Open]:
        """Open the filter to ask it.

        :raises StateError: if there is none.
        """

    @abstractmethod
    def making(self) -> AbstractContextManager[Change]:
        """Hold the place, to put a filter there.

        :raises StateError: if something is there.
        :raises JobInUseError: if a crawl uses the place.
        """

    @abstractmethod
    def adding(self) -> AbstractContextManager[Adder]:
        """Open a filter that is there to add to it.

        :raises StateError: if there is none.
        :raises JobInUseError: if a crawl uses it and nobody else may add to it.
        """

    @abstractmethod
    def delete(self, progress: Progress = silent) -> None:
        """Delete the filter, and the requests that wait with it.

        :raises StateError: if there is none, or a crawl uses it. Nothing was changed then.
        :raises JobInUseError: likewise.
        """

    def leftovers(self) -> Sequence[str]:
        """Return the keys that filters that are gone have left there, if none is there now."""
        return ()

    def delete_leftovers(self, progress: Progress = silent) -> int:  # noqa: ARG002
        """Delete what filters that are gone have left there; return how many keys."""
        return 0

    def has_requests(self) -> bool:
        """Return whether requests wait there."""
        return False

    def missing(self) -> StateError:
        """Return the error that says that there is no filter."""
        return StateError(
            f"{self.name}: found no filter. Give the job directory of a crawl, a file that"
            f" 'scrapy bloom copy' has written, or the URL of a Redis server and the --key of a"
            f" filter there."
        )

    def occupied(self, found: str = "a filter") -> StateError:
        """Return the error that says that something is where nothing may be."""
        return StateError(
            f"{self.name}: found {found}, expected none. Nothing was changed. Give another place,"
            f" or make room: 'scrapy bloom delete' removes a filter."
        )
