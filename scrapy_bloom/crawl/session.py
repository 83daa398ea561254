"""Decides about each request of a crawl: its fingerprint, its verdict, and what to forget."""

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
)
from scrapy_bloom.crawl.report import Report, Verdict
from scrapy_bloom.errors import BloomError, SettingError
from scrapy_bloom.options import (
    MAX_AGE,
    WINDOW,
    read_age,
)
from scrapy_bloom.settings import Settings

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler


NEW, SEEN, EXEMPT, ERROR = Verdict  # looking up a global is faster than a member of the enum


class Identified(NamedTuple):
    """A request, and what the filter is asked about it.

    Attributes:
        request: the request.
        fingerprint: stands for its page.
        steps: names of the steps of canonicalization that changed its URL.
        max_age: seconds after which its page is eligible again; None for never.
    """

    request: Request
    fingerprint: bytes
    steps: tuple[str, ...]
    max_age: float | None


class Filter(Protocol):
    """What decides which pages were seen. Every method may raise what it will."""

    def add(self, fingerprint: bytes) -> bool:
        """Add a fingerprint; return whether it was there."""

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this let a fingerprint through lately; if not, add it."""

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether a fingerprint is there."""

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make fingerprints eligible again; return for each whether it was there."""


class Recent:
    """Marks that this run remembers by itself: for a window, if there is one.

    :param window: in seconds; None for ever.
    """

    def __init__(self, window: float | None) -> None:
        self._window = inf if window is None else window
        self._since: dict[bytes, float] = {}

    def has(self, mark: bytes, max_age: float | None = None) -> bool:
        """Return whether a mark was added less than the window ago, and than `max_age` seconds."""
        since = self._since.get(mark)
        if since is None:
            return False
        return time.time() - since < (self._window if max_age is None else max_age)

    def update(self, marks: Iterable[bytes]) -> None:
        """Add marks."""
        self._since.update(dict.fromkeys(marks, time.time()))

    def discard(self, marks: Iterable[bytes]) -> None:
        """Remove marks, if they are there."""
        for mark in marks:
            self._since.pop(mark, None)

    def clear(self) -> None:
        """Remove all marks."""
        self._since.clear()


class Session:
    """Identifies the requests of one crawl, and judges them by what a filter says.

    Nothing that decides about a request raises: if a check fails, its verdict is ``ERROR``, and the
    page is fetched, perhaps twice, but never lost.

    :param settings: the project's.
    :param report: writes to stats and log.

    Attributes:
        fingerprinter: makes the fingerprints.
        made_by: how they are made, in the form that is stored with a filter.
        filter: what is asked; who opens it puts it here.
    """

    filter: Filter

    def __init__(self, crawler: Crawler, settings: Settings, report: Report) -> None:
        theirs = crawler.request_fingerprinter
        self.fingerprinter = CanonicalFingerprinter.wrapping(theirs, settings.rules)
        self.made_by = self.fingerprinter.rules.record()
        self._resolve = self.fingerprinter.resolve
        self._window = settings[WINDOW]
        self._report = report
        self._failed = Recent(self._window)  # the filter has forgotten them, and this run has not
        # Of redirects that were dropped: where they led, and the marks of the pages on the way.
        self._dropped: deque[tuple[bytes, tuple[bytes, ...]]] = deque(maxlen=MOST_DROPPED)

    def identify(self, request: Request) -> Identified | None:
        """Return what the filter is asked about a request.

        None if that fails: the verdict is ``ERROR`` then, and is counted.
        """
        try:
            fingerprint, steps = self._resolve(request)
            if request.method != "GET":
                note_mark(request, fingerprint)
            max_age = self._max_age(request) if MAX_AGE in request.meta else None
        except Exception as error:  # noqa: BLE001 - raised, it would cost the page
            self.fail(request, error)
            return None
        return Identified(request, fingerprint, steps, max_age)

    def step_of(self, found: Identified) -> bytes | None:
        """Return what to ask next about a request that was seen: its step in a chain of redirects.

        None if it does not continue a chain that began with the same page. Raises whatever the
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

        :param seen: what the filter has said.
        :param step: whether it was asked about :meth:`step_of` in the end.
        """
        for name in found.steps:
            self._report.add_step(name)
        verdict = SEEN if seen else EXEMPT if step else NEW
        self._report.count(verdict)
        return verdict

    def check(self, request: Request, *, mark: bool = True) -> Verdict:
        """Return the verdict on a request.

        :param mark: whether to mark it; if not, one with a maximum age is new.
        """
        found = self.identify(request)
        if found is None:
            return ERROR
        step = None
        try:
            seen = self._seen(found.fingerprint, found.max_age, mark=mark)
            if seen and (step := self.step_of(found)) is not None:
                seen = self._seen(step, None, mark=mark)
            if seen and mark and (chains := self.drop(found)):
                self._forget(chains, failed=True)
        except Exception as error:  # noqa: BLE001 - raised, it would cost the page
            return self.fail(request, error)
        return self.judge(found, seen=seen, step=step is not None)

    def _seen(self, fingerprint: bytes, max_age: float | None, *, mark: bool) -> bool:
        if self._failed.has(fingerprint, max_age):
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
        """Return the mark of a page, and that of its step in a chain of redirects, if it has one.

        Raises whatever the fingerprinter does.
        """
        fingerprint, _ = self._resolve(request)
        step = len(request.meta.get("redirect_urls", ()))
        return (fingerprint, step_fingerprint(step, fingerprint)) if step else (fingerprint,)

    def page_of(self, request: Request) -> tuple[bytes, ...]:
        """Return all marks of a page: :meth:`marks_of`, and of the pages that redirected to it.

        Raises whatever the fingerprinter does.
        """
        return (*self.marks_of(request), *self._marks_before(request))

    def drop(self, found: Identified) -> list[tuple[bytes, ...]]:
        """Learn that a request is dropped as seen; return the pages that have failed with it.

        A page that was redirected to one that has failed has failed as well.
        """
        if not found.request.meta.get("redirect_urls"):
            return []
        target, before = found.fingerprint, self._marks_before(found.request)
        page = tuple(each for each in before if each != target and not self._failed.has(each))
        if page and self._failed.has(target):
            return [page]
        if page:
            self._dropped.append((target, page))
        return []

    def forgotten(
        self, page: Sequence[bytes], there: Iterable[bool], *, failed: bool
    ) -> list[tuple[bytes, ...]]:
        """Count that a page was forgotten; return the pages that are to be forgotten with it.

        These were dropped when they redirected to it.

        :param page: its marks.
        :param there: for each of them whether it was marked.
        :param failed: whether its request has failed: it stays seen in this run.
        """
        marked = [mark for mark, was in zip(page, there, strict=True) if was]
        if failed:
            self._failed.update(marked)
            if marked:
                self._report.add(stats.FAILED)
        else:
            known = bool(marked) or any(map(self._failed.has, page))
            self._failed.discard(page)
            self._report.add(stats.FORGOTTEN if known else stats.NOT_FORGOTTEN)
        led_here = [chain for chain in self._dropped if chain[0] in page]
        for chain in led_here:
            self._dropped.remove(chain)
        return [marks for _, marks in led_here]

    def forget(self, request: Request, failed: bool = False) -> bool:  # noqa: FBT001, FBT002 - a signal
        """Make the page of a request eligible again: at once, or in the next run if it has failed.

        With it go the pages whose redirects have led to it, also where these were dropped.

        :returns: whether it was known.
        """
        try:
            page = self.page_of(request)
            known = any(self._failed.has(mark) or mark in self.filter for mark in page)
            self._forget([page], failed=failed)
        except Exception as error:  # noqa: BLE001 - in a callback it would cost the items
            self._report.not_forgotten(request, error)
            return False
        return known

    def withdraw(self, request: Request) -> None:
        """Make the page of a request eligible again: it was new, and the scheduler has lost it."""
        try:
            there = self.filter.forget_many(self.marks_of(request))
            self._report.add(stats.WITHDRAWN, int(there[0]))
        except Exception as error:  # noqa: BLE001 - the crawl continues without
            self._report.check_failed(request, error)

    def _forget(self, pages: list[tuple[bytes, ...]], *, failed: bool) -> None:
        while pages:
            page = pages.pop(0)
            pages += self.forgotten(page, self.filter.forget_many(page), failed=failed)

    def _marks_before(self, request: Request) -> Iterator[bytes]:
        for step, mark in chain_before(request, self.fingerprinter.fingerprint):
            yield mark
            if step:
                yield step_fingerprint(step, mark)

    def _max_age(self, request: Request) -> float | None:
        """Return the seconds that a request asks for; None if it asks for nothing.

        A redirected request only continues one that was let through, so any age is enough.

        :raises SettingError: if what it asks for cannot be read.
        """
        wish = request.meta[MAX_AGE]
        if wish is None:
            return None
        seconds = read_age(f"meta[{MAX_AGE!r}]", wish)
        if "redirect_urls" in request.meta:
            return 0.0
        return seconds if self._window is None else min(seconds, self._window)
