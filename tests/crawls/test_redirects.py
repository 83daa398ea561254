"""The redirect guard: real redirects by Scrapy's own middlewares, and what must not get past it."""

from collections import Counter

import pytest
from pytest_twisted import ensureDeferred
from support.crawling import Follower, crawl
from support.sites import Pages

pytestmark = pytest.mark.each_scrapy


def paths(site, urls):
    return sorted(url.removeprefix(site.url) for url in urls)


class PassesMetaOn(Follower):
    """Hands a response's meta to the requests that come from it, redirects and all."""

    def request(self, response, href):
        return response.follow(href, meta=response.meta)


@pytest.mark.parametrize("spider", [Follower, PassesMetaOn])
@ensureDeferred
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


@ensureDeferred
async def test_a_redirect_to_a_page_that_another_chain_has_fetched_is_dropped():
    pages = {"/": ["/page", "/one"], "/page": ["/two"], "/one": "/page", "/two": "/one"}
    with Pages(pages) as site:
        crawler = await crawl(url=site.url + "/", settings={"CONCURRENT_REQUESTS": 1})
    assert site.hits == dict.fromkeys(pages, 1)
    assert crawler.stats.get_value("bloom/redirect_exempt", 0) == 0
    assert paths(site, crawler.spider.parsed) == ["/", "/page"]


@pytest.mark.parametrize("length", [20, 21])
@ensureDeferred
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
