"""One worker of distributed crawls, as a program that crawls as often as it is told to.

It reads a line of JSON for each crawl, ``{"url": …, "settings": {…}}``, and any other line to end
it. It writes a line of JSON whenever something happens: ``{"state": …, "cpu": …, "trips": …}`` with
its processor time in seconds and how often it has sent something to Redis. The state is "ready" (to
fetch the first page), "page" (one more is parsed) or "done".
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from threading import Lock
from time import process_time
from typing import IO, Any

from example.spiders.site import SiteSpider
from redis.connection import AbstractConnection
from scrapy import Request, signals
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import AsyncCrawlerRunner, Crawler
from scrapy.exceptions import DontCloseSpider
from scrapy.http import Response
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.log import configure_logging
from scrapy.utils.reactor import install_reactor
from typing_extensions import Self

SETTINGS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
    "DOWNLOAD_SLOTS": {"127.0.0.1": {"concurrency": 16, "delay": 0}},
    "TELNETCONSOLE_ENABLED": False,
    "LOG_LEVEL": "ERROR",
}


class Worker(SiteSpider):
    """Crawls a site and stays until it is told to stop.

    Attributes:
        halting: whether to follow no more links. May be set by another thread.
    """

    name = "worker"
    halting = False

    def __init__(self, url: str, out: IO[str], **kwargs: Any) -> None:
        super().__init__(url, **kwargs)
        self._out = out

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Make the spider and have it called when there is something to tell."""
        self = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(self.ready, signal=signals.spider_opened)
        crawler.signals.connect(self.idle, signal=signals.spider_idle)
        return self

    def parse(self, response: Response) -> Iterator[dict[str, str] | Request]:
        """Follow the links of a page."""
        for found in super().parse(response):
            if self.halting:
                return
            yield found
        self.tell("page")

    def ready(self) -> None:
        """Tell that the crawl can begin."""
        self.tell("ready")

    def idle(self) -> None:
        """Stay when there is nothing to do.

        :raises DontCloseSpider: unless it is time to stop.
        """
        if not self.halting:
            raise DontCloseSpider

    def closed(self, reason: str) -> None:  # noqa: ARG002 - Scrapy's signature
        """Tell that the crawl is over."""
        self.tell("done")

    def tell(self, state: str) -> None:
        """Write a line."""
        report = {"state": state, "cpu": process_time(), "trips": Trips.made}
        print(json.dumps(report), file=self._out, flush=True)


class Trips:
    """Counts what is sent to Redis, in all connections of this process.

    Attributes:
        made: how often. What goes in one piece, as a pipeline does, counts once.
    """

    made = 0
    _lock = Lock()

    @classmethod
    def watch(cls) -> None:
        """Begin to count."""
        send: Any = AbstractConnection.send_packed_command

        def counted(self: AbstractConnection, *args: Any, **options: Any) -> Any:
            with cls._lock:
                cls.made += 1
            return send(self, *args, **options)

        AbstractConnection.send_packed_command = counted  # type: ignore[method-assign]


async def crawl(out: IO[str]) -> None:
    """Crawl, again and again, until nothing more can be read."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        job = json.loads(line)
        runner = AsyncCrawlerRunner(SETTINGS | job["settings"])
        crawler = runner.create_crawler(Worker)
        crawling = runner.crawl(crawler, url=job["url"], out=out)
        await asyncio.to_thread(sys.stdin.readline)  # some schedulers keep the event loop waiting
        assert isinstance(crawler.spider, Worker)
        crawler.spider.halting = True
        await crawler.stop_async()
        await crawling


def prepared() -> IO[str]:
    """Set this process up; return where reports go."""
    # An idle worker looks for work, and whether it is to stop, ten times a second. It is every five
    # seconds by default, and would make up most of a short crawl.
    ExecutionEngine._SLOT_HEARTBEAT_INTERVAL = 0.1  # noqa: SLF001 - there is no setting
    Trips.watch()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some filters print
    return out


def main() -> None:
    """Work."""
    out = prepared()
    configure_logging({"LOG_LEVEL": "ERROR"})
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    from twisted.internet import reactor as installed

    reactor: Any = installed
    working: Any = deferred_from_coro(crawl(out))
    working.addErrback(lambda failure: failure.printTraceback())
    working.addBoth(lambda _: reactor.stop())
    reactor.run()


if __name__ == "__main__":
    main()
