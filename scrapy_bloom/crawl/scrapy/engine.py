"""The engine and the scraper of a crawl: which requests they are finished with.

Scrapy has no public API that tells. :class:`Engine` holds the private attributes that are read for
this, and checks them when it is created.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

import scrapy
from scrapy import Request, signals
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom.crawl.scrapy.crawler import engine_of, wrap_start
from scrapy_bloom.crawl.scrapy.downloads import leave_first_slot, slot_of
from scrapy_bloom.errors import BackendError

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

BACK: Final = "bloom_back"
"""The key in the meta of a request that goes back before it was sent: it was judged before.

``dont_filter`` would stay with what redirects make of it.
"""


class Watcher(Protocol):
    """Learns how the requests of the scheduler end. No member may raise."""

    def replaced(self, request: Request, by: Request) -> None:
        """Record that a downloader middleware has answered a request with another one."""

    def answered(self, result: Any, request: Request) -> None:
        """Record what the downloader has answered: a response or a failure."""

    def reached(self, request: Request) -> None:
        """Record that the response of a request reaches its callback."""

    def unreached(self, error: Failure, request: Request) -> None:
        """Record that an errback is due: for a failed download, or an error in between."""

    def made_item(self, request: Request | None) -> None:
        """Record that a callback or errback has yielded an item."""

    def raised(self, failure: Failure, request: Request) -> None:
        """Record an error of a callback or errback, even ``CloseSpider``: that sends no signal."""

    def item_failed(self, failure: Failure, request: Request | None) -> None:
        """Record an error of a pipeline."""


class Engine:
    """What a scheduler needs to know about the engine of its crawl.

    :param crawler: the crawl, whose spider is being opened.
    :raises BackendError: if this version of Scrapy lacks what is needed.
    """

    def __init__(self, crawler: Crawler) -> None:
        engine: Any = engine_of(crawler)
        self._crawler, self._engine = crawler, engine
        self._scraper: Any = getattr(engine, "scraper", None)
        self._yielded_by: WeakKeyDictionary[Request, Request | None] = WeakKeyDictionary()
        self._with_spider: WeakSet[Request] = WeakSet()
        in_progress = getattr(getattr(engine, "_slot", None), "inprogress", None)
        watched = (
            (engine, "_download"),
            (engine, "_handle_downloader_output"),
            (self._scraper, "_scrape"),
            (self._scraper, "call_spider_async"),
            (self._scraper, "handle_spider_error"),
            (self._scraper, "_process_spidermw_output"),
        )
        if not isinstance(in_progress, set) or not all(hasattr(*each) for each in watched):
            raise BackendError(
                f"SCHEDULER = 'scrapy_bloom.Scheduler' cannot see in Scrapy {scrapy.__version__}"
                f" which requests are done. Use a version that it was tested with (the docs list"
                f" them), or another scheduler."
            )
        self._in_progress: set[Request] = in_progress
        self._sent: Request | None = None
        self._wrap_start: Callable[[AsyncIterator[Any]], AsyncIterator[Any]] = lambda start: start
        self._downloading: set[Request] = set()
        self._sent_as: WeakKeyDictionary[Request, Request] = WeakKeyDictionary()
        self._statuses: WeakKeyDictionary[Request, int] = WeakKeyDictionary()

    def sent(self, request: Request) -> None:
        """Record that the scheduler returns a request now. What the engine does not take is done.

        Call it before :meth:`has`.
        """
        self._sent = request

    def has(self, request: Request) -> bool:
        """Return whether the engine is still working on a request."""
        # A middleware or callback that downloads its own request again removes it from the first
        # set early. Then it is in the second until the scraper has it, and in the third after that.
        if request in self._in_progress or request in self._downloading:
            return True
        active = getattr(self._scraper.slot, "active", ())  # no slot before the spider is open
        return request in active

    def is_downloading(self, request: Request) -> bool:
        """Return whether a request of the scheduler is on its way and has no answer yet."""
        return request in self._downloading

    @property
    def closing(self) -> bool:
        """Whether the spider is being closed."""
        return getattr(self._engine._slot, "closing", None) is not None

    @property
    def pipelines(self) -> tuple[Any, ...]:
        """The item pipelines."""
        return tuple(getattr(self._scraper.itemproc, "middlewares", ()))

    def slot_of(self, request: Request) -> str:
        """Return the download slot of a request."""
        return slot_of(self._crawler, request)

    def requeue_slot(self, slot: str, **meta: object) -> int:
        """Have the requests that wait in a download slot enqueued again, with this in their meta.

        What somebody awaits there stays, such as ``robots.txt``, and what cannot be copied.

        :returns: how many were.
        """
        queue: Any = getattr(self._engine.downloader.slots.get(slot), "queue", ())
        count = 0
        for request, response in [*queue]:
            if request.callback is not NO_CALLBACK and (back := copy_to_go_back(request, **meta)):
                queue.remove((request, response))
                response.callback(back)  # as if a downloader middleware had answered with it
                count += 1
        return count

    def requeue_all(self) -> int:
        """Have all requests that wait in the downloader enqueued again; return how many were."""
        return sum(map(self.requeue_slot, [*self._engine.downloader.slots]))

    def wrap_start(self, wrap: Callable[[AsyncIterator[Any]], AsyncIterator[Any]]) -> None:
        """Read ``wrap(start)`` instead of the spider's ``start()``, each time that it runs.

        Call it while the spider is being opened.
        """
        self._wrap_start = wrap
        wrap_start(self._crawler, wrap)

    async def run_start(self, spider: Spider) -> AsyncIterator[Any]:
        """Return what the spider's ``start()`` yields when it is run again."""
        process = self._scraper.spidermw.process_start
        start: AsyncIterator[Any]
        start = await (process(spider) if scrapy.version_info < (2, 14) else process())
        return self._wrap_start(start)

    def crawl(self, request: Request) -> None:
        """Enqueue a request as if a page had yielded it."""
        self._engine.crawl(request)

    def before_closing(self, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await `do` after the last page, before the pipelines are closed."""
        is_async = hasattr(self._scraper, "close_spider_async")  # from Scrapy 2.14
        name = "close_spider_async" if is_async else "close_spider"
        close = getattr(self._scraper, name)

        async def close_spider(*arguments: Any) -> None:
            await maybe_deferred_to_future(Deferred.fromCoroutine(do()))
            closed = close(*arguments)
            await (closed if is_async else maybe_deferred_to_future(closed))

        def close_in_deferred(*arguments: Any) -> Deferred[None]:
            return deferred_from_coro(close_spider(*arguments))

        setattr(self._scraper, name, close_spider if is_async else close_in_deferred)

    @property
    def busy(self) -> bool:
        """Whether any request is in flight, whoever has sent it."""
        return bool(self._in_progress or self._downloading)

    @property
    def has_started(self) -> bool:
        """Whether ``start()`` has yielded all that it has to yield."""
        return getattr(self._engine, "_start", None) is None

    def watch(self, watcher: Watcher) -> None:
        """Start recording which requests are sent, which one led to which, and how each ends.

        The scraper receives what callbacks and errbacks yield, one by one; the engine receives what
        downloader middlewares return.
        """
        self._watch_downloads(watcher)
        self._watch_scraper(watcher)
        self._watch_output(watcher)

    def _watch_downloads(self, watcher: Watcher) -> None:
        engine, download = self._engine, self._engine._download
        handle = engine._handle_downloader_output

        def watched_download(request: Request) -> Any:
            if request is self._sent:  # else it is a download of someone else's
                self._sent = None
                self._downloading.add(request)
            return download(request)

        def watched_handle(result: Any, request: Request) -> Any:
            self._record_output(result, request)
            if isinstance(result, Request):
                leave_first_slot(result)
                watcher.replaced(request, result)
            else:
                self._with_spider.add(request)
                watcher.answered(result, request)
                theirs = getattr(result, "request", None)
                if theirs not in (None, request):  # a middleware answered with another's response
                    self._sent_as[theirs] = request
            try:
                return handle(result, request)
            finally:
                self._downloading.discard(request)

        engine._download, engine._handle_downloader_output = watched_download, watched_handle
        self._crawler.signals.connect(self._record_status, signal=signals.response_downloaded)

    def _record_status(self, response: Response, request: Request) -> None:
        if response.status != 200:  # noqa: PLR2004 - most are
            self._statuses[request] = response.status

    def status_of(self, request: Request) -> int | None:
        """Return the status that came last for a request, whatever a middleware has made of it.

        :returns: None if it was 200, or there was none.
        """
        return self._statuses.get(request)

    def _watch_scraper(self, watcher: Watcher) -> None:
        scraper, scrape = self._scraper, self._scraper._scrape
        call, handle_error = scraper.call_spider_async, scraper.handle_spider_error

        def watched_scrape(result: Any, request: Request) -> Any:
            # What Scrapy logs as a bug, and a pipeline that is cancelled, send no signal.
            scraping = scrape(result, request)

            async def watched() -> None:
                try:
                    await scraping
                except (Exception, CancelledError) as error:
                    watcher.raised(Failure(error), request)  # type: ignore[no-untyped-call]
                    raise

            is_old = isinstance(scraping, Deferred)  # before Scrapy 2.14
            return Deferred.fromCoroutine(watched()) if is_old else watched()

        def watched_call(result: Any, request: Request) -> Any:
            if isinstance(result, Failure):
                watcher.unreached(result, request)
            else:
                watcher.reached(request)
            return call(result, request)

        def watched_error(failure: Failure, request: Request, *others: Any, **named: Any) -> Any:
            watcher.raised(failure, request)
            return handle_error(failure, request, *others, **named)

        scraper._scrape, scraper.call_spider_async = watched_scrape, watched_call
        scraper.handle_spider_error = watched_error

    def _watch_output(self, watcher: Watcher) -> None:
        name = "_process_spidermw_output"
        if hasattr(self._scraper, f"{name}_async"):  # from Scrapy 2.14; the other calls it
            name = f"{name}_async"
        process = getattr(self._scraper, name)

        def watched_process(output: Any, response: Any) -> Any:
            by = self.request_of(response)
            self._record_output(output, by)
            if output is None or isinstance(output, Request):
                return process(output, response)
            watcher.made_item(by)
            processing = process(output, response)
            watched = watched_item(processing, by)
            is_old = isinstance(processing, Deferred)  # before Scrapy 2.14
            return Deferred.fromCoroutine(watched) if is_old else watched

        async def watched_item(processing: Awaitable[Any], by: Request | None) -> None:
            try:
                await processing
            except CancelledError as error:  # Scrapy sends no signal
                watcher.item_failed(Failure(error), by)  # type: ignore[no-untyped-call]
                raise

        def item_failed(failure: Failure, response: Any) -> None:
            watcher.item_failed(failure, self.request_of(response))

        setattr(self._scraper, name, watched_process)
        self._item_failed = item_failed  # signals hold weak references
        self._crawler.signals.connect(item_failed, signal=signals.item_error)

    def request_of(self, response: Any) -> Request | None:
        """Return the request of the scheduler to which something was the response."""
        request: Request | None = getattr(response, "request", None)
        return request if request is None else self._sent_as.get(request, request)

    def _record_output(self, output: Any, by: Request | None) -> None:
        if isinstance(output, Request) and self._yielded_by.setdefault(output, by) is not by:
            self._yielded_by[output] = None  # two pages yielded the same object

    def yielded_by(self, request: Request) -> Request | None:
        """Return the request that led to this one; None if unknown."""
        return self._yielded_by.get(request)

    def may_have_led_to_others(self, request: Request) -> bool:
        """Return whether the spider has the answer to a request.

        Not so before it is there, nor if a retry or redirect came in its place.
        """
        return request in self._with_spider

    def is_from_start(self, request: Request) -> bool:
        """Return whether ``start()`` yielded a request. A page's links may inherit the meta key."""
        marked = bool(request.meta.get("is_start_request"))  # by one of Scrapy's middlewares
        return marked and request not in self._yielded_by

    def wake(self) -> None:
        """Make the engine ask for requests soon, after some arrived without its knowledge."""
        slot = getattr(self._engine, "_slot", None)
        if slot is not None:
            slot.nextcall.schedule()


def watch_engine(
    crawler: Crawler,
    record: Callable[[Any, Request], object],
    record_arrived: Callable[[Request], object],
) -> None:
    """Call functions with what the engine receives, before it does something with that.

    If this version of Scrapy does not show it, nothing is watched.

    :param record: is called with each response, failure or request out of the downloader, and its
        request.
    :param record_arrived: is called with each request that is to be enqueued, wherever it is from.
    """
    engine: Any = engine_of(crawler)
    handle = getattr(engine, "_handle_downloader_output", None)
    if handle is None:
        return
    crawl = engine.crawl

    def watched_handle(result: Any, request: Request) -> Any:
        with suppress(Exception):  # their meta may be anything
            record(result, request)
        return handle(result, request)

    def watched_crawl(request: Request) -> None:
        record_arrived(request)
        crawl(request)

    engine._handle_downloader_output, engine.crawl = watched_handle, watched_crawl


def copy_to_go_back(request: Request, **meta: object) -> Request | None:
    """Return a copy of a request that goes back before it was sent; None if it cannot be copied.

    A class of the project's may need further arguments, and a middleware may have set a priority
    that Scrapy refuses in a new request.

    :param meta: is added to its meta.
    """
    with suppress(Exception):
        return request.replace(meta={**request.meta, BACK: True, **meta})
    return None


def pop_back(request: Request) -> bool:
    """Return whether a request has gone back before it was sent. That leaves its meta."""
    return bool(request.meta.pop(BACK, False))
