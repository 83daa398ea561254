"""Whole crawls of a local site: none missed, none twice, stopped, killed and resumed."""

import errno
import random
from collections import Counter
from threading import Timer

import pytest
from scrapy import signals
from scrapy.squeues import PickleLifoDiskQueue
from support.crawling import RFP, Follower, close, crawl, hold, messages
from support.sites import Pages
from support.spiders import Lambdas, Stopping
from support.waiting import PATIENCE
from testbed.localsite import LocalSite, SteadySite
from w3lib.url import canonicalize_url

pytestmark = pytest.mark.server

PAGES = 120  # with what is in flight, two stops leave some


def site(pages=PAGES, kind=LocalSite, seed=1):
    return kind(pages=pages, links=8, seed=seed)


# To the end in one run


@pytest.mark.each_scrapy
async def test_the_one_line_fetches_what_scrapys_own_filter_fetches():
    asked = []
    for settings in ({"DUPEFILTER_CLASS": RFP}, {}):
        with site(kind=SteadySite) as pages:
            crawler = await crawl(settings=settings, url=pages.url)
        assert pages.missed == set()
        assert pages.repeated == {}
        asked.append({canonicalize_url(url.removeprefix(pages.url)) for url in pages.urls})
        assert ("bloom/new" in crawler.stats.get_stats()) == (not settings)
    assert asked[0] == asked[1]


# Stopped and resumed


@pytest.mark.each_scrapy
async def test_a_crawl_stopped_and_resumed_misses_nothing_and_repeats_nothing(tmp_path, caplog):
    job = {"JOBDIR": str(tmp_path)}
    caplog.set_level("WARNING")
    with site() as pages:
        for _ in range(2):
            await crawl(Stopping, job, url=pages.url)
        fetched = pages.delivered
        last = await crawl(Follower, job, url=pages.url)
    assert pages.missed == set()
    assert pages.repeated == {}
    assert messages(caplog) == []
    assert last.stats.get_value("bloom/restored") >= fetched


@pytest.mark.each_scrapy
async def test_a_job_of_scrapys_filter_switches_over_with_an_empty_one(tmp_path, caplog):
    job = {"JOBDIR": str(tmp_path)}
    caplog.set_level("WARNING")
    with site(kind=SteadySite) as pages:
        await crawl(Stopping, job | {"DUPEFILTER_CLASS": RFP}, url=pages.url)
        seen = (tmp_path / "requests.seen").read_bytes()
        await crawl(Stopping, job, url=pages.url)
        [warning] = messages(caplog)
        assert "requests.seen: the marks of Scrapy's own filter are not read" in warning
        last = await crawl(Follower, job, url=pages.url)
    assert pages.missed == set()
    assert messages(caplog) == []
    assert last.stats.get_value("bloom/restored") > 0
    assert (tmp_path / "requests.seen").read_bytes() == seen


# Killed


@pytest.mark.each_scrapy
def test_a_crawl_killed_in_its_first_run_loses_no_page(project):
    chance = random.Random(0)
    with site() as pages:
        at = chance.randrange(1, PAGES - 20)
        wait = chance.random() / 20

        _, go_on = hold(pages, PAGES)  # it must not end before that
        killed = project.crawl(pages)
        # At any moment, not only when a page has just come.
        pages.when(at, lambda: Timer(wait, killed.kill).start())
        killed.end()
        go_on.set()
        assert killed.reason == ""
        before = Counter(pages.hits)
        resumed = project.crawl(pages)
        resumed.complete()
        after = Counter(pages.hits) - before
    assert set(after) == set(range(PAGES))
    (warning,) = resumed.logged("WARNING")
    assert f"process {killed.pid}" in warning
    assert "the crawl starts over: no page is lost" in warning
    assert resumed.stat("bloom/unclean_stop") == 1
    assert resumed.stat("bloom/restored") == 0


# Two at once, and forks


@pytest.mark.long
def test_forks_disturb_neither_the_filter_nor_its_lock(project):
    with site() as pages:
        reached, go_on = hold(pages, 50)
        first = project.crawl(pages, spider="forking")
        assert reached.wait(PATIENCE)
        second = project.crawl(pages, spider="forking")
        second.end()
        assert f"process {first.pid}" in second.logged("ERROR")[0]
        assert "Crawled (200)" not in second.log
        first.interrupt()
        go_on.set()
        first.end()
        project.finish(pages, spider="forking")
    assert not (project.job / "unclean").exists()
    assert pages.missed == set()
    assert pages.repeated == {}


# Scrapy's other commands


class Unstored(Stopping, Lambdas):
    """Stops while requests wait that cannot be serialized."""

    name = "lambdas"
    pages = 5


@pytest.mark.each_scrapy
async def test_requests_that_cannot_be_stored_are_let_through_by_the_next_run(tmp_path, caplog):
    """All pages are linked from the front page, which every run fetches again."""
    # Most requests wait when the crawl is stopped. Even so one may be in flight then: Scrapy sends
    # the next request while a callback is still at work.
    job = {"JOBDIR": str(tmp_path), "CONCURRENT_REQUESTS": 1}
    caplog.set_level("WARNING")
    with SteadySite(pages=40, links=80) as pages:
        lost = (await crawl(Unstored, job, url=pages.url)).stats.get_value("bloom/withdrawn")
        assert lost > 20
        [warning] = messages(caplog)
        assert f"{lost} requests could not be serialized" in warning
        await crawl(Lambdas, job, url=pages.url)
    assert pages.missed == set()
    assert pages.repeated.keys() <= {0}  # the start request is not filtered


class FullDisk(PickleLifoDiskQueue):
    """A disk queue whose disk is full for the first requests but one."""

    pushed = 0

    def push(self, request):
        type(self).pushed += 1
        if 1 < self.pushed <= 21:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().push(request)


class Again(Follower):
    """Comes back to its start page when the disk has room."""

    name = "again"

    def parse(self, response):
        yield from super().parse(response)
        if response.url == self.url and len(self.parsed) == 1:
            yield response.request.replace(dont_filter=True)

    def request(self, response, href):
        return response.follow(href, priority=1)


async def test_a_push_that_fails_leaves_no_mark(tmp_path):
    with SteadySite(pages=30, links=60) as server:
        FullDisk.pushed = 0
        settings = {"JOBDIR": str(tmp_path), "SCHEDULER_DISK_QUEUE": FullDisk}
        crawler = await crawl(Again, settings, url=server.url)
        assert FullDisk.pushed > 21
        assert crawler.stats.get_value("bloom/withdrawn") >= 20
        assert server.missed == set()


class StopsAtRedirects(Lambdas):
    """Stops while redirects to other pages are in flight; their requests cannot be serialized."""

    @classmethod
    def from_crawler(cls, crawler, *arguments, **keywords):
        spider = super().from_crawler(crawler, *arguments, **keywords)
        crawler.signals.connect(spider.stop_at, signals.response_downloaded)
        return spider

    def stop_at(self, response):
        if response.status == 302:
            close(self.crawler)


class NoRoomForTargets(PickleLifoDiskQueue):
    """A disk queue whose disk is full whenever a redirect's target is pushed in the first run."""

    full = True

    def push(self, request):
        if self.full and request.meta.get("redirect_urls"):
            raise OSError(errno.ENOSPC, "No space left on device")
        super().push(request)


class Unfiltered(Follower):
    """Its start request is fetched by every run."""

    name = "lambdas"
    filtered = False


@pytest.mark.each_scrapy
@pytest.mark.parametrize("fault", ["cannot be serialized", "cannot be pushed"])
async def test_pages_that_redirect_to_a_lost_request_are_fetched_again(job, fault, monkeypatch):
    """Only they lead to it: as long as they are marked, nothing would."""
    pages = {"/": ["/a", "/c"], "/a": "/b", "/c": "/b", "/b": []}
    settings, spider = {"JOBDIR": str(job)}, StopsAtRedirects
    if fault == "cannot be pushed":
        settings["SCHEDULER_DISK_QUEUE"], spider = NoRoomForTargets, Unfiltered
    with Pages(pages) as site:
        await crawl(spider, settings, url=site.url + "/")
        assert site.hits["/a"] or site.hits["/c"]
        assert site.hits["/b"] == 0
        monkeypatch.setattr(NoRoomForTargets, "full", False)
        site.hits.clear()
        await crawl(Unfiltered, settings, url=site.url + "/")
    assert site.hits == dict.fromkeys(pages, 1)
