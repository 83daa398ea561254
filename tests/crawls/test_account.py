"""What becomes of pages when the site or the project's code fails: each is accounted for."""

import asyncio
import re
from collections import Counter

import pytest
from scrapy import Request
from scrapy.exceptions import DropItem, IgnoreRequest
from support.crawling import Follower, StartsNothing, at, crawl, make_crawler, placed, target_of
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
def account(caplog):
    """Return what the last crawl's last line says: how many pages are what, and why they failed."""
    caplog.set_level("INFO")

    def account():
        (text,) = (
            text for text in caplog.messages if text.startswith(("Crawl stopped", "Crawl finished"))
        )
        caplog.clear()
        words = r"pages?\b|done|unparsed|not kept|failed|waiting|in flight"
        found = {
            word.rstrip("s"): int(n)
            for n, word in re.findall(rf"(\d+) ({words})", text.partition(";")[0])
        }
        _, _, reasons = text.partition("failed (")
        listed = re.findall("(\\d+) \u00d7 ([^,)]+)", reasons.partition(")")[0])
        pages = found.pop("page")
        assert pages == sum(found.values()), text
        return found | {reason: int(n) for n, reason in listed}

    return account


class Parsing(Follower):
    """Yields an item for each page, and may fail as its pages say."""

    name = "parsing"
    filtered = False

    def parse(self, response):
        yield from super().parse(response)
        if response.url.endswith("/raises") and self.crawler.settings["BUG"]:
            raise ValueError("a bug")
        yield {"url": response.url}


class Logging(Parsing):
    """Has an errback that only logs, which deals with nothing."""

    def request(self, response, href):
        return response.follow(href, errback=self.log_it)

    def log_it(self, failure):
        self.logger.info(failure)


class Picky:
    """A pipeline that drops items; and fails for others, and a spider middleware that does so."""

    def __init__(self, crawler):
        self.fails = crawler.settings["BUG"]

    from_crawler = classmethod(lambda cls, crawler: cls(crawler))

    def process_item(self, item, spider=None):  # noqa: ARG002 - Scrapy's
        errors = {"item": KeyError("price"), "cancelled": asyncio.CancelledError()}
        error = errors.get(item["url"].rpartition("/")[2])
        if item["url"].endswith("/dropped"):
            raise DropItem("not wanted")
        if error and self.fails:
            raise error
        return item

    def process_spider_input(self, response, spider=None):  # noqa: ARG002 - Scrapy's
        if self.fails and response.url.endswith("/refused"):
            raise OSError("a bug")


async def test_what_has_failed_is_fetched_by_the_next_run_and_what_was_decided_is_not(
    place, account, caplog
):
    down = True
    bad = {f"/{name}" for name in ("bad", "mute", "raises", "refused", "item", "cancelled")}
    pages = {path: [] for path in (*bad, "/dropped", "/fine", "/c")} | {"/gone": 404}
    pages |= {"/bad": lambda *_: 503 if down else [], "/mute": lambda *_: ... if down else ["/c"]}
    pages |= {"/": [*bad, "/dropped", "/gone", "/fine"]}
    settings = {**place, **QUICK, "ITEM_PIPELINES": {Picky: 1}, "SPIDER_MIDDLEWARES": {Picky: 50}}
    with Pages(pages) as site:
        stats = (await crawl(Logging, settings | {"BUG": True}, url=site.url + "/")).stats
        hits = dict(site.hits)
        for reason in ("503", "ValueError in parse", "OSError in process_spider_input"):
            assert stats.get_value(f"bloom/failed/{reason}") == 1
        said = account()  # which has some of the reasons
        expected = {"done": 3, "unparsed": 1, "failed": 6, "waiting": 0}
        assert said == dict.fromkeys(said, 1) | expected
        down = False
        crawler = await crawl(Logging, settings, url=site.url + "/")
        assert "0 requests to fetch, 6 on the failed list. Capacity" in caplog.text
        if not place.get("JOBDIR"):
            assert "6 requests that failed in earlier runs are fetched again." in caplog.messages
        again = {path: site.hits[path] - hits.get(path, 0) for path in site.hits}
        assert {path for path, more in again.items() if more} == {"/", "/c", *bad}
        assert set(again.values()) == {0, 1}
        assert account() == {"done": 10, "unparsed": 1, "waiting": 0}
        assert len(crawler.spider.parsed) == 8
        hits = site.hits["/bad"]
        await crawl(Logging, settings, url=site.url + "/")
        assert site.hits["/bad"] == hits
        assert account() == {"done": 10, "unparsed": 1, "waiting": 0}


async def test_an_outage_costs_no_page_also_if_all_redirect_to_one_that_fails(place, account):
    """A page that was redirected to one in flight waits for that, and fails with it."""
    down = True
    names = [f"/{number}" for number in range(20)]
    pages = {"/": names, "/maintenance": lambda *_: 503 if down else []}
    pages |= {name: lambda *_: "/maintenance" if down else [] for name in names}
    with Pages(pages) as site:
        await crawl(Parsing, {**place, **QUICK}, url=site.url + "/")
        assert account() == {"done": 1, "failed": 20, "waiting": 0, "503": 20}
        down = False
        crawler = await crawl(Parsing, {**place, **QUICK}, url=site.url + "/")
    assert account() == {"done": 21, "waiting": 0}
    # Each is fetched again from where it began.
    assert {*crawler.spider.parsed} == {site.url + name for name in ("/", *names)}


class Rescuing(Parsing):
    """Deals with failed downloads in an errback."""

    how = "item"

    def request(self, response, href):
        return response.follow(href, errback=self.rescue)

    def rescue(self, failure):
        if self.how == "item":
            yield {"url": failure.request.url}
        elif self.how == "request":
            yield Request(f"{self.url}mirror", self.parse)


@pytest.mark.parametrize(("status", "kind"), [(503, "failed"), (404, "unparsed")])
@pytest.mark.parametrize(("how", "left"), [("item", 0), ("request", 0), ("log", 1)])
async def test_an_errback_has_dealt_with_a_page_if_it_yields_something(
    place, account, how, left, status, kind
):
    settings = {**place, **QUICK, "RETRY_ENABLED": False}
    with Pages({"/": ["/bad"], "/bad": status, "/mirror": []}) as site:
        spider = type("Rescuing", (Rescuing,), {"how": how})
        await crawl(spider, settings, url=site.url + "/")
    assert account().get(kind, 0) == left


async def test_a_wall_is_said_if_no_page_comes_through_it(place, caplog):
    names = [f"/{number}" for number in range(19)]
    with Pages({"/": names} | dict.fromkeys(names, 403) | {"/9": []}) as site:
        oldest = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}
        await crawl(Parsing, {**place, **oldest, "CONCURRENT_REQUESTS": 1}, url=site.url + "/")
    assert not any("in a row" in text for text in caplog.messages)


@pytest.mark.parametrize("wall", [403, 407, "/login"])
async def test_pages_behind_a_wall_are_said_listed_and_fetched_once_put_back(
    place, account, caplog, bloom, wall
):
    """They counted as done, and nothing brought them back."""
    walled = True
    names = [f"/{number}" for number in range(12)]
    pages = {"/": ["/login", *names], "/login": []}
    pages |= {name: lambda *_: wall if walled else [] for name in names}
    settings = {**place, **QUICK, "DEPTH_PRIORITY": 0, "CONCURRENT_REQUESTS": 1}
    reason = "redirected to seen pages" if wall == "/login" else str(wall)
    with Pages(pages) as site:
        await crawl(Parsing, settings, url=site.url + "/")
        (warning,) = (text for text in caplog.messages if "in a row were not parsed" in text)
        assert warning.startswith("10 pages of 127.0.0.1")
        assert account() == {"done": 2, "unparsed": 12, "waiting": 0}
        walled = False
        await crawl(Parsing, settings, url=site.url + "/")
        assert account() == {"done": 2, "unparsed": 12, "waiting": 0}
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
        assert account() == {"done": 14 + (wall == "/login"), "waiting": 0}  # that comes again, too
        assert len(crawler.spider.parsed) == 13 + (wall == "/login")


async def test_what_is_ignored_or_forbidden_is_kept_until_it_is_accepted(place, account, bloom):
    class Goal:
        def process_request(self, request, spider=None):  # noqa: ARG002 - Scrapy's
            if request.url.endswith("/after"):
                raise IgnoreRequest("the goal is reached")

    pages = fan("after", "forbidden", "fine") | {
        "/robots.txt": b"User-agent: *\nDisallow: /forbidden"
    }
    settings = {**place, **QUICK, "DOWNLOADER_MIDDLEWARES": {Goal: 10}, "ROBOTSTXT_OBEY": True}
    with Pages(pages) as site:
        await crawl(Parsing, settings, url=site.url + "/")
        assert account() == {"done": 2, "unparsed": 2, "waiting": 0}
        for reason in ("IgnoreRequest", "robots.txt"):
            dropped = bloom(f"queue {target_of(place)} --drop --reason {reason}")[1]
            assert dropped == ["1 request marked as done"]
        await crawl(Parsing, settings, url=site.url + "/")
        assert account() == {"done": 4, "waiting": 0}


async def test_a_redirect_that_leads_off_site_is_kept(place, account, bloom):
    """Scrapy drops it before it reaches a scheduler, and its page was done."""
    spider = type("OnSite", (Parsing,), {"allowed_domains": ["127.0.0.1"]})
    wall = "http://sso.invalid/login"
    with Pages({"/": ["/a"], "/a": lambda *_: wall or []}) as site:
        await crawl(spider, {**place, **QUICK}, url=site.url + "/")
        assert account() == {"done": 1, "unparsed": 1, "waiting": 0}
        assert bloom(f"queue {target_of(place)} --retry --unparsed")[1] == ["1 request put back"]
        wall = None
        await crawl(spider, {**place, **QUICK}, url=site.url + "/")
        assert account() == {"done": 2, "waiting": 0}


class LogsIn(Parsing):
    """Logs in by a request of start(), as Scrapy's docs do; what it yields follows from that."""

    async def start(self):
        yield Request(f"{self.url}login", self.enter, dont_filter=True)

    def enter(self, response):
        yield response.follow("/", self.parse, dont_filter=True)


@pytest.mark.parametrize("wall", [403, "/login"])
async def test_failed_pages_come_back_after_the_login_of_the_next_run(place, account, wall):
    """They were sent beside it, met the wall, and left the list for good."""
    day, members = 1, set()
    names = [f"/{number}" for number in range(15)]

    def page(*_):
        return 503 if day == 1 else [] if day in members else wall

    def login(*_):
        members.add(day)
        return []

    pages = {"/": names, "/login": login} | dict.fromkeys(names, page)
    settings = {**place, **QUICK, "RETRY_ENABLED": False}
    with Pages(pages) as site:
        await crawl(LogsIn, settings, url=site.url + "/")
        assert account() == {"done": 2, "failed": 15, "waiting": 0, "503": 15}
        day = 2
        await crawl(LogsIn, settings, url=site.url + "/")
        assert account() == {"done": 18, "waiting": 0}  # the page after the login each time


async def test_failed_pages_are_only_counted_if_they_are_not_to_be_retried(place, account):
    settings = {**place, **QUICK, "BLOOM_RETRY_FAILED": False}
    with Pages({"/": ["/bad"], "/bad": 503}) as site:
        for _ in range(2):
            crawler = await crawl(Parsing, settings, url=site.url + "/")
            assert account() == {"done": 1, "unparsed": 1, "waiting": 0}
        assert site.hits["/bad"] == 2
    assert crawler.stats.get_value("bloom/failed/503") is None


async def test_what_fails_in_memory_is_fetched_once_a_run_however_many_pages_link_there(
    place, account
):
    """Each page links to all, and to be eligible again at once would have no end."""

    class Raising(Parsing):
        def request(self, response, href):
            return response.follow(href, lambda page: self.parse_and_raise(page))  # noqa: PLW0108

        def parse_and_raise(self, response):
            yield from super().parse(response)
            if self.crawler.settings["BUG"]:
                raise ValueError("a bug")

    names = ["/a", "/b", "/c", "/d"]
    slowly = {**place, **QUICK, "DOWNLOAD_DELAY": 0.2, "CLOSESPIDER_PAGECOUNT": 10}
    with Pages(dict.fromkeys(("/", *names), names)) as site:
        for bug, times in (True, 1), (False, 2):
            await crawl(Raising, {**slowly, "BUG": bug}, url=site.url + "/")
            assert site.hits == dict.fromkeys(("/", *names), times)
            assert account() == (
                {"done": 5, "waiting": 0}
                if not bug
                else {"done": 0, "failed": 1, "waiting": 0, "ValueError in parse_and_raise": 1}
            )


def test_whatever_an_exception_says_can_be_written():
    """JSON may have half an emoji."""
    assert Reason.of(ValueError("not \ud83d")).message == "not ?"


async def test_whatever_is_in_a_request_its_failure_is_listed(place, account):
    class Odd(Parsing):
        def request(self, response, href):
            metas = {"bloom_tries": 5}, {"redirect_urls": 5, "download_slot": "a"}
            return response.follow(href, meta=metas[href == "/b"])

        def parse(self, response):
            yield from super().parse(response)
            raise ValueError("a bug")

    with Pages({"/": ["/a", "/b"], "/a": [], "/b": []}) as site:
        for _ in range(2):
            await crawl(Odd, {**place, **QUICK}, url=site.url + "/")
            assert account() == {"done": 0, "failed": 3, "waiting": 0, "ValueError in parse": 3}
    assert site.hits == {"/": 2, "/a": 2, "/b": 2}


class Linking(Parsing):
    """Counts the pages of which all links are enqueued."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.linked = Counter()

    def parse(self, response):
        yield from super().parse(response)
        self.linked[response.url.rpartition("/")[2]] += 1


async def test_a_link_to_what_a_redirect_led_to_is_not_lost_with_it(place, account):
    """The link was dropped as a duplicate, and the page no longer redirects when asked again."""
    down, made = True, []

    def link():
        until(lambda: site.hits["/target"])  # the redirect is stored
        return ["/target"]

    def target():
        until(lambda: made[0].spider.linked["linking"])
        return 503

    pages = {
        "/": ["/moved", "/linking"],
        "/moved": lambda *_: "/target" if down else [],
        "/linking": lambda *_: link() if down else ["/target"],
        "/target": lambda *_: target() if down else [],
    }
    with Pages(pages) as site:
        made.append(make_crawler(Linking, {**place, "RETRY_ENABLED": False}))
        await made[0].crawl(url=site.url + "/")
        assert account() == {"done": 1, "failed": 2, "waiting": 0, "503": 2}
        down = False
        await crawl(Linking, place, url=site.url + "/")
    assert account() == {"done": 4, "waiting": 0}
    assert site.hits["/target"] == 2


class HandsOn(Parsing):
    """Hands on meta that looks like ours, out of a site's JSON, say."""

    def request(self, response, href):
        foreign = ["7"], {"a": 1}, b"short", "text", 5
        metas = [dict.fromkeys(OURS, value) for value in foreign]
        return response.follow(href, meta=metas[len(self.parsed) % len(metas)])


@at("memory", "kept job", "shared")
async def test_foreign_meta_that_looks_like_ours_is_removed(place):
    """A list as `bloom_start` was never taken by Redis: the crawl did not end."""
    with Pages({"/": ["/a"], "/a": ["/b"], "/b": ["/c"], "/c": ["/d"], "/d": []}) as site:
        crawler = await crawl(HandsOn, {**place, **QUICK}, url=site.url + "/")
    assert len(crawler.spider.parsed) == 5


class Empty(StartsNothing, Parsing):
    pass


async def test_a_crawl_of_a_spider_that_yields_nothing_warns_and_no_other_does(place, caplog):
    """Its start_requests() was not called, and the crawl had "finished"."""
    await crawl(Empty, place)
    (warning,) = (r for r in caplog.records if "Nothing was fetched" in r.message)
    assert warning.levelname == "WARNING"
    caplog.clear()
    with Pages({"/": []}) as site:
        await crawl(Parsing, place, url=site.url + "/")
        await crawl(Empty, place)  # what another run has fetched is done
    assert "Nothing was fetched" not in caplog.text


async def test_a_page_behind_more_redirects_than_scrapy_follows_by_default_comes_again(
    place, account
):
    """Where its redirects led is forgotten with it: of a long chain that was not known any more."""
    down = True
    pages = {f"/{n}": f"/{n + 1}" for n in range(30)}
    pages |= {"/": ["/0"], "/30": lambda *_: 503 if down else []}
    settings = {**place, **QUICK, "REDIRECT_MAX_TIMES": 40}
    with Pages(pages) as site:
        await crawl(Parsing, settings, url=site.url + "/")
        assert account() == {"done": 1, "failed": 1, "waiting": 0, "503": 1}
        down = False
        await crawl(Parsing, settings, url=site.url + "/")
        assert account() == {"done": 2, "waiting": 0}
        assert site.hits["/30"] > 2


async def test_an_endless_redirect_to_itself_is_a_failure_however_many_are_allowed(place, account):
    with Pages(fan(again="/again")) as site:
        await crawl(Parsing, place | {"REDIRECT_MAX_TIMES": 40}, url=site.url + "/")
    assert account() == {"done": 1, "failed": 1, "waiting": 0, "too many redirects": 1}


class Twofold(Parsing):
    """Has two callbacks for its first page, and none if it begins with `nothing`."""

    nothing = False

    async def start(self):
        if not self.nothing:
            yield Request(self.url, dont_filter=True)
            yield Request(self.url, self.other, dont_filter=True)

    def other(self, response):
        self.parsed.append(response.url)


@pytest.mark.parametrize("nothing", [False, True])
async def test_two_start_requests_of_one_page_that_fail_are_both_fetched_again(
    place, account, nothing
):
    """After a retry, which is the same page."""
    down = True
    with Pages({"/": lambda *_: 503 if down else []}) as site:
        await crawl(Twofold, {**place, **QUICK}, url=site.url + "/")
        assert account() == {"done": 0, "failed": 2, "waiting": 0, "503": 2}
        down = False
        crawler = await crawl(Twofold, place, url=site.url + "/", nothing=nothing)
        assert account() == {"done": 2, "waiting": 0}
    assert len(crawler.spider.parsed) == 2
    assert site.hits["/"] == 6


async def test_a_start_page_that_fails_in_a_later_run_is_one_page(place, account):
    with Pages({}) as site:
        for answer, said in (
            ([], {"done": 1}),
            (503, {"done": 0, "failed": 1, "503": 1}),
            (404, {"done": 0, "failed": 1, "404": 1}),  # in three runs, whatever it is
            ([], {"done": 1}),
            (404, {"done": 0, "unparsed": 1}),
            ("/seen", {"done": 1}),
            ([], {"done": 1}),
        ):
            site.pages = {"/": answer, "/seen": []}
            await crawl(Parsing, {**place, "RETRY_ENABLED": False}, url=site.url + "/")
            assert account() == said | {"waiting": 0}


async def test_pages_that_redirect_to_each_other_have_failed_and_are_parsed_by_the_next_run(
    place, account
):
    """Each was marked when the other redirected to it, so neither is ever parsed."""
    circle = True
    pages = {"/": ["/one", "/two", "/three"]}
    for page, to in (("/one", "/two"), ("/two", "/three"), ("/three", "/one")):
        pages[page] = lambda *_, to=to: to if circle else []
    with Pages(pages) as site:
        await crawl(Parsing, {**place, **QUICK}, url=site.url + "/")
        said = {"done": 1, "unparsed": 2, "failed": 1, "waiting": 0, "too many redirects": 1}
        assert account() == said
        circle = False
        crawler = await crawl(Parsing, {**place, **QUICK}, url=site.url + "/")
    assert len(crawler.spider.parsed) == 3
