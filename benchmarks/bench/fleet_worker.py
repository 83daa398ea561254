"""One worker that crawls many hosts, as a program.

It reads a line of JSON, ``{"hosts": …, "port": …, "settings": {…}}``, and crawls. It writes a line
of JSON when its spider is open, and whenever it reads another line: ``{"trips": …, "cpu": …}`` with
how often it has sent something to Redis, and its processor time in seconds.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from threading import Thread
from time import process_time
from typing import IO, Any

from redis.connection import AbstractConnection
from scrapy import Request, Spider, signals
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.exceptions import DontCloseSpider
from scrapy.http import HtmlResponse, Response
from typing_extensions import Self

SETTINGS = {
    "BOT_NAME": "fleet",
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
}


trips: deque[None] = deque()
"""An element for each time that something was sent to Redis; a pipeline goes in one piece."""


def watch_trips() -> None:
    """Count what all connections of this process send."""
    send: Any = AbstractConnection.send_packed_command

    def counted(self: AbstractConnection, *args: Any, **options: Any) -> Any:
        trips.append(None)
        return send(self, *args, **options)

    AbstractConnection.send_packed_command = counted  # type: ignore[method-assign]


class Fleet(Spider):
    """Visits many hosts, and stays when there is nothing to do."""

    name = "fleet"

    def __init__(self, hosts: int, port: int, out: IO[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._hosts, self._port, self._out = hosts, port, out

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Make the spider, and have it called when something happens."""
        self = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(self.tell, signal=signals.spider_opened)
        crawler.signals.connect(self.idle, signal=signals.spider_idle)
        return self

    async def start(self) -> AsyncIterator[Request]:
        """Ask for the first pages, through the filter: once for all workers."""
        for host in range(1, self._hosts + 1):
            yield Request(f"http://127.0.0.{host}:{self._port}/")

    def parse(self, response: Response) -> Iterator[Request]:
        """Follow the links of a page."""
        assert isinstance(response, HtmlResponse)
        yield from response.follow_all(css="a")

    def idle(self) -> None:
        """Stay.

        :raises DontCloseSpider: always.
        """
        raise DontCloseSpider

    def tell(self) -> None:
        """Write a line."""
        report = {"trips": len(trips), "cpu": process_time()}
        print(json.dumps(report), file=self._out, flush=True)


def answer(crawler: Crawler) -> None:
    """Write a line for each that can be read."""
    while sys.stdin.readline():
        assert isinstance(crawler.spider, Fleet)
        crawler.spider.tell()


def main() -> None:
    """Crawl."""
    # An idle worker looks for work ten times a second. It is every five seconds by default, and
    # would make up most of a short crawl.
    ExecutionEngine._SLOT_HEARTBEAT_INTERVAL = 0.1  # noqa: SLF001 - there is no setting
    watch_trips()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some filters print
    job = json.loads(sys.stdin.readline())
    process = CrawlerProcess(SETTINGS | job["settings"])
    crawler = process.create_crawler(Fleet)
    process.crawl(crawler, hosts=job["hosts"], port=job["port"], out=out)
    Thread(target=answer, args=(crawler,), daemon=True).start()
    process.start()


if __name__ == "__main__":
    main()
