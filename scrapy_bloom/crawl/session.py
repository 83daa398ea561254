"""Decides on each request of a crawl: its fingerprint, its verdict, and what to forget."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

from scrapy_bloom import stats
from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.crawl.redirects import (
    MOST_DROPPED,
    chain_before,
    note_mark,
    step_fingerprint,
    steps_to,
)
from scrapy_bloom.crawl.report import Report, Verdict
from scrapy_bloom.errors import BloomError, SettingError
from scrapy_bloom.settings import MAX_AGE, WINDOW, Settings
from scrapy_bloom.values import read_age

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler


NEW, SEEN, EXEMPT, ERROR = Verdict  # a global is faster to look up than an enum member


class Identified(NamedTuple):
    """A request, and what the filter is asked about it.

    Attributes:
        request: the request.
        fingerprint: identifies its page.
        steps: names of the canonicalization steps that changed its URL.
        max_age: seconds after which its page is eligible again; None for never.
        step_age: seconds after which its step in a chain of redirects is let through again;
            likewise.
    """

    request: Request
    fingerprint: bytes
    steps: tuple[str, ...]
    max_age: float | None
    step_age: float | None


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


class Recent:
    """Marks that this run remembers itself, for the length of the window if there is one.

    :param window: in seconds; None for no limit.
    """

    def __init__(self, window: float | None) -> None:
        self._window = inf if window is None else window
        self._since: dict[bytes, float] = {}

    def has(self, mark: bytes, max_age: float | None = None) -> bool:
        """Return whether a mark was added less than `max_age`, or the window, seconds ago."""
        since = self._since.get(mark)
        if since is None:
            return False
        return time.time() - since < (self._window if max_age is None else max_age)

    def update(self, marks: Iterable[bytes]) -> None:
        """Add marks."""
        now = time.time()
        for mark in marks:
            self._since.pop(mark, None)  # so that the oldest stay first
            self._since[mark] = now
        while self._since and now - next(iter(self._since.values())) >= self._window:
            del self._since[next(iter(self._since))]

    def discard(self, marks: Iterable[bytes]) -> None:
        """Remove marks, if present."""
        for mark in marks:
            self._since.pop(mark, None)

    def clear(self) -> None:
        """Remove all marks."""
        self._since.clear()


class Session:
    """Identifies the requests of one crawl, and judges them by what a filter says.

    Deciding on a request never raises: if a check fails, the verdict is ``ERROR``, and the page is
    fetched, perhaps twice, but never lost.

    :param settings: the project's.
    :param report: writes to stats and log.

    Attributes:
        fingerprinter: makes the fingerprints.
        made_by: the rules they are made with, as stored with a filter.
        filter: the filter to ask; set once it is open.
        failed: marks of failed pages, forgotten by the filter and still seen in this run.
    """

    filter: Filter

    def __init__(self, crawler: Crawler, settings: Settings, report: Report) -> None:
        theirs = crawler.request_fingerprinter
        self.fingerprinter = CanonicalFingerprinter.wrapping(theirs, settings.rules)
        self.made_by = self.fingerprinter.rules.record()
        self._resolve = self.fingerprinter.resolve
        self._window = settings[WINDOW]
        # A step expires before its page does, or a page that is due would be dropped on its way.
        self._step_age = None if self._window is None else self._window / 2
        self._report = report
        self.failed = Recent(self._window)
        # Dropped redirects: the mark of their target, and those of the pages on the way.
        self._dropped: deque[tuple[bytes, tuple[bytes, ...]]] = deque(maxlen=MOST_DROPPED)

    def identify(self, request: Request) -> Identified | None:
        """Return what to ask the filter about a request.

        None if that fails: the verdict is then ``ERROR``, which has been counted.
        """
        try:
            fingerprint, steps = self._resolve(request)
            if request.method != "GET":
                note_mark(request, fingerprint)
            max_age = self._max_age(request) if MAX_AGE in request.meta else None
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            self.fail(request, error)
            return None
        step_age = self._step_age if max_age is None else max_age
        return Identified(request, fingerprint, steps, max_age, step_age)

    def step_of(self, found: Identified) -> bytes | None:
        """Return what to ask next about a seen request: its step in its redirect chain.

        None unless an earlier request of that chain was for the same page. Raises whatever the
        fingerprinter does.
        """
        request, fingerprint = found.request, found.fingerprint
        if not request.meta.get("redirect_urls"):
            return None
        before = chain_before(request, self.fingerprinter.fingerprint)
        if any(mark == fingerprint for _, mark in before):
            return step_fingerprint(len(request.meta["redirect_urls"]), fingerprint)
        return None

    def judge(self, found: Identified, *, seen: bool, step: bool = False) -> Verdict:
        """Return the verdict on a request, and count it.

        :param seen: the filter's last answer.
        :param step: whether that answer was about :meth:`step_of`.
        """
        for name in found.steps:
            self._report.add_step(name)
        verdict = SEEN if seen else EXEMPT if step else NEW
        self._report.count(verdict)
        return verdict

    def check(self, request: Request, *, mark: bool = True) -> Verdict:
        """Return the verdict on a request.

        :param mark: whether to mark it; if not, a request with a maximum age counts as new.
        """
        found = self.identify(request)
        if found is None:
            return ERROR
        step = None
        try:
            seen = self._seen(found.fingerprint, found.max_age, mark=mark)
            if seen and (step := self.step_of(found)) is not None:
                seen = self._seen(step, found.step_age, mark=mark)
            if seen and mark and (chains := self.note_dropped(found)):
                self._forget(chains, failed=True)
        except Exception as error:  # noqa: BLE001 - raising would lose the page
            return self.fail(request, error)
        return self.judge(found, seen=seen, step=step is not None)

    def _seen(self, fingerprint: bytes, max_age: float | None, *, mark: bool) -> bool:
        if self.failed.has(fingerprint, max_age):
            return True
        if not mark:
            return max_age is None and fingerprint in self.filter
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

    def marks_of(self, request: Request) -> tuple[bytes, ...]:
        """Return the mark of a page and, if a redirect led to it, the mark of that redirect step.

        Raises whatever the fingerprinter does.
        """
        fingerprint, _ = self._resolve(request)
        step = len(request.meta.get("redirect_urls", ()))
        return (fingerprint, step_fingerprint(step, fingerprint)) if step else (fingerprint,)

    def page_of(self, request: Request) -> tuple[bytes, ...]:
        """Return all marks of a page: its own, its steps, and those of pages that led to it.

        Raises whatever the fingerprinter does.
        """
        marks = self.marks_of(request)
        return (*dict.fromkeys((*marks, *steps_to(marks[0]), *self._marks_before(request))),)

    def note_dropped(self, found: Identified) -> list[tuple[bytes, ...]]:
        """Record that a request was dropped as seen; return the pages that have failed with it.

        A page that was redirected to a failed one has failed as well.
        """
        if not found.request.meta.get("redirect_urls"):
            return []
        target, before = found.fingerprint, self._marks_before(found.request)
        page = tuple(each for each in before if each != target and not self.failed.has(each))
        if page and self.failed.has(target):
            return [page]
        if page:
            self._dropped.append((target, page))
        return []

    def forgotten(
        self, page: Sequence[bytes], there: Iterable[bool], *, failed: bool
    ) -> list[tuple[bytes, ...]]:
        """Count a forgotten page; return the pages to forget with it.

        These were dropped when they redirected to it.

        :param page: its marks.
        :param there: for each of them whether it was marked.
        :param failed: whether its request has failed: it stays seen in this run.
        """
        marked = [mark for mark, was in zip(page, there, strict=True) if was]
        if failed:
            self.failed.update(marked)
            if marked:
                self._report.add(stats.FAILED)
        else:
            known = bool(marked) or any(map(self.failed.has, page))
            self.failed.discard(page)
            self._report.add(stats.FORGOTTEN if known else stats.NOT_FORGOTTEN)
        return self._pop_dropped(page)

    def forget(self, request: Request, failed: bool = False) -> bool:  # noqa: FBT001, FBT002 - a signal
        """Make the page of a request eligible again: at once, or in the next run if it has failed.

        Pages that redirected to it are forgotten as well, even if those redirects were dropped.

        :returns: whether it was known.
        """
        try:
            page = self.page_of(request)
            known = any(self.failed.has(mark) or mark in self.filter for mark in page)
            self._forget([page], failed=failed)
        except Exception as error:  # noqa: BLE001 - raising in a callback would lose its items
            self._report.not_forgotten(request, error)
            return False
        return known

    def withdraw(self, request: Request) -> None:
        """Make the page of a request eligible again: it was new, but the scheduler lost it.

        The pages that redirected to it are forgotten as well: only they lead to it.
        """
        try:
            pages = [self.page_of(request)]
            known: list[bool] = []
            while pages:
                page = pages.pop(0)
                known += self.filter.forget_many(page)
                pages += self._pop_dropped(page)
            self._report.add(stats.WITHDRAWN, int(known[0]))
        except Exception as error:  # noqa: BLE001 - the crawl continues without
            self._report.check_failed(request, error)

    def _forget(self, pages: list[tuple[bytes, ...]], *, failed: bool) -> None:
        while pages:
            page = pages.pop(0)
            pages += self.forgotten(page, self.filter.forget_many(page), failed=failed)

    def _pop_dropped(self, page: Sequence[bytes]) -> list[tuple[bytes, ...]]:
        """Return the marks of each chain that was dropped on its way to a page; drop the record."""
        led_here = [chain for chain in self._dropped if chain[0] in page]
        for chain in led_here:
            self._dropped.remove(chain)
        return [marks for _, marks in led_here]

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
