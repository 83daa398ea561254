"""Pages that a callback forgets, or that have failed, are fetched again; with every scheduler."""

import time
from itertools import count

import pytest
from pytest_twisted import ensureDeferred
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.test import get_crawler
from support.crawling import ADDONS, at, crawl
from support.sessions import check_all, open_session, page
from support.sites import Pages
from support.spiders import Walled

import scrapy_bloom
from scrapy_bloom import ForgetFailed
from scrapy_bloom.crawl.report import Verdict
from scrapy_bloom.settings import FORGET_FAILED

pytestmark = pytest.mark.server

NEW, SEEN, EXEMPT, _ = Verdict
ONE = {"CONCURRENT_REQUESTS": 1, "RETRY_TIMES": 1}


@pytest.fixture
def storage_settings(place):
    """Settings of a crawl with one request at a time, for each place of filter and queue."""
    return place | ONE


def stat(crawler, name):
    return crawler.stats.get_value(f"bloom/{name}", 0)


def walls(times, *links):
    """Return a page that is a login page so many times; that leads to a page which links to it."""
    answers = count()
    return lambda *_: ["/login", "/again"] if next(answers) < times else list(links)


@at("memory", "redis")
@ensureDeferred
async def test_a_forgotten_page_is_fetched_by_the_next_link(storage_settings):
    pages = {"/": ["/a"], "/a": walls(1, "/c"), "/again": ["/a"]}
    pages["/c"] = lambda *_: ["/a", "/c", "/again"]
    with Pages(pages) as site:
        crawler = await crawl(Walled, storage_settings, url=site.url + "/")
    assert site.hits == {"/": 1, "/a": 2, "/again": 1, "/c": 1}
    assert (stat(crawler, "forgotten"), stat(crawler, "not_forgotten")) == (1, 0)


@at("job", "kept job", "shared")
@ensureDeferred
async def test_a_forgotten_page_is_fetched_by_the_next_run_and_by_no_later_one(storage_settings):
    pages = {"/": ["/a", "/b"], "/a": walls(1, "/c"), "/b": [], "/c": []}
    pages["/again"] = []
    hits = []
    with Pages(pages) as site:
        for _ in range(3):
            await crawl(Walled, storage_settings, url=site.url + "/")
            hits.append(dict(site.hits))
    assert hits[0] == {"/": 1, "/a": 1, "/b": 1, "/again": 1}
    assert hits[1] == hits[0] | {"/": 2, "/a": 2, "/c": 1}
    assert hits[2] == hits[1] | {"/": 3}


@at("job", "shared")
@ensureDeferred
async def test_a_page_is_forgotten_with_the_pages_that_redirected_to_it(storage_settings):
    pages = {"/": ["/old"], "/again": ["/old"], "/old": "/middle", "/middle": "/new"}
    pages |= {"/new": walls(1, "/c"), "/c": ["/old", "/middle", "/new"]}
    with Pages(pages) as site:
        await crawl(Walled, storage_settings, url=site.url + "/")
        await crawl(Walled, storage_settings, url=site.url + "/")
    assert site.hits == {"/": 2, "/again": 1, "/old": 2, "/middle": 2, "/new": 2, "/c": 1}


ONE_WALL = ["/a", "/b", "/d", "/e"]
LAST = {"REDIRECT_PRIORITY_ADJUST": -10}
"""Until the page is fetched to which others redirect, all of them have done so."""


@at("redis", "kept job", "shared")
@ensureDeferred
async def test_a_page_is_forgotten_with_the_pages_whose_redirects_to_it_were_dropped(
    storage_settings,
):
    pages = {"/": ONE_WALL, "/again": ONE_WALL, "/c": []}
    pages |= dict.fromkeys(ONE_WALL, "/wall") | {"/wall": walls(1, "/c")}
    with Pages(pages) as site:
        crawler = await crawl(Walled, storage_settings | LAST, url=site.url + "/")
    assert site.hits == {"/": 1, **dict.fromkeys(ONE_WALL, 2), "/wall": 2, "/again": 1, "/c": 1}
    assert (stat(crawler, "forgotten"), stat(crawler, "not_forgotten")) == (4, 0)
    assert crawler.stats.get_value("walls/known") == 1


@at("kept job", "shared")
@ensureDeferred
async def test_a_page_with_an_age_that_failed_is_not_tried_again_in_this_run(storage_settings):
    class Aged(Walled):
        async def parse(self, response):
            async for request in super().parse(response):
                first = int(request.url.endswith("/bad"))
                yield request.replace(meta={"bloom_max_age": "1h"}, priority=first)

    pages = {"/": ["/bad", "/a"], "/a": ["/bad"], "/bad": 503}
    settings = {**storage_settings, "RETRY_ENABLED": False, "BLOOM_FORGET_FAILED": True}
    with Pages(pages) as site:
        for run in (1, 2):
            crawler = await crawl(Aged, settings, url=site.url + "/")
            assert site.hits["/bad"] == run
            assert stat(crawler, "failed") == 1


@at("kept job", "shared")
@ensureDeferred
async def test_a_page_that_failed_is_tried_again_at_once_if_the_spider_forgets_it(storage_settings):
    class Insisting(Walled):
        async def parse(self, response):
            if response.url.endswith("/c"):
                bad = Request(self.url + "bad")
                assert scrapy_bloom.forget(bad, self.crawler)
                yield bad
            async for request in super().parse(response):
                yield request.replace(priority=int(request.url.endswith("/bad")))

    pages = {"/": ["/a", "/bad"], "/a": ["/b"], "/b": ["/c"], "/c": [], "/bad": 503}
    settings = {**storage_settings, "RETRY_ENABLED": False, "BLOOM_FORGET_FAILED": True}
    with Pages(pages) as site:
        crawler = await crawl(Insisting, settings, url=site.url + "/")
    assert site.hits == dict.fromkeys(["/", "/a", "/b", "/c"], 1) | {"/bad": 2}
    assert (stat(crawler, "failed"), stat(crawler, "forgotten")) == (2, 1)


@at("kept job", "shared")
@ensureDeferred
async def test_a_failed_page_that_is_yielded_with_its_own_meta_is_not_fetched_for_ever(
    storage_settings,
):
    """It looks like a step of its own redirects, which has failed as well."""

    class Repeating(Walled):
        handle_httpstatus_list = (503,)

        async def parse(self, response):
            async for request in super().parse(response):
                yield request
            if response.status == 503 and len(self.parsed) < 20:
                yield Request(response.url, meta=response.meta)

    pages = {"/": ["/bad"], "/bad": lambda _, been: 503 if been else "/bad"}
    settings = {**storage_settings, "RETRY_ENABLED": False, "BLOOM_FORGET_FAILED": [503]}
    with Pages(pages) as site:
        await crawl(Repeating, settings, url=site.url + "/")
    assert site.hits == {"/": 1, "/bad": 2}


@at("kept job", "shared")
@ensureDeferred
async def test_a_page_that_only_looks_like_one_that_failed_is_fetched(storage_settings):
    """Neither a failed request that was not filtered nor a form that led to one marks a page."""

    class Unmarked(Walled):
        async def start(self):
            yield Request(f"{self.url}bad", dont_filter=True, priority=2)
            yield Request(f"{self.url}form", method="POST", body=b"a", priority=1)
            yield Request(self.url)

    pages = {"/": ["/a"], "/a": ["/b"], "/b": ["/bad", "/form"], "/bad": 503, "/wall": 503}
    pages["/form"] = lambda _, been: [] if been else "/wall"
    settings = {**storage_settings, "RETRY_ENABLED": False, "BLOOM_FORGET_FAILED": True}
    with Pages(pages) as site:
        await crawl(Unmarked, settings, url=site.url + "/")
    once = dict.fromkeys(["/", "/a", "/b", "/wall", "/form", "POST /form a"], 1)
    assert site.hits == once | {"/bad": 2}


@at("kept job", "shared")
@ensureDeferred
async def test_pages_that_redirected_to_a_failed_page_are_fetched_by_the_next_run(storage_settings):
    failing = True
    pages = {"/": [*ONE_WALL, "/again"], "/again": ONE_WALL}
    pages |= dict.fromkeys(ONE_WALL, "/bad")
    pages |= {"/bad": lambda *_: 503 if failing else ["/c"], "/c": []}
    settings = {**storage_settings, **LAST, "BLOOM_FORGET_FAILED": True}
    hits = {"/": 1, "/again": 1, **dict.fromkeys(ONE_WALL, 1), "/bad": 2}
    with Pages(pages) as site:
        crawler = await crawl(Walled, settings, url=site.url + "/")
        assert site.hits == hits
        assert (stat(crawler, "failed"), stat(crawler, "not_forgotten")) == (4, 0)
        failing = False
        await crawl(Walled, settings, url=site.url + "/")
    assert site.hits == hits | {"/": 2, **dict.fromkeys(ONE_WALL, 2), "/bad": 3, "/c": 1}


@at("job", "kept job", "shared")
@ensureDeferred
async def test_a_failed_page_is_fetched_by_the_next_run(storage_settings):
    """And not by this one, whose other links to it would only fail as well."""
    failing = True
    both = ["/bad", "/mute"]
    pages = {"/": ["/again", *both, "/gone"], "/again": both, "/c": both}
    pages["/bad"] = lambda *_: 503 if failing else ["/c"]
    pages["/mute"] = lambda *_: ... if failing else ["/c"]
    settings = {**storage_settings, "BLOOM_FORGET_FAILED": True}
    with Pages(pages) as site:
        crawler = await crawl(Walled, settings, url=site.url + "/")
        hits = {"/": 1, "/again": 1, "/bad": 2, "/mute": 2, "/gone": 1}
        assert site.hits == hits
        assert (stat(crawler, "failed"), stat(crawler, "not_forgotten")) == (2, 0)
        failing = False
        await crawl(Walled, settings, url=site.url + "/")
        hits |= {"/": 2, "/bad": 3, "/mute": 3, "/c": 1}
        assert site.hits == hits
        await crawl(Walled, settings, url=site.url + "/")
    assert site.hits == hits | {"/": 3}


@ensureDeferred
async def test_forget_failed_may_be_a_list_of_statuses(tmp_path):
    pages = {"/": ["/bad", "/gone", "/none"], "/bad": 503, "/none": ...}
    settings = {**ONE, "JOBDIR": str(tmp_path), "BLOOM_FORGET_FAILED": [404]}
    with Pages(pages) as site:
        for _ in range(2):
            await crawl(Walled, settings, url=site.url + "/")
    assert site.hits == {"/": 2, "/bad": 2, "/gone": 2, "/none": 4}


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
    """Return what Scrapy makes of a request that is redirected."""
    urls = [*request.meta.get("redirect_urls", ()), request.url]
    return request.replace(url=url, **changes, meta={**request.meta, "redirect_urls": urls})


def test_a_redirect_to_a_page_that_has_failed_forgets_its_pages_once(tmp_path):
    settings = {"BLOOM_FORGET_FAILED": True, "ADDONS": ADDONS, "JOBDIR": str(tmp_path)}
    session, crawler = open_session(settings)
    first, second, third = map(page, "abc")
    assert check_all(session, [first, second, third]) == [NEW] * 3
    bad = redirected(first, page("bad").url)
    assert session.check(bad) is NEW
    assert session.check(redirected(third, second.url)) is SEEN
    session.forget(bad, failed=True)
    for _ in range(2):  # as where a spider passes meta on
        assert session.check(redirected(second, bad.url)) is SEEN
    assert check_all(session, [first, second, third]) == [SEEN] * 3, "in this run"
    session.close()
    assert stat(crawler, "failed") == 3
    session, _ = open_session(settings)
    assert check_all(session, [first, second, third, page("bad")]) == [NEW] * 4, "in the next run"
    session.close()


def test_a_page_is_forgotten_with_the_whole_chain_that_led_to_it():
    session, crawler = open_session()
    first, second, third = map(page, "abc")
    assert check_all(session, [first, second, third]) == [NEW] * 3
    wall = redirected(first, page("wall").url)
    assert session.check(wall) is NEW
    assert session.check(redirected(third, second.url)) is SEEN
    assert session.check(redirected(second, wall.url)) is SEEN
    scrapy_bloom.forget(wall, crawler)
    assert check_all(session, [first, second, third, wall]) == [NEW] * 4
    scrapy_bloom.forget(wall, crawler)
    assert check_all(session, [first, second, third]) == [NEW, SEEN, SEEN], "they led there before"
    session.close()
    assert (stat(crawler, "forgotten"), stat(crawler, "not_forgotten")) == (4, 0)


def test_each_form_of_a_chain_is_forgotten_with_its_own_body():
    session, crawler = open_session()
    spared, first = (page("form", method="POST", body=text) for text in "ab")
    assert check_all(session, [spared, first]) == [NEW, NEW]
    second = redirected(first, page("other").url)
    assert session.check(second) is NEW
    got = redirected(second, page("got").url, method="GET", body=b"")
    assert session.check(got) is NEW
    scrapy_bloom.forget(got, crawler)
    assert check_all(session, [spared, first, second, got]) == [SEEN, NEW, NEW, NEW]
    session.close()


def test_a_page_that_redirects_to_itself_is_forgotten_with_its_steps():
    session, crawler = open_session()
    first = page("wall")
    second = redirected(first, first.url)
    third = redirected(second, first.url)
    for _ in range(2):
        assert check_all(session, [first, second, third, second]) == [NEW, EXEMPT, EXEMPT, SEEN]
        assert scrapy_bloom.forget(first, crawler) is True
    session.close()
    assert stat(crawler, "forgotten") == 2


def test_failed_pages_are_remembered_no_longer_than_the_window(monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    session, _ = open_session({"BLOOM_WINDOW": "1d"})
    for number in range(100):
        session.check(page(number))
        session.forget(page(number), failed=True)
        now += 3600
    assert len(session.judge.failed) == 24
    assert session.check(page(99)) is SEEN
    session.close()


def test_in_a_window_a_step_expires_before_its_page(monkeypatch):
    """It was marked a moment later: a page that was due was dropped when it led back to itself."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    session, _ = open_session({"BLOOM_WINDOW": "16s"})
    session.judge.marks.clock = time.time
    first = page("wall")
    back = redirected(first, first.url)
    assert session.check(first) is NEW
    now += 6
    assert check_all(session, [back, back, first]) == [EXEMPT, SEEN, SEEN]
    while session.check(page("wall")) is SEEN:
        now += 0.5
    assert session.check(back) is EXEMPT
    session.close()


def test_copied_meta_forgets_no_other_page_and_does_not_grow():
    session, crawler = open_session()
    form = page("form", method="POST", body=b"a")
    assert session.check(form) is NEW
    link = page("form", meta=form.meta)  # by the note it would be the form
    other = page("other", method="POST", meta=form.meta)
    assert check_all(session, [link, other]) == [NEW, NEW]
    assert [*other.meta["bloom_marks"]] == [other.url]
    got = redirected(link, page("got").url)
    scrapy_bloom.forget(got, crawler)
    assert session.check(link) is NEW
    session.close()


def test_forget_returns_false_where_the_fingerprinter_raises(caplog):
    class Odd:
        def fingerprint(self, request):
            raise ValueError(f"an odd page: {request}")

    session, crawler = open_session({"REQUEST_FINGERPRINTER_CLASS": Odd})
    for _ in range(2):
        assert scrapy_bloom.forget(page("a"), crawler) is False
    session.close()
    assert stat(crawler, "not_forgotten") == 2
    assert caplog.text.count("could not be forgotten") == 1


def test_forget_in_a_crawl_without_our_filter_is_logged(caplog):
    assert scrapy_bloom.forget(page("a"), get_crawler()) is False
    assert "has no open filter of scrapy-bloom" in caplog.text


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *((yes, True) for yes in (True, 1, "1", "True", "true")),
        *((no, False) for no in (False, 0, "0", "False")),
        *((some, (403, 503)) for some in ([403, 503], (403, 503), "[403, 503]", "403, 503")),
        (404, (404,)),
        ("404", (404,)),
    ],
)
def test_forget_failed_is_read_from_its_setting(written, read):
    assert FORGET_FAILED.read("BLOOM_FORGET_FAILED", written) == read


@ensureDeferred
async def test_forget_failed_without_its_middleware_is_refused(caplog):
    settings = {"ADDONS": {}, "BLOOM_FORGET_FAILED": True}
    settings["DUPEFILTER_CLASS"] = "scrapy_bloom.BloomDupeFilter"
    with Pages({"/": []}) as site:
        await crawl(Walled, settings, url=site.url + "/")
        assert not site.hits
        assert "Add 'scrapy_bloom.Addon' to your ADDONS" in caplog.text
        settings["DOWNLOADER_MIDDLEWARES"] = {"scrapy_bloom.ForgetFailed": 0}
        await crawl(Walled, settings, url=site.url + "/")
        assert site.hits


def test_a_request_ignored_on_purpose_is_not_forgotten_as_failed():
    session, crawler = open_session({"ADDONS": ADDONS, "BLOOM_FORGET_FAILED": True})
    watch = ForgetFailed.from_crawler(crawler)
    session.check(page("a"))
    watch.process_exception(page("a"), IgnoreRequest("robots.txt"))
    assert stat(crawler, "failed") == 0
    watch.process_exception(page("a"), OSError("nobody is there"))
    assert stat(crawler, "failed") == 1
    session.close()
