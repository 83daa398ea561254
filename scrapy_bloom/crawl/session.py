"""What is asked about each request of a crawl: its fingerprint, its verdict, and what to forget.

A request is a duplicate if all its marks are there. :meth:`Session.questions` is that rule: whoever
knows marks, the local filter at once or a worker of Redis later, loops over the same questions, and
the first mark that is missing decides.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, compress
from math import inf
from typing import TYPE_CHECKING, Protocol

from scrapy_bloom import stats
from scrapy_bloom.crawl.engine import watch_downloader
from scrapy_bloom.crawl.redirects import (
    MOST_DROPPED,
    chain_before,
    keep_filtered,
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


class Filter(Protocol):
    """Decides which pages were seen. Any method may raise anything."""

    def add(self, fingerprint: bytes) -> bool:
        """Add a fingerprint; return whether it was there."""

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this let it through in the last `max_age` seconds; if not, add it."""

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether a fingerprint is there."""

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make fingerprints eligible again; return for each whether it was there."""


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
    """Identifies the requests of one crawl, and judges them by what a filter says.

    Deciding on a request never raises: if a check fails, the verdict is ``ERROR``, and the page is
    fetched, perhaps twice, but never lost.

    :param settings: the project's.
    :param report: writes to stats and log.

    Attributes:
        fingerprinter: makes the fingerprints.
        made_by: the rules they are made with, as stored with a filter.
        identify: returns the fingerprint of a request's page, and the names of the steps that have
            changed its URL. Raises whatever the project's fingerprinter does.
        filter: the filter to ask; set once it is open, and never by a frontier in Redis, which
            asks in its own time.
        failed: marks of failed pages, forgotten by the filter and still seen in this run.
    """

    filter: Filter

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
        # Dropped redirects: the mark of their target, and those of the pages on the way.
        self._dropped: deque[tuple[bytes, Page]] = deque(maxlen=MOST_DROPPED)
        watch_downloader(crawler, keep_filtered)

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

    def check(self, request: Request) -> Verdict:
        """Return the verdict on a request, and mark it."""
        verdict = SEEN
        try:
            page, steps = self.identify(request)
            for fingerprint, max_age, if_missing in self.questions(request, page):
                if not self._seen(fingerprint, max_age):
                    verdict = if_missing
                    break
            if verdict is SEEN and (dropped := self.note_dropped(request, page)):
                self._forget(dropped, failed=True)
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            return self.fail(request, error)
        self._report.count(verdict, steps)
        return verdict

    def _seen(self, fingerprint: bytes, max_age: float | None) -> bool:
        if self.failed and self.failed.has(fingerprint, max_age):
            return True
        if max_age is None:
            return self.filter.add(fingerprint)
        return self.filter.add_aged(fingerprint, max_age)

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

    def forgotten(self, page: Page, marked: Iterable[bool], *, failed: bool) -> None:
        """Count a forgotten page.

        :param page: its marks.
        :param marked: for each of them whether it was there.
        :param failed: whether its request has failed: it stays seen in this run.
        """
        marks = [*compress(page, marked)]
        if failed:
            self.failed.add(marks)
            if marks:
                self._report.add(stats.FAILED)
        else:
            known = bool(marks) or any(map(self.failed.has, page))
            self.failed.discard(page)
            self._report.add(stats.FORGOTTEN if known else stats.NOT_FORGOTTEN)

    def forget(self, request: Request, failed: bool = False) -> bool:  # noqa: FBT001, FBT002 - a signal
        """Make the page of a request eligible again: at once, or in the next run if it has failed.

        Pages that redirected to it are forgotten as well, even if those redirects were dropped.

        :returns: whether it was known.
        """
        try:
            page = self.page_of(request)
            known = any(self.failed.has(mark) or mark in self.filter for mark in page)
            self._forget(page, failed=failed)
        except Exception as error:  # noqa: BLE001 - raising in a callback would lose its items
            self._report.not_forgotten(request, error)
            return False
        return known

    def withdraw(self, request: Request) -> bool:
        """Make the page of a request eligible again: it was new, but the scheduler lost it.

        The pages that redirected to it are forgotten as well: only they lead to it.

        :returns: whether that worked.
        """
        try:
            known = [
                marked
                for pages in self.following(self.page_of(request))
                for page in pages
                for marked in self.filter.forget_many(page)
            ]
            self._report.add(stats.WITHDRAWN, int(known[0]))
        except Exception as error:  # noqa: BLE001 - the crawl continues without
            self._report.check_failed(request, error)
            return False
        return True

    def _forget(self, page: Page, *, failed: bool) -> None:
        for pages in self.following(page):
            for each in pages:
                self.forgotten(each, self.filter.forget_many(each), failed=failed)

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
