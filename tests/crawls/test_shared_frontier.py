"""Crawls of this process whose requests and marks are in a real Redis, shared by workers."""

import asyncio
import os
import signal as signals_of_os
import time

import pytest
from msgpack import ExtType, packb
from scrapy import Request, signals
from support.crawling import (
    KEPT,
    SCRAPYS,
    Follower,
    Leaves,
    StartsNothing,
    crawl,
    make_crawler,
    messages,
    placed,
    resumes_well,
    visit,
)
from support.kinds import RAN
from support.queues import account, left, parts_of, shift_leases
from support.sites import Pages, fan
from support.spiders import Stopping
from support.waiting import PATIENCE, until
from testbed.localredis import free_port
from testbed.localsite import LocalSite
from twisted.internet.threads import deferToThread

from scrapy_bloom.crawl.scrapy.loop import call_later
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.client import Server, beginning
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.worker import delete

pytestmark = [pytest.mark.redis, pytest.mark.server]


shared = placed("shared")


@pytest.fixture
def own(own_server, key):
    """The settings of a worker with a server of its own."""
    timeout = {"BLOOM_REDIS_TIMEOUT": 10}  # a busy machine is no outage
    return KEPT | timeout | {"BLOOM_REDIS_URL": own_server.url, "BLOOM_REDIS_KEY": key}


class Leaving(Leaves, Follower):
    pass


class Nothing(StartsNothing, Follower):
    pass


@pytest.mark.parametrize(
    ("order", "expected"),
    [("Lifo", "521403"), ("Fifo", "512043")],
)
@pytest.mark.each_scrapy
async def test_the_order_is_by_priority_and_then_that_of_the_setting(
    shared, server, key, order, expected
):
    class Prior(Leaving):
        def request(self, response, href):
            priority = (0, 5, 5, -1, 0, 2**63)[int(href[1:])]
            return super().request(response, href).replace(priority=priority)

    queue = f"scrapy.squeues.Pickle{order}DiskQueue"
    shared |= {"CONCURRENT_REQUESTS": 1, "SCHEDULER_DISK_QUEUE": queue}
    with Pages(fan(*range(6))) as pages:
        await crawl(Prior, shared, url=pages.url + "/")
        assert left(server, key) == (6, 0, 0)
        crawler = await crawl(Nothing, shared)
    assert "".join(url[-1] for url in crawler.spider.parsed) == expected


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


async def test_the_event_loop_goes_on_while_the_server_is_frozen(own, own_server):
    turns = []  # of the event loop while the server stands still

    def turn():
        turns.append(1)
        if len(turns) == 200:
            os.kill(own_server.pid, signals_of_os.SIGCONT)
        else:
            call_later(0.005, turn)

    class Freezing(Follower):
        def parse(self, response):
            if len(self.parsed) == 50:
                os.kill(own_server.pid, signals_of_os.SIGSTOP)
                turn()
            yield from super().parse(response)

    with LocalSite(pages=100, links=8) as pages:
        crawler = await crawl(Freezing, own | {"BLOOM_REDIS_TIMEOUT": 60}, url=pages.url)
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
    _, pages = await visit(fan("a"), settings=settings)
    assert blocked == [[]]
    assert pages.hits == {"/": 1, "/a": 1}


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
    assert "good replicas" in caplog.text
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


async def test_a_worker_whose_crawl_is_deleted_ends_and_creates_nothing(shared, server, key):
    other = Link(Server(server.url), 10.0)

    def is_deleted():
        shift_leases(server, key, -3600)
        return delete(other, key) == {}

    with LocalSite(pages=60, links=6) as pages:
        pages.when(20, lambda: until(is_deleted))
        crawler = await crawl(settings=shared | {"CLOSESPIDER_TIMEOUT": 400}, url=pages.url)
    other.close()
    assert crawler.stats.get_value("finish_reason") == "bloom_filter_lost"
    assert server.client().keys(f"*{key}*") == [key.encode()]  # the note


class Ruled(Leaving):
    """Notes the text of each link, as rules do: it is of a class of lxml's."""

    def request(self, response, href):
        text = response.css("a")[0].root.xpath("string()")
        return response.follow(href, meta={"link_text": text})


@pytest.mark.each_scrapy
async def test_what_a_stranger_has_written_is_not_run_and_said_once(shared, server, key, caplog):
    """His requests are on the failed list in the end, and all others are fetched.

    So it is whatever Scrapy's queue is.
    """
    RAN.clear()
    shared["SCHEDULER_DISK_QUEUE"] = "scrapy.squeues.MarshalFifoDiskQueue"
    with Pages(fan("a", "b", "c")) as pages:
        await crawl(Ruled, shared, url=pages.url + "/")
        client, bodies = server.client(), beginning(key) + "bodies"
        call = {ExtType(0, b""): "support.kinds:run"}
        harms = {"_class": "support.kinds.run"}, {"meta": {"x": call}}
        for id_, harm in zip(client.hkeys(bodies)[:2], harms, strict=True):
            mark = client.hget(bodies, id_).partition(b"\xa3url")[0][:-1]
            client.hset(bodies, id_, mark + packb(Request(pages.url).to_dict() | harm))
        caplog.clear()
        crawler = await crawl(Nothing, shared)
        assert left(server, key) == (0, 0, 2)
        assert sum(pages.hits.values()) == 2
    assert RAN == []
    assert crawler.stats.get_value("finish_reason") == "finished"
    (said,) = (line for line in messages(caplog) if "contains more than data" in line)
    assert "support.kinds.run" in said


@pytest.mark.parametrize("then", [503, "/target"], ids=["retry", "redirect"])
@pytest.mark.parametrize("when", ["before it knows", "afterwards"])
async def test_what_a_page_leads_to_after_the_lease_is_not_queued(shared, server, key, when, then):
    """Others have the page, and queue that, too: it was fetched once more, and counted twice."""
    client = server.client()

    def alive(client=client):
        found = client.hgetall(key).items()
        return {name: text for name, text in found if name[:2] == b"w:" and b"dead" not in text}

    def die(pipe):
        found = alive(pipe)
        pipe.multi()
        for name, text in found.items():
            pipe.hset(key, name, text.split()[0] + b" dead %d" % time.time())

    def answer(path, _):
        if pages.hits[path] > 1:
            return [] if then == 503 else then
        until(lambda: left(server, key)[1] == 1)  # it knows that the front page is done
        client.transaction(die, key)  # else there may be a call meanwhile, with another number
        if when == "afterwards":
            until(lambda: any(text[:2] != b"0 " for text in alive().values()))
        return then

    with Pages(fan(page=answer) | {"/target": []}) as pages:
        await crawl(settings=shared, url=pages.url + "/")
    assert pages.hits == {"/": 1, "/page": 2} | ({} if then == 503 else {"/target": 1})
    assert parts_of(account(server, key)) == (2, 0, 0, 0, 0)
