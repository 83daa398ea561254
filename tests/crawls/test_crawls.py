"""Whole crawls of a local site: no page is missed, none fetched twice, whatever leads to it."""

import errno
from collections import Counter

import pytest
from scrapy import signals
from scrapy.squeues import PickleLifoDiskQueue
from support.crawling import KEPT, RFP, Follower, at, close, crawl, hold, messages, visit
from support.sites import Pages, fan
from support.spiders import Lambdas, Stopping
from support.waiting import PATIENCE
from testbed.localsite import LocalSite, SteadySite
from w3lib.url import canonicalize_url

pytestmark = [pytest.mark.server, pytest.mark.each_scrapy]

PAGES = 120  # with what is in flight, two stops leave some


def site(kind=LocalSite):
    return kind(pages=PAGES, links=8, seed=1)


async def test_the_one_line_fetches_what_scrapys_own_filter_fetches(tmp_path, monkeypatch):
    """So does our scheduler, which is Scrapy's own without a job directory."""
    monkeypatch.chdir(tmp_path)
    asked = []
    for settings in ({"DUPEFILTER_CLASS": RFP}, {}, KEPT):
        with site(SteadySite) as pages:
            crawler = await crawl(settings=settings, url=pages.url)
        assert (pages.missed, pages.repeated) == (set(), {})
        asked.append({canonicalize_url(url.removeprefix(pages.url)) for url in pages.urls})
        stats = crawler.stats.get_stats()
        assert ("bloom/new" in stats) == (settings in ({}, KEPT))
        assert not any(name.startswith("bloom/queue/") for name in stats)
        assert stats["scheduler/enqueued/memory"] > 0
    assert asked[0] == asked[1] == asked[2]
    assert list(tmp_path.iterdir()) == []


async def test_a_crawl_stopped_and_resumed_misses_nothing_and_repeats_nothing(tmp_path, caplog):
    job = {"JOBDIR": str(tmp_path)}
    caplog.set_level("WARNING")
    with site() as pages:
        for _ in range(2):
            await crawl(Stopping, job, url=pages.url)
        fetched = pages.delivered
        last = await crawl(Follower, job, url=pages.url)
    assert (pages.missed, pages.repeated) == (set(), {})
    assert messages(caplog) == []
    assert last.stats.get_value("bloom/restored") >= fetched


async def test_a_job_of_scrapys_filter_switches_over_with_an_empty_one(tmp_path, caplog):
    job = {"JOBDIR": str(tmp_path)}
    caplog.set_level("WARNING")
    with site(SteadySite) as pages:
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


def test_a_crawl_killed_in_its_first_run_loses_no_page(project):
    with site() as pages:
        killed = project.kill_at(PAGES // 2, pages)
        assert killed.reason == ""
        pages.hits.clear()
        resumed = project.finish(pages)
    assert pages.missed == set()
    (warning,) = resumed.logged("WARNING")
    assert f"process {killed.pid}" in warning
    assert "the crawl starts over: no page is lost" in warning
    assert resumed.stat("bloom/unclean_stop") == 1
    assert resumed.stat("bloom/restored") == 0


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
    assert (pages.missed, pages.repeated) == (set(), {})


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


@pytest.mark.parametrize("fault", ["cannot be serialized", "cannot be pushed"])
async def test_pages_that_redirect_to_a_lost_request_are_fetched_again(
    job, fault, monkeypatch, caplog
):
    """Only they lead to it: as long as they are marked, nothing would."""
    caplog.set_level("WARNING")
    pages = {"/": ["/a", "/c"], "/a": "/b", "/c": "/b", "/b": []}
    settings, spider = {"JOBDIR": str(job)}, StopsAtRedirects
    if fault == "cannot be pushed":
        settings["SCHEDULER_DISK_QUEUE"], spider = NoRoomForTargets, Unfiltered
    with Pages(pages) as site:
        await crawl(spider, settings, url=site.url + "/")
        if fault == "cannot be serialized":
            (warning,) = messages(caplog)
            assert "requests could not be serialized" in warning
        assert site.hits["/a"] or site.hits["/c"]
        assert site.hits["/b"] == 0
        monkeypatch.setattr(NoRoomForTargets, "full", False)
        site.hits.clear()
        await crawl(Unfiltered, settings, url=site.url + "/")
    assert site.hits == dict.fromkeys(pages, 1)


# The redirect guard: redirects by Scrapy's own middlewares, and what must not get past it

everywhere = at("memory", "kept job", "shared")


async def fetch(pages, spider=Follower, settings=None):
    """Crawl a site of these pages; return the crawler, its hits, and the paths it has parsed."""
    crawler, site = await visit(pages, spider, settings)
    return crawler, site.hits, [url.removeprefix(site.url) for url in crawler.spider.parsed]


class PassesMetaOn(Follower):
    """Hands a response's meta to the requests that come from it, redirects and all."""

    def request(self, response, href):
        return response.follow(href, meta=response.meta)


@pytest.mark.parametrize("spider", [Follower, PassesMetaOn])
async def test_a_page_that_links_to_itself_is_not_crawled_without_end(spider):
    pages = {
        "/": ["/wall", "/old"],
        "/wall": lambda path, cookie: ["/wall", "/wall#a", "/"] if cookie else path,
        "/old": "/new",
        "/new": ["/new", "/old", "/", "/wall"],
    }
    _, hits, parsed = await fetch(pages, spider)
    assert {path.partition("?")[0] for path in hits} == set(pages)
    # Passed-on chains cost a second fetch here and there, each step of a chain at most one.
    assert len(parsed) == len({*parsed}) or spider is PassesMetaOn
    assert sum(hits.values()) <= 12


def page_of(answer):
    """Return a page that answers with what this returns, given how often it was asked for."""
    asked = Counter()

    def page(path, _cookie):
        asked[path] += 1
        return answer(asked[path])

    return page


@pytest.mark.parametrize("length", [20, 21])
async def test_a_chain_that_scrapy_follows_ends_at_its_page(length):
    """Scrapy follows twenty redirects."""
    wall = page_of(lambda times: "/wall" if times <= length else ["/"])
    crawler, hits, parsed = await fetch(fan(wall=wall))
    assert parsed == (["/", "/wall"] if length <= 20 else ["/"])
    assert hits["/wall"] == 21
    assert crawler.stats.get_value("bloom/redirect_exempt") == 20


@everywhere
async def test_what_is_not_filtered_is_not_filtered_after_a_retry_and_a_redirect(place):
    class Insisting(Follower):
        def request(self, response, href):
            return response.follow(href, dont_filter=href == "/other")

    pages = fan("target", other=page_of(lambda times: 503 if times == 1 else "/target"))
    _, hits, _ = await fetch(pages, Insisting, {**place, "CONCURRENT_REQUESTS": 1})
    assert hits == {"/": 1, "/target": 2, "/other": 2}


class LogsIn:
    """Sends each page over the login page, which is not to be filtered."""

    def process_response(self, request, response, spider=None):  # noqa: ARG002 - Scrapy's
        if request.url.endswith(("/", "/login")):
            return response
        return request.replace(url=request.url[:-1] + "login", dont_filter=True)


@everywhere
async def test_what_a_middleware_does_not_want_filtered_is_fetched(place):
    settings = {**place, "DOWNLOADER_MIDDLEWARES": {LogsIn: 560}}
    _, hits, parsed = await fetch(fan(*"abc") | {"/login": []}, settings=settings)
    assert hits == {"/": 1, "/a": 1, "/b": 1, "/c": 1, "/login": 3}
    assert parsed == ["/"] + ["/login"] * 3


class Again(Follower):
    """Requests a page again, whatever the filter says."""

    def parse(self, response):
        yield from super().parse(response)
        if response.url.endswith("/again") and len(self.parsed) < 9:
            yield response.request.replace(dont_filter=True)


@everywhere
async def test_what_a_page_redirects_to_after_a_retry_is_filtered_if_the_page_was(place):
    """The retry is not filtered, and Scrapy's redirect keeps that."""
    pages = fan(
        "target",
        other="/mid",
        self=page_of(lambda times: {1: 503, 2: "/self"}.get(times, "/target")),
        again=page_of(lambda times: {1: 503, 2: []}.get(times, "/target")),
    )
    # It was fetched twice.
    pages["/mid"] = page_of(lambda times: 503 if times == 1 else "/target")
    _, hits, parsed = await fetch(pages, Again, place | {"CONCURRENT_REQUESTS": 1})
    assert hits == {"/": 1, "/target": 2, "/other": 1, "/mid": 2, "/self": 3, "/again": 3}
    # The spider has asked for it again itself, without the filter, after the retry.
    assert sorted(parsed) == ["/", "/again", "/target", "/target"]
