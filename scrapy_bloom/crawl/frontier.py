"""A crawl whose requests and marks are stored: what a scheduler calls, and when a page is done.

A page is done when the engine is finished with it, all that it led to is stored or answered, and
its items are handed over: they are written out, or the commit that deletes its row has their bytes.
So whenever a crawl is killed, every marked page is done, stored, or eligible again.

What is stored where, and how, is behind :class:`~scrapy_bloom.crawl.backend.Backend`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.crawl.history import ORIGINAL
from scrapy_bloom.crawl.items import Items
from scrapy_bloom.crawl.judge import ERROR, EXEMPT, NEW, SEEN, Judge
from scrapy_bloom.crawl.later import DELAY, IDLE_AFTER, pop_due, report_idle
from scrapy_bloom.crawl.memory import Memory
from scrapy_bloom.crawl.outcomes import Ended
from scrapy_bloom.crawl.page import REACHED, Page, State
from scrapy_bloom.crawl.report import Verdict
from scrapy_bloom.crawl.scrapy.crawler import send_dropped
from scrapy_bloom.crawl.scrapy.engine import BACK, pop_back
from scrapy_bloom.crawl.scrapy.loop import Timer, pause
from scrapy_bloom.crawl.serialize import Unstorable
from scrapy_bloom.errors import StateError
from scrapy_bloom.settings import COMMIT_SYNC, RETRY_FAILED
from scrapy_bloom.signals import forget_page, hold_slot, seen_page
from scrapy_bloom.values import LONGEST, counted

if TYPE_CHECKING:
    from scrapy_bloom.crawl.backend import Backend, Crawl

MOST_UNWRITTEN: Final = 4 << 20
"""With more bytes of requests that are only in memory until an exchange, nothing is sent but what
can never be stored, and ``start()`` has to wait: each page would lead to more of them."""

_PAUSE: Final = 0.05  # seconds after which a paused start(), or an idle spider, looks again


class Frontier:
    """The requests and marks of a crawl.

    :param crawl: the crawl.
    :param backend: stores them; it is open.
    :param memory: Scrapy's queue for requests that cannot be stored.
    :param dupefilter: logs requests that turn out to be duplicates after they were accepted; its
        own check, if it has one, is asked first.
    """

    def __init__(self, crawl: Crawl, backend: Backend, memory: Any, dupefilter: Any) -> None:
        crawler, report, engine = crawl.crawler, crawl.report, crawl.engine
        self._crawler, self._spider, self._report = crawler, crawl.spider, report
        self._engine, self._in_flight = engine, crawl.in_flight
        self._backend, self._dupefilter = backend, dupefilter
        judged_by = crawler, crawl.identifier, report, backend
        self._judge = Judge(*judged_by, shared=backend.shared, own=dupefilter.own)
        self._ledger, self._offer = self._judge.ledger, backend.offer
        self._memory = Memory(memory, self._in_flight, backend, report)
        self._retries = crawl.settings[RETRY_FAILED] is not False
        sync = crawl.settings[COMMIT_SYNC] == "machine"
        self._items = Items(crawler, engine, self._in_flight, backend, report, sync=sync)
        self._timer, self._wake = Timer(self._tick), Timer(engine.wake)
        self._exchanging: Deferred[None] | None = None
        self._again_at = 0.0  # when an exchange that has failed is tried again; 0 if it has not
        self._closing = self._closing_recorded = self._idle_logged = False
        self._inc = report.inc
        self._enqueued = f"scheduler/enqueued/{backend.kind}"
        self._dequeued = f"scheduler/dequeued/{backend.kind}"
        wishes = self.forget, self.pause_host, self._judge.seen
        self._wishes = [*zip(wishes, (forget_page, hold_slot, seen_page), strict=True)]
        for do, signal in self._wishes:
            crawler.signals.connect(do, signal=signal)
        crawler.signals.connect(self._spider_idle, signal=signals.spider_idle)
        crawler.signals.connect(self._arm, signal=signals.spider_opened)
        engine.wrap_start(self._paused)

    def __len__(self) -> int:
        """Return how many requests are waiting, as far as is known."""
        return len(self._backend) + len(self._memory)

    # What the scheduler calls

    def enqueue(self, request: Request) -> bool:
        """Take a request; return False if it is known to be a duplicate.

        If that is known only later, it is dropped then. If taking it fails, so does what led to it.
        """
        try:
            is_taken = self._enqueue(request)
        except Exception as error:  # no memory, or a queue of the project's own
            self._leave(request, error)
            return True
        if self._backend.exchange_at < self._timer.due:
            self._arm()
        return is_taken

    def _enqueue(self, request: Request) -> bool:
        meta = request.meta
        due = pop_due(request, self._report) if DELAY in meta else 0.0
        verdict: Verdict | Deferred[Verdict] = EXEMPT
        try:
            if not ((BACK in meta and pop_back(request)) or request.dont_filter):
                verdict = self._judge.check(request, partial(self._offer, request, due), due)
            if verdict is EXEMPT or verdict is ERROR:  # no mark, or one that is there
                answer, verdict = self._offer(request, due, None, None), NEW
                if isinstance(answer, Deferred):
                    verdict = answer.addCallback(lambda _: NEW)
        except Unstorable as error:
            self._memory.add(request, error, due)
        else:
            if verdict is SEEN:
                self._in_flight.record_duplicate(request, self._judge.dropped)
                return False
            if isinstance(verdict, Deferred):
                Deferred.fromCoroutine(self._decide(request, verdict))
            else:
                self._inc("scheduler/enqueued")
                self._inc(self._enqueued)
                origin = self._in_flight.origin_of(request)
                # For a page that a callback has, as most of them, this would change nothing.
                if origin is not None and (origin.state is not REACHED or ORIGINAL in meta):
                    self._in_flight.record_stored(request, origin)
        if due:
            self._await_due()
        return True

    def next(self) -> Request | None:
        """Return the next request to send; those that could not be stored come first.

        These leave memory only by being sent, so they are sent however much is unwritten.
        """
        if self._closing:
            return None
        if self._items.deferred > MOST_UNWRITTEN:
            self._record_finished()
        in_memory = self._memory.pop()
        if in_memory is not None:
            request, page = in_memory
            self._inc("scheduler/dequeued/memory")
        elif self._is_stalled:
            self._arm()
            return None
        else:
            taken = self._backend.take()
            if taken is None:
                self._record_finished()  # so that as many are taken as can be sent
                self._await_due()
                self._arm()
                return None
            request, page = taken[0], self._in_flight.page_of(*taken)
            self._inc(self._dequeued)
        self._inc("scheduler/dequeued")
        self._idle_logged = False
        self._arm(busy=True)
        # Last, as then nothing may be raised: what is in flight and not with the engine is done.
        self._in_flight.start(request, page)
        return request

    def pending(self) -> bool:
        """Return whether a request may be sent soon.

        While all that waits has to wait for longer, the spider is idle: some are fed only then.
        """
        return self._memory.is_due(IDLE_AFTER) or self._backend.pending()

    def forget(self, request: Request) -> bool:
        """Make a page eligible again; return whether it was known."""
        known = self._judge.forget(request)
        self._arm()
        return known

    def pause_host(self, request: Request, seconds: float) -> bool:
        """Pause the download slot of a request; return that it was done."""
        seconds = min(seconds, LONGEST)
        self._backend.pause_host(request, seconds)
        self._engine.requeue_slot(self._engine.slot_of(request), **{DELAY: seconds})
        self._record_finished()
        self._arm()
        return True

    def paused_until(self, request: Request) -> float:
        """Return until when a request on its way must wait, 0 if it need not."""
        return self._backend.paused_until(request) if self._engine.is_downloading(request) else 0.0

    def log_progress(self) -> None:
        """Log how far the crawl is, and bring the stats of the filter up to date."""
        backend, report, failed = self._backend, self._report, self._backend.account().failed
        in_flight = f"{len(self._in_flight):,} in flight{' here' if backend.shared else ''}"
        more = (f"{failed:,} failed",) if failed else ()
        report.describe(backend.info())
        report.progress(len(self), in_flight, *backend.describe(), *more)

    async def close(self) -> bool:
        """Store everything; return whether that worked.

        (1) Wait for an exchange that is in progress
        (2) Write out items, and store which pages are done, until nothing is left to send
        (3) Close the backend
        """
        self._closing = True
        self._timer.cancel()
        self._wake.cancel()
        if self._exchanging is not None:
            await self._exchanging
        self._backend.stop()
        while not self._backend.broken and await self._step():
            pass
        for do, signal in self._wishes:  # which would change nothing any more
            self._crawler.signals.disconnect(do, signal=signal)
        self._items.stop_exporting(len(self._ledger))  # they stay stored, with all they led to
        self._report.through &= not len(self._memory)  # else only start() may yield that again
        return await self._backend.close()

    # Requests that arrive

    def _leave(self, request: Request, error: Exception) -> None:
        """Let what led to a request that could not be taken fail."""
        self._report.once(
            logging.ERROR,
            "%s could not be enqueued, so the page that led to it has failed. More such errors are"
            " not shown.",
            request,
            failure=error,
        )
        try:
            self._in_flight.not_enqueued(request, error)
            self._judge.withdraw(request)
        except Exception:  # no memory
            self._backend.give_up(
                StateError(
                    f"A request could not be enqueued ({error!r}), and its page could not be"
                    f" forgotten, so nothing more is stored. Start the crawl again: it resumes from"
                    f" what was stored last."
                )
            )

    async def _decide(self, request: Request, answer: Deferred[Verdict]) -> None:
        """Drop an accepted request if the answer is that it is a duplicate.

        The page that yielded it does not end before that; if it is unknown, none is done.
        """
        here = self._in_flight
        origin = here.origin_of(request)
        if origin is None:
            question = self._ledger.ask()
        else:
            origin.wait_for_one_more()
        try:
            verdict = await answer
        except Exception as error:  # the project's stats or meta raised, after the lookup
            self._report.check_failed(request, error)
            verdict = ERROR
        if verdict is SEEN:
            here.record_duplicate(request, self._judge.dropped, origin)
        elif origin is not None:
            here.record_stored(request, origin)
        if origin is None:
            self._ledger.answer(question)
        elif ended := here.end([origin]):
            self._collect(ended)
            self._arm()
        if verdict is not SEEN:
            self._inc("scheduler/enqueued")
            self._inc(self._enqueued)
        else:
            self._dupefilter.log(request, self._spider)
            send_dropped(self._crawler, request)

    # Pages that are done

    def _record_finished(self) -> None:
        """Collect the pages that have ended as the engine is finished with them."""
        before = len(self._in_flight)
        self._collect(self._in_flight.pop_ended())
        self._backend.record_finished(before - len(self._in_flight))

    def _collect(self, ended: list[Page]) -> None:
        for page in ended:
            self._items.page_ended(page)
        self._ledger.add(ended)

    async def _release_done(self) -> bool:
        """Release ended pages once their items are handed over; return whether they were."""
        self._record_finished()
        self._memory.free_failed()
        until = self._ledger.due()
        if until is None and not self._items.waiting:
            return True
        if not await self._items.flush(at_once=self._closing):
            return False
        for page in () if until is None else self._ledger.take(until):
            self._release(page)
        return True

    def _release(self, page: Page) -> None:
        reason, taken = page.reason, page.taken
        if reason is not None and not self._retries:
            page.way += () if reason.to is None else (reason.to,)
            reason = reason._replace(unparsed=True, to=None)
        if taken is None:
            reason = self._memory.end(page, reason)
        unparsed = reason is not None and reason.unparsed
        if reason is None:
            ended = Ended.REPLACED if page.state is State.REPLACED else Ended.DONE
            self._backend.release(taken, ended, page.start)
        elif taken is not None or unparsed:
            unparsed = self._backend.fail(taken, reason, page.way, page.start)
        elif not page.waiters:  # else these have failed, too
            self._report.unlisted[reason.kind] += 1
        if page.way and page.state is not State.REPLACED:
            for link in self._judge.links.pop(page.way):
                if reason is not None:  # what led there may lead elsewhere when it comes again
                    self.enqueue(link)
        if reason is not None:
            self._report.ended(reason.kind, unparsed=unparsed)

    # Exchanges

    @property
    def _unwritten(self) -> float:
        return self._backend.unwritten + self._items.unwritten

    @property
    def _is_stalled(self) -> bool:
        """Whether too much is only in memory, or items or changes cannot be written for now."""
        return self._unwritten > MOST_UNWRITTEN or self._items.failing or self._again_at > 0

    async def _paused(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pause ``start()`` while nothing is sent that is stored; record whether it is through."""
        self._report.through = False
        async for each in start:
            yield each
            while self._is_stalled and not (self._closing or self._engine.closing):
                self._arm()
                await maybe_deferred_to_future(pause(_PAUSE))
        self._report.through = True

    @property
    def _busy(self) -> bool:
        return bool(self._ledger or self._in_flight)

    def _arm(self, *, busy: bool = False) -> None:
        """Schedule the next exchange: when the backend wants it, and while pages are in flight.

        :param busy: whether one is about to be.
        """
        if self._closing or self._backend.broken:
            return
        at_once = self._unwritten > MOST_UNWRITTEN and not self._items.failing
        due = 0.0 if at_once else self._backend.exchange_at
        if busy or self._busy or self._again_at or self._items.waiting:
            due = min(due, time.monotonic() + self._backend.interval)
        self._timer.call_by(max(due, self._again_at))

    def _await_due(self) -> None:
        """Wake the engine when the next request that has to wait may be sent."""
        self._wake.call_by(min(self._backend.next_start, self._memory.next_due))

    def _tick(self) -> None:
        if self._exchanging is None and not self._closing:
            exchanging = Deferred.fromCoroutine(self._round())
            self._exchanging = None if exchanging.called else exchanging

    async def _round(self) -> None:
        """Make an exchange, and schedule the next one."""
        worked = False
        try:
            worked = await self._step()
        finally:
            self._exchanging = None
        self._again_at = 0.0 if worked else time.monotonic() + self._backend.interval
        self._arm()
        if not self._closing:
            self._engine.wake()  # by itself it checks only every five seconds

    async def _step(self) -> bool:
        """Release what is done, and make an exchange; return whether to go on until all is sent."""
        worked = False
        try:
            flushed = await self._release_done()
            self._record_closing()
            if self._closing and not self._backend.dirty:
                return False
            worked = await self._backend.exchange(busy=self._busy, in_memory=len(self._memory) > 0)
            if worked and flushed:
                await self._items.committed()
        except Exception as error:  # what was not written stays in memory
            if (last := self._report.unexpected(error)) is not None:
                self._backend.give_up(last)
        self._report.set_if_used(stats.LATER, self._backend.later + self._memory.later)
        return worked

    def _record_closing(self) -> None:
        """Put back what was not sent when the spider begins to close; log what it waits for.

        Scrapy would send it first, at the pace of each host.
        """
        if self._closing_recorded or not self._engine.closing:
            return
        self._closing_recorded = True
        self._backend.stop()
        count = len(self._in_flight) - self._engine.requeue_all()
        self._record_finished()
        if count > 0:
            self._report.info(
                f"Closing: finishing {counted(count, 'page')} in flight. It is also safe to kill"
                f" the crawl now: the next run fetches whatever is unfinished."
            )

    # The end

    def _spider_idle(self) -> None:
        """Keep the spider open while requests wait, here or elsewhere.

        :raises DontCloseSpider: in that case.
        """
        backend, memory = self._backend, self._memory
        if backend.broken:
            return
        links = self._ledger and self._judge.links  # which may be let through yet
        is_waiting = len(memory) or links or self._items.waiting or self.pending()
        if backend.over and not is_waiting:
            return
        count, until = backend.idle_until()
        count, until = count + memory.later, min(until, memory.next_due)
        # It is not idle if what there is was enqueued by a handler before this one.
        if count and not self._idle_logged and IDLE_AFTER < until - time.monotonic() < inf:
            self._idle_logged = True
            report_idle(self._report, count, until)
        backend.record_idle()
        self._arm()
        if links or self._items.waiting:  # for nothing but the next exchange, which may be long
            self._timer.call_by(max(self._again_at, time.monotonic() + _PAUSE))
        raise DontCloseSpider
