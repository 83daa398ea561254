"""Scrapy's contract for duplicate filters, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.utils.request import referer_str

from scrapy_bloom.backends.base import backend_name
from scrapy_bloom.errors import BloomError
from scrapy_bloom.scrapy_redis import spare_queue
from scrapy_bloom.session.engine import fail, refuse, run_beside
from scrapy_bloom.session.lost_requests import LostRequests
from scrapy_bloom.session.reporter import Reporter
from scrapy_bloom.session.session import NoSession, OnMark, Session, spider_name
from scrapy_bloom.session.verdict import Verdict
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.store import put_aside_if_unclean

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

    from scrapy_bloom.redis.queue.base import Form

logger = logging.getLogger(__name__)

SEEN = Verdict.SEEN


class BloomDupeFilter:
    """A ``DUPEFILTER_CLASS`` on a Bloom filter, for Scrapy's scheduler and for scrapy-redis's.

    Nothing is opened when the object is made. :meth:`open` opens the filter; if nobody calls that,
    the first request does.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._reporter = Reporter(crawler)
        self._session: Session | NoSession | None = None  # None until it is opened
        self._lost = LostRequests(crawler, self, self._withdraw)
        self._shared_queue = False
        self._crawling = False  # scrapy-redis clears before, to begin anew, and after, to clean up
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._logged_duplicate = False
        self._refusal: BloomError | None = None  # found before the filter can be opened

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the filter of a crawl.

        Scrapy's scheduler opens its queue in a moment, before the filter. So what a killed run has
        left is put aside here.
        """
        self = cls(crawler)
        self._put_aside_if_unclean()
        return self

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Make the filter of a crawl for scrapy-redis's scheduler, which never opens or closes it.

        Requests of such a crawl wait in Redis, and so does its filter.
        """
        self = cls.from_crawler(spider.crawler)
        self._shared_queue = True
        spider.crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)
        spider.crawler.signals.connect(self.close, signal=signals.spider_closed)
        return self

    def open(self) -> None:
        """Open the filter.

        If the crawl cannot be filtered as the settings say, the log tells why, and it ends before
        its first request.

        :raises CloseSpider: then, where the spider cannot be closed in another way.
        """
        session = self._session or self._open()
        if isinstance(session, NoSession):
            if not isinstance(session.error, BloomError):
                raise session.error
            self._reporter.error(session.error)
            refuse(self._crawler, session.error.reason)
            return
        self._lost.watch()

    def open_journaled(self, on_mark: OnMark) -> Session:
        """Get ready for ``scrapy_bloom.Scheduler``, which keeps the marks with the requests.

        :param on_mark: called with each new mark.
        :raises BloomError: if the crawl cannot be filtered as the settings say.
        """
        if self._refusal:
            raise self._refusal
        session = Session.open(self._crawler, self._reporter, on_mark=on_mark, journaled=True)
        self._session = session
        return session

    def open_shared(self, queue: Form) -> Session:
        """Get ready for ``scrapy_bloom.Scheduler``, which keeps marks and requests in Redis.

        :param queue: the form of the requests.
        :raises BloomError: if the crawl cannot be filtered as the settings say.
        """
        if self._refusal:
            raise self._refusal
        session = Session.open(self._crawler, self._reporter, shared_queue=True, queue=queue)
        self._session = session
        return session

    def request_seen(self, request: Request) -> bool:
        """Return whether an equal request was seen before. Never raises.

        If anything fails, the answer is False: the page is fetched, perhaps twice, but never lost.
        """
        return (self._session or self._open_late()).check(request) is SEEN

    def close(self, reason: str) -> Deferred[None] | None:  # noqa: ARG002 - Scrapy's signature
        """Store the filter if the backend keeps it, and write the last stats. Never raises.

        :returns: what fires when that is done; None if it is.
        """
        closed = NoSession(BloomError("The filter is closed."), self._reporter)
        try:
            if unstored := self._lost.withdraw_unstored():
                self._reporter.unstored(unstored)
        finally:
            session, self._session = self._session or closed, closed
            done = run_beside(session.close) if session.closes_slowly else session.close()
        return done

    def clear(self) -> None:
        """Empty the filter before scrapy-redis empties its queue. Never raises.

        If other workers use the filter, or if that cannot be known, filter and queue stay.
        """
        session = self._session
        if session:
            emptied = session.clear(at_end=self._crawling)
        else:
            emptied = self._open_late(empty=True).emptied
        if emptied and self._crawling:
            logger.info(
                "Filter and request queue are emptied at the end of the crawl, with all requests"
                " that wait: no other worker uses them. SCHEDULER_PERSIST = True keeps them.",
                extra={"spider": self._crawler.spider},
            )
        if not emptied:
            spared = spare_queue(self._crawler, self)
            logger.info(
                "%s not emptied: other workers may be using them, or have left requests beside the"
                " filter.",
                "Filter and request queue are" if spared else "The filter is",
                extra={"spider": self._crawler.spider},
            )

    def log(self, request: Request, spider: Spider) -> None:
        """Count a dropped request, and log the first one, or all with ``DUPEFILTER_DEBUG``."""
        if self._debug:
            logger.debug(
                "Filtered duplicate request: %(request)s (referer: %(referer)s)",
                {"request": request, "referer": referer_str(request)},
                extra={"spider": spider},
            )
        elif not self._logged_duplicate:
            self._logged_duplicate = True
            logger.debug(
                "Filtered duplicate request: %(request)s"
                " - no more duplicates will be shown"
                " (see DUPEFILTER_DEBUG to show all duplicates)",
                {"request": request},
                extra={"spider": spider},
            )
        self._reporter.add("dupefilter/filtered")

    def _put_aside_if_unclean(self) -> None:
        folder = self._crawler.settings["JOBDIR"]
        if not folder:
            return
        try:
            settings = Settings(self._crawler.settings, warn=False)
            self._reporter.starts_over = put_aside_if_unclean(
                Path(folder),
                spider_name(self._crawler),
                filter_too=backend_name(settings, shared_queue=False) == "local",
            )
        except BloomError as error:
            self._refusal = error

    def _withdraw(self, request: Request) -> None:
        if self._session:
            self._session.withdraw(request)

    def _open(self, *, empty: bool = False) -> Session | NoSession:
        try:
            if self._refusal:
                raise self._refusal
            self._session = Session.open(
                self._crawler, self._reporter, shared_queue=self._shared_queue, empty=empty
            )
        except Exception as error:  # noqa: BLE001 - the caller decides what becomes of it
            self._session = NoSession(error, self._reporter)
        return self._session

    def _open_late(self, *, empty: bool = False) -> Session | NoSession:
        """Open the filter where nothing can be raised: the spider is closed if that fails."""
        session = self._open(empty=empty)
        if isinstance(session, NoSession) and isinstance(session.error, BloomError):
            fail(self._crawler)
            self._reporter.give_up(session.error)
        return session

    def _spider_opened(self) -> None:
        self._session = self._session or self._open_late()
        self._lost.watch()
        self._crawling = True
