"""A crawl's requests and marks in Redis, behind the :class:`Frontier` that a scheduler calls.

Nothing here waits for the server: one exchange at a time runs in a thread, and whatever arrives
meanwhile is sent with the next one. A page is reported as done when everything that it led to has
left this worker, and its items are written out.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.crawl.engine import (
    Downloads,
    Engine,
    call_later,
    exit_with_error_code,
    rotates_hosts,
    run_beside,
)
from scrapy_bloom.crawl.in_flight import InFlight
from scrapy_bloom.crawl.items import Items
from scrapy_bloom.crawl.later import Waiting, pop_due, report_rest
from scrapy_bloom.crawl.report import Verdict
from scrapy_bloom.crawl.serialize import QueueKind, read_request
from scrapy_bloom.crawl.session import Identified, Page, Recent, Session
from scrapy_bloom.errors import BackendError, BloomError
from scrapy_bloom.redis import worker as pace
from scrapy_bloom.redis.member import Entry, Taken
from scrapy_bloom.redis.pacing import RETRY, Pacing
from scrapy_bloom.redis.project import (
    key_of,
    plan_of,
    project_of,
    report_opened,
    report_state,
    target_of,
)
from scrapy_bloom.redis.queue import Exchange, SharedQueue
from scrapy_bloom.redis.turns import Turns
from scrapy_bloom.redis.worker import MOST_TRIES, Worker
from scrapy_bloom.settings import (
    COMMIT_SYNC,
    ON_BACKEND_ERROR,
    REDIS_TIMEOUT,
    WINDOW,
    CommitSync,
    OnBackendError,
    Settings,
)
from scrapy_bloom.signals import forget_page, hold_slot
from scrapy_bloom.values import counted

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter
    from twisted.python.failure import Failure

    from scrapy_bloom.crawl.report import Report

logger = logging.getLogger(__name__)

NEW, SEEN, _, ERROR = Verdict

_PAUSE: Final = 0.05
"""Seconds after which start() looks again whether it may go on."""

_FULL: Final = 5_000
"""When this many entries wait here, no more pages are fetched, and start() has to wait."""


class SharedFrontier:
    """The requests and marks of a crawl that any number of workers share.

    While the server is unreachable the crawl waits, unless the policy is ``close``.

    :param report: writes to stats and log.
    :param kind: the order of requests with the same priority, and their serialization.
    :param dupefilter: logs requests that turn out to be duplicates after they were accepted.
    :raises BloomError: if the crawl cannot be kept as configured.
    """

    def __init__(
        self,
        crawler: Crawler,
        spider: Spider,
        report: Report,
        kind: QueueKind,
        dupefilter: BaseDupeFilter,
    ) -> None:
        settings = Settings.of(crawler)
        self._crawler, self._spider, self._report = crawler, spider, report
        self._dumps, self._dupefilter = kind.dumps, dupefilter
        self._engine = Engine(crawler)
        self._session = Session(crawler, settings, report)
        by_host = rotates_hosts(crawler.settings)
        self._queue = self._open_queue(settings, kind, by_host=by_host)
        self._items = Items(
            crawler, self._engine, report, sync=settings[COMMIT_SYNC] is CommitSync.MACHINE
        )
        self._downloads = Downloads(crawler)
        self._turns = Turns(self._engine, self._downloads, report, by_host=by_host)
        most = max(1, crawler.settings.getint("CONCURRENT_REQUESTS"))
        self._pacing = Pacing(self._turns, most)
        self._turn_timer: Any = None
        self._turn_at = inf
        self._memory: deque[Request] = deque()  # requests that cannot be stored
        self._waiting: Waiting[Request] = Waiting()  # those of them that must not be sent yet
        self._held = Recent(settings[WINDOW])  # their fingerprints
        self._in_flight = InFlight(self._engine, report)
        self._numbers = itertools.count()  # for what is asked, in order
        self._outstanding: dict[int, None] = {}  # what has no verdict yet, oldest first
        # Pages that are done; each waits until everything with a lower number is answered.
        self._unreported: deque[tuple[int, Taken]] = deque()
        self._forgetting: Counter[bytes] = Counter()  # marks that the server has yet to forget
        self._failing: Counter[bytes] = Counter()  # those of failed pages, if they are marked
        self._undecided: deque[Deferred[None]] = deque()  # fire when some of these are answered
        self._exchanging: Deferred[None] | None = None
        self._timer: Any = None
        self._due = 0.0
        self._idle_since, self._idle_logged = inf, False
        self._wait_logged = self._waited = False
        self._closing = self._gave_up = self._finished = False
        self._starting = self._start_due = False
        self._engine.wrap_start(self._gated)
        crawler.signals.connect(self._spider_idle, signal=signals.spider_idle)
        crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)
        self._log_opened(settings)
        crawler.signals.connect(self.forget, signal=forget_page)
        crawler.signals.connect(self.hold, signal=hold_slot)
        crawler.signals.connect(self._reached, signal=signals.request_reached_downloader)

    def _open_queue(self, settings: Settings, kind: QueueKind, *, by_host: bool) -> SharedQueue:
        self._waits = settings[ON_BACKEND_ERROR] is not OnBackendError.CLOSE
        project = project_of(self._crawler)
        owner = {"project": project, "spider": self._spider.name, "order": str(kind)}
        plan = plan_of(settings, self._session.fingerprinter, self._session.made_by, **owner)
        worker = Worker(target_of(settings), settings[REDIS_TIMEOUT])
        key = key_of(settings, spider=self._spider.name, project=project)
        queue = SharedQueue(worker, key, plan, one_slot=not by_host)
        try:
            queue.open()
        except BaseException as error:
            if not (self._waits and isinstance(error, BackendError) and error.temporary):
                worker.close()
                raise
        return queue

    def _log_opened(self, settings: Settings) -> None:
        worker, key = self._queue.worker, self._queue.key
        state = report_opened(self._report, self._session, worker, key, crawl=True)
        place = f"Redis at {worker.where}, key {key}"
        if state is None:
            limit = "" if worker.reached else f", at most {pace.FIRST_ANSWER:g} s for an answer"
            self._report.info(
                f"Crawl state in {place}: the server cannot be used yet, and the crawl waits for"
                f" it{limit}. With BLOOM_ON_BACKEND_ERROR = 'close' it would end."
            )
            return
        if state.items and not state.waiting and not state.taken and not settings[WINDOW]:
            way = "use 'scrapy bloom delete' or set another BLOOM_REDIS_KEY"
            self._report.finished(place, state.items, way)
        self._warn_of_failed()

    def __len__(self) -> int:
        """Return how many requests are waiting, here and in the queue as last reported."""
        here = len(self._turns) + len(self._memory) + len(self._waiting)
        return here + self._queue.offering + self._queue.waiting

    # What the scheduler calls

    def check(self, request: Request) -> Verdict:
        """Return this worker's own verdict on a request that is not enqueued.

        Marks nothing: every mark must have a request.
        """
        identified, _, verdict = self._judge_here(request)
        return verdict if identified is None else self._session.count(identified, verdict)

    def enqueue(self, request: Request) -> bool:
        """Take a request; return False if this worker knows that it is a duplicate.

        Other duplicates are found later.
        """
        due = pop_due(request, self._report)
        identified, mark, verdict = None, None, NEW
        if not request.dont_filter:
            identified, mark, verdict = self._judge_here(request)
        if identified is not None and verdict is SEEN:
            if self._drop(identified):
                return False
            identified = None
        self._finished = False
        try:
            body = self._dumps(request.to_dict(spider=self._spider))
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            marks = () if identified is None or mark is None else (identified.fingerprint, mark)
            self._hold(request, error, (*dict.fromkeys(marks),), due)
            if identified is not None:
                self._session.count(identified, verdict)
        else:
            slot = self._slot_for(request)
            entry = Entry("p", None, body, request.priority, slot=slot, due=due)
            Deferred.fromCoroutine(self._offer(request, identified, mark, entry))
        return True

    def next(self) -> Request | None:
        """Return the next request to send; those that could not be stored come first."""
        if self._closing or self._queue.offering >= _FULL:
            return None
        self._memory.extend(self._waiting.pop_due(len(self._waiting)))
        if self._memory:
            self._report.inc("scheduler/dequeued/memory")
            self._report.inc("scheduler/dequeued")
            return self._in_flight.start_held(self._memory.popleft())
        if not self._queue.holds_lease:  # what was taken may be another worker's by now
            self._soon(RETRY)
            return None
        if not len(self._turns):
            self._note_done()  # so that as many are taken as can be sent
        request = self._pop()
        if self._pacing.is_low(len(self._in_flight)):
            self._look()
        return request

    def pending(self) -> bool:
        """Return whether this worker has anything left to do soon.

        While all that waits has to wait for longer, the spider is idle: some are fed only then.
        """
        here = len(self._turns) or self._memory or self._starting or self._unreported
        waiting = self._queue.waiting and not self._pacing.rests
        return bool(here or waiting or self._queue.burdened)

    def forget(self, request: Request, failed: bool = False) -> bool:  # noqa: FBT001, FBT002 - a signal
        """Make a page eligible again (next run if it has failed); return whether we knew it."""
        try:
            page = self._session.page_of(request)
        except Exception as error:  # noqa: BLE001 - raising in a callback would lose its items
            self._report.not_forgotten(request, error)
            return False
        knows, failed_here = self._queue.knows, self._session.failed.has
        known = any(knows(each) or self._held.has(each) or failed_here(each) for each in page)
        Deferred.fromCoroutine(self._forget(page, failed=failed))
        return known

    def hold(self, request: Request, seconds: float) -> bool:
        """Have all workers leave the slot of a request alone; return that it was done."""
        slot, until = self._turns.hold(request, seconds)
        self._queue.hold(slot, until)
        self._note_done()
        self._soon(self._pacing.until_urgent())
        return True

    async def close(self) -> bool:
        """Send what is left, put back what was not begun; return whether everything is stored."""
        self._closing = True
        for timer in (self._timer, self._turn_timer):
            if timer is not None:
                timer.cancel()
        if self._exchanging is not None:
            await self._exchanging
        try:
            for taken in reversed(self._turns.take_all()):
                self._queue.give_back(taken)
            self._note_done()
            stored = await self._flush()
        finally:
            self._write_stats()
            self._warn_of_failed()
            await run_beside(self._leave)
        return stored and not self._queue.offering

    async def _flush(self) -> bool:
        """Send everything that is pending; return whether that worked."""
        stored = not self._gave_up
        while stored and (self._queue.burdened or self._unreported):
            if not self._queue.burdened and not await self._items.flush():
                self._items.log_kept(len(self._unreported))  # closing the queue puts them back
                break
            stored = await self._exchange()
        return stored

    def _leave(self) -> None:
        report_state(self._report, self._queue.worker, self._queue.key)
        self._queue.close()

    # Requests on their way to the queue

    def _judge_here(self, request: Request) -> tuple[Identified | None, bytes | None, Verdict]:
        """Return the verdict on a request as far as this worker knows, without counting it.

        :returns: the request, its first mark that is not known to be there, and the verdict. The
            first two are None if that failed, which has been counted.
        """
        identified = self._session.identify(request)
        if identified is None:
            return None, None, ERROR
        try:
            for mark, max_age, verdict in self._session.questions(identified):
                if not self._knows(mark, max_age):
                    return identified, mark, verdict
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            return None, None, self._session.fail(request, error)
        return identified, None, SEEN

    def _knows(self, mark: bytes, max_age: float | None) -> bool:
        """Return whether this worker knows, without asking, that a mark is there."""
        if self._held.has(mark, max_age):
            return True
        if mark in self._forgetting:
            return False
        if self._session.failed.has(mark, max_age):
            return True
        return max_age is None and self._queue.knows(mark)

    def _send(self, entry: Entry) -> Deferred[bool]:
        """Send an entry with the next exchange; return a Deferred that fires with the verdict."""
        verdict: Deferred[bool] = Deferred()
        entry.source = verdict
        self._queue.offer(entry)
        self._soon()
        return verdict

    def _slot_for(self, request: Request) -> bytes:
        try:
            return self._turns.slot_for(request)
        except Exception as error:  # noqa: BLE001 - it reads the meta; raising would lose the page
            self._report.once(
                logging.ERROR,
                "The download slot of %s is unknown, so it is not paced (%r). More such errors are"
                " not shown.",
                request,
                error,
            )
            return b""

    async def _offer(
        self,
        request: Request,
        identified: Identified | None,
        missing: bytes | None,
        entry: Entry,
    ) -> None:
        """Queue a request if its page is new, or if it is not filtered.

        The page that yielded it is not done before the last verdict.

        :param identified: None if it is not filtered.
        :param missing: the first of its marks that is not known to be there.
        :param entry: that of a request that is not filtered.
        """
        number, verdict = next(self._numbers), SEEN
        self._outstanding[number] = None
        try:
            questions = self._session.questions(identified) if identified else ()
            for mark, max_age, if_missing in questions:
                while mark in self._failing and not self._knows(mark, max_age):
                    missing, answered = None, Deferred[None]()
                    self._undecided.append(answered)
                    await answered
                if mark != missing and self._knows(mark, max_age):
                    continue
                filtered = replace(entry, letter="f", fingerprint=mark, max_age=max_age)
                if not await self._send(filtered):
                    verdict = if_missing
                    break
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            self._session.fail(request, error)
            identified = None
        if identified is not None and verdict is SEEN and not self._drop(identified):
            identified = None
        if identified is None:
            await self._send(entry)
        del self._outstanding[number]
        if identified is not None and verdict is SEEN:
            self._dupefilter.log(request, self._spider)
            self._crawler.signals.send_catch_log(
                signals.request_dropped, request=request, spider=self._spider
            )
            return
        if identified is not None:
            self._session.count(identified, verdict)
        self._pacing.note_pushed()
        self._report.inc("scheduler/enqueued/redis")
        self._report.inc("scheduler/enqueued")

    def _drop(self, identified: Identified) -> bool:
        """Count a duplicate, and keep the pages that led to it if its page is held here.

        Return False if it is to be let through: that failed, which has been counted.
        """
        try:
            page = self._session.note_dropped(identified)
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            self._session.fail(identified.request, error)
            return False
        self._in_flight.note_duplicate(identified.request, identified.fingerprint)
        if page:
            Deferred.fromCoroutine(self._forget(page, failed=True))
        self._session.count(identified, SEEN)
        return True

    def _hold(self, request: Request, error: Exception, marks: Page, due: float) -> None:
        """Hold a request in memory, and keep the page that yielded it in Redis.

        It is unique for this worker only.

        :param error: why it cannot be stored.
        :param marks: what makes it unique; none if it is not filtered.
        :param due: before when it must not be sent; 0 for no such time.
        """
        self._held.update(marks)
        self._in_flight.hold(request, error, marks)
        if due:
            self._waiting.push(due, request)
            self._await_turn()
        else:
            self._memory.append(request)
        self._report.inc("scheduler/enqueued/memory")
        self._report.inc("scheduler/enqueued")

    # Requests that were taken

    def _pop(self) -> Request | None:
        while (taken := self._turns.pop()) is not None:
            if not self._queue.still_ours(taken):
                continue
            try:
                request = read_request(taken.body, self._spider)
            except Exception as error:  # noqa: BLE001 - third-party code and data
                self._queue.cannot_read(taken)
                self._log_unreadable(error)
                continue
            if not taken.slot and (until := self._turns.held_until(request)):
                self._queue.put_aside(taken, until)
                self._call_now()
                continue
            self._in_flight.start(request, taken)
            self._turns.begin(request, taken)
            self._report.inc("scheduler/dequeued/redis")
            self._report.inc("scheduler/dequeued")
            return request
        if self._turns.is_urgent:
            self._call_now()
        self._await_turn()
        return None

    def _reached(self, request: Request) -> None:
        self._turns.reach(request)
        if self._turns.is_urgent:
            self._call_now()

    def _await_turn(self) -> None:
        """Wake the engine when the next request may be sent."""
        start = min(self._turns.next_start, self._waiting.next_due)
        if start < self._turn_at and not self._closing:
            if self._turn_timer is not None:
                self._turn_timer.cancel()
            self._turn_at = start
            delay = max(0.0, start - time.monotonic())
            self._turn_timer = call_later(delay, self._have_turn)

    def _call_now(self) -> None:
        """Schedule a call that sets turns which would be wasted, and takes requests for them."""
        self._pacing.note_pushed()
        self._soon(self._pacing.until_urgent())

    def _have_turn(self) -> None:
        self._turn_timer, self._turn_at = None, inf
        self._engine.wake()

    def _note_done(self) -> None:
        """Collect what has ended: requests, turns, and pages that are done."""
        self._turns.end()
        if self._turns.is_urgent:
            self._call_now()
        for taken in self._turns.take_unused():
            self._queue.give_back_turn(taken)
        for taken in self._turns.take_late():
            self._queue.give_back(taken)
        number = next(self._numbers)
        visits = self._in_flight.pop_done()
        self._pacing.note_ended(len(visits))
        for visit in visits:
            self._in_flight.release(visit)
            if visit.row is not None:
                self._unreported.append((number, visit.row))

    async def _report_done(self) -> None:
        """Report the pages that are done, once their items are written out."""
        self._note_done()
        oldest = next(iter(self._outstanding), next(self._numbers))
        if (
            not self._unreported
            or self._unreported[0][0] >= oldest
            or not await self._items.flush()
        ):
            return
        while self._unreported and self._unreported[0][0] < oldest:
            self._queue.done(self._unreported.popleft()[1])

    # Exchanges

    @property
    def _is_idle(self) -> bool:
        """Whether this worker has nothing to do but look for requests that others have made."""
        busy = len(self._turns) or self._memory or self._starting or self._unreported
        return not busy and not len(self._in_flight)

    def _soon(self, delay: float | None = None) -> None:
        """Schedule an exchange, after `delay` seconds or as soon as one is worthwhile."""
        if self._closing or self._gave_up:
            return
        now = time.monotonic()
        if delay is None:
            delay = self._pacing.until_call(len(self._in_flight))
        if self._timer is not None:
            if self._due <= now + delay:
                return
            self._timer.cancel()
        self._due = now + delay
        self._timer = call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
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
            self._soon(RETRY)
            return
        in_flight = len(self._in_flight)
        if self._queue.burdened:
            self._soon()
        if self._unreported or in_flight:
            self._soon(self._pacing.until_report(in_flight))
        if self._pacing.is_low(in_flight):
            self._look()

    def _look(self) -> None:
        """Schedule an exchange for when it is time to look for requests."""
        self._soon(self._pacing.until_look(len(self._in_flight)))

    async def _exchange(self) -> bool:
        """Send what is pending, and take requests if wanted; return whether that worked."""
        await self._report_done()
        want = 0
        if not self._closing and self._queue.offering < _FULL:
            want = self._pacing.want(len(self._in_flight))
        for slot, own_pace in self._turns.take_paces().items():
            self._queue.set_pace(slot, own_pace)
        exchange = self._queue.prepare(
            want,
            look=self._is_idle,
            default=self._downloads.default,
            busy=self._turns.busy,
            overdue=self._turns.overdue,
        )
        try:
            if exchange.call is not None:
                await run_beside(lambda: self._queue.carry_out(exchange))
        finally:  # whatever was answered counts
            self._deliver(exchange)
        works = exchange.error is None
        if exchange.taken:
            self._idle_since, self._idle_logged, self._wait_logged = inf, False, False
        answer = exchange.answer
        if answer is not None:
            for overdue, start in answer.turns:
                self._turns.renew(overdue, start)
            self._turns.heed(answer.held)
            self._pacing.note_called(
                exchange.call.take if exchange.call else 0,
                len(exchange.taken),
                self._queue.waiting,
                answer.next_turn,
            )
        idle = self._is_idle and not self._waiting
        self._finished = works and idle and self._queue.is_over()
        if exchange.verdicts or exchange.taken or not self.pending():
            self._write_stats()
            if not self._closing:
                self._engine.wake()  # by itself it checks only every five seconds
        if exchange.error is not None:
            self._fail(exchange.error)
        return works

    def _deliver(self, exchange: Exchange) -> None:
        """Apply the outcome of an exchange, and deliver the verdicts."""
        self._queue.settle(exchange)
        for entry, seen in exchange.verdicts:
            entry.source.callback(seen)
        if exchange.void:
            void = self._turns.take_all()  # with its lease this worker has lost all of them
            for slot, until in self._turns.holds.items():
                self._queue.hold(slot, until)
            if exchange.begin_again:
                self._start_over(void)
        self._turns.add(exchange.taken)

    def _fail(self, error: BloomError) -> None:
        if isinstance(error, BackendError) and error.temporary and self._waits:
            return  # the worker logs it and retries
        self._gave_up = True
        if not self._queue.worker.reached:
            exit_with_error_code(self._crawler)
        self._report.give_up(error)

    # Starting over

    def _start_over(self, void: Sequence[Taken]) -> None:
        """Offer again what the server may have lost: requests not begun, and those of start()."""
        self._held.clear()
        self._turns.start_over()
        for taken in void:
            letter = "p" if taken.fingerprint is None else "f"
            self._send(
                Entry(letter, taken.fingerprint, taken.body, taken.priority, slot=taken.slot)
            )
        self._start_due = True
        if not self._starting and not self._closing:
            self._starting = True
            Deferred.fromCoroutine(self._run_starts()).addErrback(self._log_start)

    async def _run_starts(self) -> None:
        """Run start() again, and once more if the server has lost data meanwhile."""
        try:
            while self._start_due:
                self._start_due = False
                await self._run_start()
        finally:
            self._starting = False
            self._soon()

    async def _run_start(self) -> None:
        """Run the spider's start() again, as the engine does; its items were scraped before."""
        requests = 0
        async for each in self._gated(await self._engine.run_start(self._spider)):
            if self._closing or self._engine.closing:
                return
            if isinstance(each, Request):
                requests += 1
                self._engine.crawl(each)
        if not requests:
            logger.warning(
                "start() yielded nothing when it ran again: a page that only it leads to is lost if"
                " Redis has lost it. Make start() yield the same requests each time.",
                extra={"spider": self._spider},
            )

    def _log_start(self, failure: Failure) -> None:
        logger.error(
            "start() failed when it ran again: %s",
            failure.getErrorMessage(),
            extra={"spider": self._spider},
        )

    async def _gated(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Iterate over start() no faster than the server takes its requests."""
        async for each in start:
            yield each
            while self._queue.offering >= _FULL and not (self._closing or self._gave_up):
                pause: Deferred[None] = Deferred()
                call_later(_PAUSE, partial(pause.callback, None))
                await maybe_deferred_to_future(pause)

    # Forgetting

    async def _forget(self, page: Page, *, failed: bool) -> None:
        """Make the server forget a page, and those that follow it.

        If the page has failed, it is not done before that.
        """
        number = next(self._numbers)
        self._outstanding[number] = None
        pending = self._failing if failed else self._forgetting
        for pages in self._session.following(page):
            asked = []
            for each in pages:
                here = self._forget_here(each, failed=failed)
                pending.update(each)  # a callback may yield the page again at once
                asked.append((here, [self._send(Entry("x", mark)) for mark in each]))
            self._decide()
            for each, (here, verdicts) in zip(pages, asked, strict=True):
                there = [await verdict for verdict in verdicts]
                for mark in each:  # to subtract a counter takes as long as the other one is large
                    pending[mark] -= 1
                    if not pending[mark]:
                        del pending[mark]
                marked = (was or mark in here for mark, was in zip(each, there, strict=True))
                self._session.forgotten(each, marked, failed=failed)
        del self._outstanding[number]
        self._decide()

    def _forget_here(self, page: Page, *, failed: bool) -> set[bytes]:
        """Forget a page in this worker; return those of its marks that are there for sure.

        Whether the others are marked only the server knows: to call them failed before its answer
        would drop pages that nobody has requested.
        """
        marked = {mark for mark in page if self._queue.knows(mark) or self._held.has(mark)}
        self._held.discard(page)
        if failed:
            self._session.failed.update(marked)
        return marked

    def _decide(self) -> None:
        """Decide on the requests that have waited for what is forgotten."""
        undecided, self._undecided = self._undecided, deque()
        for each in undecided:
            each.callback(None)

    # The end, log and stats

    def _spider_opened(self) -> None:
        if self._downloads.adjusts:
            self._report.info("AutoThrottle finds one delay for each host, shared by all workers.")
        elif delay := self._downloads.default.delay:
            self._report.info(
                f"DOWNLOAD_DELAY = {delay:g} holds for all workers together, for each host."
            )
        self._soon()

    def _spider_idle(self) -> None:
        """Keep the spider open while other workers may make requests.

        :raises DontCloseSpider: in that case.
        """
        if self._gave_up or (self._finished and not self.pending()):
            return
        if self._pacing.rests and not self._wait_logged:
            self._wait_logged = True
            waiting = self._queue.waiting + len(self._waiting)
            report_rest(self._report, waiting, self._pacing.next_turn)
        now = time.monotonic()
        self._idle_since = min(self._idle_since, now)
        taken = self._queue.counts.taken
        if taken and not self._idle_logged and now - self._idle_since >= pace.LEASE / 6:
            self._idle_logged = True
            self._report.info(
                f"Nothing to fetch right now: waiting for {counted(taken, 'request')} in flight. If"
                f" a worker was killed, its requests come back when its lease ends."
            )
        self._look()
        raise DontCloseSpider

    def _log_unreadable(self, error: Exception) -> None:
        self._report.add(stats.UNREADABLE)
        self._report.once(
            logging.ERROR,
            "A request in Redis cannot be read by this worker (%r). It goes back to the queue for"
            " workers with newer code. After %s tries it is moved to the failed list, and"
            " 'scrapy bloom queue --retry' puts it back. More are counted in %s and not shown.",
            error,
            MOST_TRIES,
            stats.UNREADABLE.key,
        )

    def _warn_of_failed(self) -> None:
        if failed := self._queue.counts.failed:
            self._report.warn(
                f"{counted(failed, 'request')} on the failed list, after {MOST_TRIES} tries: each"
                f" time a worker died with it, took longer than its lease of {pace.LEASE:g} s, or"
                f" could not load it. 'scrapy bloom queue --failed' shows them, and 'scrapy bloom"
                f" queue --retry' puts them back."
            )

    def _write_stats(self) -> None:
        counters = self._queue.worker.counters
        for stat, value in (
            (stats.REQUEUED, counters.requeued),
            (stats.MOVED_ASIDE, self._queue.counts.failed),
            (stats.FROM_BACKEND["outages"], counters.outages),
            (stats.FROM_BACKEND["losses"], self._queue.surprises),
        ):
            if value:
                self._report.set(stat, value)
        later = self._queue.counts.later + len(self._waiting)
        self._waited = self._waited or bool(later)
        if self._waited:
            self._report.set(stats.LATER, later)
        self._report.set(stats.PENDING, self._queue.waiting)
        self._report.set(stats.FROM_BACKEND["round_trips"], counters.round_trips)
