"""A crawl's requests and marks in Redis, shared by any number of workers.

A request is in exactly one place: the buffer of the worker that made it, the queue, the record of
what a worker has taken, or done. One call marks it and puts it into the queue. It leaves the record
when its page is done and everything that the page led to has left the buffer. So what a killed
worker had is either in the queue or in its record, from where another worker puts it back.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.exceptions import DontCloseSpider
from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.errors import BloomError
from scrapy_bloom.frontier.admission import Admission, Judge, Offer
from scrapy_bloom.frontier.caller import Call, Caller
from scrapy_bloom.frontier.deliveries import Deliveries
from scrapy_bloom.frontier.ending import Ending
from scrapy_bloom.frontier.items import Items
from scrapy_bloom.frontier.requests import encode
from scrapy_bloom.frontier.start import Gate
from scrapy_bloom.frontier.stopping import keep_what_fails
from scrapy_bloom.frontier.under_way import Alive
from scrapy_bloom.options import (
    COMMIT_SYNC,
    ON_BACKEND_ERROR,
    CommitSync,
    OnBackendError,
)
from scrapy_bloom.redis import pace
from scrapy_bloom.redis.queue.base import Offered, Queue, State, Taken, Ticket

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from scrapy_bloom.settings import Settings

logger = logging.getLogger(__name__)

Tell = Callable[[Sequence[bytes]], object]
"""Called with those marks of a page that were there before they were forgotten."""

_LINGER: Final = 0.2  # seconds that a request which is done waits for a call to travel with
_TENDING: Final = 1.0  # seconds between two looks after dead workers
_POLL, _SLOWEST_POLL = 0.05, 1.0  # seconds between two looks into an empty queue


class SharedFrontier:
    """Offers what a scheduler is given to a shared queue, and takes from there what is to be sent.

    Nothing here waits for the server: one call at a time is under way in a thread, and what comes
    meanwhile goes with the next one.

    :param judge: makes the fingerprints and counts the verdicts, and forgets marks.
    :param queue: where requests go and come from.
    :param alive: tells whether the engine still has a request; None if it says so by itself.
    :param dumps: writes a request, as a dict.
    :param dropped: is told of a request that turned out to be a duplicate later.
    :param unserializable: is told of a request that cannot be stored, and why.
    :param give_up: closes the spider for an error.

    Attributes:
        description: one line for the log.
    """

    description = ""

    def __init__(  # noqa: PLR0913 - the parts of a crawl
        self,
        crawler: Crawler,
        spider: Spider,
        judge: Judge,
        queue: Queue,
        *,
        alive: Alive | None,
        dumps: Callable[[dict[str, Any]], bytes],
        settings: Settings,
        dropped: Callable[[Request], None],
        unserializable: Callable[[Request, Exception], None],
        give_up: Callable[[BloomError], None],
    ) -> None:
        assert crawler.stats is not None  # noqa: S101 - Scrapy makes it before any component
        self._crawler = crawler
        self._spider = spider
        self._queue = queue
        self._stats = crawler.stats
        self._dumps = dumps
        self._dropped = dropped
        self._unserializable = unserializable
        self._judge = judge
        self._to_forget: deque[tuple[Sequence[bytes], Tell]] = deque()
        self._admission = Admission(judge, queue.knows)
        self._deliveries = Deliveries(
            self._queue,
            spider,
            crawler.stats,
            alive=alive,
            items=(items := Items(crawler, to_disk=settings[COMMIT_SYNC] is CommitSync.MACHINE)),
            came=lambda: self._admission.came,
        )
        self._items = items
        self._ending = Ending()
        waits = settings[ON_BACKEND_ERROR] is not OnBackendError.CLOSE
        self._caller = Caller(self._choose, patience=pace.WAIT if waits else 0.0, give_up=give_up)
        self._portion = max(1, crawler.settings.getint("CONCURRENT_REQUESTS"))
        self._taking = self._offered_last = False
        self._dry = False  # the last take found nothing
        self._poll = _POLL
        self._poll_at = self._look_at = self._tend_at = self._linger_at = 0.0
        self._unsure = False
        self._closing = False
        self._settled: Deferred[None] | None = None
        self._gate = Gate(lambda: self._admission.full or self._closing)
        self._gate.put_before(crawler.engine)
        keep_what_fails(crawler, spider, self._deliveries.keep_taken)
        crawler.signals.connect(self._spider_idle, signal=signals.spider_idle)

    # What the scheduler does

    def __len__(self) -> int:
        """Return how many requests wait, here and in the queue."""
        return len(self._admission) + len(self._deliveries) + self._queue.state().waiting

    def enqueue(self, request: Request) -> bool:
        """Take a request; return False if it is known to be a duplicate.

        Others may turn out to be duplicates later. They are told to `dropped` then.
        """
        offer = self._admission.consider(request)
        if offer is None:
            return False
        self._ending.busy()
        try:
            offer.body = encode(request, self._spider, self._dumps)
        except Exception as error:  # noqa: BLE001 - raised, it would cost the page
            offer.held = self._deliveries.hold(request)
            self._stats.inc_value(stats.HELD.key)
            self._unserializable(request, error)
        if offer.held and offer.mark is None:  # there is nothing that the server could keep
            self._keep(offer, None)
        else:
            self._admission.add(offer)
            self._caller.soon()
        return True

    def next(self) -> Request | None:
        """Return the next request to send, None if none is ready."""
        if self._admission.full or self._closing:
            return None
        self._unsure = not self._queue.sure
        if self._unsure:  # what was taken may be somebody else's by now
            self._caller.soon(_POLL)
            return None
        request = self._deliveries.next()
        if self._deliveries.stock <= self._portion // 2:
            self._caller.soon()
        return request

    def pending(self) -> bool:
        """Return whether there is anything to do for this worker."""
        waiting = self._queue.state().waiting
        return bool(self._admission or self._deliveries or self._taking or waiting)

    def forget(self, marks: Sequence[bytes], tell: Tell) -> None:
        """Make the marks of one page new once more, before the next request is asked about.

        :param tell: is given those that were there.
        """
        self._admission.forget(marks)
        self._to_forget.append((marks, tell))
        self._caller.soon()

    def finish(self, request: Request) -> None:
        """Take note that the engine is through with a request."""
        self._deliveries.finish(request)
        self._caller.soon()

    async def close(self) -> bool:
        """Offer what is left, give back what was not started; return whether all is done."""
        self._closing = True
        self._items.pipelines_are_closed()
        self._settled = Deferred()
        self._caller.soon()
        await self._settled
        left: Deferred[object] = Deferred()
        self._caller.stop(self._queue.close, left.callback)
        await left
        self._gate.end()
        self._describe()
        self._say_what_waits()
        return not (self._admission or self._deliveries.unsaid or self._caller.failing)

    # Calls

    def _choose(self, now: float) -> Call | float:
        """Return the call that is due, or for how many seconds none is."""
        if self._unsure and self._queue.sure:
            self._wake()
        call = self._choose_call(now)
        if call is not None:
            return call
        if self._closing:
            self._end_calls()
        return self._pause(now)

    def _choose_call(self, now: float) -> Call | None:
        if self._closing and self._caller.given_up:
            return None
        if self._to_forget:
            return self._forget_call()
        return self._choose_exchange(now)

    def _choose_exchange(self, now: float) -> Call | None:
        """Return the call that is due when there is nothing to forget.

        Not before: the page that wants something forgotten may be acknowledged by this call.
        """
        wants_more = not self._closing and self._wants_more(now)
        if self._admission and not (self._offered_last and wants_more):
            self._offered_last = True
            return self._offer_call()
        self._offered_last = False
        ready = self._deliveries.ready(self._admission.settled)
        if wants_more:
            self._taking = True
            return self._take_call(self._deliveries.first(ready))
        if ready and (self._closing or self._ending.wants_look or now >= self._linger_at):
            self._linger_at = now + _LINGER
            if tickets := self._deliveries.first(ready):
                return self._acknowledge_call(tickets)
        return self._choose_idle(now)

    def _choose_idle(self, now: float) -> Call | None:
        """Return the call that is due when there is nothing to offer, to take or to acknowledge."""
        if self._deliveries.unreadable:
            return self._fail_call()
        if now >= self._tend_at and not self._closing:
            return Call(self._queue.requeue_dead, self._tended)
        wants_look = self._ending.wants_look and not self._deliveries.unsaid
        if wants_look and not self._closing and now >= self._look_at:
            return Call(self._queue.look, self._looked)
        return None

    def _wants_more(self, now: float) -> bool:
        if self._admission.full or self._deliveries.stock > self._portion // 2:
            return False
        return not self._dry or now >= self._poll_at

    def _pause(self, now: float) -> float:
        """Return for how long there is nothing to do, if nothing comes."""
        due = [self._tend_at]
        if self._unsure:
            due.append(now + _POLL)
        if self._dry and self._deliveries.stock <= self._portion // 2:
            due.append(self._poll_at)
        if self._deliveries.unfinished:
            due.append(max(self._linger_at, now + _LINGER / 2))
        if self._ending.wants_look and not self._deliveries.unsaid:
            due.append(self._look_at)
        return max(0.0, min(due) - now)

    def _offer_call(self) -> Call:
        entries = [offer.entry for offer in self._admission.batch()]
        return Call(lambda: self._queue.offer(entries), self._offered)

    def _forget_call(self) -> Call:
        pages = [*self._to_forget]
        marks = [mark for some, _ in pages for mark in some]
        return Call(lambda: self._judge.forget_marks(marks), partial(self._forgot, pages))

    def _take_call(self, done: Sequence[Ticket]) -> Call:
        count = self._portion - self._deliveries.stock
        return Call(lambda: self._queue.take(count, done), partial(self._took, len(done)))

    def _acknowledge_call(self, done: Sequence[Ticket]) -> Call:
        return Call(lambda: self._queue.acknowledge(done), lambda _: self._acknowledged(len(done)))

    def _fail_call(self) -> Call:
        unreadable = self._deliveries.unreadable
        tickets = [taken.ticket for taken in unreadable]
        return Call(lambda: self._queue.fail(tickets), lambda _: unreadable.clear())

    # What comes of them

    def _forgot(self, pages: Sequence[tuple[Sequence[bytes], Tell]], found: Sequence[bool]) -> None:
        answers = iter(found)
        for marks, tell in pages:
            self._to_forget.popleft()
            self._admission.forgot(marks)
            tell([mark for mark in marks if next(answers)])

    def _offered(self, answer: Offered) -> None:
        admitted, dropped = self._admission.answered(answer)
        if aged := sum(offer.max_age is not None for offer, _ in admitted):
            self._stats.inc_value(stats.AGED.key, aged)
        pushed = 0
        for offer, ticket in admitted:
            if offer.held is None:
                pushed += 1
            else:
                self._keep(offer, ticket)
        for offer in dropped:
            if offer.held is not None:
                self._deliveries.drop(offer.request, offer.held)
            self._dropped(offer.request)
        self._stats.inc_value("scheduler/enqueued/redis", pushed)
        self._stats.inc_value("scheduler/enqueued", pushed)
        if pushed:
            self._dry = False
        if not self._admission.full:
            self._gate.open()
        self._wake()

    def _keep(self, offer: Offer, ticket: Ticket | None) -> None:
        assert offer.held is not None  # noqa: S101 - it cannot be stored
        self._deliveries.keep(offer.request, offer.held, ticket)
        self._stats.inc_value("scheduler/enqueued/memory")
        self._stats.inc_value("scheduler/enqueued")
        self._wake()

    def _took(self, acknowledged: int, taken: Sequence[Taken]) -> None:
        self._acknowledged(acknowledged)
        self._taking = False
        self._deliveries.add(taken)
        self._dry = not taken or not self._queue.state().waiting
        self._poll_at = time.monotonic() + self._poll
        if taken:
            self._ending.busy()
            self._poll = _POLL
        else:
            self._poll = min(_SLOWEST_POLL, 2 * self._poll)
        if not self._ending.wants_look:  # what was pending no longer is, and nobody has said so
            self._wake()

    def _acknowledged(self, count: int) -> None:
        self._deliveries.acknowledged(count)
        self._linger_at = time.monotonic() + _LINGER

    def _tended(self, requeued: int) -> None:
        self._tend_at = time.monotonic() + _TENDING
        if requeued:
            self._dry = False
        self._describe()

    def _looked(self, state: State) -> None:
        if self._ending.saw(state):
            self._wake()
        self._look_at = time.monotonic()
        if state.waiting:
            self._poll = _POLL
        if state.waiting or state.elsewhere:
            self._look_at += self._poll

    def _end_calls(self) -> None:
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.callback(None)

    # The engine

    def _spider_idle(self) -> None:
        """Keep the spider open while other workers may make requests.

        :raises DontCloseSpider: then.
        """
        self._ending.idle()
        if not self._ending.over and not self._closing:
            self._caller.soon()
            raise DontCloseSpider

    def _wake(self) -> None:
        slot = self._crawler.engine._slot  # noqa: SLF001 - it has no other name
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()

    def _say_what_waits(self) -> None:
        """Log how many requests the crawl leaves, and what becomes of them.

        Not after an error that has ended it: what was told before may be wrong by now.
        """
        if self._caller.given_up:
            return
        state = self._queue.state()
        values = {"waiting": f"{state.waiting:,}", "elsewhere": f"{state.elsewhere:,}"}
        if state.elsewhere:
            text = "%(waiting)s requests wait in Redis, other workers have %(elsewhere)s under way."
        elif state.waiting:
            text = "%(waiting)s requests wait in Redis. Start the crawl again to go on."
        else:
            return
        logger.info(text, values, extra={"spider": self._spider})

    def _describe(self) -> None:
        numbers = self._queue.numbers()
        for name, stat in stats.FROM_QUEUE.items():
            if numbers[name]:
                self._stats.set_value(stat.key, numbers[name])
        self._stats.set_value(stats.WAITING.key, self._queue.state().waiting)
