"""What a scheduler needs of a crawl that may be killed: its filter and its requests together."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from scrapy_bloom.frontier.requests import QueueKind

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


class KeptCrawl(Protocol):
    """A crawl whose marks and requests live and die together."""

    description: str
    """One line for the log: where it is kept, and what an earlier run has left."""

    def __len__(self) -> int:
        """Return how many requests wait."""

    def enqueue(self, request: Request) -> bool:
        """Take a request; return False if it is a duplicate."""

    def next(self) -> Request | None:
        """Return the next request to send, None if none is ready."""

    def pending(self) -> bool:
        """Return whether a request waits, or may come without being enqueued."""

    def finish(self, request: Request) -> None:
        """Take note that the engine is through with a request."""

    async def close(self) -> bool:
        """Store everything; return whether all of it is stored."""


@dataclass(frozen=True)
class Queues:
    """Scrapy's queues, as the settings of a crawl choose them.

    Attributes:
        priority: class of the priority queue.
        disk: class of its queues on the disk.
        start_disk: the same for start requests; None if those are among the others.
        memory: the priority queue of requests that cannot be stored.
        folder: the folder of Scrapy's own queue.
    """

    priority: type[Any]
    disk: type[Any]
    start_disk: type[Any] | None
    memory: Any
    folder: str

    @property
    def kind(self) -> QueueKind:
        """What the queues on the disk stand for.

        :raises SettingError: if they are none of Scrapy's.
        """
        return QueueKind.of("SCHEDULER_DISK_QUEUE", self.disk)

    @property
    def start_kind(self) -> QueueKind | None:
        """The same for the queues of start requests.

        :raises SettingError: likewise.
        """
        if self.start_disk is None:
            return None
        return QueueKind.of("SCHEDULER_START_DISK_QUEUE", self.start_disk)


class Unserializable:
    """Tells about requests that cannot be stored: the first one in the log, all in the stats."""

    def __init__(self, crawler: Crawler, spider: Spider) -> None:
        assert crawler.stats is not None  # noqa: S101 - Scrapy makes it before any component
        self._stats = crawler.stats
        self._spider = spider
        self._said = False

    def tell(self, request: Request, error: Exception) -> None:
        """Tell of a request, and why it cannot be stored."""
        self._stats.inc_value("scheduler/unserializable")
        if self._said:
            return
        self._said = True
        logger.warning(
            "Unable to serialize request: %(request)s - reason: %(reason)s. It waits in memory,"
            " and after a kill or a stop the page that led to it is fetched again - no more"
            " unserializable requests will be logged (stats being collected)",
            {"request": request, "reason": error},
            extra={"spider": self._spider},
        )
