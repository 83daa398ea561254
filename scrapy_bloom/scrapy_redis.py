"""What scrapy-redis's scheduler needs in addition to Scrapy's contract for duplicate filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.crawl.lost import scheduler_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


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
