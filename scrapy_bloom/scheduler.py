"""Scrapy's contract for schedulers, on requests and marks that survive a kill."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.job import job_dir
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.backends.base import backend_name
from scrapy_bloom.dupefilter import BloomDupeFilter
from scrapy_bloom.errors import BloomError, SettingError, StateError
from scrapy_bloom.session.engine import close_spider, refuse
from scrapy_bloom.session.kept_crawl import KeptCrawl, Queues
from scrapy_bloom.session.local_crawl import open_local
from scrapy_bloom.session.shared_crawl import open_shared
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.store import unusable

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class Scheduler(ScrapyScheduler):
    """``SCHEDULER`` whose crawl may be killed at any moment and started again.

    With a ``JOBDIR``, requests and marks are kept together in these files:

    ``requests.sqlite``
        Every request that is not done, the marks since the last snapshot, and ``spider.state``.
    ``requests.bloom``
        The filter's snapshot: at a clean stop, and after each million new marks.

    Queues, their order and their settings are Scrapy's.

    With the filter in Redis, the requests are kept there, too, for any number of workers.

    With neither this is Scrapy's own scheduler, with :class:`BloomDupeFilter` unless the project
    chose another filter.

    Attributes:
        snapshot_after: marks after which the filter is stored in mid-run.
    """

    snapshot_after = 1_000_000

    _kept: KeptCrawl | None = None
    _unusable: StateError | None = None
    _refused = False
    _by_command = False

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
        # `scrapy shell` works without a filter, and must not use what a crawl keeps either.
        by_command = chosen == SETTINGS_PRIORITIES["command"]
        keeps = not by_command or issubclass(filter_class, BloomDupeFilter)
        dupefilter: Any = build_from_crawler(filter_class, crawler)
        self = cls(
            dupefilter,
            jobdir=job_dir(settings) if keeps else None,
            dqclass=load_object(settings["SCHEDULER_DISK_QUEUE"]),
            mqclass=load_object(settings["SCHEDULER_MEMORY_QUEUE"]),
            logunser=settings.getbool("SCHEDULER_DEBUG"),
            stats=crawler.stats,
            pqclass=load_object(settings["SCHEDULER_PRIORITY_QUEUE"]),
            crawler=crawler,
        )
        self._by_command = not keeps
        return self

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open filter and requests.

        If the crawl cannot be kept as the settings say, the log tells why, and it ends before its
        first request.

        :raises CloseSpider: then, where the spider cannot be closed in another way.
        """
        self.spider = spider
        self.mqs = self._mq()
        self.dqs = None
        try:
            if self._unusable is not None:
                raise self._unusable
            if self._is_shared():
                self._kept = self._open_shared()
            elif self.dqdir:
                self._kept = self._open_local()
            else:
                self._be_scrapys_own()
                return super().open(spider)
        except BloomError as error:
            self._log_error(error)
            self._refused = True
            assert self.crawler is not None  # noqa: S101 - it made the scheduler
            refuse(self.crawler, error.reason)
        else:
            logger.info("%s", self._kept.description, extra={"spider": spider})
        return None

    def close(self, reason: str) -> Deferred[None] | None:
        """Store everything; a crawl that was refused stores nothing."""
        if self._kept is None:
            return super().close(reason)
        return Deferred.fromCoroutine(self._close(self._kept, reason))

    def enqueue_request(self, request: Request) -> bool:
        """Take a request unless it is a duplicate; return whether it was taken."""
        kept = self._kept
        if kept is None:
            return super().enqueue_request(request)
        if kept.enqueue(request):
            return True
        self.df.log(request, self.spider)
        return False

    def next_request(self) -> Request | None:
        """Return the next request to send, None if none is ready."""
        kept = self._kept
        if kept is not None:
            return kept.next()
        # A crawl that was refused may get its turn before the engine closes it.
        return None if self._refused else super().next_request()

    def has_pending_requests(self) -> bool:
        """Return whether there are requests to send."""
        kept = self._kept
        return super().has_pending_requests() if kept is None else kept.pending()

    def __len__(self) -> int:
        """Return how many requests wait."""
        kept = self._kept
        return super().__len__() if kept is None else len(kept)

    def finish_request(self, request: Request) -> None:
        """Note that the engine is through with a request. Only some versions of Scrapy say so."""
        if self._kept is not None:
            self._kept.finish(request)

    def _dqdir(self, jobdir: str | None) -> str | None:
        """Return the folder of the queues; what is wrong with it is said when the spider opens."""
        try:
            return super()._dqdir(jobdir)
        except OSError as error:
            self._unusable = unusable(Path(jobdir or ""), error)
            return None

    def _be_scrapys_own(self) -> None:
        """Have the engine call Scrapy's methods without a detour, but those that a subclass has."""
        for name in ("enqueue_request", "next_request", "has_pending_requests"):
            if getattr(type(self), name) is getattr(Scheduler, name):
                setattr(self, name, getattr(super(), name))

    def _is_shared(self) -> bool:
        assert self.crawler is not None  # noqa: S101 - it made the scheduler
        if self._by_command:
            return False
        settings = Settings(self.crawler.settings, warn=False)
        return backend_name(settings, shared_queue=False) == "redis"

    def _open_shared(self) -> KeptCrawl:
        dupefilter = self._our_filter("the filter in Redis")
        assert self.crawler is not None  # noqa: S101 - it made the scheduler
        return open_shared(
            self.crawler,
            self.spider,
            self._queues(),
            open_filter=dupefilter.open_shared,
            dropped=self._drop,
            give_up=self._give_up,
        )

    def _drop(self, request: Request) -> None:
        """Drop a request that turned out to be a duplicate after it was taken."""
        self.df.log(request, self.spider)
        assert self.crawler is not None  # noqa: S101 - it made the scheduler
        self.crawler.signals.send_catch_log(
            signals.request_dropped, request=request, spider=self.spider
        )

    def _queues(self) -> Queues:
        assert self.pqclass is not None  # noqa: S101 - from_crawler gave it
        assert self.dqclass is not None  # noqa: S101 - likewise
        return Queues(self.pqclass, self.dqclass, self._sdqclass, self.mqs, self.dqdir or "")

    def _open_local(self) -> KeptCrawl:
        dupefilter = self._our_filter("a JOBDIR")
        assert self.crawler is not None  # noqa: S101 - it made the scheduler
        return open_local(
            self.crawler,
            self.spider,
            self._queues(),
            open_filter=dupefilter.open_journaled,
            seen=dupefilter.request_seen,
            snapshot_after=self.snapshot_after,
            give_up=self._give_up,
        )

    def _our_filter(self, where: str) -> BloomDupeFilter:
        if isinstance(self.df, BloomDupeFilter):
            return self.df
        kind = type(self.df)
        raise SettingError(
            f"DUPEFILTER_CLASS = '{kind.__module__}.{kind.__qualname__}': with {where},"
            f" scrapy_bloom.Scheduler keeps marks and requests together, which only"
            f" scrapy_bloom.BloomDupeFilter can do. Remove your DUPEFILTER_CLASS, or your"
            f" SCHEDULER."
        )

    async def _close(self, kept: KeptCrawl, reason: str) -> None:
        assert self.stats is not None  # noqa: S101 - Scrapy makes it before any component
        stored = False
        try:
            stored = await kept.close()
        finally:
            self._kept = None
            closed = self.df.close(reason)
            if closed is not None:
                await closed
            if not stored:
                self.stats.set_value(stats.NOT_STORED.key, 1)

    def _give_up(self, error: BloomError) -> None:
        self._log_error(error)
        assert self.crawler is not None  # noqa: S101 - it made the scheduler
        close_spider(self.crawler, error.reason)

    def _log_error(self, error: BloomError) -> None:
        logger.error("%s", error, extra={"spider": self.spider})
