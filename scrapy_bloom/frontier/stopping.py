"""Pages whose callback fails because the crawl is being stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import signals

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


def keep_what_fails(crawler: Crawler, spider: Spider, keep: Callable[[Request], bool]) -> None:
    """Have a page fetched again whose callback failed because the crawl is being stopped.

    What it awaits may end with an error then, such as a download of its own.

    :param keep: never lets a request be done; returns whether it was under way.
    """
    engine: Any = crawler.engine

    def callback_failed(response: Any) -> None:
        slot = getattr(engine, "_slot", None)
        if getattr(slot, "closing", None) is None:
            return
        request = getattr(response, "request", None)  # of a response, or of a failure
        if request is not None and keep(request):
            logger.info(
                "%s failed while the spider was closing: it is fetched again in the next run, or"
                " by another worker.",
                request,
                extra={"spider": spider},
            )

    crawler.signals.connect(callback_failed, signal=signals.spider_error, weak=False)
