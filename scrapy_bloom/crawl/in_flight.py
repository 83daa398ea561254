"""Which pages are in flight, and how each ends.

The engine is through with a page once its callback or errback has run, and its items, retry or
redirect have been handled. By then, everything it led to has been enqueued.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import CloseSpider, IgnoreRequest
from twisted.python.failure import Failure

from scrapy_bloom.crawl.history import ORIGINAL, START, TRIES
from scrapy_bloom.crawl.outcomes import MOST_MESSAGE, Ended, Reason, place_of, reason_of
from scrapy_bloom.crawl.redirects import Targets
from scrapy_bloom.crawl.visit import Visit

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.crawl.identity import Identifier
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.scrapy.engine import Engine


class InFlight:
    """The requests that were taken from the queues and are not done.

    :param engine: knows which requests it still has.
    :param report: writes to stats and log.
    :param identifier: says what a request is.
    :param statuses: those that are failures if no callback gets the response.
    :param shared: whether other workers may take what was stored here.

    Attributes:
        targets: where redirects and retries have led.
        undecided: how many downloads have failed that the spider may yet deal with: the errback
            yields an item or a new request; and how many requests of pages in flight have yet to
            be judged, which may be such a one, or a redirect.
    """

    def __init__(
        self,
        engine: Engine,
        report: Report,
        identifier: Identifier,
        statuses: Collection[int] = (),
        *,
        shared: bool = False,
    ) -> None:
        self._engine, self._report = engine, report
        self._statuses = statuses
        self._visits: dict[Request, Visit] = {}
        self._ended: list[Visit] = []
        self.targets = Targets(identifier, shared=shared)
        self.undecided = 0
        engine.watch(self)

    def __len__(self) -> int:
        """Return how many requests are in flight."""
        return len(self._visits)

    def __contains__(self, request: Request) -> bool:
        return request in self._visits

    def visit_of(self, request: Request, taken: Any) -> Visit:
        """Return the visit of a stored request that was taken."""
        if ORIGINAL in request.meta:
            with suppress(Exception):  # the project's fingerprinter
                return self.targets.start(request, taken)
        return Visit(taken)

    def start(self, request: Request, visit: Visit) -> None:
        """Record that a request was taken, stored or only in memory."""
        visit.start = request.meta.get(START, b"")
        self._visits[request] = visit
        self._engine.sent(request)

    def pop_ended(self) -> list[Visit]:
        """Return the visits that have ended since the last call, to be released."""
        has = self._engine.has
        for request in [request for request in self._visits if not has(request)]:
            self._end(self._visits.pop(request))
        ended, self._ended = self._ended, []
        return ended

    def _end(self, visit: Visit) -> None:
        ended = visit.end()
        for each in ended:
            self._settle(each)
        self._ended += ended

    def let_go(self) -> bool:
        """End what waits for targets of redirects, when nothing is in flight here any more.

        :returns: whether anything did.
        """
        self._end_all(self.targets.let_go())
        return bool(self._ended)

    def _end_all(self, pages: Collection[Visit]) -> None:
        for page in pages:
            self._end(page)

    # What came from a page

    def led_to(self, request: Request) -> tuple[Visit, ...]:
        """Return the pages that may have led to a request.

        If its page is unknown or not in flight, that is all whose answers the spider has: one of
        them led to it, unless ``start()`` did.
        """
        if self._engine.is_from_start(request):
            return ()
        parent = self.origin_of(request)
        if parent is not None:
            return (parent,)
        may_be = self._engine.may_have_led_to_others
        return tuple(visit for page, visit in self._visits.items() if may_be(page))

    def origin_of(self, request: Request) -> Visit | None:
        """Return the page that a request came from, None if it is unknown or not in flight."""
        by = self._engine.yielded_by(request)
        return None if by is None else self._visits.get(by)

    def keep_stored(self, request: Request) -> None:
        """Record that a request could not be enqueued: the pages that led to it are never done."""
        for visit in self.led_to(request):
            visit.waits_for += 1

    def await_verdict(self, origin: Visit) -> None:
        """Record that a page ends only once it is known what came from it: see :meth:`decided`."""
        origin.waits_for += 1
        self.undecided += 1

    def decided(self, origin: Visit) -> None:
        """Record that it is known what came from a page."""
        self.undecided -= 1
        self._end(origin)

    def note_kept(self, origin: Visit, request: Request) -> None:
        """Record that a request is kept which came from a page: it may stand in its place."""
        if ORIGINAL in request.meta:
            origin.ended = Ended.REPLACED
        else:
            self._deal_with(origin)

    def note_stored(self, origin: Visit, request: Request) -> None:
        """Record that it is stored, too, and not only in memory, where its page waits for it."""
        self.note_kept(origin, request)
        if ORIGINAL in request.meta:
            with suppress(Exception):  # the project's fingerprinter
                self._end_all(self.targets.expect(request, origin))

    def note_redirected(
        self, origin: Visit, request: Request, to: bytes | None, *, circle: bool
    ) -> None:
        """Record that a redirect of a page was dropped as seen.

        :param to: the mark of the page that it leads to; None if that cannot be told.
        :param circle: whether what it leads to was dropped for this page.
        """
        if origin.ended is Ended.DONE:
            origin.ended = Ended.REDIRECTED
        status = next(iter(request.meta.get("redirect_reasons", ())[-1:]), None)
        if status in self._statuses:
            self._fail(origin, Reason(str(status), f"redirected to {request.url}"[:MOST_MESSAGE]))
        if to is not None and (circle or to == origin.mark):
            self._fail(origin, Reason("too many redirects", request.url[:MOST_MESSAGE]))
            origin.way += (to,)

    # What the engine tells

    def replaced(self, request: Request, by: Request) -> None:
        """Let a retry or redirect take the request along that the spider yielded."""
        visit = self._visits.get(request)
        if visit is not None:
            own = b"" if visit.taken is None else visit.taken.body
            by.meta[ORIGINAL] = request.meta.get(ORIGINAL) or own
            if START in request.meta:
                by.meta[START] = request.meta[START]

    def answered(self, result: Any, request: Request) -> None:
        """Note what the downloader has answered. It has failed unless the spider deals with it."""
        for key in (ORIGINAL, TRIES, START):
            request.meta.pop(key, None)
        visit = self._visits.get(request)
        if visit is None:
            return
        visit.status = 0 if isinstance(result, Failure) else result.status
        reason = reason_of(result, request, self._statuses)
        if reason is not None:
            self._fail_unless_dealt_with(request, visit, reason)

    def reached(self, request: Request) -> None:
        """Note that a response reaches its callback, which deals with its status."""
        visit = self._visits.get(request)
        if visit is not None:
            visit.status = 0
            self._deal_with(visit)

    def unreached(self, error: Failure, request: Request) -> None:
        """Note that the response of a request does not reach its callback, due to an error."""
        visit = self._visits.get(request)
        if visit is None or not visit.status or visit.reason:  # no response, or it counts already
            return
        if not isinstance(error.value, IgnoreRequest):
            self._fail_unless_dealt_with(request, visit, Reason.of(error.value, place_of(error)))

    def _fail_unless_dealt_with(self, request: Request, visit: Visit, reason: Reason) -> None:
        """Note a failure that the spider may yet deal with, unless the spider is closing."""
        if self._engine.closing:
            del self._visits[request]  # it stays stored
            return
        visit.reason, visit.may_deal = reason, True
        self.undecided += 1

    def made_item(self, request: Request | None) -> None:
        """Note that a callback or errback has yielded an item."""
        if request in self._visits:
            self._deal_with(self._visits[request])

    def _deal_with(self, visit: Visit) -> None:
        if visit.may_deal:
            visit.reason = None
            self._settle(visit)

    def _settle(self, visit: Visit) -> None:
        """Note that the spider can no longer deal with a failed download, or has."""
        self.undecided -= visit.may_deal
        visit.may_deal = False

    def item_failed(self, failure: Failure, request: Request | None) -> None:
        """Note an error of a pipeline."""
        if request in self._visits:
            self._fail(self._visits[request], Reason.of(failure.value, place_of(failure)))

    def raised(self, failure: Failure, request: Request) -> None:
        """Note an error of a callback or errback.

        A page whose callback closes the spider, or fails while the spider is closing, is never
        done: it stays stored, and the next run fetches it again.
        """
        error, visit = failure.value, self._visits.get(request)
        if visit is None:
            return
        closes = isinstance(error, CloseSpider)
        if not (closes or self._engine.closing):
            self._fail(visit, Reason.of(error, place_of(failure)))
            return
        self._settle(visit)
        del self._visits[request]
        self._report.once(
            logging.INFO,
            "%s %s (%s): the next run will fetch it again. More such pages are not shown.",
            request,
            "closed the spider" if closes else "failed while the spider was closing",
            getattr(error, "reason", error),
        )

    def _fail(self, visit: Visit, reason: Reason) -> None:
        self._settle(visit)
        visit.reason = visit.reason or reason  # the first one counts
