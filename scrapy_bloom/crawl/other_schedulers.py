"""What the schedulers of Scrapy and scrapy-redis do not tell a filter, and how it finds out.

A scheduler asks the filter first and then pushes, and no signal reports a failed push. The mark
would then suppress the page forever, so it is withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from scrapy_bloom.crawl.engine import scheduler_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler


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
