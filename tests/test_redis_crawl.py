"""Real crawls by real worker processes that share a filter."""

import pytest
from example.localredis import LocalRedis
from example.localsite import LocalSite
from redis_crawls import PATIENCE, SCRAPY_REDIS, Crawl, at

pytest.importorskip("scrapy_redis")
pytestmark = pytest.mark.scrapy


@pytest.fixture(scope="module")
def server():
    with LocalRedis() as server:
        yield server


@pytest.fixture
def site(server):
    server.client().flushall()
    with LocalSite(pages=600, links=10) as site:
        yield site


def scrapy_redis(site, server, folder, **settings):
    shared = {"REDIS_URL": server.url, "done": f"{server.url}#done"}
    return Crawl(site, server, folder, **(SCRAPY_REDIS | shared | settings))


@pytest.mark.parametrize("persist", [True, False])
def test_three_scrapy_redis_workers_fetch_each_page_once(site, server, tmp_path, persist):
    with scrapy_redis(site, server, tmp_path, SCHEDULER_PERSIST=persist) as crawl:
        third, two_thirds, all_pages = (at(site, n) for n in (200, 400, 600))
        crawl.start()
        assert third.wait(PATIENCE)
        crawl.start()
        assert two_thirds.wait(PATIENCE)
        crawl.start()
        assert all_pages.wait(PATIENCE)
        server.client().set("done", 1)
        stats = crawl.wait()
        assert [each["finish_reason"] for each in stats] == ["finished"] * 3
        assert not site.missed
        assert not site.repeated
        assert not any(each.get("log_count/ERROR") for each in stats)
        left = server.client().keys("worker:*")
        if persist:
            assert b"worker:bloom" in left
        else:
            assert left == []
            said = [crawl.log(number).count("not emptied") for number in range(3)]
            assert sum(said) == 2  # all but the last
