"""While too much is only in memory nothing is sent that is stored; each crawl ends all the same.

The bound is a few requests here, so that some hundreds are as far above it as thousands are.
"""

import sqlite3
from contextlib import ExitStack

import pytest
from scrapy import Request, Spider
from scrapy.exporters import JsonLinesItemExporter
from support.crawling import KEPT, Follower, at, crawl, kept, make_crawler
from support.internals import unsaid_in
from support.proxy import Proxy
from testbed.localsite import LocalSite

from scrapy_bloom.crawl import frontier
from scrapy_bloom.crawl.backend import EACH
from scrapy_bloom.errors import BackendError
from scrapy_bloom.local import backend
from scrapy_bloom.local.store import Store
from scrapy_bloom.redis.backend import RedisBackend
from scrapy_bloom.redis.queue import SharedQueue

FEW = 20
MANY = 100


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(frontier, "MOST_UNSAID", FEW * EACH)


class Unstorable(Follower):
    """Its requests cannot be stored: `start()` yields them, or the first page does."""

    from_start = True

    def lambdas(self):
        for number in range(MANY):
            yield Request(f"data:,{number}", callback=self.parsed.append)

    async def start(self):
        if not self.from_start:
            yield Request("data:,first")
            return
        for request in self.lambdas():
            yield request

    def parse(self, response):
        if response.url == "data:,first":
            yield from self.lambdas()
        for number in range(MANY):
            yield Request(f"data:,{response.url[6:]}-{number}", callback=self.end)

    def end(self, response):
        self.parsed.append(response)


@at("kept job", "shared")
@pytest.mark.parametrize("from_start", [True, False], ids=["start", "page"])
async def test_what_can_never_be_stored_is_sent_and_counts_for_nothing(place, from_start):
    crawler = await crawl(Unstorable, place, from_start=from_start)
    assert len(crawler.spider.parsed) == MANY * (1 if from_start else 2)
    assert crawler.stats.get_value("finish_reason") == "finished"


class Wide(Follower):
    """Each page yields many requests of a kilobyte or more; notes how much was only in memory."""

    most = pages = 0

    async def start(self):
        for number in range(MANY):
            self.most = max(self.most, unsaid_in(self.crawler))
            yield Request(f"data:,{number}")

    def parse(self, response):
        self.pages += 1
        if "-" not in response.url and self.pages < MANY // 2:
            for number in range(FEW):
                meta = {"large": "x" * EACH}
                yield Request(f"{response.url}-{number}", meta=meta, priority=-1)
        self.most = max(self.most, unsaid_in(self.crawler))


@at("kept job", "shared")
async def test_little_is_only_in_memory_however_much_pages_yield(place):
    crawler = await crawl(Wide, {**place, "CONCURRENT_REQUESTS": 4})
    assert crawler.spider.pages > 5 * MANY
    assert crawler.spider.most < 4 * EACH * FEW + 4 * FEW * 3 * EACH  # what is in flight yields
    assert crawler.stats.get_value("finish_reason") == "finished"


async def test_while_commits_fail_nothing_is_sent_and_it_goes_on_by_itself(job, monkeypatch):
    for name in "_SLOWEST", "INTERVAL":
        monkeypatch.setattr(backend, name, 0.001)
    spider, commit, fetched = Follower(), Store.commit, []

    def fail(self, **how):
        if len(spider.parsed) > 20 and len(fetched) < 50:
            fetched.append(len(spider.parsed))
            raise sqlite3.OperationalError("database or disk is full")
        commit(self, **how)

    monkeypatch.setattr(Follower, "parsed", spider.parsed, raising=False)
    monkeypatch.setattr(Follower, "__init__", Spider.__init__)
    monkeypatch.setattr(Store, "commit", fail)
    with LocalSite(pages=150, links=6) as site:
        await crawl(settings=kept(job), url=site.url)
        assert (site.missed, site.repeated) == (set(), {})
    assert len(fetched) == 50
    assert fetched[-1] <= fetched[0] + 2 * 16  # which were in flight, or being parsed


@pytest.mark.redis
async def test_while_redis_is_down_nothing_is_sent_and_it_goes_on_by_itself(
    server, key, monkeypatch
):
    fetched, carry_out = [], SharedQueue.carry_out
    with LocalSite(pages=150, links=6) as site, Proxy(server.port) as proxy, ExitStack() as down:

        class Down(Follower):
            def parse(self, response):
                if len(self.parsed) == 40:
                    down.enter_context(proxy.down())
                yield from super().parse(response)

        def call(self, call):
            try:
                return carry_out(self, call)
            except BackendError:
                fetched.append(len(crawler.spider.parsed))
                if len(fetched) == 20:
                    down.close()
                raise

        monkeypatch.setattr(RedisBackend, "interval", 0.01)
        monkeypatch.setattr(SharedQueue, "carry_out", call)
        place = {"BLOOM_REDIS_URL": proxy.url, "BLOOM_REDIS_KEY": key, "BLOOM_REDIS_TIMEOUT": 5}
        crawler = make_crawler(Down, KEPT | place)
        await crawler.crawl(url=site.url)
        assert (site.missed, site.repeated) == (set(), {})
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert 40 < fetched[-1] <= fetched[0] + 2 * 16  # which were in flight, or being parsed


class Refusing(JsonLinesItemExporter):
    """Finds a full disk some times."""

    left = 3

    def export_item(self, item):
        if self.left:
            self.left -= 1
            raise OSError("no room")
        super().export_item(item)


class Scraping(Follower):
    """Its `start()` yields an item first, which belongs to no page."""

    async def start(self):
        yield {"name": "first"}
        yield Request("data:,a")


@at("kept job", "shared")
async def test_an_item_of_start_that_cannot_be_written_is_tried_again(place, tmp_path):
    """No page waits for it, but nothing is sent before it is written."""
    feed = tmp_path / "items.jsonl"
    feeds = {
        "FEEDS": {str(feed): {"format": "refusing"}},
        "FEED_EXPORTERS": {"refusing": Refusing},
    }
    crawler = await crawl(Scraping, place | feeds)
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert crawler.spider.parsed == ["data:,a"]
    assert feed.read_text() == '{"name": "first"}\n'
