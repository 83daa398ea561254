"""Workers under scrapy-redis's scheduler, killed at any moment: no page is marked and gone.

But for those that its queue has handed out: these it has deleted, as it does.
"""

import pickle
import random
from contextlib import contextmanager

import pytest
from scrapy import Request, Spider, signals
from scrapy.utils.test import get_crawler
from support.crawling import Crawl, reach
from support.kills import KILLS, kill_each
from testbed.localredis import LocalRedis
from testbed.localsite import LocalSite

import scrapy_bloom

pytest.importorskip("scrapy_redis")
pytestmark = [pytest.mark.redis, pytest.mark.server, pytest.mark.long]


def lost_after(kills, folder, *first):
    """Kill workers so often while they crawl; return the pages that are marked and gone, how many
    were handed out and not fetched, and how many workers were killed.

    :param first: the queue of a worker that crawls before, if there is one.
    """
    with (
        LocalRedis() as server,
        LocalSite(pages=100 + 60 * kills, links=12) as site,
        Crawl(
            *(site, server, folder),
            SCHEDULER="scrapy_redis.scheduler.Scheduler",
            SCHEDULER_QUEUE_CLASS="support.spiders.HandedOut",
            SCHEDULER_PERSIST=True,
            REDIS_URL=server.url,
            arguments={"done": server.url},
        ) as crawl,
    ):
        for queue in first:
            crawl.join(SCHEDULER_QUEUE_CLASS=f"support.spiders.{queue}").end()
        if not first:  # a kill that takes the front page along ends the crawl
            crawl.join()
            reach(site, 20)
            crawl.runs[0].kill()
            crawl.runs[0].end()
        client, dice = server.client(), random.Random(kills)
        killed = [*kill_each(site, crawl.join, kills, dice, workers=2, most=25)]
        client.set("done", 1)
        for run in crawl.runs:
            run.end()
            assert "Traceback" not in run.log, run.log
        assert not client.exists("worker:requests")
        handed_out = [pickle.loads(each)["url"] for each in client.lrange("worker:popped", 0, -1)]
        gone = site.missed - {site.page(url.removeprefix(site.url[:-1])) for url in handed_out}
        with marks_in(server) as is_marked:
            lost = {page for page in gone if any(map(is_marked, ways_to(site, page)))}
        return lost, len(site.missed - gone), len(killed)


def ways_to(site, page):
    return [
        f"{site.url[:-1]}{way.format(page=page)}" for way in (site.kind(page).value, "/go/{page}")
    ]


@contextmanager
def marks_in(server):
    """Yield what tells whether the page of a URL is marked."""
    crawler = get_crawler(Spider, {"REDIS_URL": server.url})
    crawler.spider = spider = Spider.from_crawler(crawler, name="worker")
    crawler.filter = scrapy_bloom.BloomDupeFilter.from_spider(spider)
    crawler.signals.send_catch_log(signals.spider_opened, spider=spider)
    yield lambda url: scrapy_bloom.seen(Request(url), crawler)
    crawler.filter.close("finished")  # else it logs in other tests that the server is gone


def test_a_page_that_is_marked_is_fetched_however_often_workers_are_killed(tmp_path):
    lost, theirs, kills = lost_after(2 * KILLS, tmp_path)
    assert lost == set()
    print(f"{kills} kills, {theirs} pages that were handed out")  # noqa: T201 - `make kills` shows it


def test_a_page_is_lost_if_a_kill_comes_between_its_mark_and_its_push(tmp_path):
    """A queue with a push of its own is asked for each. Only links of one URL lead to this page."""
    lost, *_ = lost_after(0, tmp_path, "Dying")
    assert lost == {53}
