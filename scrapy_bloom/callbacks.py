"""Functions for callbacks and middlewares: was a page seen? Fetch it again; pause a host."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy_bloom.signals import forget_page, hold_slot, seen_page
from scrapy_bloom.values import Span, read_age

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


def forget(request: Request, crawler: Crawler) -> bool:
    """Make the page of a request eligible again: the next link to it, or the next run, fetches it.

    For a response that is the wrong page, such as a login page or an error page with status 200:
    ``scrapy_bloom.forget(response.request, self.crawler)`` in a callback.

    The pages that redirected to the response are eligible again, too, and so are those whose
    redirects to it were dropped as seen, as far as this worker has met them in this run. If a page
    is not marked, nothing is forgotten; ``bloom/not_forgotten`` counts that. Never raises. Call it
    where Scrapy calls a spider or a middleware, not from another thread.

    :param request: the request, usually ``response.request``.
    :param crawler: its crawl, in a spider ``self.crawler``.
    :returns: whether the page was known; in a crawl that workers share, to this worker.
    """
    received = crawler.signals.send_catch_log(forget_page, request=request)
    if not received:
        logger.warning(
            "%s was not forgotten: this crawl has no open filter of scrapy-bloom.",
            request,
            extra={"spider": crawler.spider},
        )
    return any(known is True for _, known in received)


def seen(request: Request, crawler: Crawler) -> bool | None:
    """Return whether the page of a request was seen: whether a link to it would be dropped.

    ``scrapy_bloom.seen(response.follow(link), self.crawler)`` in a callback. Nothing is marked.
    What a callback yields counts once the scheduler has it, and a ``bloom_max_age`` does not count.
    Never raises. Call it where Scrapy calls a spider or a middleware, not from another thread.

    :param request: for the page; its callback and priority do not matter.
    :param crawler: its crawl, in a spider ``self.crawler``.
    :returns: True or False at once; None if that is not known here: this worker has not met the
        page, and the filter is in Redis; or the crawl has no open filter of scrapy-bloom.
    """
    received = crawler.signals.send_catch_log(seen_page, request=request)
    answers = [answer for _, answer in received if isinstance(answer, bool)]
    return any(answers) if answers else None


def hold(request: Request, crawler: Crawler, seconds: Span) -> bool:
    """Pause the host of a request: for a time no worker of the crawl sends it a request.

    For a page with status 200 that says "too many requests":
    ``scrapy_bloom.hold(response.request, self.crawler, 300)`` in a callback. The host is the
    download slot of the request. The page itself is not fetched again: yield a request for it with
    a ``bloom_delay``. Call it where Scrapy calls a spider or a middleware, not from another thread.

    :param request: the request, usually ``response.request``.
    :param crawler: its crawl, in a spider ``self.crawler``.
    :param seconds: for how long: seconds, a `timedelta`, or text such as ``"5m"``.
    :returns: whether the host is paused: only ``scrapy_bloom.Scheduler`` can do that.
    :raises SettingError: if `seconds` is not a time.
    """
    wait, send = read_age("seconds", seconds), crawler.signals.send_catch_log
    paused = any(done is True for _, done in send(hold_slot, request=request, seconds=wait))
    if not paused:
        logger.warning(
            "The host of %s was not paused: this crawl has no open scrapy_bloom.Scheduler.",
            request,
            extra={"spider": crawler.spider},
        )
    return paused
