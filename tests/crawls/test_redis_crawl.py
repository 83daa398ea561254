"""Real crawls by real worker processes that share a filter."""

import pytest
import scrapy
from support.crawling import Crawl, reach
from testbed.localsite import LocalSite

pytest.importorskip("scrapy_redis")
pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_leases")]


@pytest.fixture
def site(server):
    server.client().flushall()
    with LocalSite(pages=150, links=8) as site:
        yield site


def scrapy_redis(site, server, folder, **settings):
    theirs = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue",
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "REDIS_URL": server.url,
        "arguments": {"done": server.url},
    }
    return Crawl(site, server, folder, **(theirs | settings))


def test_three_scrapy_redis_workers_fetch_each_page_once(site, server, tmp_path):
    with scrapy_redis(site, server, tmp_path, SCHEDULER_PERSIST=True) as crawl:
        crawl.join()
        reach(site, 50)
        crawl.join()
        reach(site, 100)
        crawl.join()
        reach(site, 150)
        assert crawl.finish() == ["finished"] * 3
        assert not site.missed
        assert not site.repeated
        assert b"scrapybot:worker:bloom" in server.client().keys("*:worker:*")
    assert not crawl.total("log_count/ERROR")
    checks = crawl.total("bloom/checked")
    assert checks > 150 * 6
    # All links of a page in one, each new one by itself, and heartbeats: more on a slow machine.
    assert crawl.total("bloom/redis/round_trips") < checks / 2
    queued, dropped = map(crawl.total, ("scheduler/enqueued/redis", "dupefilter/filtered"))
    assert queued + dropped == checks


def test_a_worker_that_finishes_early_leaves_the_queue_to_the_others(site, server, tmp_path):
    with scrapy_redis(site, server, tmp_path) as crawl:
        crawl.join()
        reach(site, 20)
        early = crawl.join(CLOSESPIDER_PAGECOUNT=20)
        early.end()
        assert "The filter and the request queue are not emptied" in early.log
        reach(site, 150)
        crawl.finish()
        assert not site.missed
        assert not site.repeated


@pytest.mark.parametrize("local", [False, True])
def test_flush_on_start_empties_what_an_earlier_crawl_left(site, server, tmp_path, local):
    """The queue, and a filter in Redis."""
    settings = {"SCHEDULER_FLUSH_ON_START": True, "SCHEDULER_PERSIST": True}
    if local:
        settings |= {"BLOOM_BACKEND": "local", "JOBDIR": str(tmp_path / "job")}
    for pages in (150, 300):
        if local:
            server.client().lpush("worker:requests", b"of another crawl, and not to be read")
        with scrapy_redis(site, server, tmp_path, **settings) as crawl:
            server.client().delete("done")
            run = crawl.join()
            reach(site, pages)
            assert crawl.finish() == ["finished"]
        assert run.logged("ERROR") == []
        assert not local or "other workers" not in run.log
    assert set(site.hits.values()) == {2}
    if not local:
        assert "emptied, since SCHEDULER_FLUSH_ON_START is set" in run.log
        assert " 0 pages known" in run.log


def test_workers_with_queues_of_their_own_share_a_filter(site, server, tmp_path):
    shared = {"BLOOM_REDIS_URL": server.url, "arguments": {"done": server.url}}
    with Crawl(site, server, tmp_path, **shared) as crawl:
        # Neither goes on from its start page before the other has come.
        site.when(1, lambda: reach(site, 2))
        crawl.join()
        crawl.join(
            arguments={"done": server.url, "url": f"{site.url}go/149"}
        )  # a way to a page that few pages have
        reach(site, 150)
        crawl.finish()
        assert not site.missed
        assert not site.repeated
        assert all(run.stat("downloader/response_count") for run in crawl.runs)
        assert server.client().keys("*:worker:*") == []


def test_the_filter_of_a_killed_crawl_is_emptied(site, server, tmp_path):
    with Crawl(site, server, tmp_path, BLOOM_REDIS_URL=server.url) as crawl:
        killed = crawl.join()
        reach(site, 75)
        killed.kill()
        killed.end()
        run = crawl.join()
        run.end()
        assert not site.missed
        assert "left by a crawl that has ended" in run.log


def test_redis_goes_away_in_the_middle_of_a_crawl_whose_queue_is_elsewhere(
    site, own_server, tmp_path
):
    settings = {"BLOOM_REDIS_URL": own_server.url, "BLOOM_ON_BACKEND_ERROR": "close"}
    with Crawl(site, own_server, tmp_path, **settings) as crawl:
        site.when(50, own_server.kill)
        run = crawl.join()
        run.end()
    assert run.reason == "bloom_backend"
    assert site.missed
    assert run.log.count("] ERROR:") == run.stat("log_count/ERROR") == 1
    assert "Connection refused" in run.log
    assert "Crawl stopped: " in run.log


def test_a_crawl_that_cannot_be_filtered_does_not_start(site, tmp_path, server):
    server.client().set("scrapybot:worker:bloom", "something else")
    with (
        scrapy_redis(site, server, tmp_path) as shared,
        Crawl(site, server, tmp_path / "own", BLOOM_REDIS_URL=server.url) as own,
    ):
        for crawl in (shared, own):
            run = crawl.join()
            run.end()
            assert run.reason == "bloom_bad_state"
            assert "found a string" in run.log
            # Before 2.18 the start page of scrapy-redis is already on its way.
            assert sum(site.hits.values()) <= (scrapy.version_info < (2, 18))
        assert "Traceback" not in run.log
    assert server.client().get("scrapybot:worker:bloom") == b"something else"
