"""Which pages are in flight: what the engine reports of each is recorded in its :class:`Page`.

The engine is finished with a page once its callback or errback has run, and its items, retry or
redirect have been handled. By then, everything it led to has been enqueued.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import CloseSpider
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from scrapy_bloom.crawl.history import ORIGINAL, START, TRIES, is_scrapys
from scrapy_bloom.crawl.outcomes import (
    ENDLESS,
    MOST_MESSAGE,
    REDIRECTED,
    Reason,
    is_of_project,
    is_unchanged,
    place_of,
    reason_of,
)
from scrapy_bloom.crawl.page import Event, Page, State
from scrapy_bloom.crawl.waits import UnstoredPages, waiting_for
from scrapy_bloom.crawl.walls import Walls

if TYPE_CHECKING:
    from types import FrameType

    from scrapy import Request

    from scrapy_bloom.crawl.identity import Identifier
    from scrapy_bloom.crawl.redirects import Dropped
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.scrapy.engine import Engine


class InFlight:
    """The requests that were taken from the queues and that the engine is not finished with.

    :param engine: knows which requests it still has.
    :param report: writes to stats and log.
    :param identifier: says what a request is.
    :param statuses: those that are failures if no callback gets the response.
    :param retries: whether failed pages are fetched again: then what waits for one fails with it.

    Attributes:
        unstored: the pages that are only in memory.
    """

    def __init__(
        self,
        engine: Engine,
        report: Report,
        identifier: Identifier,
        statuses: Collection[int] = (),
        *,
        retries: bool = True,
    ) -> None:
        self._engine, self._report, self._identifier = engine, report, identifier
        self._statuses, self._retries = statuses, retries
        self._pages: dict[Request, Page] = {}
        self._walls = Walls(report)
        self.unstored = UnstoredPages()
        engine.watch(self)

    def __len__(self) -> int:
        """Return how many requests are in flight."""
        return len(self._pages)

    def __contains__(self, request: Request) -> bool:
        return request in self._pages

    def page_of(self, request: Request, taken: Any) -> Page:
        """Return the page of a stored request that was taken."""
        page = Page(taken)
        if ORIGINAL in request.meta:
            with suppress(Exception):  # the project's fingerprinter
                page.way = self._identifier.way_of(request)
        return page

    def start(self, request: Request, page: Page) -> None:
        """Record that a request was taken, stored or only in memory."""
        page.start = request.meta.get(START, b"")
        self._pages[request] = page
        self._engine.sent(request)

    def pop_ended(self) -> list[Page]:
        """Return the pages that have ended as the engine is finished with them, since last time."""
        has = self._engine.has
        finished = [request for request in self._pages if not has(request)]
        return self.end(map(self._pages.pop, finished))

    def end(self, pages: Iterable[Page]) -> list[Page]:
        """Record that pages wait for one thing less; return those that have ended by that."""
        ended: list[Page] = []
        for page in pages:
            ended += page.end(with_waiters=self._retries)
        return ended

    # What came from a page

    def led_to(self, request: Request) -> tuple[Page, ...]:
        """Return the pages that may have led to a request.

        If its page is unknown or not in flight, these are all pages whose answers the spider has:
        one of them led to it, unless ``start()`` did.
        """
        if self._engine.is_from_start(request):
            return ()
        parent = self.origin_of(request)
        if parent is not None:
            return (parent,)
        may_be = self._engine.may_have_led_to_others
        return tuple(page for by, page in self._pages.items() if may_be(by))

    def origin_of(self, request: Request) -> Page | None:
        """Return the page that a request came from, None if it is unknown or not in flight."""
        by = self._engine.yielded_by(request)
        return None if by is None else self._pages.get(by)

    def page_of_response(self, response: Any) -> Page | None:
        """Return the page in flight to which something was the response; None if none is known."""
        request = self._engine.request_of(response)
        return None if request is None else self._pages.get(request)

    def running(self, stack: Iterable[FrameType]) -> tuple[Page, str] | None:
        """Return the page whose callback or errback is running, and the name of that function.

        :param stack: what the event loop is doing, the innermost function first.
        :returns: None if no function of the project's has a response or failure to a page here.
        """
        for frame in filter(is_of_project, stack):
            for value in [*frame.f_locals.values()]:
                if isinstance(value, (Response, Failure)):
                    page = self.page_of_response(value)
                    if page is not None:
                        return page, frame.f_code.co_name
        return None

    def not_enqueued(self, request: Request, error: Exception) -> None:
        """Record that a request could not be enqueued: only pages that led to it can yield it."""
        for page in self.led_to(request):
            page.record(Event.FAILED, Reason.of(error, "enqueue_request"))

    def record_stored(self, request: Request, origin: Page) -> None:
        """Record that a request is stored, or waits in memory, perhaps in the place of its page."""
        origin.record(Event.REPLACED if ORIGINAL in request.meta else Event.YIELDED)

    def record_duplicate(
        self, duplicate: Request, dropped: Dropped, origin: Page | None = None
    ) -> None:
        """Record where a redirect led that was dropped as seen.

        The page that yielded a duplicate of what is only in memory waits for that.

        :param dropped: the redirects that were dropped.
        """
        is_redirect, mark = ORIGINAL in duplicate.meta, None
        if not (is_redirect or self.unstored):
            return
        origin = origin or self.origin_of(duplicate)
        with suppress(Exception):  # the project's fingerprinter
            mark = self._identifier.identify(duplicate)
            pages = self.led_to(duplicate) if origin is None else (origin,)
            self.unstored.record_duplicate(mark, pages)
        if origin is not None and is_redirect:
            chain = self._identifier.before(duplicate)
            circle = mark is not None and dropped.leads_back(chain, mark)
            with suppress(Exception):  # likewise
                by = self._engine.yielded_by(duplicate)
                if by is not None and mark == self._identifier.identify(by):
                    status = self._engine.status_of(by) or "returned by a middleware"
                    kind = ENDLESS if is_scrapys(duplicate, by) else str(status)
                    origin.record(Event.FAILED, Reason(kind, "its request came again and again"))
            self._record_redirected(duplicate, origin, mark, circle=circle)
            if circle and mark is not None and mark not in chain[:1]:
                origin.way += (mark,)

    def _record_redirected(
        self, request: Request, origin: Page, to: bytes | None, *, circle: bool
    ) -> None:
        """Record that a redirect of a page was dropped as seen.

        :param to: the mark of the page that it leads to; None if that is unknown.
        :param circle: whether it closes a circle, see :meth:`.Dropped.leads_back`.
        """
        to_url = request.url[:MOST_MESSAGE]
        origin.record(Event.SEEN, Reason(REDIRECTED, to_url, unparsed=True, to=to))
        self._walls.record(request.meta.get("redirect_urls", [request.url])[0], origin.reason)
        status = next(iter(request.meta.get("redirect_reasons", ())[-1:]), None)
        if status in self._statuses:
            message = f"redirected to {request.url}"[:MOST_MESSAGE]
            origin.record(Event.FAILED, Reason(str(status), message))
        if circle:
            origin.record(Event.FAILED, Reason(ENDLESS, to_url))

    # What the engine tells

    def replaced(self, request: Request, by: Request) -> None:
        """Let a retry or redirect take the request along that the spider yielded."""
        page = self._pages.get(request)
        if page is not None:
            # Unless it reaches the scheduler: what is off-site does not, and nothing else says so.
            reason = Reason("IgnoreRequest", by.url[:MOST_MESSAGE], unparsed=True)
            page.record(Event.ANSWERED, reason)
            own = b"" if page.taken is None else page.taken.body
            by.meta[ORIGINAL] = request.meta.get(ORIGINAL) or own
            if START in request.meta:
                by.meta[START] = request.meta[START]

    def answered(self, result: Any, request: Request) -> None:
        """Record what the downloader has answered."""
        for key in (ORIGINAL, TRIES, START):
            request.meta.pop(key, None)
        page = self._pages.get(request)
        if page is not None:
            reason = reason_of(result, request, self._statuses)
            self._record(page, Event.ANSWERED if reason.unparsed else Event.BROKEN, reason)

    def reached(self, request: Request) -> None:
        """Record that a response reaches its callback, which deals with its status."""
        if request in self._pages:
            self._pages[request].record(Event.REACHED)
            self._walls.record(request.url, None)

    def unreached(self, error: Failure, request: Request) -> None:
        """Record that the response of a request does not reach its callback, due to an error."""
        page = self._pages.get(request)
        if page is None or page.state is not State.ANSWERED:  # no response, or it counts already
            return
        if isinstance(error.value, HttpError):  # its status says why
            if is_unchanged(error.value, request):
                page.record(Event.REACHED)
            self._walls.record(request.url, page.reason)
        elif (reason := reason_of(error, request, self._statuses)).unparsed:
            page.record(Event.ANSWERED, reason)
        else:
            self._record(page, Event.UNREACHED, Reason.of(error.value, place_of(error)))

    def _record(self, page: Page, event: Event, reason: Reason) -> None:
        """Record what the spider may yet deal with if it is a failure, also while it is closing."""
        page.record(event, reason._replace(closing=True) if self._engine.closing else reason)

    def made_item(self, request: Request | None) -> None:
        """Record that a callback or errback has yielded an item."""
        if request in self._pages:
            self._pages[request].record(Event.YIELDED)
            self._pages[request].has_items = True

    def item_failed(self, failure: Failure, request: Request | None) -> None:
        """Record an error of a pipeline."""
        if request in self._pages:
            reason = Reason.of(failure.value, place_of(failure))
            self._pages[request].record(Event.FAILED, reason)

    def item_rejected(self, page: Page, reason: Reason) -> None:
        """Record that an exporter cannot export an item of a page, which may have ended."""
        for each in waiting_for(page) if self._retries else (page,):
            each.record(Event.FAILED, reason)

    def raised(self, failure: Failure, request: Request) -> None:
        """Record an error of a callback or errback.

        A page whose callback closes the spider, or fails while the spider is closing, is not done:
        it stays stored, and the next run fetches it again. But if it closes the spider once it has
        yielded items, it is done: else each run could get no further than that.
        """
        error, page = failure.value, self._pages.get(request)
        if page is None or page.state is State.UNFINISHED:
            return
        closes = isinstance(error, CloseSpider)
        if closes and page.has_items:
            return
        if not (closes or self._engine.closing):
            page.record(Event.FAILED, Reason.of(error, place_of(failure)))
            return
        page.record(Event.UNFINISHED)
        self._report.once(
            logging.INFO,
            "%s %s (%s): the next run will fetch it again. More such pages are not shown.",
            request,
            "closed the spider" if closes else "failed while the spider was closing",
            getattr(error, "reason", error),
        )
