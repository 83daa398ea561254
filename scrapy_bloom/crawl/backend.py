"""The port between a crawl and what stores its marks and requests: a job directory, or Redis.

A mark and its request live and die together there. :class:`~scrapy_bloom.crawl.frontier.Frontier`
knows when a page is done; a backend knows how to store that. What the members mean is documented
here; implementations document only what differs.

A new backend has to be made known to

- ``scheduler``, which opens it;
- ``settings``: :data:`~.settings.BACKEND` and :func:`~.settings.is_in_redis`, which ``addon``,
  ``dupefilter``, ``scheduler`` and ``commands/target`` ask;
- ``commands/target``, which returns what the commands work on;
- ``pyproject.toml``: the layers of imports;
- ``tests/contract/test_backends.py``, which says what each backend does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final

from scrapy_bloom.crawl.history import START

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred

    from scrapy_bloom.crawl.account import Account
    from scrapy_bloom.crawl.identity import Identifier
    from scrapy_bloom.crawl.in_flight import InFlight
    from scrapy_bloom.crawl.outcomes import Ended, Reason
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.scrapy.engine import Engine
    from scrapy_bloom.errors import BloomError
    from scrapy_bloom.filter.info import FilterInfo
    from scrapy_bloom.settings import Settings

EACH: Final = 1024
"""Bytes that a request takes in memory beside its own, roughly."""


@dataclass(frozen=True)
class Crawl:
    """The parts of one crawl, made while its spider is being opened."""

    crawler: Crawler
    spider: Spider
    settings: Settings
    report: Report
    engine: Engine
    identifier: Identifier
    in_flight: InFlight

    def start_of(self, request: Request) -> bytes:
        """Identify an unfiltered request, if it is one of ``start()`` and comes for the first time.

        :returns: what :meth:`Identifier.start_id` does; nothing for any other request.
        """
        if START in request.meta or not self.engine.is_from_start(request):
            return b""
        return self.identifier.start_id(request)


class Backend(ABC):
    """Stores the marks and requests of a crawl. It is open once it is made.

    What has changed is written or sent by an *exchange*: a commit of a job directory, a call of
    Redis. The frontier makes one when :attr:`exchange_at` says so.

    Besides what its members say, a backend

    - wakes the engine when it can hand out requests that it could not before, but for exchanges;
    - sets :data:`.stats.WAITING`, and gives ``report`` its account and description at the close;
    - tells start requests that are not filtered by their :data:`~.history.START`: each is one page,
      in however many runs it comes.

    Attributes:
        kind: its name in Scrapy's stats of schedulers.
        shared: whether other workers may take what this one has stored.
        broken: whether it has given up, which was logged: nothing more is exchanged.
        exchange_at: when the next exchange should be made, by ``time.monotonic()``; infinite if
            there is no need. Members that change something set it, except :meth:`release` and
            :meth:`fail`, which come just before an exchange; that begins by setting it back.
        interval: seconds until the next exchange while pages are in flight, or after one that
            failed.
    """

    kind: ClassVar[str]
    shared: ClassVar[bool] = False
    broken = False
    exchange_at = inf
    interval: float

    # Marks and requests

    @abstractmethod
    def offer(
        self, request: Request, not_before: float, mark: bytes | None, max_age: float | None
    ) -> bool | Deferred[bool]:
        """Add a mark and queue its request, unless the mark is there; return whether it is.

        If that is answered later, it is not known before.

        A start request that is not filtered may still wait from an earlier run. A job directory
        queues it only once, and returns False all the same.

        :param not_before: before when the request must not be sent, by ``time.monotonic()``; 0 for
            no such time.
        :param mark: None for a request that is not filtered.
        :param max_age: seconds after which the mark counts no more; None for any age.
        :raises Unstorable: if the request cannot be serialized.
        """

    @abstractmethod
    def __contains__(self, mark: bytes) -> bool:
        """Return whether a mark is there, as far as is known without asking."""

    @abstractmethod
    def forget_many(self, marks: Collection[bytes]) -> list[bool] | Deferred[list[bool]]:
        """Make marks eligible again; return for each whether it was there."""

    @abstractmethod
    def withhold(self, marks: Collection[bytes], *, is_over: bool = False) -> None:
        """Record marks of a request that waits in memory, which a kill would lose.

        :param is_over: whether it is done.
        """

    @abstractmethod
    def take(self) -> tuple[Request, Any] | None:
        """Take a request that may be sent now, with what :meth:`release` wants; None if none may.

        That has an attribute ``body``: the request as it is stored.

        It stays stored until it is released or fails. What failed in earlier runs is put back
        among these once a run, until it has failed in :data:`~.outcomes.MOST_RUNS` of them: in a
        job directory when no other may be sent, in Redis when few wait. It keeps its priority, and
        in Redis its place.
        """

    @abstractmethod
    def release(self, taken: Any, ended: Ended, start: bytes = b"") -> None:
        """Let go of a request that is done.

        :param taken: None for a request that was only in memory: it counts all the same.
        :param start: identifies the start request that it stands for, if one that is not filtered:
            it comes with each run, and counts as it ended last.
        """

    @abstractmethod
    def fail(self, taken: Any, reason: Reason, way: Collection[bytes], start: bytes = b"") -> bool:
        """List a request that no callback got. The next run fetches again what has failed.

        While workers come and go without a new run, that is an hour later. One that is unparsed
        stays there until somebody puts it back; of very many some are only counted.

        :param taken: None for an unparsed one that was only in memory: it is only counted.
        :param way: marks of where redirects led: they are forgotten when it comes again.
        :param start: as above.
        :returns: whether it is unparsed. What has failed in an earlier run is not, whatever the
            reason now, until it has failed in :data:`~.outcomes.MOST_RUNS` runs.
        """

    def record_finished(self, count: int) -> None:  # noqa: B027 - a job need not know
        """Record that the engine is finished with so many pages.

        They may yet wait for answers, for others and for items.
        """

    # Download slots

    @abstractmethod
    def pause_host(self, request: Request, seconds: float) -> None:
        """Pause the slot of a request."""

    @abstractmethod
    def paused_until(self, request: Request) -> float:
        """Return until when the slot of a request is paused, 0 if it is not."""

    # Exchanges

    def store_due(self, due: Mapping[str, tuple[int, bytes]]) -> bool:  # noqa: ARG002
        """Have the next exchange store what is then due to local feeds; return whether it will.

        Whoever reads it writes to them what they lack of it.

        :param due: see :meth:`.LocalFiles.collect_due`.
        """
        return False

    @property
    @abstractmethod
    def unwritten(self) -> int:
        """How many bytes of requests are only in memory until exchanges have written or sent them.

        That includes :data:`EACH` for each. While they are very many, the frontier takes none.
        """

    @property
    @abstractmethod
    def dirty(self) -> bool:
        """Whether there is something to exchange."""

    @abstractmethod
    async def exchange(self, *, busy: bool, in_memory: bool) -> bool:
        """Write or send what has changed, and learn what others know; return whether that worked.

        :param busy: whether pages are in flight, or done and not released.
        :param in_memory: whether requests wait in memory.
        """

    @abstractmethod
    def give_up(self, error: BloomError) -> None:
        """Exchange nothing more: set :attr:`broken`, and end the crawl with the error."""

    def stop(self) -> None:  # noqa: B027 - likewise
        """Prepare the last exchanges: workers take no more, and put back what is not begun.

        It is called when the spider begins to close, and once more when it closes.
        """

    @abstractmethod
    async def close(self) -> bool:
        """Close it after the last exchange; return whether everything is stored."""

    # What waits

    @abstractmethod
    def __len__(self) -> int:
        """Return how many requests wait, as far as is known."""

    @property
    @abstractmethod
    def later(self) -> int:
        """How many of these wait for a time."""

    @abstractmethod
    def pending(self) -> bool:
        """Return whether a request may be taken soon, or something is to be sent."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether nobody has anything left to fetch, as of the last exchange."""

    @property
    @abstractmethod
    def next_start(self) -> float:
        """When the next request can be taken that has to wait; infinite if none does."""

    @abstractmethod
    def idle_until(self) -> tuple[int, float]:
        """Return how many requests cannot be taken now, and until when none can be.

        The time is 0 if some can, or that is not known.
        """

    def record_idle(self) -> None:  # noqa: B027 - likewise
        """Record that the spider has nothing to do, although the crawl goes on."""

    @abstractmethod
    def account(self) -> Account:
        """Return what has become of all pages, as of the last exchange."""

    @abstractmethod
    def info(self) -> FilterInfo:
        """Return the state of the filter, as of the last exchange."""

    @abstractmethod
    def describe(self) -> tuple[str, ...]:
        """Return what else is known, as phrases."""
