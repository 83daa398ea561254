"""The engine of a crawl: what we read of it, how a crawl is refused or closed, working beside it.

Scrapy shows in no public way which requests it is through with. The private parts that are read for
that stand in :class:`Engine`, and are checked when it is made.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import scrapy
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider
from scrapy.extensions.spiderstate import SpiderState
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom.errors import BackendError

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

T = TypeVar("T")

SpiderError = Callable[["Failure", Request], object]
"""Called with what a callback or errback has raised, and the request that it was called for."""


class Engine:
    """What a scheduler has to know of the engine of its crawl.

    :param crawler: the crawl, whose spider is being opened.
    :raises BackendError: if this version of Scrapy does not show what is needed.
    """

    def __init__(self, crawler: Crawler) -> None:
        engine: Any = engine_of(crawler)
        self._engine = engine
        self._scraper: Any = getattr(engine, "scraper", None)
        self._yielded_by: WeakKeyDictionary[Request, Request | None] = WeakKeyDictionary()
        in_progress = getattr(getattr(engine, "_slot", None), "inprogress", None)
        handles = callable(getattr(self._scraper, "handle_spider_error", None))
        if not isinstance(in_progress, set) or not handles:
            raise BackendError(
                f"SCHEDULER = 'scrapy_bloom.Scheduler' cannot see in Scrapy {scrapy.__version__}"
                f" which requests are done. Use a version that it was tested with (the docs list"
                f" them), or another scheduler."
            )
        self._in_progress: set[Request] = in_progress

    def has(self, request: Request) -> bool:
        """Return whether the engine is not through with a request."""
        # A callback that downloads its own request again takes it out of the first set early.
        if request in self._in_progress:
            return True
        active = getattr(self._scraper.slot, "active", ())  # no slot before the spider is open
        return request in active

    @property
    def closing(self) -> bool:
        """Whether the spider is being closed."""
        return getattr(self._engine._slot, "closing", None) is not None  # noqa: SLF001 - see above

    def slot_of(self, request: Request) -> str:
        """Return the download slot of a request."""
        slot: str = self._engine.downloader.get_slot_key(request)
        return slot

    def watch_errors(self, raised: SpiderError) -> None:
        """Have `raised` called with every error of a callback or errback, also ``CloseSpider``.

        Scrapy sends no signal for that one.
        """
        handle = self._scraper.handle_spider_error

        def handle_spider_error(
            failure: Failure, request: Request, *arguments: Any, **keywords: Any
        ) -> Any:
            raised(failure, request)
            return handle(failure, request, *arguments, **keywords)

        self._scraper.handle_spider_error = handle_spider_error

    def before_closing(self, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have `do` awaited when the last page is over, before the pipelines are closed."""
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

    def watch_output(self) -> None:
        """Note from now on which request has led to which, for :meth:`yielded_by`.

        The scraper gets what callbacks and errbacks yield one by one, the engine what downloader
        middlewares make of a request. Where Scrapy does that in another way, nothing is known.
        """
        self._watch(self._scraper, "_process_spidermw_output")
        self._watch(self._scraper, "_process_spidermw_output_async")
        self._watch(self._engine, "_handle_downloader_output")

    def _watch(self, owner: Any, name: str) -> None:
        handle = getattr(owner, name, None)
        if handle is None:
            return

        def watched(output: Any, source: Any) -> Any:
            if isinstance(output, Request):
                by = source if isinstance(source, Request) else getattr(source, "request", None)
                if self._yielded_by.setdefault(output, by) is not by:
                    self._yielded_by[output] = None  # two pages yield the very same object
            return handle(output, source)

        setattr(owner, name, watched)

    def yielded_by(self, request: Request) -> Request | None:
        """Return the request that has led to this one; None if that is not known."""
        return self._yielded_by.get(request)

    def wake(self) -> None:
        """Have the engine ask for requests soon: some came in another way than through it."""
        slot = getattr(self._engine, "_slot", None)
        if slot is not None:
            slot.nextcall.schedule()


def engine_of(crawler: Crawler) -> Any:
    """Return the engine of a crawl, or None if there is none (yet)."""
    try:
        return crawler.engine
    except RuntimeError:  # from Scrapy 2.19, if it is not there yet
        return None


def only_looks(crawler: Crawler) -> bool:
    """Return whether this is a command of Scrapy's that looks at pages, and leaves every job alone.

    ``fetch``, ``view``, ``parse``, ``check`` and ``bench`` give the spider a ``start`` of theirs.
    ``shell`` has none, but settings that no crawl gets from its command.
    """
    settings = crawler.settings
    by_command = {
        name
        for name in ("DUPEFILTER_CLASS", "LOGSTATS_INTERVAL")
        if settings.getpriority(name) == SETTINGS_PRIORITIES["command"]
    }
    if "DUPEFILTER_CLASS" in by_command or (by_command and not settings["LOGSTATS_INTERVAL"]):
        return True
    start = getattr(crawler.spidercls, "start", None)
    return getattr(start, "__module__", "").startswith("scrapy.commands.")


def write_no_state(crawler: Crawler) -> None:
    """Keep Scrapy from writing ``spider.state``."""
    for extension in crawler.extensions.middlewares if crawler.extensions else ():
        if isinstance(extension, SpiderState):
            extension.jobdir = None


def refuse(crawler: Crawler, reason: str) -> None:
    """Refuse a crawl while its spider is being opened, before its first request.

    The spider is closed for `reason` when it is open: Scrapy cannot close one that is half open
    without tracebacks. That needs Scrapy 2.14. Scrapy does not write ``spider.state`` then: a crawl
    that was killed would look like one that has stopped cleanly.

    :raises CloseSpider: on Scrapy 2.13, or if nothing is being opened.
    """
    fail(crawler)
    write_no_state(crawler)
    engine = engine_of(crawler)
    if engine is None or scrapy.version_info < (2, 14):
        raise CloseSpider(reason)

    def raise_when_open() -> None:
        raise CloseSpider(reason)

    async def close_when_open() -> None:
        await engine.close_spider_async(reason=reason)

    from_scrapy_2_18 = scrapy.version_info >= (2, 18)  # looks at what its handlers raise
    handler = raise_when_open if from_scrapy_2_18 else close_when_open
    crawler.signals.connect(handler, signal=signals.spider_opened, weak=False)


def fail(crawler: Crawler) -> None:
    """Let the ``scrapy`` command end with exit code 1 once the spider is closed.

    Scrapy 2.13 to 2.19 does that for a crawler that has no spider in the end, as after an error in
    the spider's constructor. It offers no other way that does without a traceback.
    """

    def forget_spider() -> None:
        crawler.spider = None

    crawler.signals.connect(forget_spider, signal=signals.spider_closed, weak=False)


def close_spider(crawler: Crawler, reason: str) -> None:
    """Close the spider of a crawl; without an engine, as in a shell, do nothing."""
    engine = engine_of(crawler)
    if hasattr(engine, "close_spider_async"):  # from Scrapy 2.14
        deferred_from_coro(engine.close_spider_async(reason=reason))
    elif engine is not None:
        _close_when_running(crawler, reason)


def _close_when_running(crawler: Crawler, reason: str) -> None:
    """Close the spider on Scrapy 2.13. That hangs if the engine does not run yet, so wait."""
    engine = engine_of(crawler)
    if engine.running:
        engine.close_spider(crawler.spider, reason)
    else:
        call_later(0.01, lambda: _close_when_running(crawler, reason))


def call_later(seconds: float, do: Callable[[], object]) -> Any:
    """Call `do` after some seconds, with a reactor or without; return what has a ``cancel``."""
    try:
        from scrapy.utils.asyncio import call_later as scrapys  # noqa: PLC0415 - from Scrapy 2.14
    except ImportError:
        from twisted.internet import reactor  # noqa: PLC0415 - installs one, which Scrapy has

        twisted: Any = reactor  # its module is not typed
        return twisted.callLater(seconds, do)
    return scrapys(seconds, do)


def run_beside(function: Callable[[], T]) -> Deferred[T]:
    """Run a function in a thread, while the reactor or the event loop goes on.

    The thread ends with the process: whoever presses Ctrl-C twice does not wait for a server.

    :returns: what fires with its result. Where neither is running, the function was run here.
    """
    done: Deferred[T] = Deferred()
    reactor: Any = sys.modules.get("twisted.internet.reactor")  # to import it would install one
    if reactor is not None and reactor.running:
        call_back: Callable[..., object] = reactor.callFromThread
    elif reactor is None and _loop_is_running():
        call_back = asyncio.get_running_loop().call_soon_threadsafe
    else:
        done.callback(function())
        return done

    def run() -> None:
        result: Any
        try:
            result = function()
        except BaseException:  # noqa: BLE001 - raised where it is waited for
            result = Failure()  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # the loop is closed
            call_back(done.callback, result)

    Thread(target=run, name="scrapy-bloom", daemon=True).start()
    return done


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
