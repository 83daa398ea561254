"""Crawls with a delay in Redis: one pace for all workers, and no slot waits for nothing."""

import time

import pytest
import scrapy
from pytest_twisted import ensureDeferred
from scrapy.exceptions import CloseSpider
from scrapy.http import HtmlResponse
from support.crawling import Follower, crawl
from support.sites import Pages
from twisted.internet.defer import Deferred, gatherResults

pytestmark = [pytest.mark.server, pytest.mark.each_scrapy]

NO_JITTER = (
    {"RANDOMIZE_DOWNLOAD_DELAY": False}
    if scrapy.version_info < (2, 19)
    else {"DOWNLOAD_DELAY_JITTER": 0}
)

LONG = 600.0
"""A delay that no test survives if a request waits for it."""


@pytest.fixture
def shared(server, key):
    """The settings of workers that share a crawl."""
    return {
        "SCHEDULER": "scrapy_bloom.Scheduler",
        "BLOOM_REDIS_URL": server.url,
        "BLOOM_REDIS_KEY": key,
        "BLOOM_REDIS_TIMEOUT": 10,
        **NO_JITTER,
    }


class Site(dict):
    """Pages that all link to all of them, and note when they were asked for."""

    def __init__(self, count):
        self.times = []
        links = [f"/{number}" for number in range(count)]
        super().__init__(dict.fromkeys(["/", *links], self.page(links)))

    def page(self, links):
        def answer(*_):
            self.times.append(time.monotonic())
            return links

        return answer


class Cached:
    """A downloader middleware that answers everything itself."""

    def process_request(self, request, spider=None):  # noqa: ARG002
        links = "".join(f'<a href="/{number}">link</a>' for number in range(30))
        return HtmlResponse(request.url, body=links.encode(), request=request)


class Proxies:
    """A downloader middleware that sends each request in another download slot."""

    def process_request(self, request, spider=None):  # noqa: ARG002
        request.meta["download_slot"] = request.url


def both(spider, settings, url):
    return gatherResults(
        [Deferred.fromCoroutine(crawl(spider, settings, url=url)) for _ in range(2)]
    )


@ensureDeferred
async def test_two_workers_keep_one_pace(shared, caplog):
    caplog.set_level("INFO")
    site, delay = Site(8), 0.4
    with Pages(site) as pages:
        crawlers = await both(Follower, {**shared, "DOWNLOAD_DELAY": delay}, pages.url + "/")
    assert sum(len(crawler.spider.parsed) for crawler in crawlers) == 9
    # A slow machine sends the first request late by up to half the delay, and the last one not.
    assert site.times[-1] - site.times[0] >= 7.5 * delay
    assert "DOWNLOAD_DELAY = 0.4 holds for all workers together, for each host." in caplog.text


@ensureDeferred
@pytest.mark.parametrize("middleware", [Cached, Proxies])
async def test_what_is_not_sent_to_its_host_does_not_wait_for_it(shared, middleware):
    settings = {
        **shared,
        "DOWNLOAD_DELAY": LONG,
        "DOWNLOADER_MIDDLEWARES": {middleware: 10},
    }
    with Pages(Site(30)) as pages:
        crawler = await crawl(Follower, settings, url=pages.url + "/")
    assert len(crawler.spider.parsed) == 31


@ensureDeferred
async def test_a_slow_slot_does_not_hold_others_up(shared):
    class Slots(Follower):
        fast = 0

        def request(self, response, href):
            slow = href in {"/0", "/1", "/2"}
            slot = "slow" if slow else "fast"
            return response.follow(href, meta={"download_slot": slot})

        def parse(self, response):
            yield from super().parse(response)
            self.fast += response.meta["download_slot"] == "fast"
            if self.fast == 20:
                raise CloseSpider("enough")

    with Pages(Site(23)) as pages:
        settings = {**shared, "DOWNLOAD_SLOTS": {"slow": {"delay": LONG}}}
        crawler = await crawl(Slots, settings, url=pages.url + "/")
    assert crawler.spider.fast == 20
