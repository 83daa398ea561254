"""Scrapy's engine: reading its state, refusing or closing a crawl, and running code in a thread.

Scrapy has no public API that tells which requests it is done with. :class:`Engine` holds the
private attributes that are read for this, and checks them when it is created. Whatever else is
private to Scrapy, or is about to change there, is in this module as well.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from math import inf
from threading import Thread, get_ident
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

import scrapy
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider
from scrapy.extensions.spiderstate import SpiderState
from scrapy.http.request import NO_CALLBACK
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue, _path_safe
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom.crawl.pace import Pace
from scrapy_bloom.errors import BackendError

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

T = TypeVar("T")

BACK: Final = "bloom_back"
"""The key in the meta of a request that goes back before it was sent: it was judged before.

``dont_filter`` would stay with what redirects make of it.
"""

_SHELL_SETTINGS: Final = ("DUPEFILTER_CLASS", "LOGSTATS_INTERVAL")
"""What ``scrapy shell`` sets, unless the project has set it."""


class Watcher(Protocol):
    """Is told how the requests of the scheduler end. No member may raise."""

    def replaced(self, request: Request, by: Request) -> None:
        """Note that a downloader middleware has answered a request with another one."""

    def answered(self, result: Any, request: Request) -> None:
        """Note what the downloader has answered: a response or a failure."""

    def reached(self, request: Request) -> None:
        """Note that the response of a request reaches its callback."""

    def unreached(self, error: Failure, request: Request) -> None:
        """Note that an errback is due: for a failed download, or an error in between."""

    def made_item(self, request: Request | None) -> None:
        """Note that a callback or errback has yielded an item."""

    def raised(self, failure: Failure, request: Request) -> None:
        """Note an error of a callback or errback, even ``CloseSpider``: that sends no signal."""

    def item_failed(self, failure: Failure, request: Request | None) -> None:
        """Note an error of a pipeline."""


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
        self._downloading: set[Request] = set()
        self._sent_as: WeakKeyDictionary[Request, Request] = WeakKeyDictionary()

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
        return getattr(self._engine._slot, "closing", None) is not None  # noqa: SLF001 - see above

    @property
    def pipelines(self) -> tuple[Any, ...]:
        """The item pipelines."""
        return tuple(getattr(self._scraper.itemproc, "middlewares", ()))

    def slot_of(self, request: Request) -> str:
        """Return the download slot of a request."""
        return slot_of(self._crawler, request)

    def take_back(self, slot: str, **meta: object) -> int:
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

    def take_all_back(self) -> int:
        """Have all requests that wait in the downloader enqueued again; return how many were."""
        return sum(map(self.take_back, [*self._engine.downloader.slots]))

    def wrap_start(self, wrap: Callable[[AsyncIterator[Any]], AsyncIterator[Any]]) -> None:
        """Have the engine read ``wrap(start)`` instead of the spider's ``start()``, if it has one.

        Call it while the spider is being opened.
        """
        start: Any = getattr(self._engine, "_start", None)
        if hasattr(start, "__aiter__"):
            self._engine._start = wrap(start)  # noqa: SLF001 - see above

    async def run_start(self, spider: Spider) -> AsyncIterator[Any]:
        """Return what the spider's ``start()`` yields when it is run again."""
        process = self._scraper.spidermw.process_start
        start: AsyncIterator[Any]
        start = await (process(spider) if scrapy.version_info < (2, 14) else process())
        return start

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
        engine, download = self._engine, self._engine._download  # noqa: SLF001 - see above
        handle = engine._handle_downloader_output  # noqa: SLF001 - see above

        def watched_download(request: Request) -> Any:
            if request is self._sent:  # else it is a download of someone else's
                self._sent = None
                self._downloading.add(request)
            return download(request)

        def watched_handle(result: Any, request: Request) -> Any:
            self._note_output(result, request)
            if isinstance(result, Request):
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

        engine._download, engine._handle_downloader_output = watched_download, watched_handle  # noqa: SLF001 - see above

    def _watch_scraper(self, watcher: Watcher) -> None:
        scraper, scrape = self._scraper, self._scraper._scrape  # noqa: SLF001 - see above
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

        scraper._scrape, scraper.call_spider_async = watched_scrape, watched_call  # noqa: SLF001 - see above
        scraper.handle_spider_error = watched_error

    def _watch_output(self, watcher: Watcher) -> None:
        name = "_process_spidermw_output"
        if hasattr(self._scraper, f"{name}_async"):  # from Scrapy 2.14; the other calls it
            name = f"{name}_async"
        process = getattr(self._scraper, name)

        def watched_process(output: Any, response: Any) -> Any:
            by = self._request_of(response)
            self._note_output(output, by)
            if not (output is None or isinstance(output, Request)):
                watcher.made_item(by)
            return process(output, response)

        def item_failed(failure: Failure, response: Any) -> None:
            watcher.item_failed(failure, self._request_of(response))

        setattr(self._scraper, name, watched_process)
        self._item_failed = item_failed  # signals hold weak references
        self._crawler.signals.connect(item_failed, signal=signals.item_error)

    def _request_of(self, response: Any) -> Request | None:
        """Return the request of the scheduler to which something was the response."""
        request: Request | None = getattr(response, "request", None)
        return request if request is None else self._sent_as.get(request, request)

    def _note_output(self, output: Any, by: Request | None) -> None:
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


class Downloads:
    """The slots of the downloader: how each is paced.

    :param crawler: the crawl, whose spider is being opened.

    Attributes:
        adjusts: whether AutoThrottle changes the delays of slots.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._settings, self._engine = crawler.settings, engine_of(crawler)
        self._downloader = self._engine.downloader
        module = sys.modules[type(self._downloader).__module__]
        # By which a slot remembers when it last sent a request. Before Scrapy 2.16: the wall's.
        self._clock: Callable[[], float] = getattr(module, "monotonic", time.time)
        self.adjusts = self._settings.getbool("AUTOTHROTTLE_ENABLED")

    @property
    def default(self) -> Pace:
        """The pace of slots that have no other."""
        downloader, jitter = self._downloader, _jitter_of(self._downloader)
        if hasattr(downloader, "_delay"):  # from Scrapy 2.18; AutoThrottle sets it
            return Pace(float(downloader._delay), jitter)  # noqa: SLF001 - has no other name
        delay = self._settings.getfloat("DOWNLOAD_DELAY")
        spider = getattr(self._engine, "spider", None)
        return Pace(float(getattr(spider, "download_delay", delay)), jitter)

    def is_configured(self, key: str) -> bool:
        """Return whether ``DOWNLOAD_SLOTS`` has a slot."""
        return key in self._downloader.per_slot_settings

    def pace_of(self, key: str) -> Pace:
        """Return the pace of a slot."""
        slot = self._downloader.slots.get(key)
        if slot is not None:
            return Pace(float(slot.delay), _jitter_of(slot))
        default, own = self.default, self._downloader.per_slot_settings.get(key, {})
        jitter = own.get("jitter", own.get("randomize_delay", default.jitter))
        jitter = 0.5 * jitter if isinstance(jitter, bool) else float(jitter)
        return Pace(float(own.get("delay", default.delay)), jitter)

    def has_enough(self, key: str, sent: int) -> bool:
        """Return whether a slot should get no more requests for now.

        What waits in it would not drain: it would get new ones as fast as it sends them.

        :param sent: how many requests of it are in flight.
        """
        slot = self._downloader.slots.get(key)
        return slot is not None and (0 < slot.concurrency <= sent or bool(slot.queue))

    def set_delay(self, key: str, delay: float, *, is_first: bool = False) -> None:
        """Set the delay of a slot, if the downloader has it.

        :param is_first: whether to leave it if the slot has sent anything.
        """
        slot = self._downloader.slots.get(key)
        if slot is not None and not (is_first and slot.lastseen):
            slot.delay = delay

    def skip_wait(self, key: str) -> float:
        """Let a slot send its next request at once, which has waited for its turn before.

        Not if others wait in it, or if it has sent one too recently: then it keeps its own pace.

        :returns: the seconds by which the last one was too recent.
        """
        slot = self._downloader.slots.get(key)
        if slot is None or slot.queue:
            return 0.0
        wait: float = (1 - _jitter_of(slot)) * slot.delay - self._clock() + slot.lastseen
        if wait <= 0:
            self._clear(slot)
        return max(0.0, wait)

    def wait_longer(self, key: str) -> None:
        """Let a slot wait for a whole delay, as if it had just sent a request."""
        slot = self._downloader.slots.get(key)
        if slot is not None:
            slot.lastseen = self._clock()

    def _clear(self, slot: Any) -> None:
        slot.close()  # cancels its timer
        least = self._clock() - (1 + _jitter_of(slot)) * slot.delay
        slot.lastseen = min(slot.lastseen, least)


def watch_downloader(crawler: Crawler, note: Callable[[Any, Request], object]) -> None:
    """Call `note` with each response, failure or request out of the downloader, and its request.

    If this version of Scrapy does not show them, nothing is watched.
    """
    engine: Any = engine_of(crawler)
    handle = getattr(engine, "_handle_downloader_output", None)
    if handle is None:
        return

    def watched_handle(result: Any, request: Request) -> Any:
        with suppress(Exception):  # their meta may be anything
            note(result, request)
        return handle(result, request)

    engine._handle_downloader_output = watched_handle  # noqa: SLF001 - see above


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


def leave_first_slot(request: Request) -> None:
    """Remove the download slot that Scrapy has left in the meta of a redirected request.

    It is that of the host from which it was redirected: the pace and the holds of its own host
    would not count.
    """
    before = request.meta.get("redirect_urls", ())
    if before and request.meta.get("download_slot") in {urlsplit(url).hostname for url in before}:
        del request.meta["download_slot"]


def slot_of(crawler: Crawler, request: Request) -> str:
    """Return the download slot of a request."""
    throttler: Any = getattr(crawler, "throttler", None)  # scrapy#6931
    if throttler is not None:
        return str(throttler.get_scopes_key(request))
    return str(engine_of(crawler).downloader.get_slot_key(request))


def _jitter_of(paced: Any) -> float:
    """Return the jitter of a slot, or that of the downloader."""
    jitter = getattr(paced, "jitter", getattr(paced, "_jitter", None))  # from Scrapy 2.19
    return 0.5 * bool(paced.randomize_delay) if jitter is None else float(jitter)


def engine_of(crawler: Crawler) -> Any:
    """Return the engine of a crawl, or None if there is none (yet)."""
    try:
        return crawler.engine
    except RuntimeError:  # Scrapy 2.19 and later, if there is none yet
        return None


def scheduler_of(crawler: Crawler) -> Any:
    """Return the scheduler of a crawl, or None if there is none (yet)."""
    engine = engine_of(crawler)
    return getattr(getattr(engine, "_slot", None), "scheduler", None)


def apply_settings(crawler: Crawler) -> None:
    """Let add-ons change the settings of a crawler that is never started, and freeze them."""
    crawler._apply_settings()  # noqa: SLF001 - nothing else does


def slot_folder(slot: str) -> str:
    """Return the name of the folder in which Scrapy keeps the queues of a download slot."""
    return _path_safe(slot)


def has_queues_by_slot(priority_queue: type[Any]) -> bool | None:
    """Return whether a priority queue has separate queues for each download slot.

    None if it is not derived from one of Scrapy's that keep all requests in their queues.
    """
    if issubclass(priority_queue, DownloaderAwarePriorityQueue):
        return True
    return False if issubclass(priority_queue, ScrapyPriorityQueue) else None


def is_inspection_command(crawler: Crawler) -> bool:
    """Return whether this is one of Scrapy's inspection commands, which must not touch any job.

    ``fetch``, ``view``, ``parse``, ``check`` and ``bench`` replace the spider's ``start``. Not so
    ``shell``, which sets some settings, and makes an engine without calling ``Crawler.crawl``.
    """
    if not crawler.crawling and (
        engine_of(crawler) is not None
        or any(
            crawler.settings.getpriority(name) == SETTINGS_PRIORITIES["command"]
            for name in _SHELL_SETTINGS
        )
    ):
        return True
    start = getattr(crawler.spidercls, "start", None)
    return getattr(start, "__module__", "").startswith("scrapy.commands.")


def write_no_state(crawler: Crawler) -> None:
    """Keep Scrapy from writing ``spider.state``."""
    for extension in crawler.extensions.middlewares if crawler.extensions else ():
        if isinstance(extension, SpiderState):
            extension.jobdir = None


@contextmanager
def no_requests(crawler: Crawler) -> Iterator[None]:
    """Keep the engine from sending requests in this block: its scraper is not open yet.

    If something is enqueued then, Scrapy fails with an ``AssertionError``.
    """
    engine = engine_of(crawler)
    engine.pause()
    try:
        yield
    finally:
        engine.unpause()


def refuse(crawler: Crawler, reason: str) -> None:
    """Refuse a crawl while its spider is being opened, before its first request.

    The spider is closed with `reason` once it is open: Scrapy cannot close a half-open one without
    tracebacks. Scrapy is kept from writing ``spider.state``, which would make a killed crawl look
    like one that stopped cleanly.

    :raises CloseSpider: if no spider is being opened.
    """
    exit_with_error_code(crawler)
    write_no_state(crawler)
    if engine_of(crawler) is None:
        raise CloseSpider(reason)
    close_spider(crawler, reason)


def exit_with_error_code(crawler: Crawler) -> None:
    """Make the ``scrapy`` command exit with code 1 once the spider is closed.

    Scrapy 2.13 to 2.19 does so if the crawler has no spider at the end, as after an error in the
    spider's constructor. There is no other way without a traceback.
    """

    def forget_spider() -> None:
        crawler.spider = None

    crawler.signals.connect(forget_spider, signal=signals.spider_closed, weak=False)


def close_spider(crawler: Crawler, reason: str) -> None:
    """Close the spider of a crawl once its engine runs. Without one, as in a shell, do nothing."""
    engine = engine_of(crawler)
    if getattr(engine, "spider", None) is None:
        return
    if not engine.running:  # it cannot close the spider yet, and must not begin to crawl
        engine._start = None  # noqa: SLF001 - see above
        engine.pause()
        call_later(0.01, lambda: close_spider(crawler, reason))
    elif hasattr(engine, "close_spider_async"):  # from Scrapy 2.14
        closing = deferred_from_coro(engine.close_spider_async(reason=reason))
        # An event loop that ends before cancels it, and nobody waits for it.
        closing.addErrback(lambda failure: failure.trap(CancelledError))
    else:
        engine.close_spider(crawler.spider, reason)


def _reactor() -> Any:
    """Return the reactor, or None: importing it would install one."""
    return sys.modules.get("twisted.internet.reactor")


def call_later(seconds: float, do: Callable[[], object]) -> Any:
    """Call `do` after a delay, with or without a reactor; return an object with ``cancel()``."""
    reactor = _reactor()
    if reactor is None:
        return asyncio.get_running_loop().call_later(seconds, do)
    return reactor.callLater(seconds, do)


def pause(seconds: float) -> Deferred[None]:
    """Return a Deferred that fires after a delay."""
    done: Deferred[None] = Deferred()
    call_later(seconds, lambda: done.callback(None))
    return done


class Timer:
    """Calls a function once, at the earliest of the times that were set since the last call.

    After an hour it calls it in any case: some event loops take no time of weeks.

    Attributes:
        due: when it calls it, by ``time.monotonic()``; infinite if it is not set.
    """

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do
        self._handle: Any = None
        self.due = inf

    def set(self, seconds: float) -> None:
        """Call it after so many seconds; not at all if they are infinite."""
        self.set_to(time.monotonic() + seconds)

    def set_to(self, due: float) -> None:
        """Call it at a time, by ``time.monotonic()``; not at all if it is infinite."""
        if due < self.due:
            self.cancel()
            seconds = max(0.0, due - time.monotonic())
            self.due, self._handle = due, call_later(min(3600.0, seconds), self._run)

    def cancel(self) -> None:
        """Do not call it."""
        if self._handle is not None:
            self._handle.cancel()
        self.due, self._handle = inf, None

    def _run(self) -> None:
        self.due, self._handle = inf, None
        self._do()


def _loop_caller() -> Callable[..., object] | None:
    """Return what has the reactor or event loop call a function, from any thread.

    None if there is no reactor, and no loop is running.
    """
    reactor = _reactor()
    if reactor is not None:
        return cast("Callable[..., object]", reactor.callFromThread)
    with suppress(RuntimeError):
        return asyncio.get_running_loop().call_soon_threadsafe
    return None


class Pulse:
    """Tells another thread for how long the reactor or event loop has been blocked.

    Create it in the thread of the loop.
    """

    def __init__(self) -> None:
        self._call, self._thread = _loop_caller(), get_ident()
        self._asked: float | None = None  # when the loop was asked, until it answers

    def blocked(self) -> float:
        """Return for how many seconds the loop has not answered. Each call asks it again."""
        now = time.monotonic()
        if self._asked is None:
            if self._call is None:
                return 0.0
            self._asked = now
            with suppress(RuntimeError):  # the loop is closed
                self._call(self._answer)
        return now - (self._asked or now)

    def stack(self) -> str:
        """Return what the loop is doing, as in a traceback."""
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - has no other name
        return "".join(traceback.format_stack(frame))

    def _answer(self) -> None:
        self._asked = None


def run_beside(function: Callable[[], T]) -> Deferred[T]:
    """Run a function in a thread while the reactor or event loop keeps running.

    The thread is a daemon: after a second Ctrl-C, the process does not wait for a server.

    :returns: a Deferred that fires with the result. If neither is running, `function` ran here.
    """
    done: Deferred[T] = Deferred()
    reactor, call_back = _reactor(), _loop_caller()
    if call_back is None or (reactor is not None and not reactor.running):
        done.callback(function())
        return done

    def run() -> None:
        result: Any
        try:
            result = function()
        except BaseException:  # noqa: BLE001 - raised where it is awaited
            result = Failure()  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # the loop is closed
            call_back(done.callback, result)

    Thread(target=run, name="scrapy-bloom", daemon=True).start()
    return done
