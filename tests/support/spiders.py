"""Spiders of crawls that run as processes of their own, which find them by their names."""

import asyncio
import gc
import os
import signal
import time
from contextlib import suppress
from hashlib import sha1

import redis
from scrapy.exceptions import DontCloseSpider, IgnoreRequest
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

import scrapy_bloom
from scrapy_bloom.redis import upkeep
from support.crawling import Asked, Follower, close
from support.internals import scheduler_of

# For single tests


class Stopping(Follower):
    """Stops after some pages, as Ctrl-C does, and resumes in the next run."""

    name = "follower"
    __module__, __qualname__ = Follower.__module__, Follower.__qualname__  # it is no other spider
    pages = 20

    def parse(self, response):
        last = len(self.parsed) + 1 == self.pages  # other pages may come while its links are read
        yield from super().parse(response)
        if last:
            close(self.crawler)


class Lambdas(Follower):
    """None of its requests can be serialized."""

    name = "lambdas"
    filtered = False
    unstorable = 1


class Forking(Follower):
    """Forks on every fiftieth page a child that ends as the worst of children do."""

    name = "forking"

    def parse(self, response):
        yield from super().parse(response)
        if len(self.parsed) % 50 == 0:
            child = os.fork()
            if not child:
                scheduler = scheduler_of(self.crawler)
                scheduler.df.request_seen(response.request.replace(url="http://a.child/"))
                scheduler.df = None
                gc.collect()
                os._exit(0)
            os.waitpid(child, 0)


class Walled(Follower):
    """Forgets pages that are a login page."""

    name = "walled"
    filtered = False

    async def parse(self, response):
        self.parsed.append(response.url)
        links = response.css("a::attr(href)").getall()
        if "/login" in links:
            known = scrapy_bloom.forget(response.request, self.crawler)
            self.crawler.stats.inc_value("walls/known", int(known))
            links.remove("/login")
        for href in links:
            yield response.follow(href)


# Killed again and again: each makes an item for each page


class ItemSpider(Follower):
    """Makes an item after the links of a page, and counts its pages in `spider.state`.

    A text of 32,768 `letters` has each item written at once.
    """

    name = "items"
    letters = 0

    def parse(self, response):
        yield from super().parse(response)
        self.state["pages"] = self.state.get("pages", 0) + 1
        yield {"url": response.url, "text": "x" * int(self.letters)}


class Thrice(Follower):
    """Makes three items of a page, and waits in between; its texts are hard to read in CSV."""

    name = "thrice"

    async def parse(self, response):
        for found in super().parse(response):
            yield found
        for number in range(3):
            yield {"url": response.url, "number": number, "text": 'a "quoted" text,\n' * 8}
            await asyncio.sleep(0.002)


class Errors(ItemSpider):
    """Goes on from an errback, drops requests in a middleware, and fails after its links."""

    name = "errors"
    custom_settings = {  # noqa: RUF012 - Scrapy's way
        "DOWNLOADER_MIDDLEWARES": {"support.spiders.Dropping": 50},
        "RETRY_TIMES": 0,
    }

    def request(self, response, href):
        return response.follow(href, errback=self.failed)

    def parse(self, response):
        yield from super().parse(response)
        if len(response.url) % 2:
            raise ValueError("a page that the spider cannot bear")

    def failed(self, failure):
        response = getattr(failure.value, "response", None)
        request = response.request if response is not None else failure.request
        tries = request.meta.get("tries", 0)
        if tries < 4:  # a chain of redirects may fail at each step
            yield request.replace(dont_filter=True, meta={**request.meta, "tries": tries + 1})


class Dropping:
    def process_request(self, request, spider=None):  # noqa: ARG002 - Scrapy's signature
        if "/nothing" in request.url:
            raise IgnoreRequest


class Ruled(CrawlSpider):
    name = "ruled"
    rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)]  # noqa: RUF012

    def __init__(self, url, **arguments):
        super().__init__(start_urls=[url], **arguments)

    def parse_page(self, response):
        return {"url": response.url}

    parse_start_url = parse_page


# Shared by workers


with suppress(ModuleNotFoundError):
    from scrapy_redis.queue import FifoQueue
    from scrapy_redis.spiders import RedisCrawlSpider

    class HandedOut(FifoQueue):
        """Notes what it hands out in the very command that does so."""

        def pop(self, timeout=0):  # noqa: ARG002 - its signature
            data = self.server.rpoplpush(self.key, "worker:popped")
            return self._decode_request(data) if data else None

    class Dying(HandedOut):
        """Has a push of its own, which never comes for one page."""

        def push(self, request):
            if request.url.endswith("/page/53"):
                os.kill(os.getpid(), signal.SIGKILL)
            super().push(request)

    class RulesFromRedis(RedisCrawlSpider):
        name = "rules_from_redis"
        rules, parse_page = Ruled.rules, Ruled.parse_page


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
                upkeep.BLOCKED = 5.0  # from now on: a busy machine is slow to start
                time.sleep(10**6)
        yield from super().parse(response)


class OtherFingerprints:
    def fingerprint(self, request):
        return sha1(request.url.encode()).digest()
