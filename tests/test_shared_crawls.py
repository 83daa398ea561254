"""Crawls by real worker processes that share filter and queue in a real Redis."""

import signal

import pytest
from support.localredis import LocalRedis
from support.localsite import LocalSite
from support.redis_crawls import PATIENCE, Crawl, at
from support.waiting import until

pytest.importorskip("redis")
pytestmark = pytest.mark.scrapy


@pytest.fixture(scope="module")
def server():
    with LocalRedis() as server:
        yield server


@pytest.fixture
def site(server):
    server.client().flushall()
    with LocalSite(pages=400, links=10) as site:
        yield site


def shared(site, server, folder, **settings):
    """Return a crawl whose workers share everything."""
    ours = {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_REDIS_URL": server.url}
    return Crawl(site, server, folder, **(ours | {"CONCURRENT_REQUESTS_PER_DOMAIN": 16} | settings))


def queue_is_empty(server):
    """Return whether no request waits, and none is taken."""
    client = server.client()
    return not any(client.keys(f"*:{name}") for name in ("queue", "taken", "failed"))


def test_three_workers_fetch_each_page_once_and_end_together(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        third, two_thirds = at(site, 130), at(site, 260)
        crawl.start()
        assert third.wait(PATIENCE)
        crawl.start()
        assert two_thirds.wait(PATIENCE)
        crawl.start()
        stats = crawl.wait()
    assert [each["finish_reason"] for each in stats] == ["finished"] * 3
    assert site.missed == set()
    assert site.repeated == {}
    assert all(each["bloom/not_stored"] == 0 for each in stats)
    assert not any(each.get("log_count/ERROR") for each in stats)
    assert queue_is_empty(server)
    trips = sum(each["bloom/redis/round_trips"] for each in stats)
    assert trips < 400


def test_ctrl_c_puts_everything_back(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        begun = at(site, 60)
        crawl.start()
        assert begun.wait(PATIENCE)
        crawl.workers[0].send_signal(signal.SIGINT)
        stopped = crawl.wait()[0]
        assert stopped["finish_reason"] == "shutdown"
        assert stopped["bloom/not_stored"] == 0
        assert site.missed
        crawl.start()
        crawl.wait()
    assert site.missed == set()
    assert site.repeated == {}
    assert queue_is_empty(server)


@pytest.mark.parametrize("frozen", [False, True])
def test_two_ctrl_c_end_a_worker_at_once(site, server, tmp_path, frozen):
    """Also while Redis does not answer. What it had comes back when its lease is over."""
    with shared(site, server, tmp_path) as crawl:
        begun = at(site, 60)
        crawl.start()
        assert begun.wait(PATIENCE)
        if frozen:
            server.client().client_pause(6000)
        crawl.workers[0].send_signal(signal.SIGINT)
        until(lambda: "shutting down gracefully" in crawl.log())
        crawl.workers[0].send_signal(signal.SIGINT)
        crawl.workers[0].wait(5)
        crawl.start()
        last = crawl.wait()[1]
    assert site.missed == set()
    assert sum(hits - 1 for hits in site.repeated.values()) <= 40
    assert last["finish_reason"] == "finished"
    assert queue_is_empty(server)


def test_what_a_killed_worker_had_is_fetched_by_another_one(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        half = at(site, 200)
        victim = crawl.start()
        crawl.start()
        assert half.wait(PATIENCE)
        victim.kill()
        victim.wait()
        stats = crawl.wait()[1]
    assert site.missed == set()
    assert sum(hits - 1 for hits in site.repeated.values()) <= 40
    assert stats["finish_reason"] == "finished"
    assert stats["bloom/frontier/requeued"] > 0
    assert crawl.log(1).count("gave no sign of life") == 1
    assert queue_is_empty(server)
