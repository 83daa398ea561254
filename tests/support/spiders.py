"""Spiders for single tests, found by name in a project's SPIDER_MODULES."""

import gc
import os
import signal

import scrapy_bloom
from support.crawling import Follower
from support.internals import scheduler_of


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


class Lambdas(Follower):
    """Its requests cannot be serialized."""

    name = "lambdas"
    filtered = False

    def request(self, response, href):
        parse = self.parse
        return response.follow(href, callback=lambda found: list(parse(found)))


class Checked(Follower):
    """Has a contract for `scrapy check` on the page that the environment names."""

    name = "checked"

    def parse(self, response):
        yield from super().parse(response)

    parse.__doc__ = f"""
        @url {os.environ.get("CHECKED_URL")}
        @returns requests 8 8
    """


class Walled(Follower):
    """Forgets pages that are a login page; with `WALLED_DIES` it kills itself then."""

    name = "walled"
    filtered = False

    async def parse(self, response):
        self.parsed.append(response.url)
        links = response.css("a::attr(href)").getall()
        if "/login" in links:
            known = scrapy_bloom.forget(response.request, self.crawler)
            self.crawler.stats.inc_value("walls/known", int(known))
            links.remove("/login")
            if self.settings.getbool("WALLED_DIES"):
                os.kill(os.getpid(), signal.SIGKILL)
        for href in links:
            yield response.follow(href)
