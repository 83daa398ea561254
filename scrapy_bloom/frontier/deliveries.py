"""Requests that a worker has taken off a shared queue: waiting here, under way, done."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from scrapy_bloom import stats
from scrapy_bloom.frontier.requests import decode
from scrapy_bloom.frontier.under_way import Alive, UnderWay, Visit
from scrapy_bloom.redis.queue.base import Queue, Taken, Ticket

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.statscollectors import StatsCollector

    from scrapy_bloom.frontier.items import Items

logger = logging.getLogger(__name__)


class Deliveries:
    """Gives out requests and finds out when each one is done, with all that it led to.

    :param queue: tells whether a request is still this worker's.
    :param alive: tells whether the engine still has a request; None if it says so by itself.
    :param items: writes out what pages gave, before they are acknowledged.
    :param came: returns how many requests the spider has made so far.

    Attributes:
        unreadable: requests that were taken and cannot be read.
    """

    def __init__(
        self,
        queue: Queue,
        spider: Spider,
        collector: StatsCollector,
        *,
        alive: Alive | None,
        items: Items,
        came: Callable[[], int],
    ) -> None:
        self._queue = queue
        self._spider = spider
        self._stats = collector
        self._items = items
        self._came = came
        self._under_way: UnderWay[Taken] = UnderWay(self, alive)
        self._popped: deque[Taken] = deque()
        self._held: list[tuple[int, int, Request]] = []  # a heap
        self._held_count = 0
        # Done, and how many requests must have their verdict before that can be said.
        self._over: deque[tuple[Taken, int]] = deque()
        self.unreadable: list[Taken] = []
        self._said_unreadable = False

    def __len__(self) -> int:
        """Return how many requests wait here."""
        return len(self._popped) + len(self._held)

    @property
    def stock(self) -> int:
        """How many requests wait here that were taken off the queue."""
        return len(self._popped)

    @property
    def unfinished(self) -> bool:
        """Whether there are requests that were started and not acknowledged."""
        return bool(self._over or len(self._under_way))

    @property
    def unsaid(self) -> bool:
        """Whether there are requests that are done and not acknowledged."""
        return bool(self._over)

    # On their way to the engine

    def add(self, taken: Sequence[Taken]) -> None:
        """Let requests wait here that were taken off the queue."""
        self._popped.extend(taken)

    def hold(self, request: Request) -> Visit[Taken]:
        """Note that a request was made which cannot be stored."""
        return self._under_way.hold(request, ())

    def keep(self, request: Request, visit: Visit[Taken], ticket: Ticket | None) -> None:
        """Let a request wait here that was new and cannot be stored."""
        if ticket is not None:
            visit.row = Taken(ticket, b"", request.priority, None, 0)
        self._held_count += 1
        heappush(self._held, (-request.priority, self._held_count, request))

    def drop(self, request: Request, visit: Visit[Taken]) -> None:
        """Forget a request that was a duplicate and cannot be stored."""
        self._under_way.drop_held(request, visit)

    def next(self) -> Request | None:
        """Return the next request to send; those that cannot be stored come first."""
        if self._held:
            request = self._under_way.start_held(heappop(self._held)[-1])
            self._stats.inc_value("scheduler/dequeued/memory")
            self._stats.inc_value("scheduler/dequeued")
            return request
        started = None
        while started is None and self._popped:
            started = self._start(self._popped.popleft())
        return started

    def _start(self, taken: Taken) -> Request | None:
        if not self._queue.holds(taken.ticket):  # this worker was taken for dead
            return None
        try:
            request = decode(taken.body, self._spider)
        except Exception as error:  # noqa: BLE001 - its parts may raise anything
            self._say_unreadable(error)
            self.unreadable.append(taken)
            return None
        self._under_way.start(request, taken)
        self._stats.inc_value("scheduler/dequeued/redis")
        self._stats.inc_value("scheduler/dequeued")
        return request

    # On their way from the engine

    def finish(self, request: Request) -> None:
        """Take note that the engine is through with a request."""
        self._under_way.finish(request)

    def keep_taken(self, request: Request) -> bool:
        """Never let a request be done: it is put back. Return whether it was under way."""
        return self._under_way.keep(request)

    def done(self, row: Taken) -> None:
        """Note that a request is done, but for the verdicts on what it led to."""
        self._over.append((row, self._came()))

    def mark(self, marks: tuple[bytes, ...]) -> None:
        """Do nothing: what was offered is marked."""

    def withhold(self, marks: tuple[bytes, ...]) -> None:
        """Do nothing: the server tells the marks of requests that cannot be stored apart."""

    def ready(self, settled: int) -> int:
        """Return how many requests can be acknowledged, once their items are written out.

        :param settled: how many requests, from the first one on, have their verdict.
        """
        self._under_way.settle()
        return sum(number <= settled for _, number in self._over)

    def first(self, count: int) -> list[Ticket]:
        """Write out the items of the first ones that are done; return what to acknowledge."""
        if count and not self._items.flush():
            return []
        return [row.ticket for row, _ in islice(self._over, count)]

    def acknowledged(self, count: int) -> None:
        """Note that the first ones of those that were ready are acknowledged."""
        for _ in range(count):
            self._over.popleft()

    # The log

    def _say_unreadable(self, error: Exception) -> None:
        self._stats.inc_value(stats.UNREADABLE.key)
        if not self._said_unreadable:
            self._said_unreadable = True
            logger.error(
                "A request in the shared queue cannot be read (%r). Its page is not fetched, nor"
                " any page that only it leads to. The request is put aside in Redis. Do all workers"
                " run the same code? More such errors are counted in %s and not shown.",
                error,
                stats.UNREADABLE.key,
                extra={"spider": self._spider},
            )
