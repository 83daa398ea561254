"""What every place of a filter can do, be it a job directory, a file or a key in Redis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.filter.state import FilterState
from scrapy_bloom.local.job import Identity

if TYPE_CHECKING:
    from scrapy_bloom.commands.output import Output
    from scrapy_bloom.commands.requests import Waiting
    from scrapy_bloom.settings import Settings


@dataclass(frozen=True)
class SliceInfo:
    """One slice of a filter.

    Attributes:
        shard: number of its shard.
        capacity: items that it is sized for.
        items: items that it has.
        bytes: bytes of its bits; of a filter of the layout ``sets`` what full ones take, about.
        error_rate: its share of the error rate, when it is full.
        fill_ratio: share of its bits that are set, 0 to 1; None for Redis, where that takes long.
    """

    shard: int
    capacity: int
    items: int
    bytes: int
    error_rate: float
    fill_ratio: float | None = None


@dataclass(frozen=True)
class Worker:
    """A worker that is registered in Redis.

    Attributes:
        id: its name.
        alive: whether its lease lasts.
    """

    id: str
    alive: bool


@dataclass(frozen=True)
class Information:
    """What is known of a filter. Its secret is not in it.

    Attributes:
        target: where it is.
        kind: ``job``, ``file`` or ``redis``.
        filter: its state.
        hashes: bits set for each item.
        digests: whether fingerprints of 20 bytes are taken as SHA-1 digests.
        slices: its slices, oldest first.
        shards: how many shards it has.
        project: whose requests wait beside it, in Redis; empty if none can.
        spider: name of its spider; empty if that is not known.
        fingerprinter: what makes its fingerprints; empty if that is not known.
        canonical: the rules by which URLs were rewritten before, and the versions of the libraries.
        let_through: how many fingerprints were forgotten, and are new the next time.
        exact: whether fingerprints are listed, too, or kept with 63 bits.
        crawl: whether its crawl has stopped cleanly, runs or was killed; empty if it has none.
        process: the process that runs, or ran, in its job directory; 0 if none is known.
        written: when its file was last written; None if it has none.
        journal: marks that are not yet in blocks of bits, in a file.
        waiting: how many requests wait; None if none can.
        under_way: how many requests are in flight; in a file, at the last commit.
        failed: how many requests were moved to the failed list, in Redis.
        workers: the workers that are registered, in Redis.
        layout: how it is stored.
    """

    target: str
    kind: str
    filter: FilterInfo
    hashes: int
    digests: bool
    slices: Sequence[SliceInfo]
    fingerprinter: str
    canonical: Mapping[str, Any]
    shards: int = 1
    project: str = ""
    spider: str = ""
    let_through: int = 0
    exact: bool = False
    crawl: str = ""
    process: int = 0
    written: datetime | None = None
    journal: int | None = None
    waiting: int | None = None
    under_way: int | None = None
    failed: int | None = None
    workers: Sequence[Worker] = ()
    layout: str = "bitmap"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: ``good``, ``note`` for what is worth knowing, or ``bad``.
        what: what was looked at.
        found: what was found.
        advice: what to do; empty if there is nothing to do.
    """

    level: Literal["good", "note", "bad"]
    what: str
    found: str
    advice: str = ""


class Owner(NamedTuple):
    """Whose requests are beside a filter in Redis; all empty if nobody's are.

    Attributes:
        project: name of the project.
        spider: name of the spider.
        order: in which order requests are taken, and how they are written.
    """

    project: str = ""
    spider: str = ""
    order: str = ""


@dataclass(frozen=True)
class NewFilter:
    """What a new filter is like, by the settings of a project.

    Attributes:
        settings: its capacity, error rate, window and the like.
        identity: what it belongs to.
        digests: whether all its fingerprints are SHA-1 digests.
        owner: whose requests will be beside it, in Redis.
    """

    settings: Settings
    identity: Identity
    digests: bool
    owner: Owner


@dataclass(frozen=True)
class Contents:
    """A filter as a whole: its bits, and what they belong to.

    Attributes:
        identity: spider, fingerprinter and rules; an empty text for what is not known.
        capacity: items that it was made for.
        error_rate: bound for the share of new items that are called seen, in total.
        state: its bits.
        warnings: what whoever uses a copy should know, as sentences.
    """

    identity: Identity
    capacity: int
    error_rate: float
    state: FilterState = field(repr=False)
    warnings: Sequence[str] = ()


class Marks(Protocol):
    """The marks of a filter, open to be asked or changed.

    Attributes:
        identity: what the filter belongs to.
    """

    identity: Identity

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether a crawl would call it seen."""

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before."""

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make a batch new again; return for each, in order, whether it was there."""


class Target(ABC):
    """A place where a filter is, or may come to be.

    Every method raises :class:`BloomError` if the place cannot be used. Those that look create,
    lock and change nothing, and may be called while a crawl uses the filter.

    Attributes:
        name: what people call it.
    """

    name: str

    @abstractmethod
    def exists(self) -> bool:
        """Return whether a filter is there, or anything that is in its place."""

    @abstractmethod
    def info(self) -> Information:
        """Return what is known of the filter.

        :raises StateError: if there is none; likewise in what follows.
        """

    @abstractmethod
    def check(self) -> Iterator[Finding]:
        """Read all of the filter, and what is beside it; yield what was found."""

    @abstractmethod
    def asking(self) -> AbstractContextManager[Marks]:
        """Open the filter to ask it."""

    @abstractmethod
    def changing(self, new: NewFilter | None) -> AbstractContextManager[Marks]:
        """Open the filter to change its marks.

        What is changed in a file is kept when the ``with`` statement ends without an error, all of
        it or nothing. In Redis it is there at once.

        :param new: what to make where there is none; None if that is an error.
        :raises JobInUseError: if a crawl runs in the job directory.
        """

    @abstractmethod
    def read(self, output: Output) -> Contents:
        """Read all of the filter."""

    @abstractmethod
    def write(self, contents: Contents, owner: Owner, output: Output) -> None:
        """Put a filter there, all of it or, if that fails, nothing.

        :raises StateError: if something is there.
        :raises JobInUseError: if a crawl uses the place.
        """

    @abstractmethod
    def requests_waiting(self) -> str:
        """Return where requests wait whose pages the filter calls seen; empty if none do."""

    @abstractmethod
    def queue(
        self, output: Output, *, peek: int, most: int, failed: bool, newest_first: bool
    ) -> Waiting:
        """Return what waits to be fetched; the parameters are those of :mod:`commands.queue`."""

    @abstractmethod
    def retry(self) -> int:
        """Put the requests on the failed list back; return how many."""

    @abstractmethod
    def delete(self, output: Output) -> None:
        """Delete the filter, and the requests that wait with it.

        :raises StateError: if there is none, or a crawl uses it. Nothing was changed then.
        :raises JobInUseError: likewise.
        """

    @abstractmethod
    def leftovers(self) -> list[str]:
        """Return the keys in Redis that filters have left that are gone."""

    @abstractmethod
    def delete_leftovers(self) -> int:
        """Delete these keys; return how many."""

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


def check_spider(identity: Identity) -> None:
    """Look whether a filter can be kept in a job directory.

    :raises SettingError: if nobody knows whose it is.
    """
    if not identity.spider:
        raise SettingError(
            "it is not known whose marks these are, and a job directory belongs to one spider:"
            " give its name with --spider, such as --spider books."
        )
