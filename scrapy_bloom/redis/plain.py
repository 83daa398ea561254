"""The filter of a crawl in Redis, while another scheduler stores the requests.

That of scrapy-redis keeps them there, too. Its own way, a mark and then a push, costs two trips,
and a kill between them the page. So :class:`Pushing` does both in one call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from math import isnan
from typing import TYPE_CHECKING, Any, Final

from redis.cluster import RedisCluster
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.crawl.identity import Identifier
from scrapy_bloom.crawl.judge import SEEN, Judge
from scrapy_bloom.crawl.report import Report, Verdict, end_crawl
from scrapy_bloom.crawl.scrapy.crawler import encode, send_dropped, wrap_start
from scrapy_bloom.crawl.scrapy.loop import Timer, pause
from scrapy_bloom.errors import BackendError, BloomError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.plan import BATCH
from scrapy_bloom.redis.project import key_of, plan_of, project_of, server_of
from scrapy_bloom.redis.reporting import report_opened
from scrapy_bloom.redis.wire import Call, in_calls
from scrapy_bloom.redis.worker import KNOWN
from scrapy_bloom.settings import ON_BACKEND_ERROR, REDIS_TIMEOUT, Settings
from scrapy_bloom.values import counted

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

_LARGE: Final = 30.0
"""Seconds for each try of a request that is too large for a call's timeout: scrapy-redis's own push
has as many. The event loop waits, but without them the push would never come through."""

_TRIES: Final = 3


class SharedFilter:
    """The filter of a crawl whose requests another scheduler stores.

    It lives no longer than they do. If they are only in this process, it is deleted at the end, and
    emptied at the start if a killed run left it behind, unless other workers use it.

    :param spider: name of the spider.
    :param report: writes to stats and log.
    :param shared_queue: whether the requests are in Redis as well, for any worker.
    :param empty: whether to empty the filter at once.
    :raises BloomError: if the crawl cannot be filtered as configured.

    Attributes:
        identifier: says what a request is.
        filter: answers whether it was seen.
        emptied: whether the last attempt to empty it succeeded.
    """

    def __init__(
        self, crawler: Crawler, spider: str, report: Report, *, shared_queue: bool, empty: bool
    ) -> None:
        settings = Settings.of(crawler)
        self._crawler, self._report, self._shared_queue = crawler, report, shared_queue
        self.identifier = identifier = Identifier(crawler, settings)
        project = project_of(crawler)
        self._key = key_of(settings, spider=spider, project=project, made=crawler.spider)
        self.filter = RedisFilter(
            server_of(settings),
            self._key,
            plan_of(settings, identifier.fingerprinter, identifier.made_by),
            on_error=settings[ON_BACKEND_ERROR],
            timeout=settings[REDIS_TIMEOUT],
            # A flush empties a shared queue too: what this worker knows would suppress its pages.
            # Pushing asks the server first.
            known=0 if shared_queue else KNOWN,
        )
        link = self.filter.link
        self._deleted = self.emptied = False
        try:
            if (empty or not shared_queue) and not self.filter.worker.made:
                self.emptied = self.filter.clear()
        except BaseException:
            self.filter.close()
            raise
        report_opened(report, identifier, link, self.filter.worker)
        if self.emptied:
            left = "it was left by a crawl that has ended"
            why = "SCHEDULER_FLUSH_ON_START is set" if empty else left
            report.info(
                f"Bloom filter in Redis at {link.address}, key {self._key}: emptied, since {why}."
                f" Pages are fetched again."
            )

    def push_together(self, scheduler: Any, kind: str, judge: Judge) -> None:
        """Have a scheduler of scrapy-redis mark and push in one call, or say why it does not.

        :param kind: the type of its queue in Redis; nothing if it is not scrapy-redis's own.
        :param judge: judges its requests.
        """
        if not kind:
            why = "the scheduler, queue or filter overrides a method that this needs"
        elif isinstance(self.filter.link.client, RedisCluster):
            why = "Redis is a cluster"
        elif not (why := self._other_place(scheduler)):
            Pushing(self._crawler, scheduler, kind, self.filter, judge, self._report)
            return
        self._report.info(f"Marks and requests go to Redis in separate calls: {why}.")

    def _other_place(self, scheduler: Any) -> str:
        """Return why a scheduler's queue may not be beside the filter; nothing if it is."""
        epoch, why = self.filter.worker.epoch, ""
        for _ in range(_TRIES):  # a connection may break
            try:
                self.filter.link.wait_for_large_calls(_LARGE)
                found = scheduler.queue.server.hget(self._key, "epoch")
            except Exception as error:  # their client may be any
                why = f"it cannot be asked where the queue is ({error!r})"
            else:
                is_here = found in (epoch, epoch.encode())
                return "" if is_here else "the queue is in another server or database"
        return why

    def clear(self, *, at_end: bool = False) -> bool:
        """Empty the filter; return False if it stays, because others use it or may be using it.

        :param at_end: whether the crawl is over: then the filter is deleted from Redis.
        """
        self._report.describe(self.filter.worker.info())
        try:
            self.emptied = self.filter.delete() if at_end else self.filter.clear()
        except BloomError as error:
            self._report.error(error)
            self.emptied = False
        self._deleted = self.emptied and at_end
        return self.emptied

    def close(self) -> None:
        """Write the final stats, delete the filter if no one needs it, and disconnect."""
        if not self._deleted:
            if self._shared_queue or not self.filter.usable:
                self._report.describe(self.filter.worker.info())
            elif self.clear(at_end=True):
                self._report.info(
                    f"{self.filter.worker.place}: deleted, because this was the last worker that"
                    f" used it, and with this SCHEDULER requests do not outlive their process. The"
                    f" next crawl fetches all pages again."
                )
        for name, value in self.filter.numbers().items():
            if value and name in stats.FROM_BACKEND:
                self._report.set(stats.FROM_BACKEND[name], value)
        self._report.flush()
        self.filter.close()


class Pushing:
    """Marks and pushes in one call what scrapy-redis's scheduler is given in a turn of the loop.

    It takes the place of the scheduler's methods. What this worker knows is not sent, but a call is
    made even so: what it knows counts only if the server still has it. While Redis does not answer,
    the requests wait here.

    :param kind: the type of the scheduler's queue in Redis.
    :param filter_: remembers what is known from here on.
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
        methods = "enqueue_request", "next_request", "has_pending_requests", "close"
        self._own = {name: getattr(scheduler, name) for name in methods}
        vars(scheduler).update({name: getattr(self, name) for name in methods})
        wrap_start(crawler, self._paused)
        filter_.worker.most_known = KNOWN

    # What the engine calls

    def enqueue_request(self, request: Request) -> bool:
        """Take a request. If it is a duplicate, it is dropped later."""
        entry = Entry("p", None, source=Deferred())

        def ask(mark: bytes, max_age: float | None) -> Deferred[bool]:
            entry.op, entry.fingerprint, entry.max_age = "f", mark, max_age
            return entry.source  # type: ignore[no-any-return]

        if not request.dont_filter:
            self._judge.check(request, ask)
        entry.source.addCallback(self._decided, request)
        self._waiting[entry] = request
        if len(self._waiting) >= BATCH:
            self._is_stuck()
        elif not self._retry:
            self._timer.call_within(0)
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
                await maybe_deferred_to_future(pause(self._retry))

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
            while self._waiting:
                self._make_call()
            self._retry = 0.0
        except BloomError as error:
            if not (isinstance(error, BackendError) and error.temporary):
                self._go_on_one_by_one(error)
                return
            self._retry = min(max(upkeep.RETRY, 2 * self._retry), upkeep.SLOWEST_POLL)
            self._timer.call_within(self._retry)
            if Settings.of(self._crawler)[ON_BACKEND_ERROR] == "close":
                end_crawl(self._crawler, self._report, error)

    def _make_call(self) -> None:
        """Make a call with what fits, and deliver its verdicts and those that it confirms."""
        if self._call is None:
            to_send = filter(self._is_to_send, [*self._waiting])
            calls = in_calls(to_send, lambda entry: len(entry.body))
            self._call = Call(next(calls, []), queue=self._queue)
        verdicts = dict(self._filter.push(self._call))
        self._call = None
        for entry in filter(self._is_known, self._waiting):
            verdicts.setdefault(entry, True)
        for entry in verdicts:
            del self._waiting[entry]
        for entry, seen in verdicts.items():
            entry.source.callback(seen)

    def _is_known(self, entry: Entry) -> bool:
        mark = entry.fingerprint
        return mark is not None and entry.max_age is None and self._filter.worker.knows(mark)

    def _is_to_send(self, entry: Entry) -> bool:
        """Return whether a call is to have an entry; then it is encoded first."""
        if self._is_known(entry):
            return False
        request = self._waiting[entry]
        try:
            entry.body = encode(request, self._scheduler.queue)
            if self._queue[1] == "zset":
                entry.priority = request.priority
                if isnan(request.priority):  # Redis would refuse the whole call
                    raise ValueError("its priority is not a number")
        except Exception:
            logger.exception("%s could not be enqueued", request)
            del self._waiting[entry]
            return False
        return True

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
            self._report.warn(
                f"{error} From now on marks and requests go to Redis in separate calls."
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
