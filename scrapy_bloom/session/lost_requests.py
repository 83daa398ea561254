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


def watch_pushes(scheduler: Any, on_failure: Callable[[Request], None]) -> None:
    """Make a scheduler report each request that it could not enqueue, as when the disk is full.

    A scheduler asks the filter first and then pushes, and no signal tells that the push has failed.
    """
    enqueue = scheduler.enqueue_request

    def enqueue_request(request: Request) -> bool:
        try:
            return bool(enqueue(request))
        except Exception:
            on_failure(request)
            raise

    scheduler.enqueue_request = enqueue_request


def take_unstored(scheduler: Any) -> list[Request]:
    """Take the requests out that a scheduler with a disk queue still has in memory at its end.

    They could not be serialized, and would be lost with the process.
    """
    if getattr(scheduler, "dqs", None) is None:
        return []
    requests = []
    while (request := scheduler.mqs.pop()) is not None:
        requests.append(request)
    return requests
