"""What a request is: the fingerprint of its page, and what is to be asked about its marks.

A request is a duplicate if all its marks are there; the first one that is missing decides.
:meth:`Questions.about` is that rule. Who answers, and when, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from scrapy_bloom.crawl.redirects import chain_before, note_mark, step_fingerprint, steps_to
from scrapy_bloom.crawl.report import Verdict
from scrapy_bloom.fingerprinter import CanonicalFingerprinter
from scrapy_bloom.settings import MAX_AGE, WINDOW, Settings
from scrapy_bloom.values import read_age

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

NEW, EXEMPT = Verdict.NEW, Verdict.REDIRECT_EXEMPT

Page = tuple[bytes, ...]
"""Marks of one page."""

Question = tuple[bytes, float | None, Verdict]
"""A mark of a request, the greatest age in seconds at which it counts (None for any), and the
verdict on the request if this is the first mark that is missing."""


class Questions:
    """What is asked about the requests of one crawl.

    Any method may raise whatever the project's fingerprinter does.

    :param settings: the project's.

    Attributes:
        fingerprinter: makes the fingerprints.
        made_by: the rules they are made with, as stored with a filter.
        identify: returns the fingerprint of a request's page, and the names of the steps that have
            changed its URL.
        window: for how many seconds a page is seen; None for ever.
    """

    def __init__(self, crawler: Crawler, settings: Settings) -> None:
        theirs = crawler.request_fingerprinter
        self.fingerprinter = CanonicalFingerprinter.wrapping(theirs, settings.rules)
        self.made_by = self.fingerprinter.rules.record()
        self.identify = self.fingerprinter.resolve
        self.window = settings[WINDOW]
        # A step expires before its page does, or a page that is due would be dropped on its way.
        self._step_age = None if self.window is None else self.window / 2

    def about(self, request: Request, fingerprint: bytes) -> Iterator[Question]:
        """Return the questions about a request, in order: if all its marks are there, it is seen.

        Its page comes first. If an earlier request of its redirect chain was for the same page, the
        step in that chain comes next. A request that is not a GET takes its mark along, for those
        that redirects make of it.

        :param fingerprint: of its page.
        :raises SettingError: if its ``bloom_max_age`` is invalid.
        """
        meta = request.meta
        if request.method != "GET":
            note_mark(request, fingerprint)
        max_age = self._max_age(request) if MAX_AGE in meta else None
        page = fingerprint, max_age, NEW
        if meta.get("redirect_urls"):
            return chain((page,), self._steps(request, fingerprint, max_age))
        return iter((page,))  # a generator would take a tenth of a check

    def _steps(self, request: Request, page: bytes, max_age: float | None) -> Iterator[Question]:
        before = chain_before(request, self.fingerprinter.fingerprint)
        if any(mark == page for _, mark in before):
            step = step_fingerprint(len(request.meta["redirect_urls"]), page)
            yield step, self._step_age if max_age is None else max_age, EXEMPT

    def _max_age(self, request: Request) -> float | None:
        """Return the maximum age that a request sets, in seconds; None if it sets none.

        It is half of that after a redirect: the page that redirected here was let through a little
        earlier than this one, so this one would be dropped when that one is due. Not 0, because
        links that inherit ``response.meta`` look like redirects, and would never be dropped.
        """
        wish = request.meta[MAX_AGE]
        if wish is None:
            return None
        seconds = read_age(f"meta[{MAX_AGE!r}]", wish)
        if self.window is not None:
            seconds = min(seconds, self.window)
        return seconds / 2 if "redirect_urls" in request.meta else seconds

    # What is forgotten together

    def page_of(self, request: Request) -> Page:
        """Return all marks of a page: its own, its steps, and those of pages that led to it."""
        fingerprint, _ = self.identify(request)
        step = len(request.meta.get("redirect_urls", ()))
        last = (step_fingerprint(step, fingerprint),) if step else ()
        before = self.marks_before(request)
        return (*dict.fromkeys((fingerprint, *last, *steps_to(fingerprint), *before)),)

    def marks_before(self, request: Request) -> Iterator[bytes]:
        """Yield the marks of the pages that redirected to a request, and of these redirects."""
        for step, mark in chain_before(request, self.fingerprinter.fingerprint):
            yield mark
            if step:
                yield step_fingerprint(step, mark)
