"""What a worker tells Redis again after a loss or an outage, and how it comes and goes then."""

import os
import signal
import threading
from contextlib import suppress

import pytest
from support.contract import fingerprints
from support.filter_workers import registered
from support.localredis import LocalRedis, keys
from support.localsite import LocalSite
from support.proxy import Proxy
from support.redis_crawls import PATIENCE, SCRAPY_REDIS, Crawl, at
from support.waiting import until

from scrapy_bloom import BackendError, RedisFilter, RedisOptions
from scrapy_bloom.redis.connection import Target


@pytest.fixture
def site():
    with LocalSite(pages=600, links=10) as site:
        yield site


def scrapy_redis(site, server, folder, **settings):
    shared = {"REDIS_URL": server.url, "done": f"{server.url}#done"}
    return Crawl(site, server, folder, **(SCRAPY_REDIS | shared | settings))


@pytest.mark.usefixtures("layout")
class TestAnIdleWorker:
    def test_reports_what_it_owes(self, server, opened, key):
        """Nobody asks it anything after the outage."""
        known = fingerprints(2000)
        with Proxy(server.port) as proxy:
            seen = opened(proxy.url, key)
            with proxy.down():
                assert seen.add_many(known) == [False] * 2000
            other = opened(server, key, cache=0)
            until(lambda: all(other.contains_many(known)))
            assert seen.add_many(known) == [True] * 2000

    def test_makes_good_a_loss(self, server, opened, key):
        seen = opened(server, key)
        known = fingerprints(100)
        seen.add_many(known)
        server.client().delete(key)
        other = opened(server, next(keys))
        until(lambda: server.client().exists(key))
        other = opened(server, key, cache=0)
        until(lambda: all(other.contains_many(known)))


class TestFinished:
    """With a shared queue only what is finished may be marked again."""

    @pytest.fixture
    def lost(self, server, key, layout):
        """Open a filter for a shared queue, and let it lose what it knows."""
        seen = RedisFilter(
            Target(server.url),
            capacity=10_000,
            error_rate=1e-9,
            options=RedisOptions(key=key, layout=layout, shared_queue=True),
        )
        known = fingerprints(100)
        seen.add_many(known)
        for fingerprint in known[:30]:
            seen.finish(fingerprint)
        server.client().delete(key)
        until(lambda: seen.counters.losses)
        yield seen, known
        seen.close()

    def test_what_was_only_granted_is_granted_again(self, lost, caplog):
        seen, known = lost
        assert seen.counters.maybe_lost == 70
        said = [record.getMessage() for record in caplog.get_records("setup")]
        assert any("up to 70 may be lost" in line for line in said)
        assert seen.add_many(known) == [True] * 30 + [False] * 70

    def test_what_is_finished_is_reported_to_all(self, server, opened, key, lost):
        seen, known = lost
        other = opened(server, key, cache=0)
        until(lambda: all(other.contains_many(known[:30])))
        assert not any(other.contains_many(known[30:]))
        seen.finish(known[30])  # it was on its way when the marks were lost
        until(lambda: known[30] in other)

    def test_what_was_never_added_is_not_reported(self, server, opened, key, lost):
        """Start requests are not filtered: a link to a start page is followed once."""
        seen, known = lost
        seen.finish(b"start page", added=False)
        seen.finish(known[31], added=False)
        until(lambda: known[31] in opened(server, key, cache=0))
        assert b"start page" not in seen


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
            until(lambda: all("may be lost" in crawl.log(number) for number in range(2)))
            stats = crawl.finish()
            lost = sum(each["bloom/redis/maybe_lost"] for each in stats)
            assert lost >= len(site.missed)
            # What is said to be lost is what waited, and not all that is known.
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
        assert stats[0]["bloom/redis/unknown"] == 0


@pytest.mark.scrapy
@pytest.mark.long
def test_two_interrupts_end_the_waiting(site, tmp_path):
    with LocalRedis() as server:
        settings = {"BLOOM_ON_BACKEND_ERROR": "wait", "BLOOM_REDIS_WAIT": 60}
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

    def test_allow_opens_without_the_server_and_joins_later(self, site, lasting_server, tmp_path):
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
            crawl.finish()
        assert not site.missed
        assert not site.repeated
