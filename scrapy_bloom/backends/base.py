"""What a backend is, and which one a crawl uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from scrapy_bloom.core.base import Filter
from scrapy_bloom.options import BACKEND, REDIS_URL
from scrapy_bloom.redis.queue.base import Form, Queue
from scrapy_bloom.registry import BACKENDS
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.snapshot import Identity
from scrapy_bloom.storage.store import JobStore

if TYPE_CHECKING:
    from scrapy_bloom.redis.foreign import ForeignKey


@dataclass(frozen=True)
class Crawl:
    """What a backend is told about the crawl.

    Attributes:
        identity: whose marks the filter holds.
        digests: whether its fingerprints are SHA-1 digests.
        job_dir: where the crawl keeps its state between runs; None if it keeps none.
        shared_queue: whether its requests wait in Redis, for any worker, and not in this process.
        journaled: whether its marks are kept with its requests in the job directory, by
            ``scrapy_bloom.Scheduler``.
        queue: the form of the requests, if that scheduler keeps them with the marks in Redis.
        starts_over: whether the requests of the last run were put aside, since it was killed.
    """

    identity: Identity
    digests: bool
    job_dir: Path | None
    shared_queue: bool
    journaled: bool = False
    queue: Form | None = None
    starts_over: bool = False


@dataclass(frozen=True)
class Opened:
    """A filter ready for use, and how it came to be.

    Attributes:
        filter: the filter.
        close: stores the filter if the backend keeps it, and releases lock and connection; raises
            :class:`BloomError` if that fails.
        delete: empties the filter at the end of the crawl; returns False if others use it. None if
            that is the same as :meth:`Filter.clear`.
        place: where it lives, in words.
        restored: how many fingerprints it started with.
        restored_from: where they came from; empty if there were none.
        unclean: whether the last run was killed.
        numbers: returns counts of filter and backend by their names in :data:`stats.FROM_FILTER`
            and :data:`stats.FROM_BACKEND`.
        filled_with: what its fingerprints were made with, as in the identity; empty if unknown.
        let_through: fingerprints that are to be called new once more, though their marks stay: the
            filter's own list, kept with it, or one of this crawl.
        closes_slowly: returns whether `close` takes so long that it should run beside the reactor.
            It may be called in another thread then.
        job: what keeps it, if it is journaled.
        marked: whether it started with any, as far as a filter in Redis knows; `restored` may be 0
            then, see :attr:`Header.marked`.
        foreign: returns what scrapy-redis keeps in the same place, by its key.
        queue: the requests beside it, if the crawl has given a form for them.
        unmarked: how many requests waited there without a filter.
    """

    filter: Filter
    close: Callable[[], None]
    place: str
    restored: int = 0
    restored_from: str = ""
    unclean: bool = False
    numbers: Callable[[], Mapping[str, float]] = dict
    filled_with: Mapping[str, Any] = field(default_factory=dict)
    let_through: set[bytes] = field(default_factory=set)
    closes_slowly: Callable[[], bool] = bool
    job: JobStore | None = None
    marked: bool = False
    foreign: Callable[[str], ForeignKey] | None = None
    queue: Queue | None = None
    unmarked: int = 0
    delete: Callable[[], bool] | None = None


class Backend(Protocol):
    """A place for filters. Its class takes no arguments and stands in :data:`registry.BACKENDS`."""

    def open(self, settings: Settings, crawl: Crawl) -> Opened:
        """Open the filter of a crawl and take it for this process.

        :raises BloomError: if that cannot be done as the settings say.
        """


def backend_name(settings: Settings, *, shared_queue: bool) -> str:
    """Return which backend the settings choose.

    :param shared_queue: as in :class:`Crawl`.
    """
    name = settings[BACKEND]
    if name == "auto":
        return "redis" if settings[REDIS_URL] or shared_queue else "local"
    return name


def backend_of(settings: Settings, *, shared_queue: bool) -> Backend:
    """Return the backend that the settings choose.

    :param shared_queue: as in :class:`Crawl`.
    """
    name = backend_name(settings, shared_queue=shared_queue)
    module, _, kind = BACKENDS[name].partition(":")
    backend: Backend = getattr(import_module(module), kind)()
    return backend
