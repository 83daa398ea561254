"""The filter of a crawl in Redis, while another scheduler keeps the requests."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.cluster import RedisCluster

from scrapy_bloom import stats
from scrapy_bloom.crawl.identity import Identifier
from scrapy_bloom.errors import BloomError
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.project import (
    key_of,
    plan_of,
    project_of,
    server_of,
)
from scrapy_bloom.redis.pushing import LARGE, Pushing
from scrapy_bloom.redis.reporting import report_opened
from scrapy_bloom.redis.worker import KNOWN
from scrapy_bloom.settings import ON_BACKEND_ERROR, REDIS_TIMEOUT, Settings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.judge import Judge
    from scrapy_bloom.crawl.report import Report


class SharedFilter:
    """The filter of a crawl whose requests another scheduler keeps.

    It lives no longer than they do. If they are only in this process, it is deleted at the end, and
    emptied at the start if a killed run left it behind, unless other workers use it.

    :param spider: name of the spider.
    :param report: writes to stats and log.
    :param shared_queue: whether the requests are in Redis as well, for any worker.
    :param empty: whether to empty the filter at once.
    :raises BloomError: if the crawl cannot be filtered as configured.

    Attributes:
        identifier: says what a request is.
        filter: answers whether it was seen.
        emptied: whether the last attempt to empty it succeeded.
    """

    def __init__(
        self, crawler: Crawler, spider: str, report: Report, *, shared_queue: bool, empty: bool
    ) -> None:
        settings = Settings.of(crawler)
        self._crawler, self._report, self._kept = crawler, report, shared_queue
        self.identifier = identifier = Identifier(crawler, settings)
        project = project_of(crawler)
        self._key = key_of(settings, spider=spider, project=project, made=crawler.spider)
        self.filter = RedisFilter(
            server_of(settings),
            self._key,
            plan_of(settings, identifier.fingerprinter, identifier.made_by),
            on_error=settings[ON_BACKEND_ERROR],
            timeout=settings[REDIS_TIMEOUT],
            # A flush empties a shared queue too: what this worker knows would suppress its pages.
            # Pushing asks the server first.
            known=0 if shared_queue else KNOWN,
        )
        link = self.filter.link
        self._deleted = self.emptied = False
        try:
            if (empty or not shared_queue) and not self.filter.worker.made:
                self.emptied = self.filter.clear()
        except BaseException:
            self.filter.close()
            raise
        report_opened(report, identifier, link, self.filter.worker)
        if self.emptied:
            left = "it was left by a crawl that has ended"
            why = "SCHEDULER_FLUSH_ON_START is set" if empty else left
            report.info(
                f"Bloom filter in Redis at {link.address}, key {self._key}: emptied, since {why}."
                f" Pages are fetched again."
            )

    def push_together(self, scheduler: Any, kind: str, judge: Judge) -> None:
        """Have a scheduler of scrapy-redis mark and push in one call, or say why it does not.

        :param kind: the type of its queue in Redis; nothing if it is not scrapy-redis's own.
        :param judge: judges its requests.
        """
        epoch, why = self.filter.worker.epoch, ""
        if not kind:
            why = "the scheduler, queue or filter overrides a method that this needs"
        elif isinstance(self.filter.link.client, RedisCluster):
            why = "Redis is a cluster"
        else:
            found = None
            with suppress(Exception):  # their client may be any
                self.filter.link.wait_for_large_calls(LARGE)
                found = scheduler.queue.server.hget(self._key, "epoch")
            if found not in (epoch, epoch.encode()):
                why = "the queue is in another server or database"
        if why:
            self._report.info(f"Marks and requests go to Redis in separate calls: {why}.")
        else:
            Pushing(self._crawler, scheduler, kind, self.filter, judge, self._report)

    def clear(self, *, at_end: bool = False) -> bool:
        """Empty the filter; return False if it stays, because others use it or may be using it.

        :param at_end: whether the crawl is over: then the filter is deleted from Redis.
        """
        self._report.describe(self.filter.worker.info())
        try:
            self.emptied = self.filter.delete() if at_end else self.filter.clear()
        except BloomError as error:
            self._report.error(error)
            self.emptied = False
        self._deleted = self.emptied and at_end
        return self.emptied

    def close(self) -> None:
        """Write the final stats, delete the filter if no one needs it, and disconnect."""
        if not self._deleted:
            if self._kept or not self.filter.usable:
                self._report.describe(self.filter.worker.info())
            elif self.clear(at_end=True):
                self._report.info(
                    f"{self.filter.worker.place}: deleted, because this was the last worker that"
                    f" used it, and with this SCHEDULER requests do not outlive their process. The"
                    f" next crawl fetches all pages again."
                )
        for name, value in self.filter.numbers().items():
            if value and name in stats.FROM_BACKEND:
                self._report.set(stats.FROM_BACKEND[name], value)
        self._report.flush()
        self.filter.close()
