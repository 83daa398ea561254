"""What becomes of pages when the site or the project's code fails: each is accounted for."""

import asyncio
import gzip
import json
from collections import Counter

import pytest
from scrapy import Request
from scrapy.exceptions import DropItem, IgnoreRequest
from support.crawling import (
    Follower,
    StartsNothing,
    at,
    crawl,
    download,
    make_crawler,
    placed,
    target_of,
    visit,
)
from support.sites import Pages, fan
from support.waiting import until

from scrapy_bloom.crawl.history import CHAIN, ORIGINAL, START, TRIES
from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.crawl.scrapy.engine import BACK

pytestmark = [pytest.mark.server, pytest.mark.each_scrapy]

QUICK = {"RETRY_TIMES": 1, "RETRY_PRIORITY_ADJUST": 0, "CONCURRENT_REQUESTS_PER_DOMAIN": 4}
OURS = BACK, CHAIN, ORIGINAL, START, TRIES


place = placed("kept job", "shared")


@pytest.fixture
def account(place, bloom, caplog):
    """Return what is told of the last crawl: how many pages are what, and why they failed.

    None may wait.
    """
    caplog.set_level("INFO")

    def account():
        caplog.clear()
        told = json.loads("".join(bloom(f"info {target_of(place)} --json")[1]))["account"]
        assert told["waiting"] == told["in_flight"] == 0
        counts = {name: told[name] for name in ("unparsed", "failed", "not_kept") if told[name]}
        return {"done": told["done"]} | counts | told["failures"]

    return account


@pytest.fixture
def crawl_daily(place, account):
    """Return what crawls a site once for each of some days; returns the last spider and the site.

    For each day it is given the pages of the site, and the account that is expected.
    """

    async def crawl_daily(spider, *days, **settings):
        with Pages({}) as site:
            for pages, expected in days:
                site.pages = pages
                crawler = await crawl(spider, {**place, **QUICK, **settings}, url=site.url + "/")
                assert account() == expected
        return crawler.spider, site

    return crawl_daily


class Parsing(Follower):
    """Yields an item for each page, and may fail as its pages say."""

    name = "parsing"
    filtered = False

    def parse(self, response):
        yield from super().parse(response)
        if response.url.endswith("/raises") and self.crawler.settings["BUG"]:
            raise ValueError("a bug")
        yield {"url": response.url}


class Rescuing(Parsing):
    """Deals with failed downloads in an errback; or only logs them, which deals with nothing."""

    how = "log"

    def request(self, response, href):
        return response.follow(href, errback=self.rescue)

    def rescue(self, failure):
        if self.how in {"item", "both"}:
            yield {"url": failure.request.url}
            assert self.how == "item"  # as the docs have it: the page is to come again
        elif self.how == "request":
            yield Request(f"{self.url}mirror", self.parse)
        self.logger.info(failure)


class Picky:
    """A pipeline that drops items; and fails for others, and a spider middleware that does so."""

    def __init__(self, crawler):
        self.fails = crawler.settings["BUG"]

    from_crawler = classmethod(lambda cls, crawler: cls(crawler))

    def process_item(self, item, spider=None):  # noqa: ARG002 - Scrapy's
        name = item["url"].rpartition("/")[2]
        errors = {"item": KeyError("price"), "cancelled": asyncio.CancelledError()}
        if name == "dropped":
            raise DropItem("not wanted")
        if self.fails and name in errors:
            raise errors[name]
        return item

    def process_spider_input(self, response, spider=None):  # noqa: ARG002 - Scrapy's
        if self.fails and response.url.endswith("/refused"):
            raise OSError("a bug")


async def test_what_has_failed_is_fetched_by_the_next_run_and_what_was_decided_is_not(
    place, account, caplog
):
    bad = {f"/{name}" for name in ("bad", "mute", "raises", "refused", "item", "cancelled")}
    pages = {path: [] for path in (*bad, "/dropped", "/fine", "/c")} | {"/gone": 404}
    pages |= {"/": [*bad, "/dropped", "/gone", "/fine"]}
    settings = {**place, **QUICK, "ITEM_PIPELINES": {Picky: 1}, "SPIDER_MIDDLEWARES": {Picky: 50}}
    with Pages(pages | {"/bad": 503, "/mute": ...}) as site:
        stats = (await crawl(Rescuing, settings | {"BUG": True}, url=site.url + "/")).stats
        hits = dict(site.hits)
        for reason in ("503", "ValueError in parse", "OSError in process_spider_input"):
            assert stats.get_value(f"bloom/failed/{reason}") == 1
        said = account()
        assert said == dict.fromkeys(said, 1) | {"done": 3, "unparsed": 1, "failed": 6}
        site.pages = pages | {"/mute": ["/c"]}
        crawler = await crawl(Rescuing, settings, url=site.url + "/")
        assert "0 requests to fetch, 6 on the failed list. Capacity" in caplog.text
        if not place.get("JOBDIR"):
            assert "6 requests that failed in earlier runs are fetched again." in caplog.messages
        again = {path: site.hits[path] - hits.get(path, 0) for path in site.hits}
        assert {path for path, more in again.items() if more} == {"/", "/c", *bad}
        assert set(again.values()) == {0, 1}
        assert account() == {"done": 10, "unparsed": 1}
        assert len(crawler.spider.parsed) == 8
        hits = site.hits["/bad"]
        await crawl(Rescuing, settings, url=site.url + "/")
        assert site.hits["/bad"] == hits
        assert account() == {"done": 10, "unparsed": 1}


async def test_an_outage_costs_no_page_also_if_all_redirect_to_one_that_fails(place, crawl_daily):
    """What was redirected to one that fails then fails with it."""
    names = [f"/{number}" for number in range(20)]
    up = {"/": names, "/maintenance": []} | {name: [] for name in names}
    down = up | dict.fromkeys(names, "/maintenance") | {"/maintenance": 503}
    outage = {"done": 1, "failed": 20, "503": 1, "redirected to seen pages": 19}
    if not place.get("JOBDIR"):  # in Redis, the next run finds that
        outage = {"done": 1, "unparsed": 19, "failed": 1, "503": 1}
    spider, site = await crawl_daily(Parsing, (down, outage), (up, {"done": 21}))
    # Each is fetched again from where it began.
    assert {*spider.parsed} == {site.url + name for name in ("/", *names)}


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        *(("item", status, {"done": 2}) for status in (503, 404)),
        *(("request", status, {"done": 3}) for status in (503, 404)),
        ("log", 503, {"done": 1, "failed": 1, "503": 1}),
        ("log", 404, {"done": 1, "unparsed": 1}),
    ],
)
async def test_an_errback_has_dealt_with_a_page_if_it_yields_something(
    crawl_daily, how, status, said
):
    spider = type("Rescuing", (Rescuing,), {"how": how})
    pages = {"/": ["/bad"], "/bad": status, "/mirror": []}
    await crawl_daily(spider, (pages, said), RETRY_ENABLED=False)


async def test_an_errback_that_yields_an_item_and_raises_has_its_page_fetched_again(place, account):
    spider = type("Rescuing", (Rescuing,), {"how": "both"})
    await visit({"/": ["/bad"], "/bad": 503}, spider, {**place, "RETRY_ENABLED": False})
    said = account()  # why it has failed differs between versions of Scrapy
    assert (said["done"], said["failed"]) == (1, 1)


async def test_a_wall_is_said_if_no_page_comes_through_it(place, caplog):
    names = [f"/{number}" for number in range(19)]
    pages = {"/": names} | dict.fromkeys(names, 403) | {"/9": []}
    oldest = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}
    await visit(pages, Parsing, {**place, **oldest, "CONCURRENT_REQUESTS": 1})
    assert not any("in a row" in text for text in caplog.messages)


@pytest.mark.parametrize("wall", [403, 407, "/login"])
async def test_pages_behind_a_wall_are_said_listed_and_fetched_once_put_back(
    place, account, caplog, bloom, wall
):
    """They counted as done, and nothing brought them back."""
    names = [f"/{number}" for number in range(12)]
    pages = {"/": ["/login", *names], "/login": []}
    settings = {**place, **QUICK, "DEPTH_PRIORITY": 0, "CONCURRENT_REQUESTS": 1}
    reason = "redirected to seen pages" if wall == "/login" else str(wall)
    with Pages(pages | dict.fromkeys(names, wall)) as site:
        await crawl(Parsing, settings, url=site.url + "/")
        (warning,) = (text for text in caplog.messages if "in a row were not parsed" in text)
        assert warning.startswith("10 pages of 127.0.0.1")
        assert "Log in first, or crawl more slowly" in warning
        assert account() == {"done": 2, "unparsed": 12}
        site.pages = pages | {name: [] for name in names}
        await crawl(Parsing, settings, url=site.url + "/")
        assert account() == {"done": 2, "unparsed": 12}
        assert not any("in a row" in text for text in caplog.messages)
        target = target_of(place)
        code, lines, _ = bloom(f"queue {target} --unparsed --peek 99")
        assert (code, sum(site.url in line for line in lines)) == (0, 12)
        told = str(bloom(f"why {target} {site.url}/3"))
        assert "unparsed" in told
        assert reason in told
        retried = bloom(f"queue {target} --retry --reason '{reason}'")[1]
        assert retried == ["12 requests put back"]
        crawler = await crawl(Parsing, settings, url=site.url + "/")
        assert account() == {"done": 14 + (wall == "/login")}  # that comes again, too
        assert len(crawler.spider.parsed) == 13 + (wall == "/login")


async def test_what_is_ignored_forbidden_or_redirected_off_site_is_kept_until_it_is_accepted(
    place, account, bloom
):
    """Scrapy drops what leads off site before it reaches a scheduler, and its page was done."""

    class Goal:
        def process_request(self, request, spider=None):  # noqa: ARG002 - Scrapy's
            if request.url.endswith("/after"):
                raise IgnoreRequest("the goal is reached")

    spider = type("OnSite", (Parsing,), {"allowed_domains": ["127.0.0.1"]})
    pages = fan("after", "forbidden", "fine", away="http://sso.invalid/login")
    pages["/robots.txt"] = b"User-agent: *\nDisallow: /forbidden"
    settings = {**place, **QUICK, "ROBOTSTXT_OBEY": True}
    with Pages(pages) as site:
        ignoring = {"DOWNLOADER_MIDDLEWARES": {Goal: 10}}
        await crawl(spider, settings | ignoring, url=site.url + "/")
        assert account() == {"done": 2, "unparsed": 3}
        queue = f"queue {target_of(place)}"
        dropped = bloom(f"{queue} --drop --reason robots.txt")[1]
        assert dropped == ["1 request marked as done"]
        assert bloom(f"{queue} --retry --reason IgnoreRequest")[1] == ["2 requests put back"]
        site.pages |= {"/away": []}
        await crawl(spider, settings, url=site.url + "/")
        assert account() == {"done": 5}


async def test_an_unchanged_page_is_done_if_that_was_asked_for(crawl_daily):
    class Conditional(Parsing):
        def request(self, response, href):
            asked = {"If-None-Match": '"1"'} if href == "/asked" else {}
            return response.follow(href, headers=asked)

    pages = fan(asked=304, unasked=304)
    await crawl_daily(Conditional, (pages, {"done": 2, "unparsed": 1}))


async def test_what_is_too_large_is_not_fetched_again_packed_or_not(crawl_daily):
    packed = gzip.compress(bytes(3000))
    sized = bytes(3000), {"Content-Length": "3000"}
    pages = fan(plain=bytes(3000), sized=sized, packed=(packed, {"Content-Encoding": "gzip"}))
    day = pages, {"done": 1, "unparsed": 3}
    _, site = await crawl_daily(Parsing, day, day, DOWNLOAD_MAXSIZE=2000)
    assert [site.hits[f"/{name}"] for name in ("plain", "sized", "packed")] == [1, 1, 1]


async def test_failed_pages_are_only_counted_if_they_are_not_to_be_retried(crawl_daily):
    day = {"/": ["/bad"], "/bad": 503}, {"done": 1, "unparsed": 1}
    spider, site = await crawl_daily(Parsing, day, day, BLOOM_RETRY_FAILED=False)
    assert site.hits["/bad"] == 2
    assert spider.crawler.stats.get_value("bloom/failed/503") is None


class Replacing:
    """A middleware that replaces a page by one that cannot be stored."""

    def process_response(self, request, response, spider=None):  # noqa: ARG002 - Scrapy's
        if not request.url.endswith("/replaced"):
            return response
        return request.replace(url=f"{request.url}/gone", meta={**request.meta, "init": lambda: 0})


async def test_what_is_unparsed_and_only_in_memory_is_listed_or_not_seen_in_the_next_run(
    crawl_daily,
):
    """It was marked and stored nowhere, also what was redirected there, so nothing fetched it."""

    class Unstorable(Parsing):
        def request(self, response, href):
            meta = {} if href == "/replaced" else {"init": lambda: 0}
            return response.follow(href, meta=meta)

    gone = {"/gone": 404, "/replaced/gone": 404}
    unparsed = {"done": 1, "unparsed": 1, "not_kept": 2}
    first = fan("replaced", wall=403, moved="/gone") | gone, unparsed
    second = fan("replaced", "wall", "moved"), unparsed | {"done": 3}
    await crawl_daily(Unstorable, first, second, DOWNLOADER_MIDDLEWARES={Replacing: 543})


def test_whatever_an_exception_says_can_be_written():
    """JSON may have half an emoji."""
    assert Reason.of(ValueError("not \ud83d")).message == "not ?"


class Linking(Parsing):
    """Counts the pages of which all links are enqueued."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.linked = Counter()

    def parse(self, response):
        yield from super().parse(response)
        self.linked[response.url.rpartition("/")[2]] += 1


@pytest.mark.parametrize("answer", [503, 404, "/seen"])
async def test_a_link_to_what_a_redirect_led_to_is_not_lost_with_it(place, account, answer):
    """The link was dropped as a duplicate, and the page no longer redirects when asked again."""

    def link(*_):
        until(lambda: site.hits["/target"])  # the redirect is stored
        return ["/target"]

    def target(*_):
        until(lambda: crawler.spider.linked["linking"])
        return answer

    down = fan("seen", moved="/target", linking=link) | {"/target": target}
    with Pages(down) as site:
        crawler = make_crawler(Linking, {**place, "RETRY_ENABLED": False})
        await crawler.crawl(url=site.url + "/")
        fails = answer == 503
        ended = {"failed": 2, "503": 2} if fails else {"unparsed": 2}
        assert account() == {"done": 3} | ended
        site.pages |= {"/moved": [], "/linking": ["/target"], "/target": []}
        await crawl(Linking, place, url=site.url + "/")
    assert account() == ({"done": 5} if fails else {"done": 3} | ended)
    assert (site.hits["/target"], site.hits["/seen"]) == (2 + fails, 1)


class Downloads:
    """Downloads a copy of each request itself, with its meta."""

    def __init__(self, crawler):
        self._crawler = crawler

    from_crawler = classmethod(lambda cls, crawler: cls(crawler))

    async def process_request(self, request, spider=None):  # noqa: ARG002 - Scrapy's
        if "copy" not in request.flags:
            return await download(self._crawler, request.replace(flags=["copy"]))
        return None


class PassesOn(Parsing):
    """Passes the meta of each page on to what it links to."""

    def request(self, response, href):
        return response.follow(href, meta=response.meta)


async def test_what_a_page_links_to_is_not_taken_for_it_whatever_meta_it_is_given(crawl_daily):
    """It was listed as the page that linked to it, which has no such links the next day."""
    tries = iter([503, 503, ["/bad"]])  # the copy, its retry, and a copy of the page's own retry
    pages = {"/": ["/list"], "/list": lambda *_: next(tries), "/bad": 503}
    first, second = (pages, {"done": 2, "failed": 1, "503": 1}), (fan("list", "bad"), {"done": 3})
    _, site = await crawl_daily(PassesOn, first, second, DOWNLOADER_MIDDLEWARES={Downloads: 500})
    assert site.hits["/list"] == 3


class HandsOn(Parsing):
    """Hands on meta that looks like ours or Scrapy's, out of a site's JSON, say, and fails."""

    def request(self, response, href):
        foreign = ["7"], {"a": 1}, b"short", "text", 5
        value = foreign[len(self.parsed) % len(foreign)]
        meta = {**dict.fromkeys(OURS, value), "redirect_urls": 5, "download_slot": "a"}
        return response.follow(href, meta=meta)

    def parse(self, response):
        yield from super().parse(response)
        raise ValueError("a bug")


@at("memory", "kept job", "shared")
async def test_foreign_meta_that_looks_like_ours_is_removed_and_each_failure_is_listed(
    place, account
):
    """A list as `bloom_start` was never taken by Redis: the crawl did not end."""
    pages = {"/": ["/a"], "/a": ["/b"], "/b": ["/c"], "/c": ["/d"], "/d": []}
    crawler, _ = await visit(pages, HandsOn, {**place, **QUICK})
    assert len(crawler.spider.parsed) == 5
    if "SCHEDULER" in place:
        assert account() == {"done": 0, "failed": 5, "ValueError in parse": 5}


async def test_a_crawl_of_a_spider_that_yields_nothing_warns_and_no_other_does(place, caplog):
    """Its start_requests() was not called, and the crawl had "finished"."""
    empty = type("Empty", (StartsNothing, Parsing), {})
    await crawl(empty, place)
    (warning,) = (r for r in caplog.records if "Nothing was fetched" in r.message)
    assert warning.levelname == "WARNING"
    caplog.clear()
    await visit({"/": []}, Parsing, place)
    await crawl(empty, place)  # what another run has fetched is done
    assert "Nothing was fetched" not in caplog.text


async def test_a_page_behind_more_redirects_than_scrapy_follows_by_default_comes_again(crawl_daily):
    """Where its redirects led is forgotten with it: of a long chain that was not known any more."""
    chain = {f"/{n}": f"/{n + 1}" for n in range(30)} | {"/": ["/0"]}
    down, up = chain | {"/30": 503}, chain | {"/30": []}
    days = (down, {"done": 1, "failed": 1, "503": 1}), (up, {"done": 2})
    _, site = await crawl_daily(Parsing, *days, REDIRECT_MAX_TIMES=40)
    assert site.hits["/30"] > 2


@pytest.mark.parametrize("most", [2, 40])  # 40 redirects to itself, if it leads nowhere else
async def test_a_page_whose_redirects_never_end_has_failed(crawl_daily, most):
    chain = {f"/{n}": "/0" if most == 40 else f"/{n + 1}" for n in range(9)} | {"/": ["/0"]}
    failed = {"done": 1, "failed": 1, "too many redirects": 1}
    await crawl_daily(Parsing, (chain, failed), REDIRECT_MAX_TIMES=most)


class Token:
    """A middleware that returns a request with another token, or a copy, if that was refused."""

    def process_response(self, request, response, spider=None):  # noqa: ARG002 - Scrapy's
        if response.status != 403:
            return response
        request.headers["X-Token"] = "fresh"
        return request.replace() if request.url.endswith("/copy") else request


async def test_a_request_that_a_middleware_returns_comes_as_often_as_a_retry(crawl_daily):
    """It was listed once more after each run, and sent 21, 63, 105 times."""
    names = ["/moved", "/same", "/copy"]
    pages = {"/": names, "/moved": "/refused", "/fine": []}
    refused = pages | dict.fromkeys(("/refused", "/same", "/copy"), 403)
    day = refused, {"done": 1, "failed": 3, "403": 3}
    mended = pages | {"/moved": [], "/same": [], "/copy": []}, {"done": 4}
    settings = {"DOWNLOADER_MIDDLEWARES": {Token: 543}, "RETRY_TIMES": 2}
    _, site = await crawl_daily(Parsing, day, day, mended, **settings)
    hits = {name: site.hits[name] for name in ("/same", "/copy", "/refused")}
    assert hits == {"/same": 7, "/copy": 7, "/refused": 6}


async def test_a_start_page_that_fails_in_a_later_run_is_one_page(crawl_daily):
    answers = [
        ([], {"done": 1}),
        (503, {"done": 0, "failed": 1, "503": 1}),
        (404, {"done": 0, "failed": 1, "404": 1}),  # in three runs, whatever it is
        ([], {"done": 1}),
        (404, {"done": 0, "unparsed": 1}),
        ("/seen", {"done": 1}),
        ([], {"done": 1}),
    ]
    days = [({"/": answer, "/seen": []}, expected) for answer, expected in answers]
    await crawl_daily(Parsing, *days)  # a retry of it is the same page


async def test_pages_that_redirect_to_each_other_have_failed_and_are_parsed_by_the_next_run(
    crawl_daily,
):
    """Each was marked when the other redirected to it, so neither is ever parsed."""
    names = {"/": ["/one", "/two", "/three"]}
    circle = names | {"/one": "/two", "/two": "/three", "/three": "/one"}
    failed = {"done": 1, "unparsed": 2, "failed": 1, "too many redirects": 1}
    mended = (names | {"/one": [], "/two": [], "/three": []}), {"done": 3, "unparsed": 2}
    spider, _ = await crawl_daily(Parsing, (circle, failed), mended)
    assert len(spider.parsed) == 3
