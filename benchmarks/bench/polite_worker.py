"""One worker that crawls many hosts, as a program.

It reads a line of JSON, ``{"spider": {…}, "settings": {…}}``, and crawls. It writes a line of JSON
when its spider is open, whenever it reads another line, and when its spider is closed: ``{"pages":
…, "trips": …}`` with how many pages it has parsed and how often it has sent something to Redis.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator
from itertools import cycle
from threading import Thread
from typing import IO, Any

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.exceptions import DontCloseSpider
from scrapy.http import HtmlResponse, Response
from typing_extensions import Self

from bench.crawl_worker import Trips, prepared
from bench.way import Way

SETTINGS = {
    "BOT_NAME": "polite",
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
}


class Polite(Spider):
    """Visits many hosts.

    Attributes:
        pages: how many were parsed.
    """

    name = "polite"
    pages = 0

    def __init__(self, way: Way, out: IO[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.way, self._out = way, out

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Make the spider, and have it called when something happens."""
        self = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(self.tell, signal=signals.spider_opened)
        crawler.signals.connect(self.tell, signal=signals.spider_closed)
        crawler.signals.connect(self.idle, signal=signals.spider_idle)
        return self

    async def start(self) -> AsyncIterator[Request]:
        """Ask for the first pages, through the filter: once for all workers."""
        for page in range(self.way.starts):
            for host in range(1, self.way.hosts + 1):
                yield Request(f"http://127.0.0.{host}:{self.way.port}/{page or ''}")

    def parse(self, response: Response) -> Iterator[Request]:
        """Follow the links of a page."""
        assert isinstance(response, HtmlResponse)
        if random.random() < self.way.blocks:
            time.sleep(self.way.block)
        if self.way.follows:
            yield from response.follow_all(css="a")
        self.pages += 1

    def idle(self) -> None:
        """Stay when there is nothing to do.

        :raises DontCloseSpider: if that is wanted.
        """
        if self.way.stays:
            raise DontCloseSpider

    def tell(self) -> None:
        """Write a line."""
        print(json.dumps({"pages": self.pages, "trips": Trips.made}), file=self._out, flush=True)


class Rotate:
    """Sends each request through the next proxy, at that proxy's pace.

    :param spider: says how many proxies there are.
    """

    def __init__(self, way: Way) -> None:
        hosts = range(1, way.proxies + 1)
        self._proxies = cycle([f"http://127.0.0.{host}:{way.port}" for host in hosts])

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Rotate:
        """Make the middleware."""
        assert isinstance(crawler.spider, Polite)
        return cls(crawler.spider.way)

    def process_request(self, request: Request) -> None:
        """Choose a proxy."""
        request.meta["proxy"] = request.meta["download_slot"] = next(self._proxies)


def answer(crawler: Crawler) -> None:
    """Write a line for each that can be read."""
    while sys.stdin.readline():
        assert isinstance(crawler.spider, Polite)
        crawler.spider.tell()


def main() -> None:
    """Crawl."""
    out = prepared()
    job = json.loads(sys.stdin.readline())
    way = Way(**job["spider"])
    settings = SETTINGS | job["settings"]
    if way.proxies:
        settings["DOWNLOADER_MIDDLEWARES"] = {Rotate: 740}
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(Polite)
    process.crawl(crawler, way=way, out=out)
    Thread(target=answer, args=(crawler,), daemon=True).start()
    process.start()


if __name__ == "__main__":
    main()
