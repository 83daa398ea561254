"""A crawl as a whole: whether it is one, and how it is refused or ended."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.exceptions import CloseSpider
from scrapy.extensions.spiderstate import SpiderState
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.defer import deferred_from_coro

from scrapy_bloom.crawl.scrapy.loop import call_later

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

_SHELL_SETTINGS: Final = ("DUPEFILTER_CLASS", "LOGSTATS_INTERVAL")
"""What ``scrapy shell`` sets, unless the project has set it."""


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


def encode(request: Request, queue: Any) -> bytes:
    """Return a request as scrapy-redis's queue pushes it. Raises what its serializer does."""
    return bytes(queue.server.get_encoder().encode(queue._encode_request(request)))


def wrap_start(crawler: Crawler, wrap: Callable[[AsyncIterator[Any]], AsyncIterator[Any]]) -> None:
    """Have Scrapy read ``wrap(start)`` instead of the spider's ``start()``, if that is not over.

    Call it while the spider is being opened.
    """
    engine = engine_of(crawler)
    start: Any = getattr(engine, "_start", None)
    if hasattr(start, "__aiter__"):
        engine._start = wrap(start)


def apply_settings(crawler: Crawler) -> None:
    """Let add-ons change the settings of a crawler that is never started, and freeze them."""
    crawler._apply_settings()


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


def send_dropped(crawler: Crawler, request: Request) -> None:
    """Say that a request was dropped which its scheduler had accepted."""
    crawler.signals.send_catch_log(signals.request_dropped, request=request, spider=crawler.spider)


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
        engine._start = None
        engine.pause()
        close = partial(close_spider, crawler, reason)
        # Its first task must have begun: cancelled before, it leaves a traceback (Scrapy 2.13).
        call_later(0.01, lambda: call_later(0, close) if engine.running else close())
    elif hasattr(engine, "close_spider_async"):  # from Scrapy 2.14
        closing = deferred_from_coro(engine.close_spider_async(reason=reason))
        # An event loop that ends before cancels it, and nobody waits for it.
        closing.addErrback(lambda failure: failure.trap(CancelledError))
    else:
        engine.close_spider(crawler.spider, reason)
