"""Scrapy's contract for duplicate filters, and what scrapy-redis expects of them.

Under our scheduler the filter only logs and counts: the frontier decides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from scrapy import signals
from scrapy.dupefilters import RFPDupeFilter

from scrapy_bloom.crawl.judge import SEEN, Forgettable, Judge
from scrapy_bloom.crawl.other_schedulers import (
    queue_type,
    scheduler_with,
    spare_queue,
    unstored,
    warn_if_not_shared,
    watch_pushes,
)
from scrapy_bloom.crawl.report import Report, Verdict, end_crawl
from scrapy_bloom.crawl.scrapy.crawler import is_inspection_command, refuse
from scrapy_bloom.errors import BloomError, SettingError
from scrapy_bloom.local.job import set_aside_if_unclean
from scrapy_bloom.local.plain import PlainFilter
from scrapy_bloom.settings import BACKEND, Settings, is_in_redis
from scrapy_bloom.signals import forget_page, seen_page

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_bloom.crawl.identity import Identifier
    from scrapy_bloom.redis.plain import SharedFilter


class BloomDupeFilter:
    """A ``DUPEFILTER_CLASS`` based on a Bloom filter, for Scrapy's and scrapy-redis's schedulers.

    The constructor opens nothing. :meth:`open` opens the filter; if it is never called, the first
    request does.

    A subclass may override ``request_seen``, for pages that are known from elsewhere, and call
    ``super()`` for all others. Every scheduler asks it first. If it raises under
    :class:`Scheduler`, the error is logged, and the page is fetched.

    Attributes:
        report: writes to stats and log, also for our scheduler.
        own: the check of a subclass, None if there is none.
    """

    own: Callable[[Request], bool] | None = None

    def __init__(self, crawler: Crawler) -> None:
        self._checks: Checks | Unfiltered | None = None  # until something is opened
        self._unclean = False  # whether the last run was killed, and its files were moved away
        self._refusal: BloomError | None = None  # if that was found before there was a spider
        self._filter: PlainFilter | SharedFilter | None = None  # None also under our scheduler
        self._crawler = crawler
        self.report = Report(crawler)
        self._shared_queue = False
        self._crawling = False  # scrapy-redis clears before a crawl, and after it to clean up
        if type(self).request_seen is not BloomDupeFilter.request_seen:
            self.own = self.request_seen
        self._scrapys = RFPDupeFilter(debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the filter of a crawl."""
        self = cls(crawler)
        self._set_aside()
        return self

    def _set_aside(self) -> None:
        """Move away what a killed run left: Scrapy opens its queue before the filter."""
        crawler, folder = self._crawler, self._crawler.settings["JOBDIR"]
        if folder and not is_inspection_command(crawler):
            try:
                Settings.of(crawler)  # nothing is moved if they are refused
                if not is_in_redis(crawler.settings):
                    self._unclean = set_aside_if_unclean(Path(folder), name_of(crawler))
            except BloomError as error:
                self._refusal = error

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Create a filter for the scheduler of scrapy-redis, which never opens or closes it.

        The requests of such a crawl are in Redis, and so is its filter.
        """
        self = cls.from_crawler(spider.crawler)
        self._shared_queue = True
        spider.crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)
        spider.crawler.signals.connect(self.close, signal=signals.spider_closed)
        return self

    def open(self) -> None:
        """Open the filter.

        If the crawl cannot be filtered as configured, the reason is logged, and the crawl ends
        before its first request.

        :raises CloseSpider: in that case, if there is no other way to close the spider.
        """
        if self._checks is None:
            try:
                self._open()
            except BloomError as error:
                self._checks = Unfiltered(self.report, error)
                self.report.error(error)
                refuse(self._crawler, error.reason)
                return
        self._watch_pushes()

    def stand_aside(self) -> bool:
        """Leave all checks to our scheduler; return whether the last run was killed.

        :raises BloomError: if the crawl cannot start.
        """
        if self._refusal is not None:
            raise self._refusal
        error = BloomError("scrapy_bloom.Scheduler checks only what is enqueued.")
        self._checks = Unfiltered(self.report, None if self.own else error)
        return self._unclean

    def request_seen(self, request: Request) -> bool:
        """Return whether an equal request was seen before. Never raises.

        If anything fails, the answer is False: the page is fetched, perhaps twice, but never lost.
        """
        return (self._checks or self._open_late()).check(request) is SEEN

    def close(self, reason: str) -> None:
        """Store the filter if it is kept, and write the final stats. Never raises."""
        closing, checks, self._filter = self._filter, self._checks, None
        self._checks = Unfiltered(
            self.report, BloomError("The spider has closed, and so has its filter.")
        )
        if closing is None or checks is None:
            self.report.closed(reason, shared_queue=self._shared_queue)
            return
        dropped = [*unstored(scheduler_with(self, self._crawler))]
        for request in dropped:
            checks.withdraw(request)
        if dropped:
            self.report.warn(
                f"{len(dropped):,} requests could not be serialized, so Scrapy has not stored them."
                f" The next run fetches their pages if it finds a link to them. With"
                f" SCHEDULER_DEBUG = True Scrapy logs what it cannot serialize, such as lambdas as"
                f" callbacks."
            )
        closing.close()
        self.report.closed(reason, shared_queue=self._shared_queue)

    def clear(self) -> None:
        """Empty the filter before scrapy-redis empties its queue. Never raises.

        If other workers use the filter, or may be using it, filter and queue are kept.
        """
        if self._checks is None:
            self._open_late(empty=True)
            emptied = self._filter is not None and self._filter.emptied
        else:
            emptied = self._filter is not None and self._filter.clear(at_end=self._crawling)
        if emptied and self._crawling:
            self.report.info(
                "The filter and the request queue are emptied at the end of the crawl, because no"
                " other worker uses them. SCHEDULER_PERSIST = True keeps them."
            )
        if not emptied:
            spared = spare_queue(self._crawler, self)
            if self._filter is not None:  # else the error was logged
                what = "The filter and the request queue are" if spared else "The filter is"
                self.report.info(
                    f"{what} not emptied: other workers may be using them, or have left requests"
                    f" there."
                )

    def log(self, request: Request, spider: Spider) -> None:
        """Count and log a dropped request as Scrapy's own filter does."""
        try:
            self._scrapys.log(request, spider)
        except Exception as error:  # the stats collector may be third-party
            self.report.stats_failed(error)

    def _open(self, *, empty: bool = False) -> None:
        """Open the filter.

        :param empty: whether to empty it at once.
        :raises BloomError: if that fails.
        """
        if self._refusal is not None:
            raise self._refusal
        crawler = self._crawler
        Settings.of(crawler)  # they may be refused
        in_redis = is_in_redis(crawler.settings, shared_queue=self._shared_queue)
        if in_redis and (self._shared_queue or not is_inspection_command(crawler)):
            self._filter = self._open_shared(empty=empty)
        else:
            self._filter = PlainFilter(
                crawler, name_of(crawler), self.report, unclean=self._unclean
            )
            if empty:
                self._filter.clear()
        if not (self._shared_queue or is_inspection_command(crawler)):
            warn_if_not_shared(crawler, self.report, shared=in_redis)
        filter_ = self._filter
        made = crawler, filter_.identifier, self.report, filter_.filter
        self._checks = Checks(*made, shared=in_redis)

    def _open_shared(self, *, empty: bool) -> SharedFilter:
        """Open a filter in Redis.

        :raises BloomError: if that fails.
        """
        crawler, folder = self._crawler, self._crawler.settings["JOBDIR"]
        if folder and not self._shared_queue:
            raise SettingError(
                f"JOBDIR = {folder!r}: after a kill, a filter in Redis would suppress pages whose"
                f" requests are lost. Set SCHEDULER = 'scrapy_bloom.Scheduler', and the requests"
                f" are in Redis, too; or remove your JOBDIR; or set {BACKEND.setting} = 'local'."
            )
        from scrapy_bloom.redis import plain  # needs an extra

        return plain.SharedFilter(
            crawler, name_of(crawler), self.report, shared_queue=self._shared_queue, empty=empty
        )

    def _open_late(self, *, empty: bool = False) -> Checks | Unfiltered:
        """Open the filter where nothing may be raised; if that fails, close the spider."""
        try:
            self._open(empty=empty)
        except Exception as error:  # raising would lose the page
            self._checks = Unfiltered(self.report, error)
            if isinstance(error, BloomError):
                end_crawl(self._crawler, self.report, error)
        assert self._checks is not None  # set either way
        return self._checks

    def _watch_pushes(self) -> None:
        scheduler, filter_ = scheduler_with(self, self._crawler), self._filter
        if scheduler is None or filter_ is None or not isinstance(self._checks, Checks):
            return
        is_ours = getattr(self.request_seen, "__func__", None) is BloomDupeFilter.request_seen
        kind = queue_type(scheduler) if self._shared_queue and is_ours else ""
        watch_pushes(scheduler, self._checks.withdraw)
        if self._shared_queue and not isinstance(filter_, PlainFilter):
            filter_.push_together(scheduler, kind, self._checks.judge)

    def _spider_opened(self) -> None:
        if self._checks is None:
            self._open_late()
        self._watch_pushes()
        self._crawling = True


class Filter(Forgettable, Protocol):
    """Decides which pages were seen. Any method may raise anything."""

    def add(self, fingerprint: bytes) -> bool:
        """Add a fingerprint; return whether it was there."""

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this let it through in the last `max_age` seconds; if not, add it."""


class Checks:
    """What checks the requests of another scheduler.

    :param identifier: says what a request is.
    :param report: writes to stats and log.
    :param filter_: answers.
    :param shared: whether other workers use it.

    Attributes:
        judge: judges them.
    """

    def __init__(
        self,
        crawler: Crawler,
        identifier: Identifier,
        report: Report,
        filter_: Filter,
        *,
        shared: bool,
    ) -> None:
        self._report = report
        self._add, self._add_aged = filter_.add, filter_.add_aged
        self.judge = Judge(crawler, identifier, report, filter_, shared=shared)
        crawler.signals.connect(self.judge.seen, signal=seen_page)
        crawler.signals.connect(self.judge.forget, signal=forget_page)

    def check(self, request: Request) -> Verdict:
        """Return the verdict on a request, and mark it. Never raises."""
        verdict = self.judge.check(request, self._ask)
        assert isinstance(verdict, Verdict)  # the filter answers at once
        return verdict

    def _ask(self, mark: bytes, max_age: float | None) -> bool:
        return self._add(mark) if max_age is None else self._add_aged(mark, max_age)

    def withdraw(self, request: Request) -> None:
        """Make the page of a request eligible again, see :meth:`Judge.withdraw`. Never raises."""
        try:
            self.judge.withdraw(request)
        except Exception as error:  # the crawl continues without
            self._report.check_failed(request, error)


class Unfiltered:
    """Stands in where no filter is asked, or none is open: every request is crawled.

    :param error: why there is none; None if our scheduler asks next.
    """

    def __init__(self, report: Report, error: Exception | None) -> None:
        self._report = report
        self._error = error

    def check(self, request: Request) -> Verdict:
        """Return ``ERROR``: the request could not be checked."""
        if self._error is not None:
            self._report.check_failed(request, self._error)
            self._report.count(Verdict.ERROR)
        return Verdict.ERROR

    def withdraw(self, request: Request) -> None:
        """Do nothing: the page was not marked."""


def name_of(crawler: Crawler) -> str:
    """Return the spider's name. A class may leave it to its instances, or have none at all."""
    name = getattr(crawler.spider or crawler.spidercls, "name", None)
    return name or crawler.spidercls.__name__
