"""What the schedulers of Scrapy and of scrapy-redis do not tell a filter, and what they need of it.

A scheduler asks the filter first and then pushes, and no signal tells that the push has failed.
The mark would suppress the page for ever, so it is withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from scrapy_bloom.crawl.engine import engine_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler


def scheduler_of(crawler: Crawler, dupefilter: object) -> Any:
    """Return the scheduler of a crawl if it uses this duplicate filter, else None."""
    engine = engine_of(crawler)
    slot = getattr(engine, "_slot", None) or getattr(engine, "slot", None)
    scheduler = getattr(slot, "scheduler", None)
    return scheduler if getattr(scheduler, "df", None) is dupefilter else None


def watch_pushes(scheduler: Any, lost: Callable[[Request], object]) -> None:
    """Have `lost` called with each request that cannot be enqueued, as when the disk is full."""
    enqueue = scheduler.enqueue_request

    def enqueue_request(request: Request) -> bool:
        try:
            return bool(enqueue(request))
        except Exception:
            lost(request)
            raise

    scheduler.enqueue_request = enqueue_request


def unstored(scheduler: Any) -> Iterator[Request]:
    """Take what a scheduler with a disk queue still has in memory at its end.

    Such requests could not be serialized, and are lost with the process.
    """
    if getattr(scheduler, "dqs", None) is not None:
        while (request := scheduler.mqs.pop()) is not None:
            yield request


def spare_queue(crawler: Crawler, dupefilter: object) -> bool:
    """Keep scrapy-redis's scheduler from emptying its queue, once; return whether that worked.

    The scheduler's ``flush()`` empties the filter and then the queue, also while other workers
    crawl. If the filter was not emptied, the requests in the queue would be lost: their marks are
    still in the filter.
    """
    scheduler = scheduler_of(crawler, dupefilter)
    if scheduler is None:
        return False
    queue = scheduler.queue

    def clear() -> None:
        del queue.clear  # from the next call on, the method of the class is called again

    queue.clear = clear
    return True
