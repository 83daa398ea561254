"""What a callback calls to have a page fetched again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy_bloom.session.sessions import session_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


def forget(request: Request, crawler: Crawler) -> None:
    """Make the page of a request new once more: the next link to it, or the next run, fetches it.

    For a response that is not what was asked for, such as a login page or an error page with status
    200: ``scrapy_bloom.forget(response.request, self.crawler)`` in a callback.

    If redirects have led to the response, the pages that they began with are new once more, too; so
    are those whose redirects to it were dropped as seen, as far as this worker has met them in this
    run. Of a page that is not marked nothing is forgotten; ``bloom/not_forgotten`` counts that.
    Never raises. To be called where Scrapy calls a spider or a middleware, not in another thread.

    :param request: the request, mostly ``response.request``.
    :param crawler: its crawl, in a spider ``self.crawler``.
    """
    session = session_of(crawler)
    if session is not None:
        session.forget(request)
        return
    logger.warning(
        "%s is not forgotten: this crawl has no open filter of scrapy-bloom.",
        request,
        extra={"spider": crawler.spider},
    )
