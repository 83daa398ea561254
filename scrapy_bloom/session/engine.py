"""The engine of a crawl, and closing its spider from where nothing can be raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.utils.defer import deferred_from_coro

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


def engine_of(crawler: Crawler) -> Any:
    """Return the engine of a crawl, or None if there is none (yet)."""
    try:
        return crawler.engine
    except RuntimeError:  # from Scrapy 2.19, if it is not there yet
        return None


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
