"""Spiders whose crawls are killed; each makes one item for each page."""

import asyncio
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit
from zlib import crc32

from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from support.crawling import Follower, download


class ItemSpider(Follower):
    """Makes an item after the links of a page, and counts its pages in `spider.state`."""

    name = "items"

    def parse(self, response):
        yield from super().parse(response)
        self.state["pages"] = self.state.get("pages", 0) + 1
        yield {"url": response.url}


class Wordy(ItemSpider):
    """Its items are large, so that each of them is written at once."""

    name = "wordy"

    def parse(self, response):
        for found in super().parse(response):
            yield {**found, "text": "x" * 32768} if isinstance(found, dict) else found


class Thrice(Follower):
    """Makes three items of a page, and waits in between; its texts are hard to read in CSV."""

    name = "thrice"

    async def parse(self, response):
        for found in super().parse(response):
            yield found
        for number in range(3):
            yield {"url": response.url, "number": number, "text": 'a "quoted" text,\n' * 8}
            await asyncio.sleep(0.002)


class ThriceWithLambdas(Thrice):
    """Every fourth link has a callback that cannot be stored: its page waits for that."""

    name = "thrice with lambdas"

    def request(self, response, href):
        request = response.follow(href)
        if crc32(request.url.encode()) % 4:
            return request
        return request.replace(callback=lambda page: self.parse(page))  # noqa: PLW0108


class SomeLambdas(ItemSpider):
    """Every other link has a callback that cannot be stored."""

    name = "some lambdas"

    def request(self, response, href):
        request = response.follow(href)
        if crc32(request.url.encode()) % 2:  # the same ones in each run
            return request
        return request.replace(callback=lambda page: self.parse(page))  # noqa: PLW0108


class Waiting(ItemSpider):
    """Its callbacks wait, and its links come before and after that; some download more."""

    name = "waiting"

    async def parse(self, response):
        links = response.css("a::attr(href)").getall()
        for href in links[::2]:
            yield response.follow(href)
        await asyncio.sleep(0.02)
        if len(links) % 3 == 0:
            await download(self.crawler, Request(response.urljoin("/"), dont_filter=True))
        for href in links[1::2]:
            yield response.follow(href)
        yield {"url": response.url}


class Hosts(ItemSpider):
    """Has its pages downloaded as if they were on sixty hosts."""

    name = "hosts"

    def request(self, response, href):
        host = crc32(href.encode()) % 60
        return response.follow(href, meta={"download_slot": f"host-{host}.test"})


class Late(Follower):
    """Waits for each link, and has it downloaded as if from a host, as its URL says."""

    name = "late"

    def request(self, response, href):
        wishes = dict(parse_qsl(urlsplit(href).query))
        meta = {"bloom_delay": wishes["wait"], "download_slot": wishes["host"]}
        return response.follow(href, meta=meta)


class Errors(ItemSpider):
    """Goes on from an errback, drops requests in a middleware, and fails after its links."""

    name = "errors"
    custom_settings = {  # noqa: RUF012 - Scrapy's way
        "DOWNLOADER_MIDDLEWARES": {"support.kept_spiders.Dropping": 50},
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

    def __init__(self, url="", **arguments):
        super().__init__(**arguments)
        self.start_urls = [url]

    def parse_start_url(self, response):
        return self.parse_page(response)

    def parse_page(self, response):
        return {"url": response.url}


class Shaky(ItemSpider):
    """Fails for a tenth of its pages, each once in all runs: a folder remembers which."""

    name = "shaky"

    def parse(self, response):
        number = crc32(response.url.encode())
        been = Path(self.crawler.settings["SHAKY"]) / str(number)
        if not (number % 10 or been.exists()):
            been.touch()
            raise ValueError("a page that the spider cannot bear")
        yield from super().parse(response)
