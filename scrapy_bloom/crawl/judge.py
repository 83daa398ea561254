"""What is decided about each request of a crawl: its verdict, and which pages are forgotten.

Whoever knows marks may answer at once, as a local filter does, or later, as Redis does. A request
is judged alike either way: :meth:`Judge.check` returns its verdict, or a Deferred that will.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.crawl.history import CHAIN, ORIGINAL
from scrapy_bloom.crawl.identity import Identifier, MarkChain
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.crawl.redirects import Dropped, FirstLinks
from scrapy_bloom.crawl.report import Report, Verdict, end_crawl
from scrapy_bloom.crawl.serialize import Unstorable
from scrapy_bloom.errors import BloomError, SettingError
from scrapy_bloom.settings import MAX_AGE

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

# A global is faster to look up than an enum member.
NEW, SEEN = Verdict.NEW, Verdict.SEEN
EXEMPT, ERROR = Verdict.REDIRECT_EXEMPT, Verdict.ERROR

Offer = Callable[[bytes, float | None], "bool | Deferred[bool]"]
"""Adds a mark; returns whether it was there, at most so many seconds old."""


class Forgettable(Protocol):
    """Marks that can be forgotten. Any method may raise anything."""

    def __contains__(self, mark: bytes, /) -> bool:
        """Return whether a mark is there, as far as is known."""

    def forget_many(self, marks: MarkChain, /) -> list[bool] | Deferred[list[bool]]:
        """Make marks eligible again; return for each whether it was there."""


class Judge:
    """Judges the requests of one crawl by what is marked.

    If a check fails, the verdict is ``ERROR``, and the page is fetched, perhaps twice, but never
    lost.

    :param identifier: says what a request is.
    :param report: writes to stats and log.
    :param marks: what can be forgotten.
    :param shared: whether there may be others that are not known here.
    :param own: the project's own check, which is asked first.

    Attributes:
        ledger: what has no answer yet.
        dropped: the redirects that were dropped.
        links: the links that are kept because of redirects.
    """

    def __init__(
        self,
        crawler: Crawler,
        identifier: Identifier,
        report: Report,
        marks: Forgettable,
        *,
        shared: bool,
        own: Callable[[Request], bool] | None = None,
    ) -> None:
        self._own = own
        self._crawler, self._identifier, self._report = crawler, identifier, report
        self._identify, self._marks, self._shared = identifier.identify, marks, shared
        self.ledger, self.dropped, self.links = Ledger(), Dropped(), FirstLinks()

    def check(
        self, request: Request, offer: Offer, due: float = 0.0
    ) -> Verdict | Deferred[Verdict]:
        """Return the verdict on a request. Unless it is exempt, `offer` marks and stores it.

        :param due: before when it must not be sent, also if it is let through later.
        :raises Unstorable: if it is new, and `offer` has raised that.
        """
        meta = request.meta
        try:
            mark = self._identify(request)
            if self._own is not None and self._own(request):
                return self._drop(request, mark, due)
            if CHAIN in meta and mark.hex() in meta[CHAIN]:
                self._report.count(EXEMPT)
                return EXEMPT
            seen = offer(mark, self._max_age(request) if MAX_AGE in meta else None)
            if seen is False:
                return self._let_through(request, mark)
            if seen is True:
                return self._drop(request, mark, due)
            return seen.addCallback(self._answered, request, mark, due)
        except Unstorable as error:
            self._report.count(NEW)
            error.mark = mark
            raise
        except Exception as error:  # raising would lose the page
            return self._fail(request, error)

    def _max_age(self, request: Request) -> float | None:
        """Return for how many seconds the mark of a request counts; log the first invalid age.

        A request with one is filtered as if it had none: unmarked, it would be fetched as often as
        it is linked to, and the crawl might never end.
        """
        try:
            return self._identifier.max_age(request)
        except SettingError as error:
            self._report.once(
                logging.ERROR,
                "%s has no maximum age: %s More such requests are not shown.",
                request,
                error,
            )
            return None

    def _answered(
        self,
        seen: bool,  # noqa: FBT001 - a callback
        request: Request,
        mark: bytes,
        due: float,
    ) -> Verdict:
        """Return the verdict on a request once it is known whether its mark was there."""
        if seen:
            return self._drop(request, mark, due)
        return self._let_through(request, mark)

    def _let_through(self, request: Request, mark: bytes) -> Verdict:
        """Return the verdict on a new request; record a redirect.

        Perhaps no callback gets its target: see :class:`FirstLinks`.
        """
        if CHAIN in request.meta:
            self.links.expect(mark)
        self._report.count(NEW)
        return NEW

    def _drop(self, request: Request, mark: bytes, due: float) -> Verdict:
        """Return the verdict on a request whose mark is there; record dropped redirects."""
        if CHAIN in request.meta:
            self.dropped.record(self._identifier.before(request), mark)
        elif ORIGINAL not in request.meta:  # else it is a redirect whose chain has ended
            self.links.add(mark, request, due)
        self._report.count(SEEN)
        return SEEN

    def _fail(self, request: Request, error: Exception) -> Verdict:
        """Return the verdict on a request that could not be checked; log and count it."""
        if isinstance(error, BloomError) and not isinstance(error, SettingError):  # of the filter
            end_crawl(self._crawler, self._report, error)
        else:
            self._report.check_failed(request, error)
        self._report.count(ERROR)
        return ERROR

    def seen(self, request: Request) -> bool | None:
        """Return whether the page of a request is marked; None if that is not known here."""
        try:
            mark = self._identify(request)
            known = mark in self._marks
        except Exception as error:  # raising in a callback would lose its items
            self._report.check_failed(request, error)
            return None
        return known or (None if self._shared else False)

    # Forgetting

    def forget(self, request: Request) -> bool:
        """Make the page of a request eligible again, and the pages that redirected to it."""
        try:
            chain = self._identifier.chain_of(request)
            known = any(mark in self._marks for mark in chain)
        except Exception as error:  # raising in a callback would lose its items
            self._report.not_forgotten(request, error)
            return False
        Deferred.fromCoroutine(self._forget(request, chain))
        return known

    def withdraw(self, request: Request) -> None:
        """Forget the page of a new request that is lost, and the pages that redirected to it.

        Nothing else leads to it. Raises whatever the fingerprinter or the filter does.
        """
        for chains in self._following(self._identifier.chain_of(request)):
            for chain in chains:
                answer = self._marks.forget_many(chain)
                if isinstance(answer, Deferred):
                    answer.addBoth(self._withdrawn, self.ledger.ask())

    def _withdrawn(self, _: object, question: int) -> None:
        self.ledger.answer(question)

    def _following(self, chain: MarkChain) -> Iterator[list[MarkChain]]:
        """Yield what to forget, in batches, until nothing follows: first one page's alone.

        Next come those whose redirects to it were dropped, and so on. Forget a batch before asking
        for the next: such a redirect may be dropped until then.
        """
        chains = [chain]
        while chains:
            yield chains
            chains = self.dropped.pop_leading_to({mark for chain in chains for mark in chain})

    async def _forget(self, request: Request, chain: MarkChain) -> None:
        """Forget a page, and those that follow it; no page in flight is done before that."""
        question = self.ledger.ask()
        try:
            for chains in self._following(chain):
                answers = [self._marks.forget_many(each) for each in chains]
                for answer in answers:
                    known = await answer if isinstance(answer, Deferred) else answer
                    if not any(known):
                        self._report.add(stats.NOT_FORGOTTEN)
        except Exception as error:  # raising in a callback would lose its items
            self._report.not_forgotten(request, error)
        finally:  # or no page of this run would ever be done
            self.ledger.answer(question)
