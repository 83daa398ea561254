"""Where redirects have led: targets that are not done yet, and redirects that were dropped as seen.

Many pages may redirect to one login or error page. The first redirect marks it, and those that come
before its response are dropped as seen. If that page fails, its mark is forgotten, and the request
is listed that was redirected first. The others would be done, although nobody has parsed them.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.crawl.visit import Visit

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy import Request

    from scrapy_bloom.crawl.identity import Identifier, MarkChain

MOST: Final = 10_000
"""Marks of dropped redirects that are remembered, and targets that any worker may take; beyond
that, the oldest is discarded."""


class Targets:
    """The retries and redirects that were stored, until the backend has heard how they ended.

    Pages whose redirects to one were dropped wait for it, and fail with it. Until that is known to
    all, its mark is there although it may have failed.

    :param identifier: says what a request is.
    :param shared: whether other workers may take what was stored here.

    Attributes:
        visits: by their marks, and those of the redirects to them.
    """

    def __init__(self, identifier: Identifier, *, shared: bool) -> None:
        self._identifier = identifier
        self._most = MOST if shared else inf  # how many may be expected
        self.visits: dict[bytes, Visit] = {}

    def expect(self, request: Request, origin: Visit) -> list[Visit]:
        """Note that a request was stored that stands for a page: what waits for that waits on.

        May raise whatever the project's fingerprinter does.

        :returns: the pages that wait no more, as there are too many targets.
        """
        visit = self._visit_of(request)
        if origin.taken is not None:
            visit.parents += origin.parents
            origin.parents = []
        return self._let_go([next(iter(self.visits))]) if len(self.visits) > self._most else []

    def start(self, request: Request, taken: Any) -> Visit:
        """Return the visit of a retry or redirect that was taken. May raise what `expect` does."""
        visit = self._visit_of(request)
        visit.taken = taken
        return visit

    def get(self, mark: bytes, *, in_flight: bool) -> Visit | None:
        """Return the target to which a mark leads, None if there is none.

        :param in_flight: whether only one that was taken will do.
        """
        visit = self.visits.get(mark)
        return visit if visit is None or visit.taken is not None or not in_flight else None

    def has_in_flight(self, link: Request) -> bool:
        """Return whether a request leads to a target that is in flight."""
        with suppress(Exception):  # the project's fingerprinter
            mark, _ = self._identifier.identify(link)
            return self.get(mark, in_flight=True) is not None
        return False

    def release(self, visits: list[Visit]) -> None:
        """Note that the backend has heard of visits: what has failed is forgotten by now."""
        for visit in visits:
            for mark in visit.way if visit.mark is None else (*visit.way, visit.mark):
                if self.visits.get(mark) is visit:
                    del self.visits[mark]

    def let_go(self) -> list[Visit]:
        """Return all pages that wait: nothing is in flight here, and others may have the targets.

        How these end is not known here.
        """
        return self._let_go([*self.visits])

    def _let_go(self, marks: list[bytes]) -> list[Visit]:
        pages = []
        for visit in map(self.visits.pop, marks):
            if visit.waits_for:
                pages += visit.parents
                visit.parents = []
        return pages

    def _visit_of(self, request: Request) -> Visit:
        """Return the visit that is expected of a request, or a new one."""
        mark, _ = self._identifier.identify(request)
        before = self._identifier.before(request)
        visit = self.visits.get(mark)
        if visit is None or visit.taken is not None:
            visit = Visit()
        visit.mark = mark
        visit.way = (*({*before, mark} - {before[0]}),) if before else ()
        for each in {*visit.way, mark}:
            earlier = self.visits.pop(each, visit)  # so that the oldest stay first
            if earlier.taken is None and earlier is not visit:  # another worker has redirected it
                visit.parents += earlier.parents
                earlier.parents = []
            self.visits[each] = visit
        return visit


class Dropped:
    """Redirects that were dropped as seen: whose marks lead where."""

    def __init__(self) -> None:
        # By mark of a page on the way: the target's mark, and the marks of all on the way.
        self._to: dict[bytes, tuple[bytes, MarkChain]] = {}

    def note(self, chain: MarkChain, target: bytes) -> None:
        """Note that the pages of a chain were redirected to one that was seen."""
        for mark in chain:
            self._to.pop(mark, None)  # so that the oldest stay first
            self._to[mark] = target, chain
        while len(self._to) > MOST:
            del self._to[next(iter(self._to))]

    def leads_back(self, chain: MarkChain, target: bytes) -> bool:
        """Return whether a dropped redirect leads to a page whose own was dropped for this chain.

        Nobody parses any of them. Scrapy follows such a circle until it takes it for endless.
        """
        passed, at = set[bytes](), target
        while at in self._to and at not in passed:
            passed.add(at)
            at, _ = self._to[at]
        return not passed.isdisjoint(chain)

    def pop_leading_to(self, marks: Collection[bytes]) -> list[MarkChain]:
        """Remove and return the chains of pages whose redirects to one of these were dropped."""
        found = [(mark, chain) for mark, (target, chain) in self._to.items() if target in marks]
        for mark, _ in found:
            del self._to[mark]
        return [*dict.fromkeys(chain for _, chain in found)]
