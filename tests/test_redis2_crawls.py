"""Crawls by real worker processes that share requests and marks in a real Redis."""

from __future__ import annotations

import signal

import pytest
from support.localredis import LocalRedis
from support.localsite import LocalSite
from support.redis_crawls import PATIENCE, Crawl, at
from support.waiting import until

pytestmark = pytest.mark.scrapy


@pytest.fixture
def site(server):
    server.client().flushall()
    with LocalSite(pages=240, links=10) as site:
        yield site


@pytest.fixture
def short_leases(monkeypatch):
    monkeypatch.setenv("REDIS2_LEASE", "4")


def shared(site, server, folder, **settings):
    """Return a crawl whose workers share everything."""
    ours = {
        "SCHEDULER": "support.redis_scheduler.Scheduler",
        "BLOOM_REDIS_URL": server.url,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    }
    return Crawl(site, server, folder, **(ours | settings))


def nothing_is_left(server):
    """Return whether no request waits, and none is taken."""
    client = server.client()
    return not any(client.keys(f"*:{name}") for name in ("queue", "taken", "failed"))


def test_three_workers_fetch_each_page_once_and_end_together(site, server, tmp_path, layout):
    with shared(site, server, tmp_path, BLOOM_REDIS_LAYOUT=layout) as crawl:
        third, two_thirds = at(site, 80), at(site, 160)
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
    assert nothing_is_left(server)
    trips = sum(each["bloom/redis/round_trips"] for each in stats)
    assert trips < 240


def test_shards_do_the_same(site, server, tmp_path):
    with shared(site, server, tmp_path, BLOOM_REDIS_SHARDS=3) as crawl:
        crawl.start()
        crawl.start()
        stats = crawl.wait()
    assert [each["finish_reason"] for each in stats] == ["finished"] * 2
    assert site.missed == set()
    assert site.repeated == {}
    assert nothing_is_left(server)


def test_ctrl_c_puts_everything_back(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        begun = at(site, 40)
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


@pytest.mark.usefixtures("short_leases")
def test_a_killed_worker_loses_nothing(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        crawl.kill_one_of_two(60)
        stats = crawl.wait()
    assert stats[1]["finish_reason"] == "finished"
    assert site.missed == set()
    assert len(site.repeated) <= 48
    assert nothing_is_left(server)


def test_a_flush_is_survived_and_said_in_one_warning(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        reached = at(site, 100)
        crawl.start()
        crawl.start()
        assert reached.wait(PATIENCE)
        server.client().flushall()
        stats = crawl.wait()
    assert [each["finish_reason"] for each in stats] == ["finished"] * 2
    assert site.missed == set()
    assert nothing_is_left(server)
    for number in range(2):
        assert crawl.log(number).count("starts over: it runs start() again") == 1
        assert "Traceback" not in crawl.log(number)


@pytest.mark.usefixtures("short_leases")
def test_an_older_rdb_is_survived(site, tmp_path):
    with LocalRedis() as server, shared(site, server, tmp_path) as crawl:
        early, late = at(site, 60), at(site, 150)
        crawl.start()
        crawl.start()
        assert early.wait(PATIENCE)
        server.client().save()
        assert late.wait(PATIENCE)
        server.kill()
        server.start()
        stats = crawl.wait()
    assert [each["finish_reason"] for each in stats] == ["finished"] * 2
    assert site.missed == set()


def test_a_server_that_is_away_for_a_while_is_waited_for(site, tmp_path):
    with LocalRedis(persist=True) as server, shared(site, server, tmp_path) as crawl:
        reached = at(site, 80)
        crawl.start()
        assert reached.wait(PATIENCE)
        server.kill()
        until(lambda: "Retrying." in crawl.log())
        server.start()
        stats = crawl.wait()
        assert stats[0]["finish_reason"] == "finished"
        assert crawl.log().count("Retrying.") == 1
    assert site.missed == set()
    assert site.repeated == {}


def test_two_projects_with_a_spider_of_one_name_do_not_mix(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        crawl.start(BOT_NAME="one")
        until(lambda: "Crawl kept in Redis" in crawl.log())
        crawl.start(BOT_NAME="two")
        stats = crawl.wait()
    assert stats[0]["finish_reason"] == "finished"
    assert stats[1]["finish_reason"] == "bloom_state"
    assert "project 'one', not 'two'" in crawl.log(1)
