"""Real crawls by real worker processes that share a filter."""

import pytest
import scrapy
from support.localsite import LocalSite
from support.redis_crawls import SCRAPY_REDIS, Crawl, at
from support.waiting import PATIENCE, until

pytest.importorskip("scrapy_redis")
pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_leases")]


@pytest.fixture
def site(server):
    server.client().flushall()
    with LocalSite(pages=150, links=8) as site:
        yield site


def scrapy_redis(site, server, folder, **settings):
    shared = {"REDIS_URL": server.url, "done": f"{server.url}#done"}
    return Crawl(site, server, folder, **(SCRAPY_REDIS | shared | settings))


def test_three_scrapy_redis_workers_fetch_each_page_once(site, server, tmp_path):
    with scrapy_redis(site, server, tmp_path, SCHEDULER_PERSIST=True) as crawl:
        third, two_thirds, all_pages = (at(site, n) for n in (50, 100, 150))
        crawl.start()
        assert third.wait(PATIENCE)
        crawl.start()
        assert two_thirds.wait(PATIENCE)
        crawl.start()
        assert all_pages.wait(PATIENCE)
        stats = crawl.finish()
        assert [each["finish_reason"] for each in stats] == ["finished"] * 3
        assert not site.missed
        assert not site.repeated
        assert not any(each.get("log_count/ERROR") for each in stats)
        assert b"scrapybot:worker:bloom" in server.client().keys("*:worker:*")


def test_a_worker_that_finishes_early_leaves_the_queue_to_the_others(site, server, tmp_path):
    with scrapy_redis(site, server, tmp_path) as crawl:
        begun, all_pages = at(site, 20), at(site, 150)
        crawl.start()
        assert begun.wait(PATIENCE)
        crawl.start(CLOSESPIDER_PAGECOUNT=20)
        crawl.workers[1].wait(PATIENCE)
        assert "The filter and the request queue are not emptied" in crawl.log(1)
        assert all_pages.wait(PATIENCE)
        crawl.finish()
        assert not site.missed
        assert not site.repeated


def test_a_killed_worker_does_not_keep_the_filter(server, tmp_path):
    """Its pages in flight are lost with it: scrapy-redis has taken them from the queue."""
    server.client().flushall()
    with (
        LocalSite(pages=400, links=8) as site,
        scrapy_redis(site, server, tmp_path) as crawl,
    ):
        crawl.kill_one_of_two(200)
        queue = server.client()
        until(lambda: not queue.exists("worker:requests"))
        crawl.finish()
        assert len(site.missed) <= 16 * 20
        assert not site.repeated
        assert server.client().keys("*:worker:*") == []


def test_flush_on_start_leaves_the_filter_of_live_workers_alone(site, server, tmp_path):
    with scrapy_redis(site, server, tmp_path, SCHEDULER_FLUSH_ON_START=True) as crawl:
        third, all_pages = (at(site, n) for n in (50, 150))
        crawl.start()
        assert third.wait(PATIENCE)
        crawl.start()
        assert all_pages.wait(PATIENCE)
        until(lambda: "not emptied" in crawl.log(1))
        crawl.finish()
        assert not site.missed
        assert not site.repeated


def test_flush_on_start_empties_what_an_earlier_crawl_left(site, server, tmp_path):
    for pages in (150, 300):
        with scrapy_redis(
            site, server, tmp_path, SCHEDULER_FLUSH_ON_START=True, SCHEDULER_PERSIST=True
        ) as crawl:
            all_pages = at(site, pages)
            server.client().delete("done")
            crawl.start()
            assert all_pages.wait(PATIENCE)
            log = crawl.log(0)
            crawl.finish()
    assert set(site.hits.values()) == {2}
    assert "emptied, since SCHEDULER_FLUSH_ON_START is set" in log
    assert " 0 pages known" in log


def test_workers_with_queues_of_their_own_share_a_filter(site, server, tmp_path):
    shared = {"BLOOM_REDIS_URL": server.url, "done": f"{server.url}#done"}
    with Crawl(site, server, tmp_path, **shared) as crawl:
        all_pages = at(site, 150)
        # Neither goes on from its start page before the other has come.
        both = at(site, 2)
        site.when(1, lambda: both.wait(PATIENCE))
        crawl.start()
        crawl.start(url=site.url + "go/149")  # a way to a page that few pages have
        assert all_pages.wait(PATIENCE)
        stats = crawl.finish()
        assert not site.missed
        assert not site.repeated
        assert all(each["downloader/response_count"] for each in stats)
        assert server.client().keys("*:worker:*") == []


def test_what_a_killed_crawl_left_is_emptied(site, server, tmp_path):
    with Crawl(site, server, tmp_path, BLOOM_REDIS_URL=server.url) as crawl:
        half = at(site, 75)
        crawl.start()
        assert half.wait(PATIENCE)
        crawl.workers[0].kill()
        crawl.workers[0].wait()
        crawl.start()
        crawl.wait()
        assert not site.missed
        assert "left by a crawl that has ended" in crawl.log(1)


class TestFaults:
    """Redis goes away in the middle of a crawl whose queue is elsewhere."""

    def test_close(self, site, own_server, tmp_path):
        with Crawl(
            site,
            own_server,
            tmp_path,
            BLOOM_REDIS_URL=own_server.url,
            BLOOM_ON_BACKEND_ERROR="close",
        ) as crawl:
            site.when(50, own_server.kill)
            crawl.start()
            stats = crawl.wait()[0]
        assert stats["finish_reason"] == "bloom_backend"
        assert site.missed
        assert crawl.log().count("] ERROR:") == stats["log_count/ERROR"] == 1
        assert "Connection refused" in crawl.log()


def test_a_crawl_that_cannot_be_filtered_does_not_start(site, tmp_path, server):
    server.client().set("scrapybot:worker:bloom", "something else")
    with (
        scrapy_redis(site, server, tmp_path) as shared,
        Crawl(site, server, tmp_path / "own", BLOOM_REDIS_URL=server.url) as own,
    ):
        own.folder.mkdir()
        for crawl in (shared, own):
            crawl.start()
            stats = crawl.wait()[0]
            # Before 2.14 Scrapy's own scheduler ends such a crawl without a reason.
            old = scrapy.version_info < (2, 14) and crawl is own
            assert stats.get("finish_reason") == (None if old else "bloom_state")
            assert "found a string" in crawl.log()
            # Before 2.18 the start page of scrapy-redis is already on its way.
            assert sum(site.hits.values()) <= (scrapy.version_info < (2, 18))
    assert server.client().get("scrapybot:worker:bloom") == b"something else"
