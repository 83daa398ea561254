"""Crawls in which requests wait for a time, and hosts are left alone."""

import logging
import re
import time
from itertools import pairwise

import pytest
from pytest_twisted import ensureDeferred
from scrapy import Request, signals
from scrapy.core.engine import ExecutionEngine
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.utils.defer import maybe_deferred_to_future
from support.crawling import Follower, crawl, settings_at
from support.sites import Pages
from twisted.internet.defer import Deferred, gatherResults

from scrapy_bloom.crawl.engine import call_later
from scrapy_bloom.local import frontier as local
from scrapy_bloom.redis import pacing
from scrapy_bloom.signals import hold_slot

pytestmark = [pytest.mark.server, pytest.mark.each_scrapy]

LONG = 600
"""Seconds that no test survives if it waits for them."""

EARLY = 0.02
"""Seconds by which a request may seem early: two clocks, and timers."""

ENDS = {"CLOSESPIDER_TIMEOUT": 100}
"""Ends a crawl of a test that would hang otherwise."""

ROTATING = "scrapy.pqueues.DownloaderAwarePriorityQueue"
ONE_ORDER = "scrapy.pqueues.ScrapyPriorityQueue"


@pytest.fixture
def restless(monkeypatch):
    """Nothing but its own timers wakes a crawl, which is idle whenever it waits."""
    for module in local, pacing:
        monkeypatch.setattr(module, "REST", 0.0)
    for name in ("_SLOT_HEARTBEAT_INTERVAL", "_MIN_BACK_IN_SECONDS"):
        if hasattr(ExecutionEngine, name):
            monkeypatch.setattr(ExecutionEngine, name, LONG)


@pytest.fixture
def shared(request):
    """The settings of workers that share a crawl."""
    return settings_at("shared", request) | ENDS


@pytest.fixture(params=["kept job", "shared"])
def kept(request):
    """The settings of a crawl that can wait."""
    return settings_at(request.param, request) | ENDS


class Site(dict):
    """Pages that note when they were asked for.

    Attributes:
        times: for each path, when it was asked for.
    """

    def __init__(self, **pages):
        super().__init__()
        self.times = {}
        for name, answer in pages.items():
            self[f"/{name}"] = self.page(answer)
        self["/"] = self.page([*self])

    def page(self, answer):
        def visited(path, _cookie):
            self.times.setdefault(path, []).append(time.monotonic())
            return answer(self, path) if callable(answer) else answer

        return visited


def busy(seconds, times=1):
    """Return a page that asks to be left alone so often, and then has no links."""

    def answer(site, path):
        asked = len(site.times[path]) <= times
        return (503, {"Retry-After": str(seconds)}) if asked else []

    return answer


class Delaying(Follower):
    """Delays the pages that it is told, and gives its meta to all links."""

    def __init__(self, delays, **arguments):
        super().__init__(**arguments)
        self.delays, self.metas = delays, []

    def request(self, response, href):
        meta = {**response.meta, **self.delays.get(href, {})}
        return response.follow(href, meta=meta)

    def parse(self, response):
        self.metas.append(response.meta)
        yield from super().parse(response)


def delays(**seconds):
    return {f"/{name}": {"bloom_delay": value} for name, value in seconds.items()}


# Requests


@ensureDeferred
@pytest.mark.usefixtures("restless")
async def test_a_request_waits_and_its_children_do_not(kept):
    site = Site(a=["/c"], b=[], c=[], d=[])
    kept["BLOOM_RETRY_AFTER"] = 0  # its middleware would remove the key from the meta
    with Pages(site) as pages:
        crawler = await crawl(
            Delaying, kept, url=pages.url + "/", delays=delays(a="1.2s", b=0, d=2)
        )
    (begin,) = site.times["/"]
    assert site.times["/a"][0] - begin >= 1.2 - EARLY
    assert site.times["/d"][0] - begin >= 2 - EARLY
    assert pages.hits == dict.fromkeys(["/", "/a", "/b", "/c", "/d"], 1)
    assert not any("bloom_delay" in meta for meta in crawler.spider.metas)


@ensureDeferred
@pytest.mark.usefixtures("restless")
async def test_a_request_that_cannot_be_stored_waits_too(kept):
    class DelayedLambdas(Delaying):
        def request(self, response, href):
            request = super().request(response, href)
            return request.replace(callback=lambda page: self.parse(page))  # noqa: PLW0108

        async def start(self):
            async for request in super().start():
                yield request
            wait = {"bloom_delay": 2.0}
            yield Request(self.url + "begin", lambda page: self.parse(page), meta=wait)  # noqa: PLW0108

    site = Site(a=[], b=[])
    site["/begin"] = site.page([])
    with Pages(site) as pages:
        await crawl(DelayedLambdas, kept, url=pages.url + "/", delays=delays(a=1.2))
    assert pages.hits.pop("/begin") == 1  # nothing but memory knows of it
    assert site.times["/a"][0] - site.times["/"][0] >= 1.2 - EARLY
    assert pages.hits == dict.fromkeys(["/", "/a", "/b"], 1)


@ensureDeferred
async def test_a_wrong_delay_is_logged_once_and_means_none(kept, caplog):
    with Pages(Site(a=[], b=[])) as pages:
        url, wrong = pages.url + "/", delays(a="soon", b=-1)
        crawler = await crawl(Delaying, kept, url=url, delays=wrong)
    assert len(crawler.spider.parsed) == 3
    (error,) = (r.getMessage() for r in caplog.records if r.levelno == logging.ERROR)
    assert "does not wait: meta['bloom_delay'] = 'soon': must be a time" in error


@ensureDeferred
async def test_while_all_waits_the_spider_is_idle_and_fed_and_says_until_when(kept, caplog):
    caplog.set_level("INFO")

    class Fed(Delaying):
        """Gets a request when it is idle, as spiders of scrapy-redis do."""

        @classmethod
        def from_crawler(cls, crawler, *arguments, **keywords):
            spider = super().from_crawler(crawler, *arguments, **keywords)
            crawler.signals.connect(spider.feed, signal=signals.spider_idle)
            return spider

        def feed(self):
            if self.parsed and self.parsed[-1].endswith("/"):
                self.crawler.engine.crawl(Request(self.url + "fed", callback=self.enough))
            raise DontCloseSpider

        def enough(self, response):  # noqa: ARG002 - Scrapy's signature
            raise CloseSpider("enough")

    site = Site(a=[])
    site["/fed"] = site.page([])
    with Pages(site) as pages:
        crawler = await crawl(Fed, kept, url=pages.url + "/", delays=delays(a=LONG))
    assert crawler.stats.get_value("finish_reason") == "enough"
    assert "/a" not in pages.hits
    lines = [text for text in caplog.messages if text.startswith("Nothing can be fetched before")]
    assert len(lines) == 1
    until = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: 1 request waiting until then or longer\."
    assert re.fullmatch(rf"Nothing can be fetched before {until}", lines[0])
    assert crawler.stats.get_value("bloom/frontier/later") == 1


# Hosts


class Lambdas(Follower):
    """Its requests cannot be stored."""

    def request(self, response, href):
        return response.follow(href, lambda page: self.parse(page))  # noqa: PLW0108


@ensureDeferred
@pytest.mark.parametrize("queue", [ROTATING, ONE_ORDER])
@pytest.mark.parametrize("spider", [Follower, Lambdas])
async def test_a_host_that_asks_for_it_is_left_alone(kept, queue, spider, caplog):
    caplog.set_level("INFO")
    site = Site(**{f"p{number}": [] for number in range(5)}, busy=busy(2))
    settings = {**kept, "SCHEDULER_PRIORITY_QUEUE": queue, "CONCURRENT_REQUESTS": 1}
    with Pages(site) as pages:
        crawler = await crawl(spider, settings, url=pages.url + "/")
    first, second = site.times.pop("/busy")
    assert second - first >= 2 - EARLY
    others = sorted(moment for times in site.times.values() for moment in times)
    assert len(others) == 6
    assert not [moment for moment in others if first < moment < first + 2 - EARLY]
    assert crawler.stats.get_value("bloom/frontier/holds") == 1
    assert sum("asks to be left alone" in text for text in caplog.messages) == 1


@ensureDeferred
@pytest.mark.parametrize("spider", [Follower, Lambdas])
async def test_what_waits_in_the_downloader_goes_back(kept, spider, caplog):
    caplog.set_level("INFO")
    site = Site(p0=[], p1=[], busy=busy(3))
    settings = {**kept, "DOWNLOAD_DELAY": 1}
    with Pages(site) as pages:
        await crawl(spider, settings, url=pages.url + "/")
    first, second = site.times.pop("/busy")
    assert second - first >= 3 - EARLY
    others = [moment for times in site.times.values() for moment in times]
    assert len(others) == 3
    [said] = [each.created for each in caplog.records if "asks to be left alone" in each.msg]
    # On a busy machine the next one may be sent before the answer is read.
    held = said - time.time() + time.monotonic()
    assert not [moment for moment in others if held < moment < first + 3 - EARLY]


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
        if "/p" in request.url and not self.released:
            self.held_up.append(Deferred())
            await maybe_deferred_to_future(self.held_up[-1])


@ensureDeferred
@pytest.mark.parametrize("spider", [Follower, Lambdas])
async def test_what_a_middleware_holds_up_goes_back(kept, spider):
    middlewares = {**(kept.get("DOWNLOADER_MIDDLEWARES") or {}), HoldsUp: 100}
    site = Site(p0=[], p1=[], busy=busy(2))
    with Pages(site) as pages:
        await crawl(spider, {**kept, "DOWNLOADER_MIDDLEWARES": middlewares}, url=pages.url + "/")
    first, second = site.times.pop("/busy")
    assert second - first >= 2 - EARLY
    assert pages.hits == {"/": 1, "/busy": 2, "/p0": 1, "/p1": 1}
    assert all(site.times[path][0] - first >= 2 - EARLY for path in ("/p0", "/p1"))


async def download(engine, request):
    if hasattr(engine, "download_async"):  # from Scrapy 2.14
        return await engine.download_async(request)
    return await maybe_deferred_to_future(engine.download(request))


@ensureDeferred
async def test_what_a_callback_downloads_is_sent_to_a_held_host(kept):
    """It does not pass through the scheduler, and would be asked for again and again."""

    class Asks(Follower):
        async def parse(self, response):
            self.parsed.append(response.url)
            if response.url.endswith("/a"):
                held = {"request": response.request, "seconds": LONG}
                self.crawler.signals.send_catch_log(hold_slot, **held)
                again = response.request.replace(dont_filter=True)
                await download(self.crawler.engine, response.request)
                await download(self.crawler.engine, again)
            for href in response.css("a::attr(href)").getall():
                yield self.request(response, href)

    site = Site(a=[])
    with Pages(site) as pages:
        crawler = await crawl(Asks, kept, url=pages.url + "/")
    assert pages.hits == {"/": 1, "/a": 3}
    assert crawler.stats.get_value("finish_reason") == "finished"


@ensureDeferred
@pytest.mark.parametrize("queue", [ROTATING, ONE_ORDER])
async def test_all_workers_leave_a_host_alone(shared, queue):
    names = {f"p{number:02}": [] for number in range(40)}
    site = Site(**names, busy=busy(3))
    settings = {
        **shared,
        "SCHEDULER_PRIORITY_QUEUE": queue,
        "CONCURRENT_REQUESTS": 1,
        "DOWNLOAD_DELAY": 0.1,
    }
    with Pages(site) as pages:
        url = pages.url + "/"
        both = [Deferred.fromCoroutine(crawl(Follower, settings, url=url)) for _ in range(2)]
        await gatherResults(both)
    first, _ = site.times.pop("/busy")
    others = [moment for times in site.times.values() for moment in times]
    assert len([moment for moment in others if first < moment < first + 3]) < 15  # of 30


@ensureDeferred
@pytest.mark.parametrize("queue", [ROTATING, ONE_ORDER])
async def test_other_hosts_are_not_held_up(kept, queue):
    class Hosts(Follower):
        free = 0

        def request(self, response, href):
            slot = "busy" if "busy" in href else "free"
            return response.follow(href, meta={"download_slot": slot})

        def parse(self, response):
            yield from super().parse(response)
            self.free += response.meta["download_slot"] == "free"
            if self.free == 20:
                raise CloseSpider("enough")

    pages = {f"busy{number}": busy(LONG, 99) for number in range(20)}
    pages |= {f"free{number}": [] for number in range(20)}
    with Pages(Site(**pages)) as pages:
        settings = {**kept, "SCHEDULER_PRIORITY_QUEUE": queue}
        crawler = await crawl(Hosts, settings, url=pages.url + "/")
    assert crawler.stats.get_value("finish_reason") == "enough"
    assert crawler.spider.free == 20


@ensureDeferred
async def test_a_host_that_never_answers_well_does_not_keep_a_crawl_alive(kept):
    names = {f"p{number}": busy(LONG, 99) for number in range(30)}
    settings = {**kept, "BLOOM_RETRY_AFTER": 0.4, "RETRY_TIMES": 4}
    with Pages(Site(**names)) as pages:
        crawler = await crawl(Follower, settings, url=pages.url + "/")
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert crawler.stats.get_value("bloom/frontier/holds") <= 3
    assert all(hits == 5 for path, hits in pages.hits.items() if path != "/")


@ensureDeferred
async def test_a_crawl_ends_although_a_host_without_requests_is_left_alone(kept, monkeypatch):
    for module in local, pacing:
        monkeypatch.setattr(module, "REST", LONG)  # as if the hold were nearly over
    with Pages(Site(busy=busy(LONG))) as pages:
        settings = {**kept, "RETRY_ENABLED": False}
        crawler = await crawl(Follower, settings, url=pages.url + "/")
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert crawler.stats.get_value("bloom/frontier/holds") == 1


@ensureDeferred
async def test_a_page_that_schedules_its_next_visit_has_one_chain(kept):
    class Watch(Follower):
        async def start(self):
            for _ in range(2):  # as after a kill
                yield Request(self.url, dont_filter=True)

        def parse(self, response):
            self.parsed.append(response.url)
            if len(self.parsed) == 6:
                raise CloseSpider("enough")
            wait = {"bloom_delay": 1, "bloom_max_age": 0.5}
            yield response.request.replace(meta=wait, dont_filter=False)

    site = Site()
    with Pages(site) as pages:
        await crawl(Watch, kept, url=pages.url + "/")
    _, *times = site.times["/"]
    assert len(times) == 5
    assert all(later - sooner >= 1 - EARLY for sooner, later in pairwise(times))


@ensureDeferred
async def test_a_callback_may_have_its_host_left_alone(kept):
    held = []

    class Polite(Follower):
        def parse(self, response):
            if response.url.endswith("busy") and not self.parsed.count(response.url):
                self.parsed.append(response.url)
                signal = {"request": response.request, "seconds": 2}
                self.crawler.signals.send_catch_log(hold_slot, **signal)
                held.append(time.monotonic())
                again = response.request.replace(dont_filter=True)
                again.meta["bloom_delay"] = 2
                yield again
            else:
                yield from super().parse(response)

    site = Site(**{f"p{number}": [] for number in range(5)}, busy=[])
    with Pages(site) as pages:
        await crawl(Polite, {**kept, "CONCURRENT_REQUESTS": 1}, url=pages.url + "/")
    first, second = site.times.pop("/busy")
    assert second - first >= 2 - EARLY
    others = [moment for times in site.times.values() for moment in times]
    assert len(others) == 6
    between = [moment for moment in others if held[0] < moment < held[0] + 2 - EARLY]
    assert len(between) <= 2  # what was on its way


@ensureDeferred
async def test_a_custom_retry_and_autothrottle_get_along(kept):
    class Retrying(Follower):
        """Retries in its callback, and gives all links its meta."""

        handle_httpstatus_list = (503,)
        metas = ()

        def parse(self, response):
            self.metas = (*self.metas, response.meta)
            if response.status == 503:
                yield response.request.replace(dont_filter=True)
            else:
                yield from super().parse(response)

    site = Site(a=busy(1), b=[])
    settings = {**kept, "RETRY_ENABLED": False, "AUTOTHROTTLE_ENABLED": True}
    settings |= {"AUTOTHROTTLE_START_DELAY": 0.1, "AUTOTHROTTLE_MAX_DELAY": 0.2}
    with Pages(site) as pages:
        crawler = await crawl(Retrying, settings, url=pages.url + "/")
    assert pages.hits == {"/": 1, "/a": 2, "/b": 1}
    assert site.times["/a"][1] - site.times["/a"][0] >= 1 - EARLY  # its host is left alone
    assert not any("bloom_delay" in meta for meta in crawler.spider.metas)
