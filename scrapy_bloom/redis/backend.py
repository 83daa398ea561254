"""A crawl's requests and marks in Redis, shared by any number of workers.

Nothing here waits for the server: one call at a time runs in a thread, and whatever arrives
meanwhile is sent with the next one. So a request is accepted before it is known to be new, unless
this worker knows its mark.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, ClassVar

from scrapy import signals
from twisted.internet.defer import Deferred

from scrapy_bloom.crawl.account import Account
from scrapy_bloom.crawl.backend import Backend, Crawl
from scrapy_bloom.crawl.history import ORIGINAL, START
from scrapy_bloom.crawl.outcomes import Ended, Reason
from scrapy_bloom.crawl.report import end_crawl
from scrapy_bloom.crawl.scrapy.downloads import Downloads
from scrapy_bloom.crawl.scrapy.loop import run_beside
from scrapy_bloom.crawl.serialize import QueueKind, Unstorable
from scrapy_bloom.errors import BackendError, BloomError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.failed import FailedRows
from scrapy_bloom.redis.hang import Hang
from scrapy_bloom.redis.member import Entry, Taken
from scrapy_bloom.redis.pacing import Pacing
from scrapy_bloom.redis.packing import Packing, Refused
from scrapy_bloom.redis.project import queue_of
from scrapy_bloom.redis.queue import SharedQueue
from scrapy_bloom.redis.reporting import (
    describe_crawl,
    log_delay_rules,
    log_unreadable,
    log_waiting,
    report_crawl,
    warn_of_failed,
    warn_of_refused,
    write_stats,
)
from scrapy_bloom.redis.starting_over import StartRunner
from scrapy_bloom.redis.turns import Turns
from scrapy_bloom.redis.wire import LARGEST, Answer, Call, Ending
from scrapy_bloom.settings import ON_BACKEND_ERROR, WINDOW

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.filter.info import FilterInfo


class RedisBackend(Backend):
    """The requests and marks of a crawl in Redis, as one worker has them.

    While the server is unreachable the crawl waits, unless the policy is ``close``.

    :param queue: this worker's access.
    :param packing: how requests are written and read.
    """

    kind: ClassVar[str] = "redis"
    shared: ClassVar[bool] = True
    interval = upkeep.PATIENT

    def __init__(self, crawl: Crawl, queue: SharedQueue, packing: Packing) -> None:
        crawler, report, engine = crawl.crawler, crawl.report, crawl.engine
        self._crawler, self._spider = crawler, crawl.spider
        self._report, self._engine = report, engine
        self._identifier, self._start_of = crawl.identifier, crawl.start_of
        self._queue, self._worker, self._packing = queue, queue.worker, packing
        self._waits_for_server = crawl.settings[ON_BACKEND_ERROR] != "close"
        self._downloads = Downloads(crawler)
        self._in_flight = crawl.in_flight
        self._turns = Turns(engine, self._downloads, report)
        most = max(1, crawler.settings.getint("CONCURRENT_REQUESTS"))
        self._pacing = Pacing(self._turns, self._in_flight, most)
        self._starts = StartRunner(engine, crawl.spider)
        self._failed_rows = FailedRows(
            *(self._worker, crawl.spider, packing, self._turns, crawl.identifier)
        )
        # Marks of requests that wait in memory, and since when: Redis has none of them.
        self._in_memory: dict[bytes, float] = {}
        self._window = crawl.settings[WINDOW] or inf
        self._forgetting: Counter[bytes] = Counter()  # marks that the server has yet to forget
        self._idle_since, self._wait_logged, self.exchange_at = inf, -inf, 0.0
        self._seen = 0  # links that were dropped, as far as calls have sent that
        self._stopped = self._over = False
        report_crawl(report, crawl.identifier, queue)
        crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(self._reached, signal=signals.request_reached_downloader)
        self._hang = Hang(queue.link, self._worker, self._in_flight, self._failed_rows)
        engine.before_closing(self._let_pipelines_block)

    @classmethod
    async def open(cls, crawl: Crawl, kind: QueueKind) -> RedisBackend:
        """Open a crawl in Redis, once the server can be used.

        :raises BloomError: if the crawl cannot be stored as configured.
        """
        packing = Packing()
        queue = await queue_of(crawl.crawler, crawl.identifier, crawl.report, kind)
        return cls(crawl, queue, packing)

    def __len__(self) -> int:
        return len(self._turns) + self._queue.offering + self._worker.counts.waiting

    # Marks and requests

    def offer(
        self, request: Request, not_before: float, mark: bytes | None, max_age: float | None
    ) -> bool | Deferred[bool]:
        """Send a request with one of the next calls, unless this worker knows its mark."""
        if mark is not None and self._knows(mark, max_age):
            return True
        origin = self._in_flight.origin_of(request) if ORIGINAL in request.meta else None
        instead = origin.taken if origin is not None else None
        if instead is not None and instead.void:  # whoever has it makes of it what this one did
            return False
        try:
            start = self._start_of(request) if mark is None else b""
            if start:
                request.meta[START] = start
            body = self._packing.write(request.to_dict(spider=self._spider))
            if len(body) > LARGEST:
                raise ValueError(f"it has {len(body):,} bytes, and the most are {LARGEST:,}")
        except Exception as error:
            raise Unstorable(
                error, request, self._packing.write
            ) from error  # Redis does not get it
        op, slot = "p" if mark is None else "f", self._turns.slot_for(request)
        entry = Entry(
            op, mark, body, request.priority, max_age, slot=slot, due=not_before, start=start
        )
        entry.instead = instead  # else one page counts as two until the next call
        return self._send(entry)

    def __contains__(self, mark: bytes) -> bool:
        return self._knows(mark, None)

    def _knows(self, mark: bytes, max_age: float | None) -> bool:
        is_there = max_age is None and mark not in self._forgetting and self._worker.knows(mark)
        longest = self._window if max_age is None else max_age
        return is_there or time.time() - self._in_memory.get(mark, -inf) < longest

    def _send(self, entry: Entry) -> Deferred[bool]:
        """Send an entry with one of the next calls; return a Deferred for its verdict."""
        entry.source = verdict = Deferred[bool]()
        self._over = False
        is_first = not self._queue.offering
        self._queue.offer(entry)
        if is_first:  # else a call is due already
            self._soon(self._pacing.until_call())
        return verdict

    def forget_many(self, marks: Collection[bytes]) -> Deferred[list[bool]]:
        """Make the server forget marks; what this worker knows of them counts no more at once."""
        return Deferred.fromCoroutine(self._forget(marks))

    async def _forget(self, marks: Collection[bytes]) -> list[bool]:
        here = {*filter(self.__contains__, marks)}
        for mark in marks:
            self._in_memory.pop(mark, None)
        self._forgetting.update(marks)  # a callback may yield the page again at once
        verdicts = [self._send(Entry("x", mark)) for mark in marks]
        answers = [await verdict for verdict in verdicts]
        for mark in marks:  # to subtract a counter takes as long as the other one is large
            self._forgetting[mark] -= 1
            if not self._forgetting[mark]:
                del self._forgetting[mark]
        return [was or mark in here for mark, was in zip(marks, answers, strict=True)]

    def withhold(self, marks: Collection[bytes], *, is_over: bool = False) -> None:
        """Record marks of a request in memory: only this worker knows that it was seen."""
        if not is_over:
            self._in_memory.update(dict.fromkeys(marks, time.time()))

    def take(self) -> tuple[Request, Taken] | None:
        """Return a request that a call has taken, and whose turn is now."""
        if not self._queue.has_lease:  # what was taken may be another worker's by now
            self._soon(upkeep.RETRY)
            return None
        while (taken := self._turns.pop()) is not None:
            try:
                if taken.strayed:
                    taken.body = self._failed_rows.once_more(taken.body)
                request = self._packing.request(taken.body, self._spider)
            except Exception as error:  # third-party code and data
                self._queue.refuse(taken)
                log_unreadable(self._report, error)
                if isinstance(error, Refused):
                    warn_of_refused(self._report, error)
                continue
            self._turns.begin(request, taken)
            self._look_if_low()
            return request, taken
        if self._turns.is_urgent:
            self._urge()
        return None

    def release(self, taken: Taken | None, ended: Ended, start: bytes = b"") -> None:
        """Report with the next call that a request is done."""
        self._queue.end(taken, Ending(ended, start))

    def fail(
        self, taken: Taken | None, reason: Reason, way: Collection[bytes], start: bytes = b""
    ) -> bool:
        """Report with the next call that no callback got a request."""
        if taken is None:
            self._queue.next_call.not_kept += 1
            return True
        row = self._failed_rows.row(taken, reason, way, start)
        self._queue.fail(taken, row)
        return row.failed.unparsed

    def account(self) -> Account:
        counts, here = self._worker.counts, len(self._queue.taken)
        return Account(
            done=counts.done,
            waiting=counts.waiting + counts.taken - here,
            in_flight=here,
            failures={"?": counts.failed} if counts.failed else {},
            decisions={"?": counts.unparsed} if counts.unparsed else {},
            not_kept=counts.not_kept,
        )

    def record_finished(self, count: int) -> None:
        """Collect turns that were not used, and requests that go back, for the next call."""
        self._pacing.record_finished(count)
        self._turns.collect_finished()
        if self._turns.is_urgent:
            self._urge()
        for taken in self._turns.pop_unused():
            self._queue.give_back_turn(taken)
        for taken in self._turns.pop_requeued():
            self._queue.requeue(taken)
        self._look_if_low()

    # Download slots

    def pause_host(self, request: Request, seconds: float) -> None:
        """Have all workers pause the slot of a request."""
        self._queue.next_call.pauses.update(self._turns.pause_host(request, seconds))
        self._soon(self._pacing.until_urgent())

    def paused_until(self, request: Request) -> float:
        return self._turns.paused_until(request)

    def _reached(self, request: Request) -> None:
        self._turns.reach(request)
        if self._turns.is_urgent:
            self._urge()
            self._engine.wake()

    # When the next call is due

    def _soon(self, delay: float) -> None:
        self.exchange_at = min(self.exchange_at, time.monotonic() + delay)

    def _urge(self) -> None:
        """Have the next call set turns which would be wasted, and take requests for them."""
        self._pacing.record_pushed()
        self._soon(self._pacing.until_urgent())

    def _look_if_low(self) -> None:
        if self._pacing.is_low and not self._stopped:
            self._soon(self._pacing.until_look())

    # Calls

    @property
    def unwritten(self) -> int:
        return self._queue.unwritten

    @property
    def dirty(self) -> bool:
        return self._queue.has_work

    async def exchange(self, *, busy: bool, in_memory: bool) -> bool:
        """Make a call if there is anything to send, to take or to look for."""
        self.exchange_at = inf
        want = 0 if self._stopped else self._pacing.want()
        self._queue.next_call.paces.update(self._turns.pop_paces())
        self._queue.next_call.seen += self._report.seen - self._seen
        self._seen = self._report.seen
        through = self._engine.has_started and not self._starts.running
        call = self._queue.prepare(
            want,
            look=in_memory or not (busy or self._has_more),  # for what others have made
            default=self._downloads.default,
            busy=self._turns.busy,
            slack=self._turns.slack,
            through=through,
            idle=through and not self._engine.busy,
        )
        answer = Answer()
        if call is not None:
            try:
                answer = await run_beside(partial(self._queue.carry_out, call))
            except BloomError as error:
                self._over = False
                self._fail(error)
                return False
            self._deliver(call, answer)
        if answer.taken:
            self._idle_since = inf
        if answer.fetched_again:
            self._report.fetched_again(answer.fetched_again)
        idle = not (busy or in_memory or self._has_more)
        self._over = idle and self._queue.is_over()
        if answer.verdicts or answer.taken or self._over:
            write_stats(self._report, self._queue)
        self._schedule()
        return True

    @property
    def _has_more(self) -> bool:
        """Whether requests are here that have not begun, or ``start()`` is running again."""
        return len(self._turns) > 0 or self._starts.running

    def _schedule(self) -> None:
        """Say when the next call is due, after one: what came meanwhile may gather, too."""
        self.exchange_at = inf
        if self._queue.has_work:
            self._soon(self._pacing.until_call())
        if self._turns.is_urgent:
            self._soon(self._pacing.until_urgent())
        if self._starts.running:
            self._soon(upkeep.PATIENT)
        self._look_if_low()

    def _deliver(self, call: Call, answer: Answer) -> None:
        """Apply the answer to a call, and deliver the verdicts."""
        for entry, seen in self._queue.settle(call, answer):
            if not (seen or entry.op == "x"):
                self._pacing.record_pushed()
            entry.source.callback(seen)
        if answer.void:
            # Pages in flight go on, but are not reported: others may have them.
            void = self._turns.pop_all()
            self._queue.next_call.pauses.update(self._turns.pauses)
            if answer.start_over:
                self._turns.start_over()
                self._start_over(void)
            return
        self._turns.add(answer.taken)
        self._turns.heed(answer.pauses)
        self._pacing.record_call(call, answer)

    def _start_over(self, void: Iterable[Taken]) -> None:
        """Offer again what the server may have lost, forget what is in no server, run ``start()``.

        :param void: requests that this worker had taken and not begun.
        """
        self._in_memory.clear()
        for taken in void:
            op = "p" if taken.fingerprint is None else "f"
            self._send(Entry(op, taken.fingerprint, taken.body, taken.priority, slot=taken.slot))
        self._identifier.start_over()
        self._starts.run()

    def _fail(self, error: BloomError) -> None:
        if isinstance(error, BackendError) and error.temporary and self._waits_for_server:
            return  # the worker logs it and retries
        self.give_up(error)

    def give_up(self, error: BloomError) -> None:
        self.broken = True
        self._starts.stop()
        end_crawl(self._crawler, self._report, error)

    def stop(self) -> None:
        self._stopped = True
        self._starts.stop()
        for taken in reversed(self._turns.pop_all()):
            self._queue.requeue(taken)

    async def close(self) -> bool:
        """Put back what is not done, and release the lease."""
        write_stats(self._report, self._queue)
        self._report.describe(self.info())
        through = self._report.through and not (self.broken or self._queue.has_work)
        account = await run_beside(partial(self._queue.close, through=through))
        if not self.broken:
            self._report.account = account = account or self.account()
            warn_of_failed(self._report, account, self._spider.name)
        return not (self.broken or self._queue.has_work)

    # What waits

    @property
    def later(self) -> int:
        return self._worker.counts.later

    def pending(self) -> bool:
        here = len(self._turns) or self._starts.running or self._queue.has_work
        return bool(here or (self._worker.counts.waiting and not self._pacing.is_idle))

    @property
    def over(self) -> bool:
        return self._over

    @property
    def next_start(self) -> float:
        if not self._queue.has_lease:  # until a call has renewed it nothing is sent
            return max(self._turns.next_start, time.monotonic() + upkeep.RETRY)
        return self._turns.next_start

    def idle_until(self) -> tuple[int, float]:
        return self._worker.counts.waiting, self._pacing.next_turn if self._pacing.is_idle else 0.0

    def record_idle(self) -> None:
        """Look for requests, and log if others have had them for longer than most pages take."""
        self._soon(self._pacing.until_look())
        now, taken = time.monotonic(), self._worker.counts.taken
        self._idle_since = min(self._idle_since, now)
        if taken and now > max(
            self._idle_since + upkeep.LEASE / 6, self._wait_logged + upkeep.WARN
        ):
            self._wait_logged = now
            log_waiting(self._report, taken)

    def info(self) -> FilterInfo:
        return self._worker.info()

    def describe(self) -> tuple[str, ...]:
        """Say who shares the crawl."""
        return describe_crawl(self._worker)

    def _spider_opened(self) -> None:
        log_delay_rules(self._report, self._downloads)

    async def _let_pipelines_block(self) -> None:
        """Let pipelines that close take as long as they need: no callback runs any more."""
        self._hang.pulse = None
