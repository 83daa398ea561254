"""Pages that a callback forgets are fetched again; with every scheduler."""

from itertools import count

import pytest
from scrapy.utils.request import fingerprint
from scrapy.utils.test import get_crawler
from support.crawling import at, crawl
from support.jobs import Session, page
from support.sites import Pages
from support.spiders import Walled

import scrapy_bloom
from scrapy_bloom.crawl.history import CHAIN

pytestmark = pytest.mark.server

ONE = {"CONCURRENT_REQUESTS": 1, "RETRY_TIMES": 1}


def stat(crawler, name):
    return crawler.stats.get_value(f"bloom/{name}", 0)


def walls(times, *links):
    """Return a page that is a login page so many times; that leads to a page which links to it."""
    answers = count()
    return lambda *_: ["/login", "/again"] if next(answers) < times else list(links)


@at("memory", "redis")
async def test_a_forgotten_page_is_fetched_by_the_next_link(place):
    pages = {"/": ["/a"], "/a": walls(1, "/c"), "/again": ["/a"]}
    pages["/c"] = lambda *_: ["/a", "/c", "/again"]
    with Pages(pages) as site:
        crawler = await crawl(Walled, place | ONE, url=site.url + "/")
    assert site.hits == {"/": 1, "/a": 2, "/again": 1, "/c": 1}
    assert (stat(crawler, "forgotten"), stat(crawler, "not_forgotten")) == (1, 0)


@at("job", "kept job", "shared")
async def test_a_forgotten_page_is_fetched_by_the_next_run_and_by_no_later_one(place):
    pages = {"/": ["/a", "/b"], "/a": walls(1, "/c"), "/b": [], "/c": []}
    pages["/again"] = []
    hits = []
    with Pages(pages) as site:
        for _ in range(3):
            await crawl(Walled, place | ONE, url=site.url + "/")
            hits.append(dict(site.hits))
    assert hits[0] == {"/": 1, "/a": 1, "/b": 1, "/again": 1}
    assert hits[1] == hits[0] | {"/": 2, "/a": 2, "/c": 1}
    assert hits[2] == hits[1] | {"/": 3}


@at("job", "shared")
async def test_a_page_is_forgotten_with_the_pages_that_redirected_to_it(place):
    pages = {"/": ["/old"], "/again": ["/old"], "/old": "/middle", "/middle": "/new"}
    pages |= {"/new": walls(1, "/c"), "/c": ["/old", "/middle", "/new"]}
    with Pages(pages) as site:
        await crawl(Walled, place | ONE, url=site.url + "/")
        await crawl(Walled, place | ONE, url=site.url + "/")
    assert site.hits == {"/": 2, "/again": 1, "/old": 2, "/middle": 2, "/new": 2, "/c": 1}


ONE_WALL = ["/a", "/b", "/d", "/e"]
LAST = {"REDIRECT_PRIORITY_ADJUST": -10}
"""Until the page is fetched to which others redirect, all of them have done so."""


@at("redis", "kept job", "shared")
async def test_a_page_is_forgotten_with_the_pages_whose_redirects_to_it_were_dropped(
    place,
):
    pages = {"/": ONE_WALL, "/again": ONE_WALL, "/c": []}
    pages |= dict.fromkeys(ONE_WALL, "/wall") | {"/wall": walls(1, "/c")}
    with Pages(pages) as site:
        crawler = await crawl(Walled, place | ONE | LAST, url=site.url + "/")
    assert site.hits == {"/": 1, **dict.fromkeys(ONE_WALL, 2), "/wall": 2, "/again": 1, "/c": 1}
    assert (stat(crawler, "forgotten"), stat(crawler, "not_forgotten")) == (4, 0)
    assert crawler.stats.get_value("walls/known") == 1


def test_a_forgotten_page_is_fetched_again_after_a_kill(project):
    pages = {"/": ["/a"], "/a": walls(1, "/c"), "/again": [], "/c": []}
    settings = {**ONE, "spider": "walled", "SCHEDULER": "scrapy_bloom.Scheduler"}
    with Pages(pages) as site:
        killed = project.crawl(site, **settings, WALLED_DIES=True)
        assert killed.end() == -9
        assert site.hits["/a"] == 1
        for _ in range(2):
            project.finish(site, **settings)
    assert (site.hits["/a"], site.hits["/c"]) == (2, 1)


# Without a crawl


def redirected(request, url, **changes):
    """Return what is made of a request that is redirected."""
    chain = [*request.meta.get(CHAIN, ()), fingerprint(request).hex()]
    return request.replace(url=url, **changes, meta={CHAIN: chain})


def test_a_page_is_forgotten_with_the_whole_chain_that_led_to_it():
    first, second, third = map(page, "abc")
    wall = redirected(first, page("wall").url)
    to_second, to_wall = redirected(third, second.url), redirected(second, wall.url)
    with Session() as session:
        assert session.seen(first, second, third, wall) == [False] * 4
        assert session.seen(to_second, to_wall) == [True, True]
        scrapy_bloom.forget(wall, session.crawler)
        assert session.seen(first, second, third, wall) == [False] * 4
        scrapy_bloom.forget(wall, session.crawler)
        assert session.seen(first, second, third) == [False, True, True], "they led there before"
    assert (stat(session.crawler, "forgotten"), stat(session.crawler, "not_forgotten")) == (4, 0)


def test_each_form_of_a_chain_is_forgotten_with_its_own_body():
    spared, first = (page("form", method="POST", body=text) for text in "ab")
    second = redirected(first, page("other").url)
    got = redirected(second, page("got").url, method="GET", body=b"")
    with Session() as session:
        assert session.seen(spared, first, second, got) == [False] * 4
        scrapy_bloom.forget(got, session.crawler)
        assert session.seen(spared, first, second, got) == [True, False, False, False]


def test_where_there_is_no_answer_nothing_is_forgotten_and_nothing_known(caplog):
    class Odd:
        def fingerprint(self, request):
            raise ValueError(f"an odd page: {request}")

    with Session({"REQUEST_FINGERPRINTER_CLASS": Odd}) as session:
        for _ in range(2):
            assert scrapy_bloom.forget(page("a"), session.crawler) is False
            assert scrapy_bloom.seen(page("a"), session.crawler) is None
    assert stat(session.crawler, "not_forgotten") == 2
    assert caplog.text.count("could not be forgotten") == 1
    assert len(caplog.records) == 2


def test_in_a_crawl_without_ours_nothing_is_known_and_the_rest_is_logged(caplog):
    assert scrapy_bloom.seen(page("a"), get_crawler()) is None
    assert scrapy_bloom.forget(page("a"), get_crawler()) is False
    assert scrapy_bloom.hold(page("a"), get_crawler(), 1) is False
    assert "has no open filter of scrapy-bloom" in caplog.text
    assert "has no open scrapy_bloom.Scheduler" in caplog.text
