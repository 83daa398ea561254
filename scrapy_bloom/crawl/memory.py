"""Requests that are only in memory, because they cannot be stored: their callback is a lambda, say.

Only the pages that led to one can yield it again, so none of them is done before it is, and its
mark is withheld: the next run does not know it. One that is unparsed is only counted, so the next
run does not know it either.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy_bloom.crawl.later import Waiting
from scrapy_bloom.crawl.outcomes import APART
from scrapy_bloom.crawl.page import Page, State

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.crawl.backend import Backend
    from scrapy_bloom.crawl.in_flight import InFlight
    from scrapy_bloom.crawl.outcomes import Reason
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.serialize import Unstorable


class Memory:
    """Has the requests that cannot be stored, and withholds their marks until they are done.

    What has failed in memory is stored nowhere, so the pages that led to it must be able to yield
    it again: its mark is forgotten, an hour later. Until then it stays seen: links between such
    pages would fetch them without an end.

    :param queue: Scrapy's queue, which orders those that may be sent; else the oldest comes first.
    :param in_flight: knows which pages led to a request.
    :param backend: has the marks.
    :param report: writes to stats and log.
    """

    def __init__(self, queue: Any, in_flight: InFlight, backend: Backend, report: Report) -> None:
        self._queue, self._in_flight = queue, in_flight
        self._backend, self._report = backend, report
        self._pages: dict[Request, Page] = {}
        self._due: deque[Request] = deque()  # those that the queue does not take, if there is one
        self._waiting: Waiting[Request] = Waiting()
        self._failed: deque[tuple[float, bytes, Page]] = deque()

    def __len__(self) -> int:
        return len(self._pages)

    def add(self, request: Request, error: Unstorable, due: float) -> None:
        """Add a request, and keep the pages that led to it stored.

        It is copied if the same object waits already or is in flight: the engine keeps a set.

        :param error: why it cannot be stored, and its mark.
        :param due: before when it must not be sent; 0 for no such time.
        """
        origin = self._in_flight.origin_of(request)
        if origin is not None:
            self._in_flight.record_stored(request, origin)
        page = Page(None, error.mark, self._in_flight.led_to(request))
        self._in_flight.unstored.add(page)
        if page.mark is not None:
            self._backend.withhold([page.mark])
        if request in self._pages or request in self._in_flight:
            request = request.copy()
        self._pages[request] = page
        self._push(request, due)
        for stat in ("unserializable", "enqueued", "enqueued/memory"):
            self._report.inc(f"scheduler/{stat}")
        self._report.once(
            logging.WARNING,
            "Unable to serialize request: %s - reason: %s. It waits in memory. After a kill or a"
            " stop the page that led to it is fetched again - no more such requests will be logged"
            " (stats being collected)",
            request,
            error,
        )
        if not page.waiters:
            self._report.once(
                logging.WARNING,
                "%s waits in memory, and no page led to it: after a kill or a stop it is lost"
                " unless the spider yields it again, as start() does. More such requests are not"
                " shown.",
                request,
            )

    def _push(self, request: Request, due: float) -> None:
        if due:
            self._waiting.push(due, request)
            return
        if self._queue is not None:
            with suppress(Exception):  # no slot, say: the downloader reports what is wrong
                self._queue.push(request)
                return
        self._due.append(request)

    def pop(self) -> tuple[Request, Page] | None:
        """Remove and return the next request that may be sent, None if none may."""
        for request in self._waiting.pop_due(len(self._waiting)):
            self._push(request, 0.0)
        while self._due or self._queue:
            request = self._due.popleft() if self._due else self._queue.pop()
            if request is None:  # the project's queue lets all wait
                break
            if not (until := self._backend.paused_until(request)):
                return request, self._pages.pop(request)
            self._waiting.push(until, request)
        return None

    def is_due(self, soon: float) -> bool:
        """Return whether one may be sent in so many seconds."""
        return bool(self._due or self._queue) or self.next_due <= time.monotonic() + soon

    @property
    def later(self) -> int:
        """How many wait for their time."""
        return len(self._waiting)

    @property
    def next_due(self) -> float:
        """When the next one's time comes; infinite if none waits for it."""
        return self._waiting.next_due

    def end(self, page: Page, reason: Reason | None) -> Reason | None:
        """Record that a page has ended: if it is done, its mark is withheld no longer.

        :param reason: why it has failed or is unparsed, None if it is neither.
        :returns: the same; None if the page ends so instead that it was made of, and counts.
        """
        if page.mark is not None:
            if reason is not None and not reason.unparsed:
                self._failed.append((time.monotonic() + APART, page.mark, page))
            else:
                self._in_flight.unstored.remove(page.mark, page)
            if reason is None:
                self._backend.withhold([page.mark], is_over=True)
        for origin in page.waiters[:1]:
            if reason is not None and reason.unparsed and origin.state is State.REPLACED:
                origin.state, origin.reason = page.state, reason
                page.state, reason = State.REPLACED, None
        return reason

    def free_failed(self) -> None:
        """Make pages eligible again that failed an hour ago."""
        while self._failed and self._failed[0][0] <= time.monotonic():
            _, mark, page = self._failed.popleft()
            self._backend.forget_many([mark])
            self.end(page, None)
