"""What the schedulers of Scrapy and scrapy-redis do not tell a filter, and how it finds out.

A scheduler asks the filter first and then pushes, and no signal reports a failed push. The mark
would then suppress the page forever, so it is withdrawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.crawl.scrapy.crawler import scheduler_of, send_dropped
from scrapy_bloom.crawl.scrapy.loop import Timer
from scrapy_bloom.settings import BACKEND, Settings

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.report import Report

logger = logging.getLogger(__name__)

_MOST: Final = 500  # requests that wait to be enqueued together

_OF_WORKERS: Final = ("REDIS_URL", "REDIS_HOST", "SCHEDULER_QUEUE_CLASS")
"""Settings of scrapy-redis by which workers shared a crawl."""


def warn_if_not_shared(crawler: Crawler, report: Report, *, shared: bool) -> None:
    """Warn if workers would share a crawl by scrapy-redis, and do not share this one.

    :param shared: whether the filter is in Redis.
    """
    if shared or Settings.of(crawler)[BACKEND] == "local":
        return
    found = [name for name in _OF_WORKERS if crawler.settings.get(name)]
    kinds = type(crawler.spider).__mro__
    if any(kind.__module__ == "scrapy_redis.spiders" for kind in kinds):
        found = [kinds[0].__name__]
    if found:
        report.warn(
            f"{found[0]} is of scrapy-redis, but no pages are shared: without BLOOM_REDIS_URL each"
            f" worker filters by itself, and fetches what others have fetched. Set BLOOM_REDIS_URL"
            f" to the server of REDIS_URL; or, for one worker only, BLOOM_BACKEND = 'local'."
        )


def scheduler_with(dupefilter: object, crawler: Crawler) -> Any:
    """Return the scheduler of a crawl if it uses this duplicate filter, else None."""
    scheduler = scheduler_of(crawler)
    return scheduler if getattr(scheduler, "df", None) is dupefilter else None


def watch_pushes(scheduler: Any, lost: Callable[[Request], object]) -> None:
    """Call `lost` with each request that cannot be enqueued, because the disk is full, say."""
    enqueue = scheduler.enqueue_request

    def enqueue_request(request: Request) -> bool:
        try:
            return bool(enqueue(request))
        except Exception:
            lost(request)
            raise

    scheduler.enqueue_request = enqueue_request


def enqueue_together(
    scheduler: Any, crawler: Crawler, asked: Callable[[list[Request]], AbstractContextManager[None]]
) -> None:
    """Let scrapy-redis's scheduler enqueue at once what comes in one turn of the event loop.

    Do this after :func:`watch_pushes`. A class with an ``enqueue_request`` of its own is left as it
    is.

    :param asked: asks which requests are duplicates, in one call, and marks none.
    """
    if type(scheduler).enqueue_request.__module__ == "scrapy_redis.scheduler":
        _Batch(scheduler, crawler, asked)


class _Batch:
    """What waits for the end of the turn, or until the engine wants to know what there is.

    The engine offers the links of a page one by one, and the scheduler would ask about each.
    """

    def __init__(
        self,
        scheduler: Any,
        crawler: Crawler,
        asked: Callable[[list[Request]], AbstractContextManager[None]],
    ) -> None:
        self._crawler, self._asked = crawler, asked
        self._requests: list[Request] = []
        self._timer = Timer(self._enqueue_all)
        self._enqueue = scheduler.enqueue_request
        scheduler.enqueue_request = self._add
        for name in ("next_request", "has_pending_requests", "close"):
            setattr(scheduler, name, self._first(getattr(scheduler, name)))

    def _add(self, request: Request) -> bool:
        self._requests.append(request)
        if len(self._requests) < _MOST:
            self._timer.set(0)
        else:
            self._enqueue_all()
        return True

    def _first(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def enqueue_first(*arguments: Any) -> Any:
            if self._requests:
                self._enqueue_all()
            return method(*arguments)

        return enqueue_first

    def _enqueue_all(self) -> None:
        self._timer.cancel()
        batch, self._requests = self._requests, []
        with self._asked(batch):
            for request in batch:
                try:
                    dropped = not self._enqueue(request)
                except Exception:  # rare
                    logger.exception("%s could not be enqueued", request)
                else:
                    if dropped:
                        send_dropped(self._crawler, request)


def unstored(scheduler: Any) -> Iterator[Request]:
    """Remove and yield what a scheduler with a disk queue still has in memory at the end.

    Such requests could not be serialized, and are lost with the process.
    """
    if getattr(scheduler, "dqs", None) is not None:
        while (request := scheduler.mqs.pop()) is not None:
            yield request


def spare_queue(crawler: Crawler, dupefilter: object) -> bool:
    """Keep scrapy-redis's scheduler from emptying its queue once; return whether that worked.

    Its ``flush()`` empties the filter and then the queue, even while other workers are crawling. If
    the filter was not emptied, the requests in the queue would be lost: their marks are still in
    the filter.
    """
    scheduler = scheduler_with(dupefilter, crawler)
    if scheduler is None:
        return False
    queue = scheduler.queue

    def clear() -> None:
        del queue.clear  # later calls reach the method of the class again

    queue.clear = clear
    return True
