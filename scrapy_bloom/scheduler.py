"""Scrapy's contract for schedulers, on a frontier that survives a kill."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.job import job_dir
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.dupefilter import BloomDupeFilter
from scrapy_bloom.errors import BloomError, SettingError
from scrapy_bloom.frontier.buckets import BucketMaker
from scrapy_bloom.frontier.local import LocalFrontier
from scrapy_bloom.frontier.opening import (
    Found,
    check_complete,
    open_store,
    replay,
    start_priorities,
)
from scrapy_bloom.frontier.requests import QueueKind
from scrapy_bloom.frontier.store import Store
from scrapy_bloom.frontier.under_way import Alive, watch_engine
from scrapy_bloom.options import COMMIT_INTERVAL, COMMIT_SYNC, CommitSync
from scrapy_bloom.session.engine import close_spider, engine_of, refuse
from scrapy_bloom.session.session import Session
from scrapy_bloom.settings import Settings

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.pqueues import ScrapyPriorityQueue
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class Scheduler(ScrapyScheduler):
    """``SCHEDULER`` whose crawl may be killed at any moment and started again.

    With a ``JOBDIR``, requests and marks are kept together in these files:

    ``requests.sqlite``
        Every request that is not done, the marks since the last snapshot, and ``spider.state``.
    ``requests.bloom``
        The filter's snapshot: at a clean stop, and after each million new marks.
    ``requests.queue``
        A note that makes Scrapy's own scheduler fail to open, which would find no requests here.

    Queues, their order and their settings are Scrapy's. Without a ``JOBDIR`` this is Scrapy's own
    scheduler, with :class:`BloomDupeFilter` unless the project chose another filter.

    Attributes:
        snapshot_after: marks after which the filter is stored in mid-run.
    """

    snapshot_after = 1_000_000

    _frontier: LocalFrontier | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the scheduler of a crawl."""
        settings = crawler.settings
        chosen = settings.getpriority("DUPEFILTER_CLASS") or 0
        filter_class = (
            BloomDupeFilter
            if chosen == SETTINGS_PRIORITIES["default"]
            else load_object(settings["DUPEFILTER_CLASS"])
        )
        # `scrapy shell` works without a filter, and must not use the job directory either.
        by_command = chosen == SETTINGS_PRIORITIES["command"]
        keeps = not by_command or issubclass(filter_class, BloomDupeFilter)
        dupefilter: Any = build_from_crawler(filter_class, crawler)
        return cls(
            dupefilter,
            jobdir=job_dir(settings) if keeps else None,
            dqclass=load_object(settings["SCHEDULER_DISK_QUEUE"]),
            mqclass=load_object(settings["SCHEDULER_MEMORY_QUEUE"]),
            logunser=True,  # once: such requests cost pages fetched again
            stats=crawler.stats,
            pqclass=load_object(settings["SCHEDULER_PRIORITY_QUEUE"]),
            crawler=crawler,
        )

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open filter and requests.

        If the crawl cannot be kept as the settings say, the log tells why, and it ends before its
        first request.

        :raises CloseSpider: then, where the spider cannot be closed in another way.
        """
        if not self.dqdir:
            return super().open(spider)
        self.spider = spider
        self.mqs = self._mq()
        self.dqs = None
        try:
            self._open_frontier()
        except BloomError as error:
            self._log_error(error)
            assert self.crawler is not None  # noqa: S101 - it made the scheduler
            refuse(self.crawler, error.reason)
        return None

    def close(self, reason: str) -> Deferred[None] | None:
        """Store everything; a crawl that was refused stores nothing."""
        if self._frontier is None:
            return super().close(reason)
        return Deferred.fromCoroutine(self._close(self._frontier, reason))

    def enqueue_request(self, request: Request) -> bool:
        """Push a request unless it is a duplicate; return whether it was pushed."""
        frontier = self._frontier
        if frontier is None:
            return super().enqueue_request(request)
        frontier.keep_marks()  # made by somebody else, outside of this method
        if not request.dont_filter and self.df.request_seen(request):
            frontier.keep_marks()
            self.df.log(request, self.spider)
            return False
        assert self.stats is not None  # noqa: S101 - Scrapy makes it before any component
        error = frontier.push(self.dqs, request)
        if error is None:
            self.stats.inc_value("scheduler/enqueued/disk")
        else:
            self._say_unserializable(request, error)
            self.mqs.push(request)
            self.stats.inc_value("scheduler/enqueued/memory")
        self.stats.inc_value("scheduler/enqueued")
        return True

    def next_request(self) -> Request | None:
        """Return the next request to send; those that could not be stored come first."""
        frontier = self._frontier
        if frontier is None:
            return super().next_request()
        assert self.stats is not None  # noqa: S101 - Scrapy makes it before any component
        request: Request | None = self.mqs.pop()
        if request is not None:
            request = frontier.start_held(request)
            self.stats.inc_value("scheduler/dequeued/memory")
        else:
            request = frontier.pop(self.dqs)
            if request is None:
                return None
            self.stats.inc_value("scheduler/dequeued/disk")
        self.stats.inc_value("scheduler/dequeued")
        return request

    def finish_request(self, request: Request) -> None:
        """Note that the engine is through with a request. Only some versions of Scrapy say so."""
        if self._frontier is not None:
            self._frontier.finish(request)

    def _open_frontier(self) -> None:
        if not isinstance(self.df, BloomDupeFilter):
            kind = type(self.df)
            raise SettingError(
                f"DUPEFILTER_CLASS = '{kind.__module__}.{kind.__qualname__}': with a JOBDIR,"
                f" scrapy_bloom.Scheduler keeps marks and requests together, which only"
                f" scrapy_bloom.BloomDupeFilter can do. Remove your DUPEFILTER_CLASS, or your"
                f" SCHEDULER."
            )
        assert self.dqclass is not None  # noqa: S101 - from_crawler gave it
        plain = QueueKind.of("SCHEDULER_DISK_QUEUE", self.dqclass)
        start = None
        if self._sdqclass is not None:
            start = QueueKind.of("SCHEDULER_START_DISK_QUEUE", self._sdqclass)
        assert self.crawler is not None  # noqa: S101 - it made the scheduler
        alive = watch_engine(engine_of(self.crawler), scrapy.__version__)
        fresh: list[bytes] = []
        session = self.df.open_journaled(fresh.append)
        try:
            self._join(session, fresh, alive, plain, start)
        except BaseException:
            if self._frontier is not None:
                self._frontier.abandon()
                self._frontier = None
            session.close()
            raise

    def _join(
        self,
        session: Session,
        fresh: list[bytes],
        alive: Alive | None,
        plain: QueueKind,
        start: QueueKind | None,
    ) -> None:
        """Connect the open filter with the stored requests."""
        assert self.crawler is not None  # noqa: S101 - it made the scheduler
        assert session.opened.job is not None  # noqa: S101 - it is journaled
        settings = Settings(self.crawler.settings)
        to_disk = settings[COMMIT_SYNC] is CommitSync.MACHINE
        store, found = open_store(session.opened.job, plain, start, every_commit=to_disk)
        frontier = self._frontier = LocalFrontier(
            self.crawler,
            self.spider,
            store,
            fresh,
            alive=alive,
            freeze=session.opened.job.freeze,
            dumps=plain.dumps,
            interval=settings[COMMIT_INTERVAL],
            to_disk=to_disk,
            journal=self.snapshot_after,
            give_up=self._give_up,
        )
        self.dqs = self._open_queues(frontier, plain, start)
        session.resolver.compare(found.filled_with)
        replayed = replay(store, session.replay)
        fresh.clear()
        session.let_through.update(store.withheld)
        frontier.let_through = session.let_through
        self._tell(store, found, replayed)

    def _open_queues(
        self, frontier: LocalFrontier, plain: QueueKind, start: QueueKind | None
    ) -> ScrapyPriorityQueue:
        store = frontier.store
        assert self.dqdir is not None  # noqa: S101 - there is a job directory
        assert self.crawler is not None  # noqa: S101 - it made the scheduler
        assert self.pqclass is not None  # noqa: S101 - from_crawler gave it
        queues = build_from_crawler(
            self.pqclass,
            self.crawler,
            downstream_queue_cls=BucketMaker(store, self.dqdir, plain.order, frontier),
            key=self.dqdir,
            startprios=start_priorities(store, self.pqclass),
            start_queue_cls=start and BucketMaker(store, self.dqdir, start.order, frontier),
        )
        check_complete(store, queues)
        return queues

    async def _close(self, frontier: LocalFrontier, reason: str) -> None:
        assert self.stats is not None  # noqa: S101 - Scrapy makes it before any component
        stored = False
        try:
            stored = await frontier.close()
        finally:
            self._frontier = self.dqs = None
            closed = self.df.close(reason)
            if closed is not None:
                await closed
            self.stats.set_value(stats.NOT_STORED.key, int(not stored))

    def _give_up(self, error: BloomError) -> None:
        self._log_error(error)
        assert self.crawler is not None  # noqa: S101 - it made the scheduler
        close_spider(self.crawler, error.reason)

    def _log_error(self, error: BloomError) -> None:
        logger.error("%s", error, extra={"spider": self.spider})

    def _say_unserializable(self, request: Request, error: Exception) -> None:
        assert self.stats is not None  # noqa: S101 - Scrapy makes it before any component
        self.stats.inc_value("scheduler/unserializable")
        if self.logunser:
            self.logunser = False
            logger.warning(
                "Unable to serialize request: %(request)s - reason: %(reason)s. It waits in memory,"
                " and after a kill or a stop the page that led to it is fetched again - no more"
                " unserializable requests will be logged (stats being collected)",
                {"request": request, "reason": error},
                extra={"spider": self.spider},
            )

    def _tell(self, store: Store, found: Found, replayed: int) -> None:
        assert self.stats is not None  # noqa: S101 - Scrapy makes it before any component
        self.stats.set_value(stats.UNCLEAN_STOP.key, int(found.killed))
        self.stats.set_value(stats.RECOVERED.key, found.under_way)
        self.stats.set_value(stats.PENDING.key, found.waiting)
        self.stats.inc_value(stats.RESTORED.key, replayed)
        logger.info(
            "Crawl kept in %(path)s%(killed)s: %(found)s, %(replayed)s fingerprints restored from"
            " it",
            {
                "path": store.path,
                "killed": ", resumed after a kill" if found.killed else "",
                "found": found,
                "replayed": f"{replayed:,}",
            },
            extra={"spider": self.spider},
        )
