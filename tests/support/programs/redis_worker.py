"""One worker of a crawl, as a program: python redis_worker.py URL STATS-FILE SETTINGS-IN-JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import redis
from scrapy import Request, Spider, signals
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import DontCloseSpider
from scrapy.linkextractors import LinkExtractor

sys.path.insert(0, str(Path(__file__).parents[2]))

from support import pace

# An idle worker looks for work, and for the end, more often than every 5 seconds.
for name in ("_SLOT_HEARTBEAT_INTERVAL", "_MIN_BACK_IN_SECONDS"):
    if hasattr(ExecutionEngine, name):
        setattr(ExecutionEngine, name, 0.1)


class Worker(Spider):
    name = "worker"
    links = LinkExtractor()

    def __init__(self, url, done="", **kwargs):
        super().__init__(**kwargs)
        self.url = url
        self.done = done

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        self = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(self.stay, signal=signals.spider_idle)
        return self

    async def start(self):
        yield Request(self.url)

    def parse(self, response):
        for link in self.links.extract_links(response):
            yield Request(link.url)

    def stay(self):
        """Stay idle until somebody sets the key `done` in the Redis that it names."""
        if self.done:
            server, key = self.done.split("#")
            with redis.Redis.from_url(server) as client:
                if not client.exists(key):
                    raise DontCloseSpider


class Newer(Worker):
    """Has a callback that workers with older code do not know."""

    async def start(self):
        yield Request(self.url, callback=self.parse_anew)

    def parse_anew(self, response):
        for request in self.parse(response):
            yield request.replace(callback=self.parse_anew)


def main():
    pace.follow()
    url, stats_file, settings = sys.argv[1:]
    settings = json.loads(settings)
    done = settings.pop("done", "")
    spider = Newer if settings.pop("newer", False) else Worker
    process = CrawlerProcess(
        {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "TELNETCONSOLE_ENABLED": False}
        | settings
    )
    crawler = process.create_crawler(spider)
    process.crawl(crawler, url=url, done=done)
    process.start()
    Path(stats_file).write_text(json.dumps(crawler.stats.get_stats(), default=str))


if __name__ == "__main__":
    main()
