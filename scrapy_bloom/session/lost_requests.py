"""Requests that the filter let through and that Scrapy's scheduler then lost.

Their marks stay in the filter, which cannot unset a bit, and would hide their pages for ever. So
their fingerprints are kept as an exact list of pages to let through once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import Request

from scrapy_bloom.session.engine import engine_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


def scheduler_of(crawler: Crawler, dupefilter: object) -> Any:
    """Return the scheduler of a crawl if it uses this duplicate filter, else None."""
    engine = engine_of(crawler)
    slot = getattr(engine, "_slot", None) or getattr(engine, "slot", None)
    scheduler = getattr(slot, "scheduler", None)
    return scheduler if getattr(scheduler, "df", None) is dupefilter else None


class LostRequests:
    """Withdraws the marks of the requests that the scheduler of a crawl loses.

    :param crawler: the crawl.
    :param dupefilter: its duplicate filter, as the scheduler has it.
    :param withdraw: withdraws the mark of a request.
    """

    def __init__(
        self, crawler: Crawler, dupefilter: object, withdraw: Callable[[Request], None]
    ) -> None:
        self._crawler = crawler
        self._dupefilter = dupefilter
        self._withdraw = withdraw

    def watch(self) -> None:
        """Withdraw from now on what cannot be enqueued, as when the disk is full.

        A scheduler asks the filter first and then pushes, and no signal tells that the push has
        failed.
        """
        scheduler = scheduler_of(self._crawler, self._dupefilter)
        if scheduler is None:
            return
        enqueue = scheduler.enqueue_request

        def enqueue_request(request: Request) -> bool:
            try:
                return bool(enqueue(request))
            except Exception:
                self._withdraw(request)
                raise

        scheduler.enqueue_request = enqueue_request

    def withdraw_unstored(self) -> int:
        """Withdraw what a scheduler with a disk queue still has in memory at its end.

        Such requests could not be serialized, and are lost with the process.

        :returns: how many they were.
        """
        scheduler, count = scheduler_of(self._crawler, self._dupefilter), 0
        if getattr(scheduler, "dqs", None) is None:
            return 0
        while (request := scheduler.mqs.pop()) is not None:
            self._withdraw(request)
            count += 1
        return count
