"""Crawls of this process whose requests and marks are in a real Redis, shared by workers."""

import asyncio
import os
import signal as signals_of_os
import time

import pytest
from scrapy import Request, signals
from support.crawling import (
    KEPT,
    SCRAPYS,
    Follower,
    Leaves,
    StartsNothing,
    crawl,
    make_crawler,
    resumes_well,
    settings_at,
)
from support.queues import account, all_are_well, left, shift_leases
from support.sites import Pages, fan
from support.spiders import Stopping
from support.waiting import PATIENCE, until
from testbed.in_flight import taken_by
from testbed.localredis import free_port
from testbed.localsite import LocalSite
from twisted.internet.threads import deferToThread

from scrapy_bloom.crawl.scrapy.loop import call_later
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.upkeep import LEASE
from scrapy_bloom.redis.worker import MOST_DEATHS, delete

pytestmark = [pytest.mark.redis, pytest.mark.server]

ONE = {"CONCURRENT_REQUESTS": 1, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
FIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}


def reactor_calls(function):
    """Have a function called in the thread of the event loop."""
    from twisted.internet import reactor

    reactor.callFromThread(function)


@pytest.fixture
def shared(request):
    """The settings of a worker."""
    return settings_at("shared", request)


@pytest.fixture
def own(own_server, key):
    """The settings of a worker with a server of its own."""
    return KEPT | {
        "BLOOM_REDIS_TIMEOUT": 10,
        "BLOOM_REDIS_URL": own_server.url,
        "BLOOM_REDIS_KEY": key,
    }


class Leaving(Leaves, Follower):
    pass


class Nothing(StartsNothing, Follower):
    pass


@pytest.mark.parametrize("order", ["lifo", "fifo"])
@pytest.mark.each_scrapy
async def test_the_order_is_by_priority_and_then_that_of_the_setting(shared, server, key, order):
    class Prior(Leaving):
        def request(self, response, href):
            priority = (0, 5, 5, -1, 0, 10**400)[int(href[1:])]
            return super().request(response, href).replace(priority=priority)

    settings = {**shared, **ONE, **(FIFO if order == "fifo" else {})}
    with Pages(fan(*range(6))) as pages:
        await crawl(Prior, settings, url=pages.url + "/")
        assert left(server, key) == (6, 0, 0)
        crawler = await crawl(Nothing, settings)
    last_first = ["/5", "/2", "/1", "/4", "/0", "/3"]
    first_first = ["/5", "/1", "/2", "/0", "/4", "/3"]
    came = [url.removeprefix(pages.url) for url in crawler.spider.parsed]
    assert came == (last_first if order == "lifo" else first_first)


# What pages lead to


async def test_a_page_that_is_retried_counts_once_at_any_time(shared, server, key):
    pages = []

    def flaky(*_):
        pages.append(account(server, key).pages)
        return 503 if len(pages) < 3 else []

    with Pages({"/": ["/flaky"], "/flaky": flaky}) as site:
        await crawl(Follower, shared, url=site.url + "/")
    assert pages == [2, 2, 2]


@pytest.mark.each_scrapy
async def test_a_crawl_that_is_stopped_is_resumed_by_the_next_worker(shared, server, key):
    with LocalSite(pages=120, links=8) as pages:
        await crawl(Stopping, shared, url=pages.url)
        assert pages.missed
        waiting, *others = left(server, key)
        assert waiting > 0
        assert others == [0, 0]
        await crawl(Follower, shared, url=pages.url)
    assert resumes_well(pages)
    assert left(server, key) == (0, 0, 0)


# Engine and extensions


async def test_the_event_loop_goes_on_while_the_server_is_frozen(own, own_server):
    turns = []  # of the event loop while the server stands still

    def turn():
        turns.append(1)
        if len(turns) == 200:
            os.kill(own_server.pid, signals_of_os.SIGCONT)
        else:
            call_later(0.005, turn)

    def freeze():
        os.kill(own_server.pid, signals_of_os.SIGSTOP)
        turn()

    with LocalSite(pages=100, links=8) as pages:
        pages.when(50, lambda: reactor_calls(freeze))
        crawler = await crawl(settings=own | {"BLOOM_REDIS_TIMEOUT": 60}, url=pages.url)
    assert len(turns) == 200
    assert crawler.stats.get_value("bloom/redis/outages", 0) == 0
    assert pages.missed == set()
    assert pages.repeated == {}


@pytest.mark.each_scrapy
async def test_pipelines_that_close_may_block_for_as_long_as_they_like(shared, caplog, monkeypatch):
    """They write files, say. What this worker has done is reported after that."""
    monkeypatch.setattr(upkeep, "LEASE", 3.0)
    blocked = []

    class Slow:
        def close_spider(self, spider=None):  # noqa: ARG002
            monkeypatch.setattr(upkeep, "BLOCKED", 0.5)  # shorter, and a slow machine is blocked
            since, before = time.monotonic(), len(caplog.records)
            until(lambda: time.monotonic() - since > 1.5)
            blocked.append([each for each in caplog.records[before:] if "gives up" in each.msg])
            monkeypatch.setattr(upkeep, "BLOCKED", 600.0)

    settings = shared | {"ITEM_PIPELINES": {Slow: 500}}
    with Pages(fan("a")) as pages:
        await crawl(settings=settings, url=pages.url + "/")
    assert blocked == [[]]
    assert pages.hits == {"/": 1, "/a": 1}


# Faults


# What a warning says of a server that has no room or no replica, and the setting that makes it so.
REFUSALS = {
    "The server is out of memory": ("maxmemory", 1000),
    "good replicas": ("min-replicas-to-write", 1),
}


@pytest.mark.parametrize("error", REFUSALS, ids=["no memory", "no replica"])
async def test_a_server_that_takes_no_writes_is_waited_for(
    own, own_server, key, caplog, monkeypatch, error
):
    monkeypatch.setattr(upkeep, "WARN", 0.3)
    client, (name, value) = own_server.client(), REFUSALS[error]

    def refuse():
        client.config_set(name, value)
        try:
            until(lambda: caplog.text.count("Retrying") == 3)
        finally:
            client.config_set(name, 0)

    with LocalSite(pages=60, links=8) as pages:
        pages.when(20, refuse)
        crawler = await crawl(settings=own, url=pages.url)
    assert error in caplog.text
    assert pages.missed == set()
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert crawler.stats.get_value("bloom/redis/outages") == 1
    assert left(own_server, key) == (0, 0, 0)


@pytest.mark.parametrize("scheduler", [KEPT["SCHEDULER"], SCRAPYS])
async def test_a_server_that_deletes_keys_when_it_is_full_is_warned_of_once(
    own, own_server, caplog, scheduler
):
    own_server.client().config_set("maxmemory-policy", "allkeys-lru")
    with LocalSite(pages=5, links=2) as pages:
        await crawl(settings=own | {"SCHEDULER": scheduler}, url=pages.url)
    assert caplog.text.count("maxmemory-policy is allkeys-lru, expected noeviction") == 1


async def test_a_wrong_address_ends_the_crawl_with_one_line(caplog, monkeypatch):
    monkeypatch.setattr(upkeep, "FIRST_ANSWER", 1.0)
    wrong = {"BLOOM_REDIS_URL": f"redis://127.0.0.1:{free_port()}"}
    settings = {**KEPT, **wrong, "CLOSESPIDER_TIMEOUT": PATIENCE}
    crawler = await crawl(settings=settings, url="http://127.0.0.1:1")
    assert crawler.stats.get_value("finish_reason") == "bloom_backend"
    assert crawler.spider is None  # what makes `scrapy crawl` exit with code 1
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "Nothing has answered there for 1 s: check BLOOM_REDIS_URL" in line


@pytest.mark.each_scrapy
async def test_a_server_that_has_answered_is_waited_for_and_what_is_enqueued_meanwhile_is_kept(
    own, own_server, caplog, key, monkeypatch
):
    """By an extension, say. It went to Scrapy's memory queue, and closed the spider."""
    monkeypatch.setattr(upkeep, "FIRST_ANSWER", 0.0)
    own_server.client().config_set("min-replicas-to-write", 1)
    dropped = []
    with Pages(fan("a", "early")) as pages:
        crawler = make_crawler(Follower, own)
        crawler.signals.connect(
            lambda request: dropped.append(request.url), signals.request_dropped, weak=False
        )
        crawling = crawler.crawl(url=pages.url + "/")
        await deferToThread(until, lambda: "The crawl waits until it can be used" in caplog.text)
        assert not pages.hits
        for _ in range(2):
            crawler.engine.crawl(Request(pages.url + "/early"))
        own_server.client().config_set("min-replicas-to-write", 0)
        await crawling
    assert pages.hits == {"/": 1, "/a": 1, "/early": 1}
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert dropped == [pages.url + "/early"] * 2  # the second one, and the link to it
    assert "AssertionError" not in caplog.text
    assert left(own_server, key) == (0, 0, 0)


async def test_a_loss_while_start_runs_again_runs_it_once_more(shared, server):
    """It may await what is asyncio's, as when it runs for the first time."""

    class Unlucky(Follower):
        starts = 0

        async def start(self):
            Unlucky.starts += 1
            yield Request(self.url)
            await asyncio.to_thread(str)
            if Unlucky.starts == 2:
                server.client().flushall()
            yield Request(f"{self.url}?again")

    with LocalSite(pages=60, links=6) as pages:
        pages.when(20, server.client().flushall)
        await crawl(Unlucky, shared, url=pages.url)
    assert pages.missed == set()
    assert Unlucky.starts == 3


async def test_a_worker_that_was_taken_for_dead_goes_on_and_says_so(
    own, own_server, key, caplog, monkeypatch
):
    """It has a request that waits for its turn, none in flight, and nothing to say."""
    monkeypatch.setattr(upkeep, "LEASE", 0.5)
    monkeypatch.setattr("scrapy_bloom.redis.worker.AHEAD", 60.0)
    client, other = own_server.client(), Link(Server(own_server.url), 10.0)

    def is_dead():
        shift_leases(own_server, key, -3600)
        all_are_well(own_server, key)
        other.run("beat", key, client.hget(key, "epoch"), "other", LEASE, MOST_DEATHS)
        return any(b" dead " in value for value in client.hvals(key))

    def die():
        until(lambda: taken_by(own_server, os.getpid()) == [pages.url + "/a"])
        until(is_dead)  # it may be just renewing its lease

    settings = own | {"CONCURRENT_REQUESTS": 1, "DOWNLOAD_DELAY": 3, "CLOSESPIDER_TIMEOUT": 60}
    with Pages(fan("a")) as pages:
        crawling = make_crawler(Follower, settings)
        running = crawling.crawl(url=pages.url + "/")
        await deferToThread(die)
        await running
    other.close()
    assert crawling.stats.get_value("finish_reason") == "finished"
    assert pages.hits["/"] == 1
    assert 1 <= pages.hits["/a"] <= 2  # twice if its turn came before the worker knew
    assert "this worker missed its lease of 0.5 s" in caplog.text


async def test_a_worker_whose_crawl_is_deleted_ends_and_creates_nothing(shared, server, key):
    other = Link(Server(server.url), 10.0)

    def is_deleted():
        shift_leases(server, key, -3600)
        return delete(other, key) == {}

    with LocalSite(pages=60, links=6) as pages:
        pages.when(20, lambda: until(is_deleted))
        crawler = await crawl(settings=shared | {"CLOSESPIDER_TIMEOUT": 60}, url=pages.url)
    other.close()
    assert crawler.stats.get_value("finish_reason") == "bloom_filter_lost"
    assert server.client().keys(f"*{key}*") == [key.encode()]  # the note
