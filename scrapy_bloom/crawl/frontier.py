"""What our scheduler calls, wherever requests and marks are kept.

The duplicate filter also calls ``check``, and a signal calls ``forget``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scrapy import Request


class Frontier(Protocol):
    """Requests and marks of one crawl, which live and die together."""

    def __len__(self) -> int:
        """Return how many requests are waiting."""

    def enqueue(self, request: Request) -> bool:
        """Take a request; return False if it is a duplicate. Never raises."""

    def next(self) -> Request | None:
        """Return the next request to send, None if none is ready. Never raises."""

    def pending(self) -> bool:
        """Return whether a request is waiting, or may come without being enqueued."""

    async def close(self) -> bool:
        """Store everything; return whether all of it is stored."""
