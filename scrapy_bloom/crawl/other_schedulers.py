"""What the schedulers of Scrapy and scrapy-redis do not tell a filter, and how it finds out.

A scheduler asks the filter first and then pushes, and no signal reports a failed push. The mark
would then suppress the page forever, so it is withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.crawl.scrapy.crawler import scheduler_of
from scrapy_bloom.settings import BACKEND, Settings

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.report import Report

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
            f"{found[0]} belongs to scrapy-redis, but no pages are shared: without BLOOM_REDIS_URL"
            f" each worker has its own filter, and fetches what others have fetched. Set"
            f" BLOOM_REDIS_URL to the server of REDIS_URL; or, for one worker only, BLOOM_BACKEND ="
            f" 'local'."
        )


def scheduler_with(dupefilter: object, crawler: Crawler) -> Any:
    """Return the scheduler of a crawl if it uses this duplicate filter, else None."""
    scheduler = scheduler_of(crawler)
    return scheduler if getattr(scheduler, "df", None) is dupefilter else None


def watch_pushes(scheduler: Any, dropped: Callable[[Request], object]) -> None:
    """Call `dropped` with each request that cannot be enqueued, because the disk is full, say."""
    enqueue = scheduler.enqueue_request

    def enqueue_request(request: Request) -> bool:
        try:
            return bool(enqueue(request))
        except Exception:
            dropped(request)
            raise

    scheduler.enqueue_request = enqueue_request


def queue_type(scheduler: Any) -> str:
    """Return the type that the queue of scrapy-redis's scheduler has in Redis.

    :returns: ``list`` or ``zset``; nothing if a method that enqueues is not scrapy-redis's own.
    """
    try:
        from scrapy_redis import queue
        from scrapy_redis.scheduler import Scheduler
    except ImportError:
        return ""
    types = {queue.FifoQueue.push: "list", queue.LifoQueue.push: "list"}
    types[queue.PriorityQueue.push] = "zset"
    enqueue, push = scheduler.enqueue_request, scheduler.queue.push
    is_own = getattr(enqueue, "__func__", None) is Scheduler.enqueue_request
    return types.get(getattr(push, "__func__", None), "") if is_own else ""


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
