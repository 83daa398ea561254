"""Which pages wait for others: for what is only in memory, and for where they were redirected.

Many pages may redirect to one login or error page. The first redirect marks it, and those that come
before its response are dropped as seen. If that page fails, its mark is forgotten, and the request
that was redirected first is listed. The others would be done, although nobody has parsed them. So
they wait for it and fail with it, as does a page whose link leads to what is only in memory.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.crawl.page import Event, Page

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.crawl.identity import Identifier

MOST: Final = 10_000
"""Targets that any worker may take; beyond that, nothing waits for the oldest any more."""


class Waits:
    """By their marks, the pages for which others wait, which were dropped as duplicates of them.

    A target is a retry or redirect that was stored, until the backend has heard how it ended: its
    mark is there until then, although it may have failed. What is only in memory is here until it
    is done, or eligible again.

    :param identifier: says what a request is.
    :param shared: whether other workers may take what was stored here.
    """

    def __init__(self, identifier: Identifier, *, shared: bool) -> None:
        self._identifier = identifier
        self._most = MOST if shared else inf  # how many targets may be expected
        self._targets: dict[bytes, Page] = {}
        self._in_memory: dict[bytes, list[Page]] = {}
        self._told: list[Page] = []

    def __bool__(self) -> bool:
        """Return whether a page may have to wait because its link is a duplicate."""
        return bool(self._targets or self._in_memory)

    def note_duplicate(self, mark: bytes, pages: tuple[Page, ...], *, even_if_queued: bool) -> None:
        """Let pages that may have yielded a duplicate wait for what it duplicates, if they must.

        For what is in memory only the stored ones wait: those in memory wait for nothing but what
        they have yielded. But if it has failed already, these fail, too: a page that is done is
        never asked again what it led to.

        :param even_if_queued: whether also for a target that nobody here has taken: it may be long
            until its turn comes.
        """
        target = self._targets.get(mark)
        # The mark of a page that is only retried stays: if that fails, it is listed itself.
        if target is not None and mark in target.way:
            for page in pages if even_if_queued or target.taken is not None else ():
                hold_up(page, target)
        for held in self._in_memory.get(mark, ()):
            if held.has_ended:
                for page in pages:
                    hold_up(page, held)
            for page in stored_among([*pages]) - held.roots:
                hold_up(page, held)
                held.roots |= {page}

    # What is in memory

    def keep(self, page: Page) -> None:
        """Add a page that is only in memory."""
        page.roots = stored_among(page.waiters)
        if page.mark is not None:
            self._in_memory.setdefault(page.mark, []).append(page)

    def drop(self, mark: bytes, page: Page) -> None:
        """Remove a page that was only in memory."""
        self._in_memory[mark].remove(page)
        if not self._in_memory[mark]:
            del self._in_memory[mark]

    # Targets

    def expect(self, request: Request, origin: Page) -> list[Page]:
        """Note that a request was stored that stands for a page: what waits for that waits on.

        May raise whatever the project's fingerprinter does.

        :returns: the pages that wait no more, as there are too many targets.
        """
        target = self._target_of(request)
        if origin.taken is not None:
            target.waiters += origin.waiters
            origin.waiters = []
        return self._let_go([next(iter(self._targets))]) if len(self._targets) > self._most else []

    def start(self, request: Request, taken: Any) -> Page:
        """Return the page of a retry or redirect that was taken. May raise what `expect` does."""
        target = self._target_of(request)
        target.taken = taken
        return target

    def leads_to_one_in_flight(self, link: Request) -> bool:
        """Return whether a request leads to a target that is in flight."""
        if self._targets:
            with suppress(Exception):  # the project's fingerprinter
                target = self._targets.get(self._identifier.identify(link))
                return target is not None and target.taken is not None
        return False

    def tell(self, page: Page) -> None:
        """Note that the backend is told how a page has ended."""
        if page.way or page.mark in self._targets:
            self._told.append(page)

    def heard(self) -> None:
        """Note that the backend knows all that it was told: what has failed is forgotten by now."""
        for page in self._told:
            for mark in page.way if page.mark is None else (*page.way, page.mark):
                if self._targets.get(mark) is page:
                    del self._targets[mark]
        self._told = []

    def let_go(self) -> list[Page]:
        """Return all pages that wait: nothing is in flight here, and others may have the targets.

        How these end is not known here.
        """
        return self._let_go([*self._targets])

    def _let_go(self, marks: list[bytes]) -> list[Page]:
        pages = []
        for target in map(self._targets.pop, marks):
            if not target.has_ended:
                pages += target.waiters
                target.waiters = []
        return pages

    def _target_of(self, request: Request) -> Page:
        """Return the page that is expected of a request, or a new one."""
        mark = self._identifier.identify(request)
        before = self._identifier.before(request)
        target = self._targets.get(mark)
        if target is None or target.taken is not None:
            target = Page()
        target.mark = mark
        target.way = (*({*before, mark} - {before[0]}),) if before else ()
        for each in {*target.way, mark}:
            earlier = self._targets.pop(each, target)  # so that the oldest stay first
            if earlier.taken is None and earlier is not target:  # another worker has redirected it
                target.waiters += earlier.waiters
                earlier.waiters = []
            self._targets[each] = target
        return target


def hold_up(page: Page, until: Page) -> None:
    """Let a page end only after another one, and fail with it, unless that waits for it.

    One that has ended waits no more. If that other one has, it fails at once if that has failed.
    """
    if until.has_ended:
        if until.has_failed:
            page.note(Event.FAILED, until.reason)
    elif page.awaits and until not in waiting_for(page):
        page.hold()
        until.waiters.append(page)


def waiting_for(page: Page) -> set[Page]:
    """Return a page with those that cannot end before it."""
    stack, found = [page], set[Page]()
    while stack:
        each = stack.pop()
        if each not in found:
            found.add(each)
            stack += each.waiters
    return found


def stored_among(pages: list[Page]) -> frozenset[Page]:
    """Return the stored pages among these, and the roots of the others.

    Those of a single one are shared and not copied, as a chain of pages in memory may be long.
    """
    if len(pages) == 1:
        (page,) = pages
        return page.roots if page.taken is None else frozenset(pages)
    return frozenset[Page]().union(*(stored_among([page]) for page in pages))
