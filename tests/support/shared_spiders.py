"""Spiders for crawls that workers share."""

import json
import os
import resource
import signal
from contextlib import suppress
from hashlib import sha1

from scrapy import Request, signals
from w3lib.url import canonicalize_url

from scrapy_bloom.crawl.engine import call_later, close_spider
from support.crawling import Follower
from support.gap import Gap


class Gauging(Follower):
    """Says for how long the event loop did not come to its turn."""

    name = "gauging"

    @classmethod
    def from_crawler(cls, crawler, *arguments, **keywords):
        spider = super().from_crawler(crawler, *arguments, **keywords)
        crawler.signals.connect(spider.begin, signal=signals.engine_started)
        crawler.signals.connect(spider.end, signal=signals.spider_closed)
        return spider

    def begin(self):
        self.gap = Gap(call_later)
        self.gap.tick()

    def end(self):
        self.gap.stop()
        self.logger.info("Longest stop: %.3f s", self.gap.longest)


with suppress(ModuleNotFoundError):
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import Rule
    from scrapy_redis.spiders import RedisCrawlSpider, RedisSpider

    class FromRedis(RedisSpider):
        name = "from_redis"

        def parse(self, response):
            for href in response.css("a::attr(href)").getall():
                yield response.follow(href)

    class RulesFromRedis(RedisCrawlSpider):
        name = "rules_from_redis"
        rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)]  # noqa: RUF012

        def parse_page(self, response):
            return {"url": response.url}


class Killed(Follower):
    """Is killed by one page, at most twice."""

    name = "killed"

    @classmethod
    def from_crawler(cls, crawler, *arguments, **keywords):
        from scrapy_bloom.redis import queue, shard  # only this spider needs redis

        shard.MOST_TRIES, shard.RISKY, queue.RISKY = 2, 1, 1
        return super().from_crawler(crawler, *arguments, **keywords)

    def parse(self, response):
        if response.url.endswith(self.settings["KILLED_BY"]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().parse(response)


class Leaves(Follower):
    """Follows no link."""

    name = "leaves"

    def parse(self, _):
        """Make nothing of it."""


class Starting(Follower):
    """Has very many start requests, and says by how much its memory has grown with them."""

    name = "starting"
    custom_settings = {"CONCURRENT_REQUESTS": 1, "HTTPERROR_ALLOW_ALL": True}  # noqa: RUF012

    async def start(self):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(self.settings.getint("START_REQUESTS")):
            yield Request(f"{self.url}?{number}")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        self.logger.info("Grown by %d MB", grown / 1024)
        close_spider(self.crawler, "enough")

    def parse(self, _):
        """Make nothing of it."""


class TheirFingerprints:
    """Makes fingerprints as scrapy-redis's own filter does."""

    def fingerprint(self, request):
        told = {
            "method": request.method,
            "url": canonicalize_url(request.url),
            "body": request.body.hex(),
        }
        return sha1(json.dumps(told, sort_keys=True).encode()).digest()
