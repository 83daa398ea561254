"""Marks and pushes in one call what scrapy-redis's scheduler is given in one turn of the loop.

Its own way, a mark and then a push, costs two trips, and a kill between them the page.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from math import isnan
from typing import TYPE_CHECKING, Any, Final

from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_bloom.crawl.judge import SEEN, Judge
from scrapy_bloom.crawl.report import Report, Verdict, end_crawl
from scrapy_bloom.crawl.scrapy.crawler import encode, send_dropped, wrap_start
from scrapy_bloom.crawl.scrapy.loop import Timer, pause
from scrapy_bloom.errors import BackendError, BloomError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.plan import BATCH
from scrapy_bloom.redis.wire import MOST_PUSHED, Call, in_calls
from scrapy_bloom.redis.worker import KNOWN
from scrapy_bloom.settings import ON_BACKEND_ERROR, REDIS_TIMEOUT, Settings
from scrapy_bloom.values import counted

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

LARGE: Final = 30.0
"""Seconds for each try of a request that is too large for a call's timeout: scrapy-redis's own push
has as many. The event loop waits, but without them the push would never come through."""

_METHODS = "enqueue_request", "next_request", "has_pending_requests", "close"


class Pushing:
    """Takes the place of a scheduler's methods, and gathers its requests for the next call.

    What this worker knows is not sent, but a call is made even so: what it knows counts only if
    the server still has it. While Redis does not answer, the requests wait here.

    :param scheduler: scrapy-redis's.
    :param kind: the type of its queue in Redis.
    :param filter_: remembers what is known from here on.
    :param judge: judges its requests.
    :param report: writes to stats and log.
    """

    def __init__(
        self,
        crawler: Crawler,
        scheduler: Any,
        kind: str,
        filter_: RedisFilter,
        judge: Judge,
        report: Report,
    ) -> None:
        self._crawler, self._scheduler = crawler, scheduler
        self._filter, self._judge, self._report = filter_, judge, report
        self._queue = scheduler.queue.key, kind
        self._waiting: dict[Entry, Request] = {}
        self._call: Call | None = None  # until it is answered
        self._retry = 0.0  # seconds until it is repeated, 0 if it was answered
        self._timer = Timer(self._send)
        self._own = {name: getattr(scheduler, name) for name in _METHODS}
        for name in _METHODS:
            setattr(scheduler, name, getattr(self, name))
        filter_.worker.most_known = KNOWN
        wrap_start(crawler, self._paused)

    # What the engine calls

    def enqueue_request(self, request: Request) -> bool:
        """Take a request. If it is a duplicate, it is dropped later."""
        verdict: Deferred[Any] = Deferred()
        entry = Entry("p", None, source=verdict)

        def ask(mark: bytes, max_age: float | None) -> Deferred[bool]:
            entry.op, entry.fingerprint, entry.max_age = "f", mark, max_age
            return verdict

        if not request.dont_filter:
            self._judge.check(request, ask)
        verdict.addCallback(self._decided, request)
        self._waiting[entry] = request
        if self._retry:
            return True
        if len(self._waiting) < BATCH:
            self._timer.set(0)
        else:
            self._send()
        return True

    def next_request(self) -> Request | None:
        """Return a request, unless some cannot be pushed: the queue would block, too."""
        return None if self._is_stuck() else self._own["next_request"]()

    def has_pending_requests(self) -> bool:
        """Return whether there are requests, here or in the queue."""
        return self._is_stuck() or self._own["has_pending_requests"]()

    def close(self, reason: str) -> Deferred[None]:
        """Send what waits, for as long as one call may take."""
        return Deferred.fromCoroutine(self._close(reason))

    async def _close(self, reason: str) -> None:
        ends = time.monotonic() + Settings.of(self._crawler)[REDIS_TIMEOUT]
        self._send()
        while self._waiting and time.monotonic() < ends:
            await pause(upkeep.RETRY)
            self._send()
        self._timer.cancel()
        if self._waiting:
            place, lost = self._filter.worker.place, counted(len(self._waiting), "request")
            error = BackendError(f"{place}: the spider has closed before {lost} could be sent.")
            self._report.error(error)
            self._waiting.clear()
        if (closed := self._own["close"](reason)) is not None:
            await closed

    async def _paused(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for each in start:
            yield each
            while len(self._waiting) > BATCH:
                await maybe_deferred_to_future(pause(upkeep.RETRY))

    # Calls

    def _is_stuck(self) -> bool:
        """Send what waits, unless that has just failed; return whether anything still waits."""
        if self._waiting and not self._retry:
            self._send()
        return bool(self._waiting)

    def _send(self) -> None:
        """Send what waits, for as long as Redis answers."""
        self._timer.cancel()
        try:
            self._send_all()
            self._retry = 0.0
        except BloomError as error:
            if not (isinstance(error, BackendError) and error.temporary):
                self._go_on_one_by_one(error)
                return
            self._retry = min(max(upkeep.RETRY, 2 * self._retry), upkeep.SLOWEST_POLL)
            self._timer.set(self._retry)
            if Settings.of(self._crawler)[ON_BACKEND_ERROR] == "close":
                end_crawl(self._crawler, self._report, error)

    def _send_all(self) -> None:
        has_answered = False  # and has all that this worker knows
        while self._waiting:
            if self._call is None:
                to_send = filter(self._is_to_send, [*self._waiting])
                unknown = next(in_calls(to_send, _size, MOST_PUSHED), [])
                if has_answered and not unknown:
                    self._deliver([(entry, True) for entry in self._waiting])
                    return
                self._call = Call(unknown, queue=self._queue)
            verdicts = self._filter.push(self._call)
            self._call, has_answered = None, verdicts is not None
            self._deliver(verdicts or [])

    def _is_to_send(self, entry: Entry) -> bool:
        """Return whether a call is to have an entry; then it is encoded first."""
        mark, request = entry.fingerprint, self._waiting[entry]
        if mark is not None and entry.max_age is None and self._filter.worker.knows(mark):
            return False
        try:
            if isnan(request.priority):  # Redis would refuse the whole call
                raise ValueError("its priority is not a number")
            entry.body = encode(request, self._scheduler.queue)
            entry.priority = request.priority
        except Exception:
            logger.exception("%s could not be enqueued", request)
            del self._waiting[entry]
            return False
        return True

    def _deliver(self, verdicts: Iterable[tuple[Entry, bool]]) -> None:
        for entry, _ in verdicts:
            del self._waiting[entry]
        for entry, seen in verdicts:
            entry.source.callback(seen)

    def _decided(self, verdict: Verdict | bool, request: Request) -> None:  # noqa: FBT001 - a callback
        scheduler = self._scheduler
        if verdict is SEEN:
            scheduler.df.log(request, scheduler.spider)
            send_dropped(self._crawler, request)
        elif scheduler.stats:
            scheduler.stats.inc_value("scheduler/enqueued/redis")

    def _go_on_one_by_one(self, error: BloomError) -> None:
        """Give the scheduler its methods back, and let it enqueue what waits."""
        if isinstance(error, BackendError):  # else that ends the crawl
            queue = self._queue[0]
            self._report.warn(
                f"{error} So marks and requests for {queue} now go to Redis in separate calls."
            )
            with suppress(BackendError):
                self._filter.worker.beat()  # a right may be missing to this queue only
        self._filter.worker.most_known = 0
        self._filter.worker.known.clear()
        vars(self._scheduler).update(self._own)
        requests = [*self._waiting.values()]
        self._waiting.clear()
        for request in requests:
            try:
                if not self._scheduler.enqueue_request(request):
                    send_dropped(self._crawler, request)
            except Exception:
                logger.exception("%s could not be enqueued", request)


def _size(entry: Entry) -> int:
    return len(entry.body)
