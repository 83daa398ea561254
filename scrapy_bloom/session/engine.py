"""The engine of a crawl: closing its spider where nothing can be raised, working beside it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy import signals
from scrapy.exceptions import CloseSpider
from scrapy.extensions.spiderstate import SpiderState
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


def engine_of(crawler: Crawler) -> Any:
    """Return the engine of a crawl, or None if there is none (yet)."""
    try:
        return crawler.engine
    except RuntimeError:  # from Scrapy 2.19, if it is not there yet
        return None


def refuse(crawler: Crawler, reason: str) -> None:
    """Refuse a crawl from within the opening of its spider, before its first request.

    The spider is closed for `reason` when it is open: Scrapy cannot close one that is half open
    without tracebacks. That needs Scrapy 2.14. Scrapy does not write ``spider.state`` then: a crawl
    that was killed would look like one that has stopped cleanly.

    :raises CloseSpider: on Scrapy 2.13, or if nothing is being opened.
    """
    fail(crawler)
    _keep_spider_state(crawler)
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


def _keep_spider_state(crawler: Crawler) -> None:
    """Have Scrapy's extension neither read nor write ``spider.state``."""
    for extension in crawler.extensions.middlewares if crawler.extensions else ():
        if isinstance(extension, SpiderState):
            extension.jobdir = None


def close_spider(crawler: Crawler, reason: str) -> None:
    """Close the spider of a crawl; without an engine, as in a shell, do nothing."""
    engine = engine_of(crawler)
    if hasattr(engine, "close_spider_async"):  # from Scrapy 2.14
        deferred_from_coro(engine.close_spider_async(reason=reason))
    elif engine is not None:
        _close_when_running(crawler, reason)


def _close_when_running(crawler: Crawler, reason: str) -> None:
    """Close the spider on an older Scrapy. That hangs if the engine does not run yet, so wait."""
    from twisted.internet import reactor  # noqa: PLC0415 - at the top it would install a reactor

    engine = engine_of(crawler)
    later: Any = reactor  # its module is not typed
    if engine.running:
        engine.close_spider(crawler.spider, reason)
    else:
        later.callLater(0.01, _close_when_running, crawler, reason)


def run_beside(function: Callable[[], None]) -> Deferred[None] | None:
    """Run a function in a thread, while the reactor or the event loop goes on.

    :returns: what fires when it is done; None if neither is running, and the function was run here.
    """
    reactor: Any = sys.modules.get("twisted.internet.reactor")  # to import it would install one
    if reactor is not None and reactor.running:
        return deferToThread(function)
    if reactor is None and _loop_is_running():
        return deferred_from_coro(asyncio.to_thread(function))
    function()
    return None


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
