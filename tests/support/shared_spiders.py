"""For crawls that workers share: their spiders, and the fingerprints of scrapy-redis."""

import json
import time
from contextlib import suppress
from hashlib import sha1

import redis
from scrapy.exceptions import DontCloseSpider
from w3lib.url import canonicalize_url

from support.crawling import Asked, Follower

with suppress(ModuleNotFoundError):
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import Rule
    from scrapy_redis.spiders import RedisCrawlSpider

    class RulesFromRedis(RedisCrawlSpider):
        name = "rules_from_redis"
        rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)]  # noqa: RUF012

        def parse_page(self, response):
            return {"url": response.url}


class Worker(Asked, Follower):
    """Stays idle until somebody sets the key `done` in the Redis that it names."""

    name = "worker"
    done = ""

    def idle(self):
        if self.done:
            with redis.Redis.from_url(self.done) as client:
                if not client.exists("done"):
                    raise DontCloseSpider


class Hanging(Follower):
    """The callback of the tenth page never returns, in the first worker that has it."""

    name = "hanging"

    def parse(self, response):
        with redis.Redis.from_url(self.settings["BLOOM_REDIS_URL"]) as client:
            if len(self.parsed) == 10:
                client.set("hung", response.url, nx=True)
            if client.get("hung") == response.url.encode():  # whichever worker has it
                time.sleep(10**6)
        yield from super().parse(response)


class TheirFingerprints:
    """Makes fingerprints as scrapy-redis's own filter does."""

    def fingerprint(self, request):
        told = {
            "method": request.method,
            "url": canonicalize_url(request.url),
            "body": request.body.hex(),
        }
        return sha1(json.dumps(told, sort_keys=True).encode()).digest()
