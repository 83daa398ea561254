"""For crawls that workers share: their spiders, and the fingerprints of scrapy-redis."""

import json
from contextlib import suppress
from hashlib import sha1
from types import MethodType

import redis
from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider
from w3lib.url import canonicalize_url

from support.crawling import Follower

with suppress(ModuleNotFoundError):
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import Rule
    from scrapy_redis.spiders import RedisCrawlSpider

    class RulesFromRedis(RedisCrawlSpider):
        name = "rules_from_redis"
        rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)]  # noqa: RUF012

        def parse_page(self, response):
            return {"url": response.url}


class Worker(Follower):
    """Stays idle until somebody sets the key `done` in the Redis that it names.

    With `newer` it has a callback that workers with older code do not know.
    """

    name = "worker"
    done = newer = ""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        if self.newer:
            self.parse_anew = MethodType(parse_anew, self)

    @classmethod
    def from_crawler(cls, crawler, *arguments, **keywords):
        spider = super().from_crawler(crawler, *arguments, **keywords)
        crawler.signals.connect(spider.stay, signal=signals.spider_idle)
        return spider

    async def start(self):
        yield Request(self.url, callback=self.parse_anew if self.newer else None)

    def stay(self):
        if self.done:
            with redis.Redis.from_url(self.done) as client:
                if not client.exists("done"):
                    raise DontCloseSpider


def parse_anew(self, response):
    for request in self.parse(response):
        yield request.replace(callback=self.parse_anew)


class TheirFingerprints:
    """Makes fingerprints as scrapy-redis's own filter does."""

    def fingerprint(self, request):
        told = {
            "method": request.method,
            "url": canonicalize_url(request.url),
            "body": request.body.hex(),
        }
        return sha1(json.dumps(told, sort_keys=True).encode()).digest()
