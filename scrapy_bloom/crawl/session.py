"""What is asked about each request of a crawl: its fingerprint, its verdict, and what to forget.

A request is a duplicate if all its marks are there: the first that is missing decides. Whoever
knows marks may answer at once, as a local filter does, or later, as Redis does.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, compress
from math import inf
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.crawl.backend import Unstorable
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.crawl.redirects import (
    MOST_DROPPED,
    chain_before,
    note_mark,
    step_fingerprint,
    steps_to,
)
from scrapy_bloom.crawl.report import Report, Verdict
from scrapy_bloom.errors import BloomError, SettingError
from scrapy_bloom.fingerprinter import CanonicalFingerprinter
from scrapy_bloom.settings import MAX_AGE, WINDOW, Settings
from scrapy_bloom.values import read_age

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler


NEW, SEEN, EXEMPT, ERROR = Verdict  # a global is faster to look up than an enum member

Page = tuple[bytes, ...]
"""Marks of one page."""

Question = tuple[bytes, float | None, Verdict]
"""A mark of a request, the greatest age in seconds at which it counts (None for any), and the
verdict on the request if this is the first mark that is missing."""


Ask = Callable[[bytes, float | None], "bool | Deferred[bool]"]
"""Adds a mark; returns whether it was there, at most so many seconds old."""


class Marks(Protocol):
    """Marks that can be forgotten. Any method may raise anything."""

    def __contains__(self, mark: bytes, /) -> bool:
        """Return whether a mark is there, as far as is known."""

    def forget_many(self, marks: Page, /) -> list[bool] | Deferred[list[bool]]:
        """Make marks new again; return for each whether it was there."""


class Filter(Marks, Protocol):
    """Decides at once which pages were seen, for another scheduler."""

    def add(self, fingerprint: bytes) -> bool:
        """Add a fingerprint; return whether it was there."""

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this let it through in the last `max_age` seconds; if not, add it."""


def adding_to(filter_: Filter) -> Ask:
    """Return what asks a filter that answers at once."""
    add, add_aged = filter_.add, filter_.add_aged
    return lambda mark, max_age: add(mark) if max_age is None else add_aged(mark, max_age)


class Recent(dict[bytes, float]):
    """Marks that this run remembers itself, each with when it was added, by ``time.time()``.

    :param window: for how many seconds; None for no limit.
    """

    def __init__(self, window: float | None) -> None:
        super().__init__()
        self._window = inf if window is None else window

    def has(self, mark: bytes, max_age: float | None = None) -> bool:
        """Return whether a mark was added less than `max_age`, or the window, seconds ago."""
        since = self.get(mark)
        if since is None:
            return False
        return time.time() - since < (self._window if max_age is None else max_age)

    def add(self, marks: Collection[bytes]) -> None:
        """Add marks."""
        self.discard(marks)  # so that the oldest stay first
        now = time.time()
        self.update(dict.fromkeys(marks, now))
        while self and now - next(iter(self.values())) >= self._window:
            del self[next(iter(self))]

    def discard(self, marks: Iterable[bytes]) -> None:
        """Remove marks, if present."""
        for mark in marks:
            self.pop(mark, None)


class Session:
    """Identifies the requests of one crawl, and judges them by what is marked.

    Deciding on a request never raises: if a check fails, the verdict is ``ERROR``, and the page is
    fetched, perhaps twice, but never lost.

    :param settings: the project's.
    :param report: writes to stats and log.

    Attributes:
        fingerprinter: makes the fingerprints.
        made_by: the rules they are made with, as stored with a filter.
        identify: returns the fingerprint of a request's page, and the names of the steps that have
            changed its URL. Raises whatever the project's fingerprinter does.
        marks: what can be forgotten; set once it is open.
        failed: marks of failed pages, forgotten there and still seen in this run.
        ledger: what has no answer yet.
    """

    marks: Marks

    def __init__(self, crawler: Crawler, settings: Settings, report: Report) -> None:
        theirs = crawler.request_fingerprinter
        self.fingerprinter = CanonicalFingerprinter.wrapping(theirs, settings.rules)
        self.made_by = self.fingerprinter.rules.record()
        self.identify = self.fingerprinter.resolve
        self._window = settings[WINDOW]
        # A step expires before its page does, or a page that is due would be dropped on its way.
        self._step_age = None if self._window is None else self._window / 2
        self._report = report
        self.failed = Recent(self._window)
        self.ledger = Ledger()
        self._failing: Counter[bytes] = Counter()  # marks of failed pages, if they are marked
        self._undecided: list[Deferred[None]] = []  # fire when some of these are known
        # Dropped redirects: the mark of their target, and those of the pages on the way.
        self._dropped: deque[tuple[bytes, Page]] = deque(maxlen=MOST_DROPPED)

    def questions(self, request: Request, fingerprint: bytes) -> Iterable[Question]:
        """Return the questions about a request, in order: if all its marks are there, it is seen.

        Its page comes first. If an earlier request of its redirect chain was for the same page, the
        step in that chain comes next. Iterating raises whatever the fingerprinter does. A request
        that is not a GET takes its mark along, for those that redirects make of it.

        :param fingerprint: of its page.
        """
        meta = request.meta
        if request.method != "GET":
            note_mark(request, fingerprint)
        max_age = self._max_age(request) if MAX_AGE in meta else None
        page = fingerprint, max_age, NEW
        if meta.get("redirect_urls"):
            return chain((page,), self._steps(request, fingerprint, max_age))
        return (page,)  # a generator would take a tenth of a check

    def _steps(self, request: Request, page: bytes, max_age: float | None) -> Iterator[Question]:
        before = chain_before(request, self.fingerprinter.fingerprint)
        if any(mark == page for _, mark in before):
            step = step_fingerprint(len(request.meta["redirect_urls"]), page)
            yield step, self._step_age if max_age is None else max_age, EXEMPT

    def check(self, request: Request, ask: Ask) -> Verdict | Deferred[Verdict]:
        """Return the verdict on a request, and mark it.

        :raises Unstorable: if it is new, and `ask` says so.
        """
        try:
            page, steps = self.identify(request)
            questions = iter(self.questions(request, page))
            for mark, max_age, if_missing in questions:
                rare = self.failed or self._failing
                seen = self._ask(mark, max_age, ask) if rare else ask(mark, max_age)
                if seen is True:
                    continue
                if seen is False:
                    self._report.count(if_missing, steps)
                    return if_missing
                later = self._check_later(request, page, steps, seen, if_missing, questions, ask)
                return Deferred.fromCoroutine(later)
            return self._drop(request, page, steps)
        except Unstorable:
            self._report.count(if_missing, steps)
            raise
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            return self.fail(request, error)

    async def _check_later(
        self,
        request: Request,
        page: bytes,
        steps: tuple[str, ...],
        seen: Deferred[bool],
        verdict: Verdict,
        questions: Iterator[Question],
        ask: Ask,
    ) -> Verdict:
        """Go on with a check when its first question that waits is answered."""
        try:
            was_there = await seen
            while was_there:
                question = next(questions, None)
                if question is None:
                    return self._drop(request, page, steps)
                mark, max_age, verdict = question
                answer = self._ask(mark, max_age, ask)
                was_there = answer if isinstance(answer, bool) else await answer
        except Unstorable:
            self._report.count(verdict, steps)
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return self.fail(request, error)
        self._report.count(verdict, steps)
        return verdict

    def _ask(self, mark: bytes, max_age: float | None, ask: Ask) -> bool | Deferred[bool]:
        """Ask a question; what has failed in this run is seen, although it is forgotten."""
        if self.failed.has(mark, max_age):
            return True
        if mark in self._failing:
            return Deferred.fromCoroutine(self._ask_once_known(mark, max_age, ask))
        return ask(mark, max_age)

    async def _ask_once_known(self, mark: bytes, max_age: float | None, ask: Ask) -> bool:
        while mark in self._failing:
            self._undecided.append(known := Deferred[None]())
            await known
        seen = self._ask(mark, max_age, ask)
        return seen if isinstance(seen, bool) else await seen

    def _drop(self, request: Request, page: bytes, steps: tuple[str, ...]) -> Verdict:
        """Return the verdict on a request whose marks are all there."""
        if dropped := self.note_dropped(request, page):
            self._begin_to_forget(request, dropped, failed=True)
        self._report.count(SEEN, steps)
        return SEEN

    def fail(self, request: Request, error: Exception) -> Verdict:
        """Return the verdict on a request that could not be checked; log and count it."""
        if isinstance(error, BloomError) and not isinstance(error, SettingError):  # of the filter
            self._report.give_up(error)
        else:
            self._report.check_failed(request, error)
        self._report.count(ERROR)
        return ERROR

    # Forgetting

    def marks_of(self, request: Request) -> Page:
        """Return the mark of a page and, if a redirect led to it, the mark of that redirect step.

        Raises whatever the fingerprinter does.
        """
        fingerprint, _ = self.identify(request)
        step = len(request.meta.get("redirect_urls", ()))
        return (fingerprint, step_fingerprint(step, fingerprint)) if step else (fingerprint,)

    def page_of(self, request: Request) -> Page:
        """Return all marks of a page: its own, its steps, and those of pages that led to it.

        Raises whatever the fingerprinter does.
        """
        marks = self.marks_of(request)
        return (*dict.fromkeys((*marks, *steps_to(marks[0]), *self._marks_before(request))),)

    def note_dropped(self, request: Request, target: bytes) -> Page:
        """Record that a request was dropped as seen; return the marks that have failed with it.

        A page that was redirected to a failed one has failed as well.

        :param target: the fingerprint of its page.
        """
        if not request.meta.get("redirect_urls"):
            return ()
        before = dict.fromkeys(self._marks_before(request))
        page = tuple(each for each in before if each != target and not self.failed.has(each))
        if page and self.failed.has(target):
            return page
        if page:
            self._dropped.append((target, page))
        return ()

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

    def forget(self, request: Request, failed: bool = False) -> bool:  # noqa: FBT001, FBT002 - a signal
        """Make the page of a request eligible again: at once, or in the next run if it has failed.

        Pages that redirected to it are forgotten as well, even if those redirects were dropped.

        :returns: whether it was known.
        """
        try:
            page = self.page_of(request)
            known = any(self.failed.has(mark) or mark in self.marks for mark in page)
        except Exception as error:  # noqa: BLE001 - raising in a callback would lose its items
            self._report.not_forgotten(request, error)
            return False
        self._begin_to_forget(request, page, failed=failed)
        return known

    def withdraw(self, request: Request) -> None:
        """Make the page of a request eligible again: it was new, but the scheduler lost it.

        The pages that redirected to it are forgotten as well: only they lead to it.
        """
        try:
            known = [
                marked
                for pages in self.following(self.page_of(request))
                for page in pages
                for marked in self._forgotten_at_once(page)
            ]
            self._report.add(stats.WITHDRAWN, int(known[0]))
        except Exception as error:  # noqa: BLE001 - the crawl continues without
            self._report.check_failed(request, error)

    def _forgotten_at_once(self, page: Page) -> list[bool]:
        answer = self.marks.forget_many(page)
        assert isinstance(answer, list)  # noqa: S101 - that of another scheduler's filter is
        return answer

    def _begin_to_forget(self, request: Request, page: Page, *, failed: bool) -> None:
        async def forget() -> None:
            try:
                await self._forget(page, failed=failed)
            except Exception as error:  # noqa: BLE001 - raising in a callback would lose its items
                self._report.not_forgotten(request, error)

        Deferred.fromCoroutine(forget())

    async def _forget(self, page: Page, *, failed: bool) -> None:
        """Forget a page, and those that follow it; no page in flight is done before that."""
        question, failing = self.ledger.ask(), self._failing
        try:
            for pages in self.following(page):
                had_failed = [not failed and any(map(self.failed.has, each)) for each in pages]
                if not failed:
                    self.failed.discard(mark for each in pages for mark in each)
                answers = [self.marks.forget_many(each) for each in pages]
                asked = [*zip(pages, answers, strict=True)] if failed else []
                waiting = [*chain(*(each for each, now in asked if isinstance(now, Deferred)))]
                failing.update(waiting)
                for each, had, answer in zip(pages, had_failed, answers, strict=True):
                    marked = await answer if isinstance(answer, Deferred) else answer
                    self._forgotten(each, [*compress(each, marked)], failed=failed, had_failed=had)
                for mark in waiting:  # to subtract a counter takes as long as the other is large
                    failing[mark] -= 1
                    if not failing[mark]:
                        del failing[mark]
        finally:
            self.ledger.answer(question)
            undecided, self._undecided = self._undecided, []
            for known in undecided:
                known.callback(None)

    def _forgotten(self, page: Page, marks: list[bytes], *, failed: bool, had_failed: bool) -> None:
        """Count a forgotten page.

        :param marks: those that were there.
        :param failed: whether its request has failed: it stays seen in this run.
        :param had_failed: whether it had failed before.
        """
        if failed:
            self.failed.add(marks)
            if marks:
                self._report.add(stats.FAILED)
        else:
            self.failed.discard(page)
            known = bool(marks) or had_failed
            self._report.add(stats.FORGOTTEN if known else stats.NOT_FORGOTTEN)

    def _marks_before(self, request: Request) -> Iterator[bytes]:
        for step, mark in chain_before(request, self.fingerprinter.fingerprint):
            yield mark
            if step:
                yield step_fingerprint(step, mark)

    def _max_age(self, request: Request) -> float | None:
        """Return the maximum age that a request sets, in seconds; None if it sets none.

        It is half of that after a redirect: the page that redirected here was let through a little
        earlier than this one, so this one would be dropped when that one is due. Not 0, because
        links that inherit ``response.meta`` look like redirects, and would never be dropped.

        :raises SettingError: if the value is invalid.
        """
        wish = request.meta[MAX_AGE]
        if wish is None:
            return None
        seconds = read_age(f"meta[{MAX_AGE!r}]", wish)
        if self._window is not None:
            seconds = min(seconds, self._window)
        return seconds / 2 if "redirect_urls" in request.meta else seconds
