"""What is said about each request of a crawl: its verdict, and which pages are forgotten.

Whoever knows marks may answer at once, as a local filter does, or later, as Redis does. A request
is judged alike either way: :meth:`Judge.check` returns its verdict, or a Deferred that will.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import chain, compress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.crawl.questions import Page, Question, Questions
from scrapy_bloom.crawl.recent import Recent
from scrapy_bloom.crawl.redirects import MOST_DROPPED
from scrapy_bloom.crawl.report import Report, Verdict
from scrapy_bloom.crawl.serialize import Unstorable
from scrapy_bloom.errors import BloomError, SettingError

if TYPE_CHECKING:
    from scrapy import Request

SEEN, ERROR = Verdict.SEEN, Verdict.ERROR  # a global is faster to look up than an enum member

Ask = Callable[[bytes, float | None], "bool | Deferred[bool]"]
"""Adds a mark; returns whether it was there, at most so many seconds old."""


class Marks(Protocol):
    """Marks that can be forgotten. Any method may raise anything."""

    def __contains__(self, mark: bytes, /) -> bool:
        """Return whether a mark is there, as far as is known."""

    def forget_many(self, marks: Page, /) -> list[bool] | Deferred[list[bool]]:
        """Make marks eligible again; return for each whether it was there."""


class _Case(NamedTuple):
    """A request whose verdict depends on an answer that comes later.

    Attributes:
        page: its fingerprint.
        steps: names of the steps that changed its URL.
        questions: those that come after this one.
        ask: answers them.
    """

    request: Request
    page: bytes
    steps: tuple[str, ...]
    questions: Iterator[Question]
    ask: Ask


class Judge:
    """Judges the requests of one crawl by what is marked.

    Judging never raises: if a check fails, the verdict is ``ERROR``, and the page is fetched,
    perhaps twice, but never lost.

    :param questions: what is asked about a request.
    :param report: writes to stats and log.

    Attributes:
        marks: what can be forgotten; set once it is open.
        failed: marks of failed pages, forgotten there and still seen in this run.
        ledger: what has no answer yet.
    """

    marks: Marks

    def __init__(self, questions: Questions, report: Report) -> None:
        self.questions, self._report = questions, report
        self._identify, self._about = questions.identify, questions.about
        self.failed = Recent(questions.window)
        self.ledger = Ledger()
        self._failing: Counter[bytes] = Counter()  # marks of failed pages, if they are marked
        self._undecided: list[Deferred[None]] = []  # fire when some of these are known
        # Dropped redirects: the mark of their target, and those of the pages on the way.
        self._dropped: deque[tuple[bytes, Page]] = deque(maxlen=MOST_DROPPED)

    def check(self, request: Request, ask: Ask) -> Verdict | Deferred[Verdict]:
        """Return the verdict on a request, and mark it.

        :raises Unstorable: if it is new, and `ask` has raised that. A Deferred may fail with it.
        """
        try:
            page, steps = self._identify(request)
            questions = self._about(request, page)
            for mark, max_age, if_missing in questions:
                if self.failed or self._failing:
                    if self.failed.has(mark, max_age):
                        continue
                    if mark in self._failing:
                        return Deferred.fromCoroutine(self._check_once_known(mark, request, ask))
                seen = ask(mark, max_age)
                if seen is True:
                    continue
                if seen is False:
                    self._report.count(if_missing, steps)
                    return if_missing
                case = _Case(request, page, steps, questions, ask)
                return seen.addCallback(self._go_on, if_missing, case)
            return self._drop(request, page, steps)
        except Unstorable as error:
            self._report.count(if_missing, steps)
            error.marks = (page,) if mark == page else (page, mark)
            raise
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            return self._fail(request, error)

    def _go_on(self, seen: bool, verdict: Verdict, case: _Case) -> Verdict | Deferred[Verdict]:  # noqa: FBT001 - a callback
        """Go on with a check once a question is answered.

        :param verdict: if the mark is missing.
        """
        request, page, steps, questions, ask = case
        try:
            while seen:
                question = next(questions, None)
                if question is None:
                    return self._drop(request, page, steps)
                mark, max_age, verdict = question
                answer = ask(mark, max_age)
                if isinstance(answer, Deferred):
                    return answer.addCallback(self._go_on, verdict, case)
                seen = answer
        except Unstorable as error:
            self._report.count(verdict, steps)
            error.marks = page, mark
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return self._fail(request, error)
        self._report.count(verdict, steps)
        return verdict

    async def _check_once_known(self, mark: bytes, request: Request, ask: Ask) -> Verdict:
        """Check a request once it is known whether its page, which has failed, was marked."""
        while mark in self._failing:
            self._undecided.append(known := Deferred[None]())
            await known
        verdict = self.check(request, ask)
        return verdict if isinstance(verdict, Verdict) else await verdict

    def _drop(self, request: Request, page: bytes, steps: tuple[str, ...]) -> Verdict:
        """Return the verdict on a request whose marks are all there.

        A page that was redirected to a failed one has failed as well; any other is remembered, to
        be forgotten with its target.
        """
        if request.meta.get("redirect_urls"):
            before = dict.fromkeys(self.questions.marks_before(request))
            redirected = tuple(
                each for each in before if each != page and not self.failed.has(each)
            )
            if redirected and self.failed.has(page):
                self._begin_to_forget(request, redirected, failed=True)
            elif redirected:
                self._dropped.append((page, redirected))
        self._report.count(SEEN, steps)
        return SEEN

    def _fail(self, request: Request, error: Exception) -> Verdict:
        """Return the verdict on a request that could not be checked; log and count it."""
        if isinstance(error, BloomError) and not isinstance(error, SettingError):  # of the filter
            self._report.give_up(error)
        else:
            self._report.check_failed(request, error)
        self._report.count(ERROR)
        return ERROR

    # Forgetting

    def forget(self, request: Request, failed: bool = False) -> bool:  # noqa: FBT001, FBT002 - a signal
        """Make a page eligible again (next run if it has failed); return whether it was known.

        Pages that redirected to it are forgotten as well, even if those redirects were dropped.
        """
        try:
            page = self.questions.page_of(request)
            known = any(self.failed.has(mark) or mark in self.marks for mark in page)
        except Exception as error:  # noqa: BLE001 - raising in a callback would lose its items
            self._report.not_forgotten(request, error)
            return False
        self._begin_to_forget(request, page, failed=failed)
        return known

    def following(self, page: Page) -> Iterator[list[Page]]:
        """Yield pages to forget, in batches, until nothing follows: first a page alone.

        Next come those whose redirects to it were dropped, and so on. Forget a batch before asking
        for the next: such a redirect may be dropped until then.
        """
        pages = [page]
        while pages:
            yield pages
            marks, dropped = {mark for page in pages for mark in page}, self._dropped
            pages = [page for target, page in dropped if target in marks]
            if pages:
                others = (chain for chain in dropped if chain[0] not in marks)
                self._dropped = deque(others, maxlen=MOST_DROPPED)

    def _begin_to_forget(self, request: Request, page: Page, *, failed: bool) -> None:
        """Forget a page, and those that follow it; no page in flight is done before that."""

        async def forget() -> None:
            question = self.ledger.ask()
            try:
                for pages in self.following(page):
                    await self._forget(pages, failed=failed)
            except Exception as error:  # noqa: BLE001 - raising in a callback would lose its items
                self._report.not_forgotten(request, error)
            finally:  # or no page of this run would ever be done
                self.ledger.answer(question)

        Deferred.fromCoroutine(forget())

    async def _forget(self, pages: list[Page], *, failed: bool) -> None:
        had_failed = [not failed and any(map(self.failed.has, page)) for page in pages]
        if not failed:
            self.failed.discard(chain.from_iterable(pages))
        answers = [self.marks.forget_many(page) for page in pages]
        # Whether a page that has failed was marked at all, only the answer tells.
        asked = zip(pages, answers, strict=True) if failed else ()
        waiting = [*chain(*(page for page, answer in asked if isinstance(answer, Deferred)))]
        self._failing.update(waiting)
        try:
            for page, had, answer in zip(pages, had_failed, answers, strict=True):
                was_there = await answer if isinstance(answer, Deferred) else answer
                marks = [*compress(page, was_there)]
                if not failed:
                    self._report.add(stats.FORGOTTEN if marks or had else stats.NOT_FORGOTTEN)
                elif marks:  # the next run fetches it, this one does not
                    self.failed.add(marks)
                    self._report.add(stats.FAILED)
        finally:
            for mark in waiting:  # to subtract a counter takes as long as the other is large
                self._failing[mark] -= 1
                if not self._failing[mark]:
                    del self._failing[mark]
            undecided, self._undecided = self._undecided, []
            for known in undecided:
                known.callback(None)
