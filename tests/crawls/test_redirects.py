"""The redirect guard: real redirects by Scrapy's own middlewares, and what must not get past it."""

from collections import Counter

import pytest
from scrapy import Request
from support.crawling import Follower, at, crawl
from support.sites import Pages

pytestmark = [pytest.mark.server, pytest.mark.each_scrapy]


def paths(site, urls):
    return sorted(url.removeprefix(site.url) for url in urls)


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
    with Pages(pages) as site:
        crawler = await crawl(spider, url=site.url + "/")
    assert {path.partition("?")[0] for path in site.hits} == set(pages)
    # Passed-on chains cost a second fetch here and there, each step of a chain at most one.
    if spider is Follower:
        assert Counter(crawler.spider.parsed).most_common(1)[0][1] == 1
    assert sum(site.hits.values()) <= 12


@pytest.mark.parametrize("length", [20, 21])
async def test_a_chain_that_scrapy_follows_ends_at_its_page(length):
    """Scrapy follows twenty redirects."""
    asked = Counter()

    def again(path, _cookie):
        asked[path] += 1
        return ["/"] if asked[path] > length else path

    with Pages({"/": ["/wall"], "/wall": again}) as site:
        crawler = await crawl(url=site.url + "/")
    assert paths(site, crawler.spider.parsed) == (["/", "/wall"] if length <= 20 else ["/"])
    assert site.hits["/wall"] == min(length, 20) + 1
    assert crawler.stats.get_value("bloom/redirect_exempt") == min(length, 20)


def at_first(status, then):
    """Return a page that has a status at first; what it is then may depend on how often asked."""
    asked = Counter()

    def answer(path, _cookie):
        asked[path] += 1
        if asked[path] == 1:
            return status
        return then(path, asked[path]) if callable(then) else then

    return answer


@at("memory", "kept job", "shared")
async def test_what_is_not_filtered_is_not_filtered_after_a_retry_and_a_redirect(place):
    class Insisting(Follower):
        def request(self, response, href):
            return response.follow(href, dont_filter=href == "/other")

    pages = {"/": ["/target", "/other"], "/other": at_first(503, "/target"), "/target": []}
    with Pages(pages) as site:
        settings = {**place, "CONCURRENT_REQUESTS": 1}
        await crawl(Insisting, settings, url=site.url + "/")
    assert site.hits == {"/": 1, "/target": 2, "/other": 2}


class LogsIn:
    """Sends each page over the login page first, which is not to be filtered."""

    def __init__(self):
        self._been = set()

    def process_response(self, request, response, spider=None):  # noqa: ARG002 - Scrapy's
        wanted = request.meta.get("wanted")
        if wanted is not None:
            return Request(wanted, request.callback, dont_filter=True)
        if request.url.endswith("/login") or request.url in self._been:
            return response
        self._been.add(request.url)
        login = request.url.rpartition("/")[0] + "/login"
        meta = {"wanted": request.url}
        return Request(login, request.callback, meta=meta, dont_filter=True)


@at("memory", "kept job", "shared")
async def test_what_a_middleware_does_not_want_filtered_is_fetched(place):
    links = ["/a", "/b", "/c"]
    with Pages({"/": links, **{name: [] for name in (*links, "/login")}}) as site:
        settings = {**place, "DOWNLOADER_MIDDLEWARES": {LogsIn: 560}}
        crawler = await crawl(settings=settings, url=site.url + "/")
    assert paths(site, crawler.spider.parsed) == ["/", *links]
    assert site.hits["/login"] == 4


@at("memory", "kept job", "shared")
async def test_a_request_that_a_middleware_sends_again_for_ever_ends(place):
    class Again:
        def process_response(self, request, response, spider=None):  # noqa: ARG002 - Scrapy's
            return request.copy() if request.url.endswith("/a") else response

    with Pages({"/": ["/a"], "/a": []}) as site:
        settings = {**place, "DOWNLOADER_MIDDLEWARES": {Again: 560}}
        await crawl(settings=settings, url=site.url + "/")
    assert site.hits == {"/": 1, "/a": 21}


class Again(Follower):
    """Requests a page again, whatever the filter says."""

    def parse(self, response):
        yield from super().parse(response)
        if response.url.endswith("/again") and len(self.parsed) < 9:
            yield response.request.replace(dont_filter=True)


@at("memory", "kept job", "shared")
async def test_what_a_page_redirects_to_after_a_retry_is_filtered_if_the_page_was(place):
    """The retry is not filtered, and Scrapy's redirect keeps that."""
    pages = {
        "/": ["/target", "/other", "/self", "/again"],
        "/target": [],
        "/other": "/mid",
        "/mid": at_first(503, "/target"),  # was fetched twice
        "/self": at_first(503, lambda path, times: "/target" if times > 2 else path),
        "/again": at_first(503, lambda _, times: "/target" if times > 2 else []),
    }
    with Pages(pages) as site:
        settings = place | {"CONCURRENT_REQUESTS": 1}
        crawler = await crawl(Again, settings, url=site.url + "/")
    assert site.hits == {"/": 1, "/target": 2, "/other": 1, "/mid": 2, "/self": 3, "/again": 3}
    # The spider has asked for it again itself, without the filter, after the retry.
    assert paths(site, crawler.spider.parsed) == ["/", "/again", "/target", "/target"]
