"""Having pages fetched again: a function for callbacks, and a middleware that sees failures."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from scrapy.exceptions import IgnoreRequest, NotConfigured

from scrapy_bloom.crawl.engine import engine_of
from scrapy_bloom.errors import SettingError
from scrapy_bloom.settings import FORGET_FAILED, Settings
from scrapy_bloom.signals import forget_page

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

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
    heard = crawler.signals.send_catch_log(forget_page, request=request, failed=False)
    if not heard:
        logger.warning(
            "%s was not forgotten: this crawl has no open filter of scrapy-bloom.",
            request,
            extra={"spider": crawler.spider},
        )
    return any(known is True for _, known in heard)


class ForgetFailed:
    """A downloader middleware that forgets failed pages, so that the next run tries them again.

    It is nearest to the engine: what it sees, no other middleware retries or redirects. The add-on
    installs it. Without ``BLOOM_FORGET_FAILED`` it is disabled.

    :param statuses: HTTP statuses that count as a failure.
    """

    def __init__(self, crawler: Crawler, statuses: Collection[int]) -> None:
        self._crawler = crawler
        self._statuses = statuses

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware of a crawl.

        :raises NotConfigured: if nothing is to be forgotten.
        """
        try:
            chosen = Settings.of(crawler)[FORGET_FAILED]
        except SettingError as error:  # reported when the filter is opened
            raise NotConfigured from error
        if chosen is False:
            raise NotConfigured
        codes = crawler.settings.getlist("RETRY_HTTP_CODES") if chosen is True else chosen
        return cls(crawler, frozenset(map(int, codes)))

    def process_response(
        self,
        request: Request,
        response: Response,
        spider: Spider | None = None,  # noqa: ARG002 - Scrapy 2.13 gives it
    ) -> Response:
        """Look at a response that goes to the spider."""
        if response.status in self._statuses:
            self._forget(request)
        return response

    def process_exception(
        self,
        request: Request,
        exception: Exception,
        spider: Spider | None = None,  # noqa: ARG002 - Scrapy 2.13 gives it
    ) -> None:
        """Look at an error that goes to the errback; ``IgnoreRequest`` is no failure."""
        if not isinstance(exception, IgnoreRequest):
            self._forget(request)

    def _forget(self, request: Request) -> None:
        self._crawler.signals.send_catch_log(forget_page, request=request, failed=True)


def check_watched(crawler: Crawler, settings: Settings) -> None:
    """Check that a crawl that is to forget its failures learns of them.

    :raises SettingError: if it does not.
    """
    if settings[FORGET_FAILED] is False or engine_of(crawler) is None:
        return
    if crawler.get_downloader_middleware(ForgetFailed) is None:
        raise SettingError(
            f"{FORGET_FAILED.setting} is set, but the middleware that sees failures is missing."
            f" Add 'scrapy_bloom.Addon' to your ADDONS, or 'scrapy_bloom.ForgetFailed': 0 to your"
            f" DOWNLOADER_MIDDLEWARES."
        )
