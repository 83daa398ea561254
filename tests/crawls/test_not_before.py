"""Crawls in which requests wait for a time, hosts are left alone, and all workers keep one pace."""

import logging
import re
import time
from itertools import count

import pytest
from scrapy import Request
from scrapy.core.engine import ExecutionEngine
from scrapy.exceptions import DontCloseSpider
from scrapy.http import HtmlResponse
from scrapy.utils.defer import maybe_deferred_to_future
from support.crawling import Asked, Follower, at, crawl, download, placed, visit
from support.sites import Pages, fan
from support.spiders import Lambdas
from support.waiting import until
from twisted.internet.defer import Deferred

from scrapy_bloom import hold
from scrapy_bloom.crawl import frontier
from scrapy_bloom.crawl.scrapy.crawler import close_spider
from scrapy_bloom.crawl.scrapy.loop import call_later
from scrapy_bloom.local import backend
from scrapy_bloom.redis import pacing
from scrapy_bloom.signals import hold_slot

pytestmark = [pytest.mark.server, pytest.mark.each_scrapy]

LONG = 600
"""Seconds that no test survives if it waits for them."""

EARLY = 0.02
"""Seconds by which a request may seem early: two clocks, and timers."""

ENDS = {"CLOSESPIDER_TIMEOUT": 400}
"""Ends a crawl of a test that would hang otherwise."""

ROTATING = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue"}
ONE_ORDER = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}


@pytest.fixture
def restless(monkeypatch):
    """Nothing but its own timers wakes a crawl, which is idle whenever it waits."""
    for module in frontier, backend, pacing:
        monkeypatch.setattr(module, "IDLE_AFTER", 0.0)
    for name in ("_SLOT_HEARTBEAT_INTERVAL", "_MIN_BACK_IN_SECONDS"):
        if hasattr(ExecutionEngine, name):
            monkeypatch.setattr(ExecutionEngine, name, LONG)


place = placed("kept job", "shared")


@pytest.fixture
def kept(place):
    """The settings of a crawl that can wait."""
    return place | ENDS


def busy(seconds, times=1):
    """Return a page that asks to be left alone so often, and then has no links."""
    asked = count()
    return lambda *_: (503, {"Retry-After": str(seconds)}) if next(asked) < times else []


def sent_too_early(pages, paths, caplog):
    """Return when a host was asked in its pause of two seconds, and whether others have waited.

    When that began the log says: on a busy machine one more may be sent before.
    """
    first, second = pages.times["/busy"]
    assert second - first >= 2 - EARLY
    [said] = [each.created for each in caplog.records if "pausing requests" in each.msg]
    held = said - time.time() + time.monotonic()
    moments = [moment for path in paths for moment in pages.times[path]]
    too_early = [moment for moment in moments if held < moment < first + 2 - EARLY]
    return too_early, max(moments) > held


class Delaying(Follower):
    """Delays the pages that it is told, and gives its meta to all links."""

    def __init__(self, delays, **arguments):
        super().__init__(**arguments)
        self.delays, self.metas = delays, []

    def request(self, response, href):
        delay = {"bloom_delay": self.delays[href]} if href in self.delays else {}
        return response.follow(href, meta={**response.meta, **delay})

    def parse(self, response):
        self.metas.append(response.meta)
        yield from super().parse(response)


class DelayedLambdas(Delaying):
    """Its requests cannot be stored, and nothing but memory knows of one of them."""

    unstorable = 1

    async def start(self):
        async for request in super().start():
            yield request
        wait = {"bloom_delay": 2.0}
        yield Request(self.url + "d", lambda page: self.parse(page), meta=wait)  # noqa: PLW0108


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("spider", [Delaying, DelayedLambdas])
async def test_a_request_waits_and_its_children_do_not(kept, spider):
    kept["BLOOM_RETRY_AFTER"] = 0  # its middleware would remove the key from the meta
    delays = {"/a": "1.2s", "/b": 0, "/d": 2}
    leaves = "bcd" if spider is Delaying else "bc"
    crawler, pages = await visit(
        {**fan("a", *leaves), "/a": ["/c"], "/d": []}, spider, kept, delays=delays
    )
    (begin,) = pages.times["/"]
    assert pages.times["/a"][0] - begin >= 1.2 - EARLY
    assert pages.times["/d"][0] - begin >= 2 - EARLY or spider is DelayedLambdas
    assert pages.hits == dict.fromkeys(["/", "/a", "/b", "/c", "/d"], 1)
    assert not any("bloom_delay" in meta for meta in crawler.spider.metas)


async def test_a_wrong_delay_is_logged_once_and_means_none(kept, caplog):
    wrong = {"/a": "soon", "/b": -1}
    crawler, _ = await visit(fan("a", "b"), Delaying, kept, delays=wrong)
    assert len(crawler.spider.parsed) == 3
    (error,) = (r.getMessage() for r in caplog.records if r.levelno == logging.ERROR)
    assert "does not wait: meta['bloom_delay'] = 'soon': must be a time" in error


async def test_while_all_waits_the_spider_is_idle_and_fed_and_a_run_that_leaves_says_what_waits(
    kept, caplog
):
    caplog.set_level("INFO")

    class Fed(Asked, Delaying):
        """Gets a request when it is idle, as spiders of scrapy-redis do, and then closes itself."""

        def idle(self):
            if len(self.parsed) == 1:
                self.crawler.engine.crawl(Request(self.url + "fed"))
            else:
                close_spider(self.crawler, "finished")
            raise DontCloseSpider

    crawler, pages = await visit(fan("a") | {"/fed": []}, Fed, kept, delays={"/a": LONG})
    assert "/a" not in pages.hits
    begins = "Nothing can be fetched before", "Crawl stopped"
    line, *_, said = (text for text in caplog.messages if text.startswith(begins))
    until = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: 1 request waiting until then or longer\."
    assert re.fullmatch(rf"Nothing can be fetched before {until}", line)
    assert said.startswith("Crawl stopped: 3 pages, 2 done, 1 waiting; ")
    assert crawler.stats.get_value("bloom/queue/later") == 1


async def test_a_spider_may_be_fed_before_we_look_whether_anything_waits(kept, caplog):
    """Nothing waits for a time then: to say until when raised an error."""

    class Fed(Asked, Follower):
        def idle(self):
            self.crawler.engine.crawl(Request(self.url + "fed"))

    _, pages = await visit(fan("a") | {"/fed": []}, Fed, kept)
    assert pages.hits == {"/": 1, "/a": 1, "/fed": 1}
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


class HoldsUp:
    """A downloader middleware that holds up links until a host is left alone, as for robots.txt."""

    def __init__(self, crawler):
        self.held_up, self.released = [], False
        crawler.signals.connect(self.release, signal=hold_slot)

    from_crawler = classmethod(lambda cls, crawler: cls(crawler))

    def release(self):
        self.released = True
        call_later(0, lambda: [each.callback(None) for each in self.held_up])

    async def process_request(self, request, spider=None):  # noqa: ARG002 - Scrapy 2.13 gives it
        if not (self.released or request.url.endswith(("/", "busy"))):
            self.held_up.append(Deferred())
            await maybe_deferred_to_future(self.held_up[-1])


WAITS_IN = {
    "queue": {**ROTATING, "CONCURRENT_REQUESTS": 1},
    "queue in one order": {**ONE_ORDER, "CONCURRENT_REQUESTS": 1},
    # One at a time: however slow the machine is, not all are sent before the answer is read.
    "downloader": {"DOWNLOAD_DELAY": 0.5, "CONCURRENT_REQUESTS_PER_DOMAIN": 1},
    "middleware": {"DOWNLOADER_MIDDLEWARES": {HoldsUp: 100}},
}


@pytest.mark.parametrize(
    ("where", "spider"),
    [
        *((where, Follower) for where in ("queue", "queue in one order", "downloader")),
        *((where, Lambdas) for where in ("queue", "downloader", "middleware")),
    ],
)
async def test_a_host_that_asks_for_it_is_left_alone(kept, where, spider, caplog):
    """What goes back is filtered as before: a redirect to a known page is dropped."""
    caplog.set_level("INFO")

    def to_known(*_):
        return "/known"

    site = fan("known", first=to_known, busy=busy(2), last=to_known)  # one comes before it, anyhow
    crawler, pages = await visit(site, spider, kept | WAITS_IN[where])
    paths = {*pages.times} - {"/busy"}
    assert sum(pages.hits[path] for path in paths) == 4
    too_early, have_waited = sent_too_early(pages, paths, caplog)
    assert too_early == []
    # If a machine stands still they come to the downloader in any order: this one last, say.
    assert have_waited or where == "downloader"
    assert crawler.stats.get_value("bloom/queue/holds") == 1


async def test_a_host_that_is_left_alone_is_not_reached_through_redirects(kept, caplog):
    """Scrapy sends what another host redirects in the slot of that host."""
    caplog.set_level("INFO")
    names = [f"/p{number}" for number in range(5)]

    def to_busy(path, _):
        until(lambda: "pausing requests" in caplog.text)  # else some are on their way by then
        return pages.url + path[3:]

    with Pages({"/busy": busy(2), **{name: [] for name in names}}) as pages:
        other = pages.url.replace(pages.HOST, "localhost")
        pages.pages["/"] = ["/busy", *(f"{other}/to{name}" for name in names)]
        pages.pages |= {f"/to{name}": to_busy for name in names}
        await crawl(Follower, {**kept, "DOWNLOAD_DELAY": 0.3}, url=pages.url + "/")
    assert [pages.hits[name] for name in names] == [1] * 5
    assert sent_too_early(pages, names, caplog) == ([], True)


async def test_what_a_callback_downloads_is_sent_to_a_held_host(kept):
    """It does not pass through the scheduler, and would be asked for again and again."""

    class Asks(Follower):
        async def parse(self, response):
            if response.url.endswith("/a"):
                assert hold(response.request, self.crawler, LONG)
                for request in response.request, response.request.replace(dont_filter=True):
                    await download(self.crawler, request)
            for found in super().parse(response):
                yield found

    crawler, pages = await visit(fan("a"), Asks, kept)
    assert pages.hits == {"/": 1, "/a": 3}
    assert crawler.stats.get_value("finish_reason") == "finished"


async def test_a_crawl_ends_although_a_host_without_requests_is_left_alone(kept, monkeypatch):
    for module in frontier, backend, pacing:
        monkeypatch.setattr(module, "IDLE_AFTER", LONG)  # as if the pause were nearly over
    crawler, _ = await visit(fan(busy=busy(LONG)), settings={**kept, "RETRY_ENABLED": False})
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert crawler.stats.get_value("bloom/queue/holds") == 1


class Cached:
    """A downloader middleware that answers everything itself."""

    def process_request(self, request, spider=None):  # noqa: ARG002
        links = "".join(f'<a href="/{number}">link</a>' for number in range(30))
        return HtmlResponse(request.url, body=links.encode(), request=request)


class Proxies:
    """A downloader middleware that sends each request in another download slot."""

    def process_request(self, request, spider=None):  # noqa: ARG002
        request.meta["download_slot"] = request.url


@at("shared")
@pytest.mark.parametrize("middleware", [Cached, Proxies])
async def test_what_is_not_sent_to_its_host_does_not_wait_for_it(kept, middleware, caplog):
    caplog.set_level("INFO")
    settings = {"DOWNLOAD_DELAY": LONG, "DOWNLOADER_MIDDLEWARES": {middleware: 10}}
    crawler, _ = await visit(fan(*range(30)), Follower, kept | settings)
    assert len(crawler.spider.parsed) == 31
    assert "DOWNLOAD_DELAY = 600 applies per host across all workers." in caplog.text
