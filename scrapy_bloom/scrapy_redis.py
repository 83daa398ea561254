"""What scrapy-redis's scheduler needs beyond the contract of a duplicate filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.session.lost_requests import scheduler_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


def spare_queue(crawler: Crawler, dupefilter: object) -> bool:
    """Keep scrapy-redis's scheduler from emptying its queue, once; return whether that was done.

    Its ``flush()`` empties the filter and then the queue, also under workers that still crawl. The
    requests in it would be lost, because their marks stay in the filter.
    """
    scheduler = scheduler_of(crawler, dupefilter)
    if scheduler is None:
        return False
    queue = scheduler.queue

    def clear() -> None:
        del queue.clear  # the next one is the class's own again

    queue.clear = clear
    return True
