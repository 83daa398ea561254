"""Which requests of a worker are new, and what is forgotten: what it knows, and what it asks Redis.

What is asked about a request is said by ``Session.questions``. It is offered with the first
mark that this worker does not know. Redis answers with the next exchange, so the request is
accepted at once and may turn out to be a duplicate later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred

from scrapy_bloom.crawl.report import Verdict
from scrapy_bloom.crawl.session import Page, Recent, Session
from scrapy_bloom.redis.member import Entry, Taken

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.crawl.in_flight import InFlight
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.redis.ledger import Ledger
    from scrapy_bloom.redis.queue import SharedQueue

NEW, SEEN, EXEMPT, _ = Verdict


class Judged(NamedTuple):
    """A request, judged by what this worker knows.

    Attributes:
        verdict: if the first of its marks that this worker does not know is missing in Redis, too.
        fingerprint: of its page; None if it is not filtered, or could not be checked.
        steps: names of the steps that changed its URL.
    """

    verdict: Verdict
    fingerprint: bytes | None = None
    steps: tuple[str, ...] = ()


UNFILTERED = Judged(NEW)


class Decider:
    """Decides which requests are new.

    :param session: says what is asked about a request.
    :param queue: what this worker knows of Redis, and what it sends.
    :param in_flight: the pages that requests come from.
    :param ledger: keeps these pages from being done before everything is answered.
    :param report: writes to stats and log.
    :param window: for how many seconds a mark counts; None for ever.
    """

    def __init__(
        self,
        session: Session,
        queue: SharedQueue,
        in_flight: InFlight,
        ledger: Ledger,
        report: Report,
        window: float | None,
    ) -> None:
        self._session, self._queue, self._in_flight = session, queue, in_flight
        self._ledger, self._report = ledger, report
        self._duplicates: list[Request] = []  # were accepted, and are duplicates
        # Marks of requests that were held in memory: Redis has none of them.
        self._in_memory = Recent(window)
        self._forgetting: Counter[bytes] = Counter()  # marks that the server has yet to forget
        self._failing: Counter[bytes] = Counter()  # those of failed pages, if they are marked
        self._undecided: deque[Deferred[None]] = deque()  # fire when some of these are answered

    # Requests

    def judge(self, request: Request) -> Judged | None:
        """Judge a request that is to be queued; return None if it is dropped as a duplicate.

        To the others :meth:`offer` or :meth:`keep_in_memory` come next.
        """
        if request.dont_filter:
            return UNFILTERED
        judged = self._judge(request)
        if judged.fingerprint is None or judged.verdict is not SEEN:
            return judged
        return None if self._drop(request, judged.fingerprint, judged.steps) else UNFILTERED

    def offer(self, request: Request, judged: Judged, entry: Entry) -> None:
        """Queue a request with one of the next exchanges, unless it is a duplicate in Redis.

        :param entry: its body, priority, slot and time.
        """
        Deferred.fromCoroutine(self._offer(request, judged, entry))

    def keep_in_memory(self, request: Request, judged: Judged, error: Exception) -> Request:
        """Note that a request is held in memory, and keep the page that yielded it in Redis.

        It is unique for this worker only.

        :param error: why it cannot be stored.
        :returns: the request to send later, see :meth:`InFlight.keep`.
        """
        marks: Page = ()
        if judged.fingerprint is not None:
            self._report.count(judged.verdict, judged.steps)
            is_step = judged.verdict is EXEMPT
            marks = self._session.marks_of(request) if is_step else (judged.fingerprint,)
        self._in_memory.add(marks)
        self._report.inc("scheduler/enqueued/memory")
        self._report.inc("scheduler/enqueued")
        return self._in_flight.keep(request, error, marks)

    def start_over(self, void: Iterable[Taken]) -> None:
        """Offer again what the server may have lost, and forget what is in no server.

        :param void: requests that this worker had taken and not begun.
        """
        self._in_memory.clear()
        for taken in void:
            op = "p" if taken.fingerprint is None else "f"
            entry = Entry(op, taken.fingerprint, taken.body, taken.priority, slot=taken.slot)
            self._send(entry)

    def deliver(self, verdicts: Iterable[tuple[Entry, bool]]) -> bool:
        """Go on with what has waited for these answers of Redis; return whether any was queued."""
        queued = False
        for entry, seen in verdicts:
            queued = queued or not (seen or entry.op == "x")
            entry.source.callback(seen)
        return queued

    def take_duplicates(self) -> list[Request]:
        """Return the requests that were accepted and turned out to be duplicates, once."""
        duplicates, self._duplicates = self._duplicates, []
        return duplicates

    def _judge(self, request: Request) -> Judged:
        """Judge a request by what this worker knows, without counting it.

        If that fails, it has been counted.
        """
        try:
            fingerprint, steps = self._session.identify(request)
            for mark, max_age, verdict in self._session.questions(request, fingerprint):
                if not self._knows(mark, max_age):
                    return Judged(verdict, fingerprint, steps)
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            return Judged(self._session.fail(request, error))
        return Judged(SEEN, fingerprint, steps)

    def _knows(self, mark: bytes, max_age: float | None) -> bool:
        """Return whether this worker knows, without asking, that a mark is there."""
        if mark not in self._forgetting:
            if max_age is None and self._queue.knows(mark):
                return True
            if self._session.failed.has(mark, max_age):
                return True
        return self._in_memory.has(mark, max_age)

    def _send(self, entry: Entry) -> Deferred[bool]:
        """Send an entry with the next exchange; return a Deferred that fires with the verdict."""
        verdict: Deferred[bool] = Deferred()
        entry.source = verdict
        self._queue.offer(entry)
        return verdict

    async def _offer(self, request: Request, judged: Judged, entry: Entry) -> None:
        """Queue a request if its page is new, or if it is not filtered.

        The page that yielded it is not done before the last verdict.
        """
        question, verdict = self._ledger.ask(), SEEN
        fingerprint = judged.fingerprint
        try:
            ask = self._session.questions
            questions = () if fingerprint is None else ask(request, fingerprint)
            for mark, max_age, if_missing in questions:
                while mark in self._failing and not self._knows(mark, max_age):
                    answered = Deferred[None]()
                    self._undecided.append(answered)
                    await answered
                if self._knows(mark, max_age):
                    continue
                entry.op, entry.fingerprint, entry.max_age = "f", mark, max_age
                if not await self._send(entry):
                    verdict = if_missing
                    break
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            self._session.fail(request, error)
            fingerprint = None
        if fingerprint is not None and verdict is SEEN:
            if self._drop(request, fingerprint, judged.steps):
                self._ledger.answer(question)
                self._duplicates.append(request)
                return
            fingerprint = None
        if fingerprint is None:
            entry.op, entry.fingerprint, entry.max_age = "p", None, None
            await self._send(entry)
        self._ledger.answer(question)
        if fingerprint is not None:
            self._report.count(verdict, judged.steps)
        self._report.inc("scheduler/enqueued/redis")
        self._report.inc("scheduler/enqueued")

    def _drop(self, request: Request, fingerprint: bytes, steps: tuple[str, ...]) -> bool:
        """Count a duplicate, and keep the pages that led to it if its page is held here.

        Return False if it is to be let through: that failed, which has been counted.
        """
        try:
            page = self._session.note_dropped(request, fingerprint)
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            self._session.fail(request, error)
            return False
        self._in_flight.note_duplicate(request, fingerprint)
        if page:
            Deferred.fromCoroutine(self._forget(page, failed=True))
        self._report.count(SEEN, steps)
        return True

    # Forgetting

    def forget(self, request: Request, *, failed: bool) -> bool:
        """Make a page eligible again: at once, or in the next run if it has failed.

        :returns: whether this worker knew it.
        """
        try:
            page = self._session.page_of(request)
        except Exception as error:  # noqa: BLE001 - raising in a callback would lose its items
            self._report.not_forgotten(request, error)
            return False
        known = any(self._is_marked(mark) or self._session.failed.has(mark) for mark in page)
        Deferred.fromCoroutine(self._forget(page, failed=failed))
        return known

    def _is_marked(self, mark: bytes) -> bool:
        return self._queue.knows(mark) or self._in_memory.has(mark)

    async def _forget(self, page: Page, *, failed: bool) -> None:
        """Make the server forget a page, and those that follow it.

        If the page has failed, it is not done before that.
        """
        question = self._ledger.ask()
        pending = self._failing if failed else self._forgetting
        for pages in self._session.following(page):
            asked = []
            for each in pages:
                here = self._forget_here(each, failed=failed)
                pending.update(each)  # a callback may yield the page again at once
                asked.append((here, [self._send(Entry("x", mark)) for mark in each]))
            self._go_on()
            for each, (here, verdicts) in zip(pages, asked, strict=True):
                answers = [await verdict for verdict in verdicts]
                for mark in each:  # to subtract a counter takes as long as the other one is large
                    pending[mark] -= 1
                    if not pending[mark]:
                        del pending[mark]
                marked = (was or mark in here for mark, was in zip(each, answers, strict=True))
                self._session.forgotten(each, marked, failed=failed)
        self._ledger.answer(question)
        self._go_on()

    def _forget_here(self, page: Page, *, failed: bool) -> set[bytes]:
        """Forget a page in this worker; return those of its marks that are there for sure.

        Whether the others are marked only the server knows: to call them failed before its answer
        would drop pages that nobody has requested.
        """
        marked = {*filter(self._is_marked, page)}
        self._in_memory.discard(page)
        if failed:
            self._session.failed.add(marked)
        return marked

    def _go_on(self) -> None:
        """Go on with requests that have waited for what is forgotten."""
        undecided, self._undecided = self._undecided, deque()
        for each in undecided:
            each.callback(None)
