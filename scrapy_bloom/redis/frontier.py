"""A crawl's requests and marks in Redis, behind the :class:`Frontier` that a scheduler calls.

Nothing here waits for the server: one exchange at a time is under way in a thread, and what comes
meanwhile goes with the next one. A page is reported as done when everything that it led to has left
this worker, and its items are written out.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.crawl.engine import Engine, call_later, engine_of, run_beside
from scrapy_bloom.crawl.items import Items
from scrapy_bloom.crawl.report import Verdict
from scrapy_bloom.crawl.serialize import QueueKind, read_request
from scrapy_bloom.crawl.session import Identified, Session
from scrapy_bloom.crawl.under_way import InFlight
from scrapy_bloom.errors import BackendError, BloomError
from scrapy_bloom.options import (
    COMMIT_SYNC,
    ON_BACKEND_ERROR,
    REDIS_TIMEOUT,
    WINDOW,
    CommitSync,
    OnBackendError,
    in_settings,
    refusal,
)
from scrapy_bloom.redis.project import (
    key_of,
    plans_of,
    project_of,
    report_opened,
    report_state,
    target_of,
)
from scrapy_bloom.redis.queue import Queue, Settled, Ticket
from scrapy_bloom.redis.shard import Entry, Taken
from scrapy_bloom.redis.worker import MOST_TRIES, Worker
from scrapy_bloom.settings import Settings
from scrapy_bloom.signals import forget_page

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from twisted.python.failure import Failure

    from scrapy_bloom.crawl.report import Report

logger = logging.getLogger(__name__)

_GATHER: Final = 0.05
"""Seconds between two exchanges while there is enough to fetch: entries go in larger calls."""

_LINGER: Final = 0.2
"""Seconds that a page which is done waits for an exchange to travel with."""

_POLL, _SLOWEST_POLL = 0.05, 1.0  # seconds between two looks into an empty queue
_RETRY: Final = 0.25  # seconds between two exchanges during an outage

_FULL: Final = 5_000
"""Entries that wait here until no more pages are fetched, and start() has to wait."""


def open_shared(
    crawler: Crawler,
    spider: Spider,
    report: Report,
    kind: QueueKind,
    *,
    dropped: Callable[[Request], object],
) -> SharedFrontier:
    """Open the requests and marks of a crawl in Redis.

    :param report: writes to stats and log.
    :param kind: in which order requests of one priority are taken, and how they are written.
    :param dropped: called with a request that turns out to be a duplicate after it was taken.
    :raises BloomError: if the crawl cannot be kept as the settings say. A server that cannot be
        reached is waited for, unless the policy is ``close``.
    """
    settings = Settings(crawler.settings)
    engine = Engine(crawler)
    session = Session(crawler, settings, report)
    if settings[ON_BACKEND_ERROR] is OnBackendError.ALLOW:
        raise refusal(
            in_settings(ON_BACKEND_ERROR),
            "allow",
            "with SCHEDULER = 'scrapy_bloom.Scheduler' the requests are in Redis as well, and no"
            " page can be fetched without it. Give 'auto', 'wait' or 'close'.",
        )
    project = project_of(crawler)
    owner = {"project": project, "spider": spider.name, "order": str(kind)}
    made_for = plans_of(settings, session.fingerprinter, session.made_by, **owner)
    worker = Worker(target_of(settings), settings[REDIS_TIMEOUT])
    key = key_of(settings, spider=spider.name, project=project)
    queue = Queue(worker, key, made_for, in_settings)
    waits = settings[ON_BACKEND_ERROR] is not OnBackendError.CLOSE
    try:
        queue.open()
    except BackendError as error:
        if not (waits and error.temporary):
            worker.close()
            raise
    except BaseException:
        worker.close()
        raise
    items = Items(crawler, engine, report, sync=settings[COMMIT_SYNC] is CommitSync.MACHINE)
    self = SharedFrontier(
        crawler,
        spider,
        engine=engine,
        queue=queue,
        session=session,
        report=report,
        items=items,
        kind=kind,
        dropped=dropped,
        waits=waits,
    )
    states = report_opened(report, session, worker, key)
    waiting = sum(state.waiting for state in states)
    known = sum(one.items - one.again for state in states for one in state.slices)
    self.description = (
        f"Crawl kept in Redis at {worker.where}, key {key}: {waiting:,} requests waiting"
        if states
        else f"Crawl kept in Redis at {worker.where}, key {key}: the server cannot be used yet, and"
        f" the crawl waits for it. Check BLOOM_REDIS_URL; BLOOM_ON_BACKEND_ERROR = 'close' ends the"
        f" crawl instead."
    )
    if known and not waiting and not any(one.taken for one in states) and not settings[WINDOW]:
        place = f"Redis at {worker.where}, key {key}"
        report.finished(place, known, "use 'scrapy bloom delete' or set another BLOOM_REDIS_KEY")
    crawler.signals.connect(self.forget, signal=forget_page)
    return self


class _Offer:
    """A request on its way to the queue: what an entry finds again.

    Attributes:
        request: None if it was taken before and is offered again.
        found: what the filter is asked; None if nothing.
        number: of all offers of this worker, in their order.
        step: whether the filter is asked about its step in a chain of redirects.
    """

    __slots__ = ("found", "number", "request", "step")

    def __init__(
        self, request: Request | None, found: Identified | None, number: int, *, step: bool = False
    ) -> None:
        self.request, self.found, self.number, self.step = request, found, number, step


class _Forgetting:
    """A page that is being forgotten: which of its marks were there.

    Attributes:
        number: as that of an :class:`_Offer`: the page that has failed is not done before.
    """

    def __init__(self, page: Sequence[bytes], number: int, *, failed: bool) -> None:
        self.page, self.number, self.failed = page, number, failed
        self.there: dict[bytes, bool] = {}


class SharedFrontier:
    """The requests and marks of a crawl that any number of workers share.

    :param engine: shows which requests it is through with.
    :param queue: where requests go and come from. It is closed with the frontier.
    :param session: identifies and judges the requests.
    :param report: writes to stats and log.
    :param items: writes out the items that pages gave.
    :param kind: how requests are written.
    :param dropped: called with a request that turned out to be a duplicate after it was taken.
    :param waits: whether to wait while the server cannot be used; else the crawl is closed.

    Attributes:
        description: one line for the log.
    """

    description = ""

    def __init__(  # noqa: PLR0913 - the parts of a crawl
        self,
        crawler: Crawler,
        spider: Spider,
        *,
        engine: Engine,
        queue: Queue,
        session: Session,
        report: Report,
        items: Items,
        kind: QueueKind,
        dropped: Callable[[Request], object],
        waits: bool,
    ) -> None:
        self._crawler, self._spider, self._engine = crawler, spider, engine
        self._queue, self._session, self._report, self._items = queue, session, report, items
        self._dumps, self._dropped, self._waits = kind.dumps, dropped, waits
        self._portion = max(1, crawler.settings.getint("CONCURRENT_REQUESTS"))
        self._ready: deque[tuple[Ticket, Taken]] = deque()
        self._memory: deque[Request] = deque()  # requests that cannot be stored
        self._held: set[bytes] = set()  # their fingerprints
        self._in_flight = InFlight(engine, report)
        self._tickets: dict[
            int, Ticket
        ] = {}  # of requests in flight, by the numbers they have there
        self._numbers = 0
        self._outstanding: dict[int, None] = {}  # offers without a verdict, the oldest first
        self._over: deque[tuple[int, int]] = deque()  # number of the last offer, and of a page
        self._withheld: set[bytes] = set()  # marks that failed: here they stay seen in this run
        self._exchanging: Deferred[None] | None = None
        self._timer: Any = None
        self._due = self._exchanged = self._poll_at = 0.0
        self._poll = _POLL
        self._dry = self._closing = self._gave_up = self._starting = False
        self._idle = self._finished = False
        self._gates: list[Deferred[None]] = []
        scrapys = engine_of(crawler)
        if hasattr(getattr(scrapys, "_start", None), "__aiter__"):
            scrapys._start = self._gated(scrapys._start)  # noqa: SLF001 - it has no other name
        crawler.signals.connect(self._spider_idle, signal=signals.spider_idle)
        crawler.signals.connect(self._soon, signal=signals.spider_opened)

    def __len__(self) -> int:
        """Return how many requests are waiting, here and in the queue as last heard."""
        here = len(self._ready) + len(self._memory) + len(self._outstanding)
        return here + self._queue.waiting

    # What the scheduler asks for

    def check(self, request: Request) -> Verdict:
        """Return what this worker knows of a request that is not enqueued.

        Marks nothing: where a mark is, a request must be.
        """
        found = self._session.identify(request)
        if found is None:
            return Verdict.ERROR
        return self._session.judge(found, seen=self._is_known(found))

    def enqueue(self, request: Request) -> bool:
        """Take a request; return False if this worker knows that it is a duplicate.

        Others turn out to be duplicates later.
        """
        found = None if request.dont_filter else self._session.identify(request)
        if found is not None and self._is_known(found):
            self._judge_seen(found)
            return False
        self._finished = False
        try:
            body = self._dumps(request.to_dict(spider=self._spider))
        except Exception as error:  # noqa: BLE001 - raised, it would cost the page
            return self._hold(request, found, error)
        self._offer(request, found, body, request.priority)
        return True

    def next(self) -> Request | None:
        """Return the next request to send; those that could not be stored come first."""
        if self._closing or self._queue.offering >= _FULL:
            return None
        if self._memory:
            self._report.inc("scheduler/dequeued/memory")
            self._report.inc("scheduler/dequeued")
            return self._in_flight.start_held(self._memory.popleft())
        if not self._queue.holds_leases:  # what was taken may be another worker's by now
            self._soon(_RETRY)
            return None
        request = self._pop()
        if len(self._ready) <= self._portion // 2:
            self._soon()
        return request

    def pending(self) -> bool:
        """Return whether there is anything to do for this worker."""
        here = self._ready or self._memory or self._starting or self._queue.burdened
        return bool(here or self._over or self._queue.waiting)

    def forget(self, request: Request, failed: bool = False) -> None:  # noqa: FBT001, FBT002 - a signal
        """Make the page of a request eligible again, in the next run only if it has failed."""
        try:
            page = self._session.page_of(request)
        except Exception as error:  # noqa: BLE001 - in a callback it would cost the items
            self._report.not_forgotten(request, error)
            return
        self._forget_page(page, failed=failed)

    async def close(self) -> bool:
        """Offer what is left, give back what was not begun; return whether all is stored."""
        self._closing = True
        self._open_gates()
        if self._timer is not None:
            self._timer.cancel()
        if self._exchanging is not None:
            await self._exchanging
        for ticket, _ in self._ready:
            self._queue.give_back(ticket)
        self._ready.clear()
        self._note_over()
        stored = not self._gave_up
        while stored and (self._queue.burdened or self._over):
            if not self._queue.burdened and not await self._items.flush():
                self._items.log_kept(len(self._over))  # they go back when the queue is left
                break
            stored = await self._exchange()
        self._describe()
        await run_beside(self._leave)
        return stored and not self._outstanding

    def _leave(self) -> None:
        if self._queue.worker.usable.is_set():
            report_state(self._report, self._queue.worker, self._queue.key)
        self._queue.close()

    # Requests on their way to the queue

    def _is_known(self, found: Identified) -> bool:
        """Return whether this worker knows by itself that a request is a duplicate."""
        if found.max_age is not None:
            return False
        if found.fingerprint in self._withheld:
            return self._has_no_step(found)
        known = self._queue.knows(found.fingerprint) or found.fingerprint in self._held
        return known and "redirect_urls" not in found.request.meta

    def _has_no_step(self, found: Identified) -> bool:
        try:
            return self._session.step_of(found) is None
        except Exception:  # noqa: BLE001 - it is asked again where that is counted
            return False

    def _offer(
        self,
        request: Request | None,
        found: Identified | None,
        body: bytes,
        priority: int,
        *,
        step: bytes | None = None,
        number: int | None = None,
    ) -> None:
        """Have a request asked about and queued.

        :param step: what to ask about instead of its fingerprint.
        :param number: of an earlier offer of the request, which keeps its place: until the last
            verdict the page that has yielded it is not done.
        """
        number = self._next_number() if number is None else number
        offer = _Offer(request, found, number, step=step is not None)
        fingerprint = step or (found.fingerprint if found else None)
        letter = "p" if fingerprint is None else "f"
        age = found.max_age if found and not step else None
        self._queue.offer(Entry(letter, fingerprint, body, priority, age, offer))
        self._soon()

    def _next_number(self) -> int:
        """Return the number of what is said next; no page that is over by now is done before."""
        self._numbers += 1
        self._outstanding[self._numbers] = None
        return self._numbers

    def _judged(self, entry: Entry, *, seen: bool) -> None:
        """Take note of what the server has said of an entry."""
        if isinstance(entry.source, _Forgetting):
            self._forgot(entry, seen=seen)
            return
        offer: _Offer = entry.source
        found = offer.found
        if found is not None and seen and not offer.step and self._try_step(entry, found):
            return
        del self._outstanding[offer.number]
        if offer.request is None:
            return
        if found is not None:
            if seen:
                self._judge_seen(found)
                self._dropped(offer.request)
                return
            self._session.judge(found, seen=False, step=offer.step)
        self._dry = False
        self._report.inc("scheduler/enqueued/redis")
        self._report.inc("scheduler/enqueued")

    def _try_step(self, entry: Entry, found: Identified) -> bool:
        """Ask about a request's step in a chain of redirects, if it has one."""
        try:
            step = self._session.step_of(found)
        except Exception as error:  # noqa: BLE001 - raised, it would cost the page
            self._session.fail(found.request, error)
            number = entry.source.number
            self._offer(found.request, None, entry.body, entry.priority, number=number)
            return True
        if step is None:
            return False
        number = entry.source.number
        self._offer(found.request, found, entry.body, entry.priority, step=step, number=number)
        return True

    def _judge_seen(self, found: Identified) -> None:
        for page in self._session.drop(found):
            self._forget_page(page, failed=True)
        self._session.judge(found, seen=True)

    def _hold(self, request: Request, found: Identified | None, error: Exception) -> bool:
        """Let a request wait in memory, and the page that has yielded it in Redis.

        It is unique for this worker only.
        """
        if found is not None:
            self._session.judge(found, seen=False)
            self._held.add(found.fingerprint)
        self._in_flight.hold(request, error)
        self._memory.append(request)
        self._report.inc("scheduler/enqueued/memory")
        self._report.inc("scheduler/enqueued")
        return True

    # Requests that were taken

    def _pop(self) -> Request | None:
        while self._ready:
            ticket, taken = self._ready.popleft()
            if not self._queue.counts(ticket):
                continue
            try:
                request = read_request(taken.body, self._spider)
            except Exception as error:  # noqa: BLE001 - code and data of anybody
                self._queue.give_up(ticket)
                self._log_unreadable(error)
                self._dry = True
                continue
            self._numbers += 1
            self._tickets[self._numbers] = ticket
            self._in_flight.start(request, self._numbers)
            self._report.inc("scheduler/dequeued/redis")
            self._report.inc("scheduler/dequeued")
            return request
        return None

    def _note_over(self) -> None:
        for visit in self._in_flight.settle():
            if visit.row is not None:
                self._over.append((self._numbers, visit.row))

    async def _report_done(self) -> None:
        """Report the pages that are done, after their items were written out."""
        self._note_over()
        oldest = next(iter(self._outstanding), self._numbers + 1)
        if not self._over or self._over[0][0] >= oldest or not await self._items.flush():
            return
        while self._over and self._over[0][0] < oldest:
            self._queue.done(self._tickets.pop(self._over.popleft()[1]))

    # Exchanges

    def _soon(self, delay: float | None = None) -> None:
        """Have an exchange made, after `delay` seconds or as soon as it is worth one."""
        if self._closing or self._gave_up:
            return
        now = time.monotonic()
        if not isinstance(delay, (int, float)):
            starving = not self._ready and len(self._in_flight) <= self._portion // 2
            delay = 0.0 if starving else max(0.0, self._exchanged + _GATHER - now)
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
        works = False
        try:
            works = await self._exchange()
        except Exception:
            logger.exception("Unexpected error; retrying", extra={"spider": self._spider})
        finally:
            self._exchanging = None
        self._arm(works=works)

    def _arm(self, *, works: bool) -> None:
        """Have the next exchange made when it is due."""
        if not works:
            self._soon(_RETRY)
            return
        if self._queue.burdened:
            self._soon()
        if self._over or len(self._in_flight):
            self._soon(_LINGER)
        if len(self._ready) <= self._portion // 2 or self._idle:
            self._soon(max(0.0, self._poll_at - time.monotonic()) if self._dry else None)

    async def _exchange(self) -> bool:
        """Say what there is to say, and take what there is to take; return whether that worked."""
        await self._report_done()
        now = time.monotonic()
        wants = not self._closing and len(self._ready) <= self._portion // 2
        wants = wants and self._queue.offering < _FULL and (not self._dry or now >= self._poll_at)
        want = self._portion - len(self._ready) if wants else 0
        exchange = self._queue.prepare(want, look=self._idle)
        if any(exchange.calls):
            await run_beside(lambda: self._queue.carry_out(exchange))
            self._exchanged = time.monotonic()
        settled = self._queue.settle(exchange)
        self._settle(settled, wanted=want > 0)
        if settled.error is not None:
            self._fail(settled.error)
        return settled.error is None

    def _settle(self, settled: Settled, *, wanted: bool) -> None:
        for entry, seen in settled.verdicts:
            self._judged(entry, seen=seen)
        if settled.void:
            self._start_over(settled)
        self._ready += settled.taken
        if settled.taken:
            self._dry, self._poll, self._finished = False, _POLL, False
        elif wanted and settled.error is None:
            self._dry = not self._queue.waiting
            self._poll_at = time.monotonic() + self._poll
            self._poll = min(_SLOWEST_POLL, 2 * self._poll)
        if self._queue.offering < _FULL:
            self._open_gates()
        if self._idle and settled.error is None and not self._is_busy:
            self._finished = self._queue.is_over()
        if settled.verdicts or settled.taken or self._finished:
            self._describe()
            if not self._closing:
                self._engine.wake()

    @property
    def _is_busy(self) -> bool:
        return bool(self._ready or self._memory or self._over or len(self._in_flight))

    def _fail(self, error: BloomError) -> None:
        if isinstance(error, BackendError) and error.temporary and self._waits:
            return  # the worker logs it, and tries again
        self._gave_up = True
        self._open_gates()
        self._report.give_up(error)

    # Starting over

    def _start_over(self, settled: Settled) -> None:
        """Let nothing count that this worker had taken from some shards.

        If the server has lost something, offer that again, and run start() again.
        """
        void = [one for one in self._ready if one[0].shard in settled.void]
        self._ready = deque(one for one in self._ready if one[0].shard not in settled.void)
        if not settled.begin_again:
            return
        self._held.clear()
        for _, taken in void:
            offer = _Offer(None, None, self._next_number())
            letter = "p" if taken.fingerprint is None else "f"
            entry = Entry(letter, taken.fingerprint, taken.body, taken.priority, None, offer)
            self._queue.offer(entry)
        if not self._starting and not self._closing:
            self._starting = True
            deferred_from_coro(self._run_start()).addErrback(self._log_start)

    async def _run_start(self) -> None:
        """Run the spider's start() once more, as the engine does. Items were scraped before."""
        engine: Any = engine_of(self._crawler)
        requests = 0
        try:
            middlewares = engine.scraper.spidermw
            try:
                start = await middlewares.process_start()
            except TypeError:  # Scrapy 2.13
                start = await middlewares.process_start(self._spider)
            async for each in self._gated(start):
                if self._closing or self._engine.closing:
                    return
                if isinstance(each, Request):
                    requests += 1
                    engine.crawl(each)
        finally:
            self._starting = False
            self._soon()
        if not requests:
            logger.warning(
                "start() yielded nothing when it ran again: pages that only it leads to are lost if"
                " Redis has lost them.",
                extra={"spider": self._spider},
            )

    def _log_start(self, failure: Failure) -> None:
        logger.error(
            "start() failed when it ran again: %s",
            failure.getErrorMessage(),
            extra={"spider": self._spider},
        )

    async def _gated(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Read start() no faster than the server takes its requests."""
        async for each in start:
            yield each
            while self._queue.offering >= _FULL and not (self._closing or self._gave_up):
                gate: Deferred[None] = Deferred()
                self._gates.append(gate)
                await maybe_deferred_to_future(gate)

    def _open_gates(self) -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.callback(None)

    # Forgetting

    def _forget_page(self, page: Sequence[bytes], *, failed: bool) -> None:
        number = self._next_number()
        forgetting = _Forgetting(page, number, failed=failed)
        for mark in dict.fromkeys(page):
            self._queue.offer(Entry("x", mark, source=forgetting))
            self._held.discard(mark)
        if failed:
            self._withheld.update(page)
        else:
            self._withheld.difference_update(page)
        self._soon()

    def _forgot(self, entry: Entry, *, seen: bool) -> None:
        forgetting: _Forgetting = entry.source
        assert entry.fingerprint is not None  # noqa: S101 - its mark
        forgetting.there[entry.fingerprint] = seen
        if len(forgetting.there) < len(set(forgetting.page)):
            return
        del self._outstanding[forgetting.number]
        there = [forgetting.there[mark] for mark in forgetting.page]
        failed = forgetting.failed
        for page in self._session.forgotten(forgetting.page, there, failed=failed):
            self._forget_page(page, failed=failed)

    # The end, log and stats

    def _spider_idle(self) -> None:
        """Keep the spider open while other workers may make requests.

        :raises DontCloseSpider: then.
        """
        self._idle = True
        if self._gave_up or (self._finished and not self.pending()):
            return
        self._soon(max(0.0, self._poll_at - time.monotonic()) if self._dry else None)
        raise DontCloseSpider

    def _log_unreadable(self, error: Exception) -> None:
        self._report.add(stats.UNREADABLE)
        self._report.once(
            logging.ERROR,
            "A request in Redis cannot be read by this worker (%r). It goes back for other workers,"
            " whose code may be newer. After %s tries it is moved to the failed list: then"
            " 'scrapy bloom queue --retry' puts it back. More are counted in %s and not shown.",
            error,
            MOST_TRIES,
            stats.UNREADABLE.key,
        )

    def _describe(self) -> None:
        counters = self._queue.worker.counters
        for stat, value in (
            (stats.REQUEUED, counters.requeued),
            (stats.MOVED_ASIDE, sum(report.failed for report in self._queue.reports())),
            (stats.FROM_BACKEND["outages"], counters.outages),
            (stats.FROM_BACKEND["losses"], self._queue.surprises),
        ):
            if value:
                self._report.set(stat, value)
        self._report.set(stats.PENDING, self._queue.waiting)
        self._report.set(stats.FROM_BACKEND["round_trips"], counters.round_trips)
