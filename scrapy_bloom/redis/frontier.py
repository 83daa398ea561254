"""A crawl's requests and marks in Redis, behind what a scheduler calls.

Nothing here waits for the server: one call at a time runs in a thread, and whatever arrives
meanwhile is sent with the next one. A page is reported as done when everything that it led to has
left this worker, and its items are written out.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.misc import load_object
from twisted.internet.defer import Deferred

from scrapy_bloom.crawl.engine import (
    Downloads,
    Engine,
    Pulse,
    Timer,
    has_queues_by_slot,
    pop_back,
    run_beside,
)
from scrapy_bloom.crawl.in_flight import InFlight
from scrapy_bloom.crawl.items import Items
from scrapy_bloom.crawl.later import DELAY, Memory, pop_due, report_rest
from scrapy_bloom.crawl.serialize import QueueKind, read_request
from scrapy_bloom.crawl.session import Session
from scrapy_bloom.errors import BackendError, BloomError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.deciding import UNFILTERED, Decider
from scrapy_bloom.redis.key import Answer, Call
from scrapy_bloom.redis.ledger import Ledger
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.pacing import Pacing
from scrapy_bloom.redis.project import queue_of
from scrapy_bloom.redis.queue import SharedQueue
from scrapy_bloom.redis.reporting import (
    describe_crawl,
    log_paces,
    log_unreadable,
    log_waiting,
    report_crawl,
    warn_of_failed,
    write_stats,
)
from scrapy_bloom.redis.starting_over import Starts
from scrapy_bloom.redis.turns import Turns
from scrapy_bloom.settings import (
    COMMIT_SYNC,
    ON_BACKEND_ERROR,
    WINDOW,
    Settings,
)
from scrapy_bloom.signals import forget_page, hold_slot
from scrapy_bloom.values import LONGEST

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter

    from scrapy_bloom.crawl.report import Report


class SharedFrontier:
    """The requests and marks of a crawl that any number of workers share.

    While the server is unreachable the crawl waits, unless the policy is ``close``. Await
    :meth:`open` before anything else.

    :param report: writes to stats and log.
    :param kind: the order of requests with the same priority, and their serialization.
    :param dupefilter: logs requests that turn out to be duplicates after they were accepted.
    :raises BackendError: if this version of Scrapy lacks what is needed.
    """

    _queue: SharedQueue
    _decider: Decider
    _starts: Starts

    def __init__(
        self,
        crawler: Crawler,
        spider: Spider,
        report: Report,
        kind: QueueKind,
        dupefilter: BaseDupeFilter,
    ) -> None:
        settings, engine = Settings.of(crawler), Engine(crawler)
        self._crawler, self._spider, self._report = crawler, spider, report
        self._engine, self._kind, self._dupefilter = engine, kind, dupefilter
        self._waits = settings[ON_BACKEND_ERROR] != "close"
        by_host = bool(
            has_queues_by_slot(load_object(crawler.settings["SCHEDULER_PRIORITY_QUEUE"]))
        )
        self._items = Items(crawler, engine, report, sync=settings[COMMIT_SYNC] == "machine")
        self._downloads = Downloads(crawler)
        self._turns = Turns(engine, self._downloads, report, by_host=by_host)
        self._in_flight = InFlight(engine, report)
        self._ledger = Ledger()
        self._memory = Memory()
        most = max(1, crawler.settings.getint("CONCURRENT_REQUESTS"))
        self._pacing = Pacing(self._turns, self._in_flight, most)
        self._timer, self._turn_timer = Timer(self._tick), Timer(engine.wake)
        self._exchanging: Deferred[None] | None = None
        self._idle_since, self._rest_logged, self._wait_logged = inf, False, -inf
        self._closing = self._gave_up = self._finished = False

    async def open(self) -> None:
        """Open the crawl in Redis, once the server can be used.

        :raises BloomError: if the crawl cannot be kept as configured.
        """
        crawler, report = self._crawler, self._report
        settings = Settings.of(crawler)
        session = Session(crawler, settings, report)
        self._queue = await queue_of(crawler, session, report, self._kind)
        self._decider = Decider(
            session, self._queue, self._in_flight, self._ledger, report, settings[WINDOW]
        )
        self._starts = Starts(self._engine, self._spider, self._queue)
        report_crawl(report, session, self._queue, windowed=bool(settings[WINDOW]))
        self._queue.pulse = Pulse()
        self._engine.before_closing(self._let_pipelines_block)
        crawler.signals.connect(self._spider_idle, signal=signals.spider_idle)
        crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(self.forget, signal=forget_page)
        crawler.signals.connect(self.hold, signal=hold_slot)
        crawler.signals.connect(self._reached, signal=signals.request_reached_downloader)

    def __len__(self) -> int:
        """Return how many requests are waiting, here and in the queue as last reported."""
        here = len(self._turns) + len(self._memory)
        return here + self._queue.offering + self._queue.waiting

    # What the scheduler calls

    def enqueue(self, request: Request) -> bool:
        """Take a request; return False if this worker knows that it is a duplicate.

        Other duplicates are found later.
        """
        due, offering = pop_due(request, self._report), self._queue.offering
        judged = UNFILTERED if pop_back(request) else self._decider.judge(request)
        if judged is not None:
            self._finished = False
            try:
                body = self._kind.dumps(request.to_dict(spider=self._spider))
            except Exception as error:  # noqa: BLE001 - raising would lose the page
                self._memory.push(self._decider.keep_in_memory(request, judged, error), due)
                self._turn_timer.set(self._memory.next_due - time.monotonic())
            else:
                slot = self._turns.slot_for(request)
                entry = Entry("p", None, body, request.priority, slot=slot, due=due)
                self._decider.offer(request, judged, entry)
        # Pages may be forgotten with a duplicate. A call is due if something was to be sent before.
        if self._queue.offering and not offering:
            self._soon()
        return judged is not None

    def next(self) -> Request | None:
        """Return the next request to send; those that could not be stored come first."""
        if self._closing or self._queue.is_full:
            return None
        if (held := self._memory.pop(self._turns.held_until)) is not None:
            self._report.inc("scheduler/dequeued/memory")
            self._report.inc("scheduler/dequeued")
            self._in_flight.start_kept(held)
            self._soon(upkeep.PATIENT)  # to learn which hosts others leave alone
            return held
        if not self._queue.has_lease:  # what was taken may be another worker's by now
            self._soon(upkeep.RETRY)
            return None
        if not len(self._turns):
            self._note_ended()  # so that as many are taken as can be sent
        request = self._pop()
        if self._pacing.is_low:
            self._soon(self._pacing.until_look())
        return request

    def pending(self) -> bool:
        """Return whether this worker has anything left to do soon.

        While all that waits has to wait for longer, the spider is idle: some are fed only then.
        """
        waiting = self._queue.waiting and not self._pacing.rests
        return bool(self._has_work or waiting or self._queue.has_work)

    def forget(self, request: Request, failed: bool = False) -> bool:  # noqa: FBT001, FBT002 - a signal
        """Make a page eligible again (next run if it has failed); return whether we knew it."""
        known = self._decider.forget(request, failed=failed)
        self._soon()
        return known

    def hold(self, request: Request, seconds: float) -> bool:
        """Have all workers leave the slot of a request alone; return that it was done."""
        self._queue.next_call.holds.update(self._turns.hold(request, seconds))
        self._engine.take_back(self._engine.slot_of(request), **{DELAY: min(seconds, LONGEST)})
        self._note_ended()
        self._soon(self._pacing.until_urgent())
        return True

    def held_until(self, request: Request) -> float:
        """Return until when a request on its way must wait, 0 if it need not."""
        return self._turns.held_until(request) if self._engine.is_downloading(request) else 0.0

    def describe(self) -> tuple[str, ...]:
        """Bring the stats of the filter up to date; return what else is known, as phrases."""
        crowd = describe_crawl(self._report, self._queue.shared)
        return f"{len(self._in_flight):,} in flight", *crowd

    async def close(self) -> bool:
        """Send what is left, put back what was not begun; return whether everything is stored."""
        self._closing = True
        self._starts.stop()
        self._timer.cancel()
        self._turn_timer.cancel()
        if self._exchanging is not None:
            await self._exchanging
        try:
            for taken in reversed(self._turns.take_all()):
                self._queue.release(taken, "back")
            self._note_ended()
            stored = not self._gave_up
            while stored and (self._queue.has_work or self._ledger):
                if not self._queue.has_work and not await self._items.flush():
                    self._items.log_kept(len(self._ledger))  # closing the queue puts them back
                    break
                stored = await self._exchange()
        finally:
            write_stats(self._report, self._queue, later=self._memory.later)
            warn_of_failed(self._report, self._queue)
            self._report.describe(self._queue.shared.info())
            await run_beside(self._queue.close)
        return stored and not self._queue.offering

    # Requests that were taken

    def _pop(self) -> Request | None:
        while (taken := self._turns.pop()) is not None:
            try:
                request = read_request(taken.body, self._spider)
            except Exception as error:  # noqa: BLE001 - third-party code and data
                self._queue.release(taken, "unreadable")
                log_unreadable(self._report, error)
                continue
            if not taken.slot and (until := self._turns.held_until(request)):
                self._queue.postpone(taken, until)
                self._call_now()
                continue
            self._in_flight.start(request, taken)
            self._turns.begin(request, taken)
            self._report.inc("scheduler/dequeued/redis")
            self._report.inc("scheduler/dequeued")
            return request
        if self._turns.is_urgent:
            self._call_now()
        start = min(self._turns.next_start, self._memory.next_due)
        self._turn_timer.set(start - time.monotonic())
        return None

    def _reached(self, request: Request) -> None:
        self._turns.reach(request)
        if self._turns.is_urgent:
            self._call_now()

    def _note_ended(self) -> None:
        """Collect what has ended: requests, turns, and pages that are done."""
        self._turns.end()
        if self._turns.is_urgent:
            self._call_now()
        for taken in self._turns.take_unused():
            self._queue.give_back_turn(taken)
        for taken in self._turns.take_returning():
            self._queue.release(taken, "back")
        visits = self._in_flight.pop_done()
        self._pacing.note_ended(len(visits))
        for visit in visits:
            self._in_flight.release(visit)
        self._ledger.add(visit.row for visit in visits if visit.row is not None)

    async def _report_done(self) -> None:
        """Report the pages that are done, once their items are written out."""
        self._note_ended()
        until = self._ledger.due()
        if until is not None and await self._items.flush():
            for taken in self._ledger.take(until):
                self._queue.release(taken, "done")

    # Exchanges

    @property
    def _has_work(self) -> bool:
        """Whether there is something here to send or to report, or may be soon."""
        started = self._starts.running
        return bool(len(self._turns) or self._memory.is_due or started or self._ledger)

    def _soon(self, delay: float | None = None) -> None:
        """Schedule an exchange, after `delay` seconds or as soon as one is worthwhile."""
        if not (self._closing or self._gave_up):
            self._timer.set(self._pacing.until_call() if delay is None else delay)

    def _call_now(self) -> None:
        """Schedule a call that sets turns which would be wasted, and takes requests for them."""
        self._pacing.note_pushed()
        self._soon(self._pacing.until_urgent())

    def _tick(self) -> None:
        if self._exchanging is None and not self._closing:
            exchanging = Deferred.fromCoroutine(self._round())
            self._exchanging = None if exchanging.called else exchanging

    async def _round(self) -> None:
        """Make an exchange, and schedule the next one."""
        works = False
        try:
            works = await self._exchange()
        except Exception as error:  # noqa: BLE001 - the requests wait here meanwhile
            self._report.once(logging.ERROR, "Unexpected error; retrying", failure=error)
        finally:
            self._exchanging = None
        if not works:
            self._soon(upkeep.RETRY)
            return
        if self._queue.has_work:
            self._soon()
        if self._ledger or len(self._in_flight):
            self._soon(upkeep.PATIENT)
        if self._pacing.is_low:
            self._soon(self._pacing.until_look())

    async def _exchange(self) -> bool:
        """Send what is pending, and take requests if wanted; return whether that worked."""
        await self._report_done()
        want = 0
        if not (self._closing or self._queue.is_full):
            want = self._pacing.want()
        self._queue.next_call.paces.update(self._turns.take_paces())
        call = self._queue.prepare(
            want,
            # For what others have made, and which hosts they leave alone.
            look=len(self._memory) > 0 or not (self._has_work or len(self._in_flight)),
            default=self._downloads.default,
            busy=self._turns.busy,
        )
        answer = Answer()
        if call is not None:
            try:
                answer = await run_beside(partial(self._queue.carry_out, call))
            except BloomError as error:
                self._finished = False
                self._fail(error)
                return False
            self._deliver(call, answer)
        if answer.taken:
            self._idle_since, self._rest_logged = inf, False
        busy = self._has_work or len(self._in_flight) or len(self._memory)
        self._finished = not busy and self._queue.is_over()
        if answer.verdicts or answer.taken or not self.pending():
            write_stats(self._report, self._queue, later=self._memory.later)
            if not self._closing:
                self._engine.wake()  # by itself it checks only every five seconds
        return True

    def _deliver(self, call: Call, answer: Answer) -> None:
        """Apply the answer to a call, and deliver the verdicts."""
        self._queue.settle(call, answer)
        if self._decider.deliver(answer.verdicts):
            self._pacing.note_pushed()
        for request in self._decider.take_duplicates():
            self._dupefilter.log(request, self._spider)
            self._crawler.signals.send_catch_log(
                signals.request_dropped, request=request, spider=self._spider
            )
        if answer.void:
            # Pages in flight go on, but are not reported: others may have them.
            void = self._turns.take_all()
            self._queue.next_call.holds.update(self._turns.holds)
            if answer.start_over:  # offer again what the server may have lost
                self._turns.start_over()
                self._decider.start_over(void)
                self._starts.run().addCallback(lambda _: self._soon())
            return
        self._turns.add(answer.taken)
        self._turns.heed(answer.held)
        self._pacing.note_called(call, answer, self._queue.waiting)

    def _fail(self, error: BloomError) -> None:
        if isinstance(error, BackendError) and error.temporary and self._waits:
            return  # the worker logs it and retries
        self._gave_up = True
        self._starts.stop()
        self._report.give_up(error)

    # The beginning and the end

    async def _let_pipelines_block(self) -> None:
        """Let pipelines that close take as long as they need: no callback runs any more."""
        self._queue.pulse = None

    def _spider_opened(self) -> None:
        log_paces(self._report, self._downloads)
        self._soon()

    def _spider_idle(self) -> None:
        """Keep the spider open while other workers may make requests.

        :raises DontCloseSpider: in that case.
        """
        if self._gave_up or (self._finished and not self.pending()):
            return
        if self._pacing.rests and not self._rest_logged:
            self._rest_logged = True
            waiting = self._queue.waiting + self._memory.later
            report_rest(self._report, waiting, self._pacing.next_turn)
        now, taken = time.monotonic(), self._queue.counts.taken
        self._idle_since = min(self._idle_since, now)
        # It has waited for longer than most pages take.
        if taken and now > max(
            self._idle_since + upkeep.LEASE / 6, self._wait_logged + upkeep.WARN
        ):
            self._wait_logged = now
            log_waiting(self._report, self._queue)
        self._soon(self._pacing.until_look())
        raise DontCloseSpider
