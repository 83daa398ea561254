"""What a worker does after a loss or an outage, and how it comes and goes then."""

import os
import signal
import threading
from contextlib import suppress

import pytest
from support import pace
from support.contract import fingerprints
from support.filter_workers import registered
from support.localredis import LocalRedis
from support.localsite import LocalSite
from support.proxy import Proxy
from support.redis_crawls import PATIENCE, SCRAPY_REDIS, Crawl, at
from support.waiting import until

from scrapy_bloom import BackendError, RedisFilter


@pytest.fixture
def site():
    with LocalSite(pages=600, links=10) as site:
        yield site


def scrapy_redis(site, server, folder, **settings):
    shared = {"REDIS_URL": server.url, "done": f"{server.url}#done"}
    return Crawl(site, server, folder, **(SCRAPY_REDIS | shared | settings))


@pytest.mark.usefixtures("layout")
class TestAnIdleWorker:
    def test_marks_nothing_that_it_let_through(self, server, opened, key):
        known = fingerprints(2000)
        with Proxy(server.port) as proxy:
            seen = opened(proxy.url, key)
            with proxy.down():
                assert seen.add_many(known) == [False] * 2000
                assert seen.counters.unknown == 2000
            until(lambda: seen.usable)
            seen.add(b"next")
            assert not any(seen.contains_many(known))
            assert not any(opened(server, key, cache=0).contains_many(known))

    def test_notices_a_loss_and_forgets_what_it_knew(self, server, opened, key):
        seen = opened(server, key)
        known = fingerprints(100)
        seen.add_many(known)
        server.client().delete(key)
        until(lambda: seen.counters.losses)
        assert seen.add_many(known) == [False] * 100
        assert seen.add_many(known) == [True] * 100


@pytest.mark.scrapy
@pytest.mark.long
class TestSharedQueue:
    """The queue of scrapy-redis vanishes with the filter: a mark must not outlive its request."""

    def test_everything_is_flushed(self, server, tmp_path, layout):
        server.client().flushall()
        with (
            LocalSite(pages=800, links=10) as site,
            scrapy_redis(site, server, tmp_path, BLOOM_REDIS_LAYOUT=layout) as crawl,
        ):
            third = at(site, 270)
            crawl.start()
            crawl.start()
            assert third.wait(PATIENCE)
            server.client().flushall()
            until(lambda: all("has lost the filter" in crawl.log(n) for n in range(2)), PATIENCE)
            stats = crawl.finish()
        assert all(each["bloom/redis/losses"] for each in stats)
        assert all(crawl.log(number).count("has lost the filter") == 1 for number in range(2))
        # What waited has vanished with its marks: a link to it fetches it.
        assert len(site.hits) > 480

    def test_redis_is_out_for_a_while(self, site, lasting_server, tmp_path):
        """The default waits: what is marked and cannot be pushed would be lost."""
        with scrapy_redis(site, lasting_server, tmp_path) as crawl:
            later = at(site, 200)
            crawl.start()
            assert later.wait(PATIENCE)
            lasting_server.kill()
            until(lambda: "stands still" in crawl.log(), PATIENCE)
            lasting_server.start()
            assert at(site, 600).wait(PATIENCE)
            stats = crawl.finish()
        assert not site.missed
        assert stats[0].get("bloom/redis/unknown", 0) == 0


@pytest.mark.scrapy
@pytest.mark.long
def test_two_interrupts_end_the_waiting(site, tmp_path, monkeypatch):
    pace.wait(monkeypatch, 60)
    with LocalRedis() as server:
        settings = {"BLOOM_ON_BACKEND_ERROR": "wait"}
        with Crawl(site, server, tmp_path, BLOOM_REDIS_URL=server.url, **settings) as crawl:
            site.when(200, server.kill)
            worker = crawl.start()
            until(lambda: "stands still" in crawl.log(), PATIENCE)

            def interrupt():
                """Send one more, for two at once may come as one. Scrapy ignores the third."""
                worker.send_signal(signal.SIGINT)
                return worker.poll() is not None

            until(interrupt, 30)  # half of what it would wait


class TestOpening:
    """One fault in any step of it."""

    def steps(self, server, key):
        with Proxy(server.port) as proxy, RedisFilter.from_url(proxy.url, key=key):
            return proxy.requests

    @pytest.mark.parametrize("fault", ["reset", "drop reply"])
    def test_a_fault_is_tried_again_and_leaves_no_worker_behind(self, server, key, fault):
        for step in range(1, self.steps(server, key)):
            with Proxy(server.port) as proxy:
                proxy.faults = {step: fault}
                seen = RedisFilter.from_url(proxy.url, key=key, timeout=10)
                assert len(registered(server, key)) == 1, step
                seen.close()

    def test_a_server_that_goes_away_while_a_worker_opens(self, server, key):
        for step in range(2, self.steps(server, key)):
            with Proxy(server.port) as proxy:
                proxy.faults = dict.fromkeys(range(step, step + 2), "drop reply")
                with suppress(BackendError):
                    RedisFilter.from_url(proxy.url, key=key, timeout=10).close()
                until(lambda: not registered(server, key))
            until(lambda: beating() == 0)


def beating():
    return sum(thread.name.startswith("scrapy-bloom") for thread in threading.enumerate())


@pytest.mark.scrapy
@pytest.mark.long
class TestCrawlsThatOpen:
    @pytest.mark.parametrize("command", [b"INFO", b"EVAL", b"HMGET", b"BITCOUNT"])
    def test_a_reset_while_opening(self, site, server, tmp_path, command):
        server.client().flushall()
        with Proxy(server.port, counted=command) as proxy:
            proxy.faults = {1: "reset"}
            with Crawl(site, server, tmp_path, BLOOM_REDIS_URL=proxy.url) as crawl:
                crawl.start(CLOSESPIDER_PAGECOUNT=1)
                assert crawl.wait()[0]["finish_reason"] == "closespider_pagecount"
        assert server.client().keys("worker:*") == []

    def test_a_server_that_is_frozen_at_the_start_is_joined_later(
        self, site, lasting_server, tmp_path
    ):
        os.kill(lasting_server.pid, signal.SIGSTOP)
        with Crawl(
            site,
            lasting_server,
            tmp_path,
            BLOOM_REDIS_URL=lasting_server.url,
            BLOOM_REDIS_TIMEOUT=2,
            done=f"{lasting_server.url}#done",
        ) as crawl:
            half = at(site, 300)
            crawl.start()
            assert half.wait(PATIENCE)
            os.kill(lasting_server.pid, signal.SIGCONT)
            until(lambda: lasting_server.client().exists("worker:bloom"), PATIENCE)
            stats = crawl.finish()[0]
        assert not site.missed
        assert max(site.hits.values()) <= 2  # once without a mark, and once with
        assert stats["bloom/redis/unknown"] >= 300

    def test_a_crawl_without_the_server_ends(self, site, lasting_server, tmp_path):
        """Pages link to each other: if they were new each time, it would go on for ever."""
        lasting_server.kill()
        settings = {"BLOOM_REDIS_URL": lasting_server.url}
        with Crawl(site, lasting_server, tmp_path, **settings) as crawl:
            crawl.start()
            stats = crawl.wait()[0]
            log = crawl.log()
        assert stats["finish_reason"] == "finished"
        assert not site.missed
        assert not site.repeated
        assert stats["bloom/redis/outages"] == 1
        assert log.count("cannot be reached") == 1

    def test_waiting_for_an_absent_server_is_said_once(
        self, site, lasting_server, tmp_path, monkeypatch
    ):
        pace.wait(monkeypatch, 3)
        lasting_server.kill()
        settings = {"BLOOM_REDIS_URL": lasting_server.url, "BLOOM_ON_BACKEND_ERROR": "wait"}
        with Crawl(site, lasting_server, tmp_path, **settings) as crawl:
            crawl.start()
            crawl.wait()
            log = crawl.log()
        assert not site.hits
        assert log.count("Waiting for it for up to 3 s") == log.count("] WARNING:") == 1
