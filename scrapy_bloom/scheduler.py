"""Scrapy's contract for schedulers, with requests and marks that survive a kill."""

from __future__ import annotations

import logging
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.crawl.backend import Backend, Crawl
from scrapy_bloom.crawl.frontier import Frontier
from scrapy_bloom.crawl.identity import Identifier
from scrapy_bloom.crawl.in_flight import InFlight
from scrapy_bloom.crawl.other_schedulers import warn_if_not_shared
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.scrapy.crawler import (
    exit_with_error_code,
    is_inspection_command,
    no_requests,
    refuse,
    send_dropped,
    write_no_state,
)
from scrapy_bloom.crawl.scrapy.engine import Engine
from scrapy_bloom.crawl.scrapy.loop import Timer
from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.dupefilter import BloomDupeFilter
from scrapy_bloom.errors import BloomError, SettingError
from scrapy_bloom.local.backend import LocalBackend
from scrapy_bloom.local.job import check_unused
from scrapy_bloom.local.queue import QueueClasses
from scrapy_bloom.settings import RETRY_FAILED, Settings, failing_statuses, is_in_redis

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self


class Scheduler(ScrapyScheduler):
    """A ``SCHEDULER`` whose crawls resume after a stop or a kill at any moment.

    With a ``JOBDIR``, requests and marks are stored together in these files:

    ``bloom.sqlite``
        Every request that is not done, all marks, and ``spider.state``.
    ``bloom.sqlite-wal``, ``-shm``
        Its log, while a crawl runs and after a kill.
    ``bloom.lock``
        Locked while a crawl runs.

    Queues, their order and their settings are Scrapy's.

    With the filter in Redis, the requests are there as well, shared by any number of workers.

    With neither, this is Scrapy's own scheduler, with :class:`BloomDupeFilter` unless the project
    chose another filter.
    """

    crawler: Crawler
    df: Any
    dqs: Any
    dqclass: Any
    pqclass: Any

    _frontier: Frontier | None = None
    _early: list[Request] | None = None  # what is enqueued while that is being opened
    _refused = _closing = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the scheduler of a crawl; under an inspection command, it keeps nothing."""
        settings = crawler.settings
        by_default = settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["default"]
        chosen = BloomDupeFilter if by_default else load_object(settings["DUPEFILTER_CLASS"])
        dupefilter: Any = build_from_crawler(chosen, crawler)
        if is_inspection_command(crawler):
            write_no_state(crawler)
        return cls(
            dupefilter,
            dqclass=load_object(settings["SCHEDULER_DISK_QUEUE"]),
            mqclass=load_object(settings["SCHEDULER_MEMORY_QUEUE"]),
            logunser=settings.getbool("SCHEDULER_DEBUG"),
            stats=crawler.stats,
            pqclass=load_object(settings["SCHEDULER_PRIORITY_QUEUE"]),
            crawler=crawler,
        )

    def has_pending_requests(self) -> bool:
        """Return whether there are requests to send."""
        frontier = self._frontier
        return super().has_pending_requests() if frontier is None else frontier.pending()

    def open(self, spider: Spider) -> Deferred[None]:
        """Open filter and requests.

        (1) Check the settings: which backend, which filter, which queues
        (2) Open what stores the crawl: in a ``JOBDIR`` see :class:`LocalBackend`, in Redis
            :class:`RedisBackend`
        (3) With neither, open Scrapy's own queues and the filter

        If the crawl cannot be stored as configured, the reason is logged, and the crawl ends before
        its first request.

        :returns: a Deferred that fires when they are open. It fails with ``CloseSpider`` in that
            case, if there is no other way to close the spider.
        """
        self.spider = spider
        self.mqs, self.dqs = self._mq(), None
        self._interval = self.crawler.settings.getfloat("LOGSTATS_INTERVAL") or inf
        self._progress = Timer(self._log_progress)
        return Deferred.fromCoroutine(self._open())

    async def _open(self) -> None:
        try:
            self._frontier = await self._open_frontier()
        except BloomError as error:
            self._refused = True
            ours = isinstance(self.df, BloomDupeFilter)
            (self.df.report if ours else Report(self.crawler)).error(error)
            refuse(self.crawler, error.reason)
            self._enqueue_early()
            return
        self._enqueue_early()
        if self._frontier is None and (opened := super().open(self.spider)) is not None:
            await opened

    def close(self, reason: str) -> Deferred[None] | None:
        """Store everything; a crawl that was refused stores nothing.

        (1) Refuse what is enqueued from now on
        (2) Close the frontier, which stores requests and marks
        (3) Close the filter, which writes the summary
        """
        if self._frontier is None:
            return super().close(reason)
        self._closing = True
        self._progress.cancel()
        return Deferred.fromCoroutine(self._close(self._frontier, reason))

    def enqueue_request(self, request: Request) -> bool:
        """Take a request unless it is a duplicate; return whether it was taken."""
        frontier = self._frontier
        if frontier is None or self._closing:
            return self._enqueue_unopened(request)
        if not isinstance(request.priority, int):  # Scrapy checks only what its constructor gets
            given: Any = request.priority
            request.priority = int(given) if isinstance(given, float) and isfinite(given) else 0
        if frontier.enqueue(request):
            return True
        self.df.log(request, self.spider)
        return False

    def _enqueue_unopened(self, request: Request) -> bool:
        """Take a request where no frontier does: not yet, not any more, or never."""
        if self._early is not None:
            self._early.append(request)
            return True
        if self._closing:
            self.df.report.once(
                logging.WARNING,
                "%s was enqueued after the spider had closed, so it is not stored. More such"
                " requests are not shown.",
                request,
            )
            self.df.report.set(stats.NOT_STORED, 1)
            return False
        # In a refused crawl it would be marked but never fetched.
        return not self._refused and super().enqueue_request(request)

    def next_request(self) -> Request | None:
        """Return the next request to send, None if none is ready."""
        frontier = self._frontier
        return super().next_request() if frontier is None else frontier.next()

    def paused_until(self, request: Request) -> float:
        """Return until when the slot of a request on its way is paused, 0 if it is not.

        :returns: a time by ``time.monotonic()``. 0 as well for a request that this scheduler has
            not returned, such as one for ``robots.txt``.
        """
        return 0.0 if self._frontier is None else self._frontier.paused_until(request)

    def __len__(self) -> int:
        """Return how many requests are waiting."""
        frontier = self._frontier
        return super().__len__() if frontier is None else len(frontier)

    async def _open_frontier(self) -> Frontier | None:
        """Open what stores the requests; return None if only Scrapy's own queue does.

        :raises BloomError: if the crawl cannot be stored as configured.
        """
        crawler, folder = self.crawler, self.crawler.settings["JOBDIR"]
        settings = Settings.of(crawler)
        shared = is_in_redis(crawler.settings)
        if is_inspection_command(crawler) or not (shared or folder):
            return None
        if not isinstance(self.df, BloomDupeFilter):
            kind = type(self.df)
            raise SettingError(
                f"DUPEFILTER_CLASS = '{kind.__module__}.{kind.__qualname__}': with"
                f" {'the filter in Redis' if shared else 'a JOBDIR'}, scrapy_bloom.Scheduler stores"
                f" marks and requests together, which only scrapy_bloom.BloomDupeFilter supports."
                f" Remove your DUPEFILTER_CLASS, or your SCHEDULER."
            )
        unclean = self.df.stand_aside()
        if shared and folder:
            check_unused(Path(folder))
        report, engine = self.df.report, Engine(crawler)
        identifier = Identifier(crawler, settings)
        statuses = failing_statuses(crawler)
        retries = settings[RETRY_FAILED] is not False
        in_flight = InFlight(engine, report, identifier, statuses, retries=retries)
        crawl = Crawl(crawler, self.spider, settings, report, engine, identifier, in_flight)
        self._early = []
        with no_requests(crawler):
            if shared:
                backend = await self._open_redis(crawl)
            else:
                backend = await self._open_local(crawl, Path(folder), unclean=unclean)
        frontier = Frontier(crawl, backend, self.mqs, self.df)
        warn_if_not_shared(crawler, report, shared=shared)
        self.dqs = backend  # Scrapy's engine status asks how many wait there
        self._progress.call_within(self._interval)
        return frontier

    def _log_progress(self) -> None:
        if self._frontier is not None:
            self._frontier.log_progress()
            self._progress.call_within(self._interval)

    async def _open_local(self, crawl: Crawl, folder: Path, *, unclean: bool) -> Backend:
        plain, start = QueueKind.of("SCHEDULER_DISK_QUEUE", self.dqclass), None
        if self._sdqclass is not None:
            start = QueueKind.of("SCHEDULER_START_DISK_QUEUE", self._sdqclass)
        classes = QueueClasses(self.pqclass, plain, start)
        return await LocalBackend.open(crawl, folder, classes, unclean=unclean)

    async def _open_redis(self, crawl: Crawl) -> Backend:
        from scrapy_bloom.redis.backend import RedisBackend  # needs an extra

        return await RedisBackend.open(crawl, QueueKind.of("SCHEDULER_DISK_QUEUE", self.dqclass))

    def _enqueue_early(self) -> None:
        """Enqueue what was kept while the crawl was being opened."""
        early, self._early = self._early or (), None
        for request in early:
            if not self.enqueue_request(request):
                send_dropped(self.crawler, request)

    async def _close(self, frontier: Frontier, reason: str) -> None:
        stored = False
        try:
            stored = await frontier.close()
        finally:
            self._frontier = self.dqs = None
            self.df.close(reason)
            if not stored:
                self.df.report.set(stats.NOT_STORED, 1)
                exit_with_error_code(self.crawler)
