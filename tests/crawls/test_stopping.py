"""What becomes of pages when a spider closes, and of requests that are only in memory."""

import asyncio
import logging
import re
import sqlite3
import threading

import pytest
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider
from support.crawling import (
    Follower,
    close,
    crawl,
    download,
    kept,
    make_crawler,
    placed,
    target_of,
    visit,
)
from support.internals import unwritten_in
from support.queues import undone
from support.sites import Pages, fan
from support.waiting import PATIENCE
from testbed.localsite import LocalSite

from scrapy_bloom import Scheduler
from scrapy_bloom.crawl import frontier
from scrapy_bloom.crawl.backend import EACH
from scrapy_bloom.crawl.scrapy.loop import call_later
from scrapy_bloom.errors import BackendError
from scrapy_bloom.local import backend
from scrapy_bloom.local.store import Store
from scrapy_bloom.redis.backend import RedisBackend
from scrapy_bloom.redis.queue import SharedQueue

pytestmark = pytest.mark.server


storage = placed("kept job", "shared")


# Spiders that close


@pytest.mark.each_scrapy
async def test_what_was_not_sent_goes_back_at_once_when_the_spider_closes(job):
    """Scrapy sends all that waits in its downloader first, at the pace of each host."""

    class Closing(Follower):
        name = "follower"
        __module__, __qualname__ = Follower.__module__, Follower.__qualname__

        def parse(self, response):
            self.slot = self.crawler.engine.downloader.slots["127.0.0.1"]
            self.slot.delay = 900.0
            yield from super().parse(response)
            self.close_when_some_wait()

        def close_when_some_wait(self):
            if len(self.slot.queue) > 8:
                close(self.crawler)
            else:
                call_later(0.01, self.close_when_some_wait)

    with Pages(fan(*range(20))) as pages:
        await crawl(Closing, kept(job), url=pages.url + "/")
        assert sum(pages.hits.values()) == 1
        crawler = await crawl(Follower, kept(job), url=pages.url + "/")
        assert pages.hits == {"/": 1, **{f"/{leaf}": 1 for leaf in range(20)}}
    assert crawler.stats.get_value("bloom/queue/recovered") is None


class Enough(Follower):
    """Every page after the first ones closes the spider, before it gives its links."""

    name = "follower"
    pages = 6

    def parse(self, response):
        if len(self.parsed) == self.pages:
            raise CloseSpider("enough")
        yield from super().parse(response)


class Fails(Follower):
    """Its start() fails after its first request."""

    async def start(self):
        yield Request(self.url)
        raise OSError("no list of pages")


class InMemory(Follower):
    """Stops while a start request waits that cannot be stored."""

    async def start(self):
        later = {"bloom_delay": "1h"}
        yield Request(self.url, lambda _: None, dont_filter=True, meta=later)
        yield Request(self.url, self.leave, dont_filter=True)

    def leave(self, _):
        close(self.crawler)


async def test_a_script_can_ask_whether_a_crawl_is_finished(storage, bloom, caplog):
    caplog.set_level(logging.INFO)

    def ask():
        code, lines, _ = bloom(f"info {target_of(storage)} --finished")
        return code, re.match("status +([a-z]+)", lines[1])[1]

    class Asks(Follower):
        def parse(self, response):
            asked.append(ask())
            yield from super().parse(response)

    asked, stopped, finished = [], (1, "stopped"), (0, "finished")
    with Pages(fan(*range(20), bad=503)) as site:
        for spider, expected in (
            (Enough, stopped),  # pages wait
            (Fails, stopped),  # nothing waits, but start() might have yielded more
            (Asks, finished),  # what has failed is fetched again, but not waited for
            (InMemory, stopped),
            (Follower, finished),
        ):
            caplog.clear()
            await crawl(spider, storage, url=site.url + "/")
            assert ask() == expected, spider
            assert f"Crawl {expected[1]}: " in caplog.text
        site.pages["/new"] = []
        await crawl(Asks, storage, url=site.url + "/new")
    assert {*asked} == {(1, "running")}
    assert bloom(f"queue {target_of(storage)} --failed")[0] == 1


@pytest.mark.each_scrapy
async def test_pages_whose_callbacks_close_the_spider_are_fetched_again(storage, caplog):
    caplog.set_level(logging.INFO)
    with Pages(fan(*range(60))) as site:
        await crawl(Enough, storage, url=site.url + "/")
        parsed = [text for text in caplog.messages if "closed the spider (enough)" in text]
        assert len(parsed) == 1
        assert f"<GET {site.url}/" in parsed[0]
        spider = (await crawl(Follower, storage, url=site.url + "/")).spider
    assert len(spider.parsed) == 61 - Enough.pages
    assert undone(storage) == 0


class Twice:
    """Downloads each request itself, and then waits: for Scrapy nothing is left to do meanwhile."""

    def __init__(self, crawler):
        self._crawler = crawler
        self._over = asyncio.Event()
        crawler.signals.connect(self._over.set, signal=signals.spider_closed)

    from_crawler = classmethod(lambda cls, crawler: cls(crawler))

    async def process_request(self, request, spider=None):  # noqa: ARG002 - Scrapy's signature
        if request.meta.get("is_ours"):
            return None
        request.meta["is_ours"] = True
        response = await download(self._crawler, request)
        await self._over.wait()
        return response


@pytest.mark.each_scrapy
async def test_a_page_that_a_middleware_downloads_itself_is_not_done_before_its_callback(job):
    settings = kept(job, DOWNLOADER_MIDDLEWARES={Twice: 50})
    with Pages(fan(*range(3))) as site:
        crawler = await crawl(Follower, settings, url=site.url + "/")
        assert site.hits["/"] == 1
        assert crawler.spider.parsed == []
        await crawl(Follower, kept(job), url=site.url + "/")
    assert site.hits == {"/": 2, "/0": 1, "/1": 1, "/2": 1}


# Held requests


@pytest.mark.each_scrapy
async def test_a_start_request_that_is_held_keeps_no_page_in_flight(storage):
    both, sent = threading.Event(), threading.Event()

    class Both(Follower):
        first = True

        async def start(self):
            if self.first:
                yield Request(f"{self.url}/a")
                yield Request(f"{self.url}/b", callback=lambda page: self.stop(page))  # noqa: PLW0108
                both.set()

        def stop(self, _):
            Both.first = False
            raise CloseSpider("enough")

    def a(*_):
        sent.set()
        return both.wait(PATIENCE) and []

    with Pages({"/a": a, "/b": lambda *_: sent.wait(PATIENCE) and []}) as site:
        await crawl(Both, storage, url=site.url)
        assert not Both.first
        assert undone(storage) == 0
        await crawl(Both, storage, url=site.url)
    assert site.hits == {"/a": 1, "/b": 1}


async def test_a_held_request_that_no_page_led_to_is_logged_as_lost(storage, caplog):
    class Idle(Follower):
        async def start(self):
            for url in (self.url, self.url + "?2"):
                yield Request(url, callback=lambda page: self.parse(page))  # noqa: PLW0108

    await visit({"/": []}, Idle, storage)
    assert caplog.text.count("no page led to it: after a kill or a stop it is lost unless") == 1
    assert caplog.text.count("Unable to serialize request") == 1


async def init_page(page, request):
    """Be what a browser's handler is given to call for each page."""


@pytest.mark.parametrize("what", ["function", "method"])
async def test_a_function_or_method_in_meta_is_named_with_its_key(storage, what, caplog):
    class Browsing(Follower):
        async def init_page(self, page, request):
            pass

        def request(self, response, href):
            init = {"function": init_page, "method": self.init_page}[what]
            return response.follow(href, meta={"first": "x", "init": init})

    _, site = await visit(fan("a", "b"), Browsing, storage)
    assert site.hits == {"/": 1, "/a": 1, "/b": 1}
    warnings = [text for text in caplog.messages if text.startswith("Unable to serialize request")]
    if what == "function" and "JOBDIR" in storage:  # which pickle stores by its name
        assert warnings == []
    else:
        (warning,) = warnings
        assert re.search(rf"reason: meta\['init'\] is the {what} \S*init_page\. It waits", warning)


async def test_a_request_that_is_held_for_want_of_a_slot_goes_to_its_errback(job):
    """Else it is missing without a word, with all that its page would have yielded after it."""
    failed = []

    class Slots(Follower):
        def parse(self, response):
            odd = {"download_slot": ["no", "key", "of", "a", "dict"]}
            if response.url == self.url:  # once it has failed, another page may lead to it again
                yield response.follow("/odd", meta=odd, errback=failed.append)
            yield from super().parse(response)

    by_slot = "scrapy.pqueues.DownloaderAwarePriorityQueue"
    settings = kept(job, SCHEDULER_PRIORITY_QUEUE=by_slot)
    crawler, _ = await visit({"/": ["/a"], "/a": []}, Slots, settings)
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert [failure.type for failure in failed] == [TypeError]
    assert len(crawler.spider.parsed) == 2


async def test_a_request_enqueued_after_the_crawl_was_stored_is_refused_and_logged(storage, caplog):
    original, refused = Scheduler.close, []

    def close(scheduler, reason):
        closing = original(scheduler, reason)
        refused.append(scheduler.enqueue_request(Request("http://a.test/late")))
        return closing

    with pytest.MonkeyPatch.context() as patch, Pages({"/": []}) as site:
        patch.setattr(Scheduler, "close", close)
        crawler = await crawl(Follower, storage, url=site.url + "/")
    assert refused == [False]
    assert "was enqueued after the spider had closed, so it is not stored" in caplog.text
    assert crawler.stats.get_value("bloom/not_stored") == 1
    assert undone(storage) == 0


# While too much is only in memory nothing is sent that is stored; each crawl ends all the same

FEW = 20
MANY = 100


@pytest.fixture
def few(monkeypatch):
    """Only a few requests may be in memory: some hundreds are as far above it as thousands are."""
    monkeypatch.setattr(frontier, "MOST_UNWRITTEN", FEW * EACH)


class Unstorable(Follower):
    """Many of its requests cannot be stored, of `start()` and of its first page."""

    async def start(self):
        yield Request("data:,first")
        for number in range(MANY):
            yield Request(f"data:,{number}", callback=self.parsed.append)

    def parse(self, response):  # noqa: ARG002 - Scrapy's call
        for number in range(MANY):
            yield Request(f"data:,{number} of a page", callback=self.parsed.append)
            yield Request(f"data:,{number} to be stored", callback=self.end)

    def end(self, response):
        self.parsed.append(response)


@pytest.mark.usefixtures("few")
async def test_what_can_never_be_stored_is_sent_and_counts_for_nothing(storage):
    crawler = await crawl(Unstorable, storage)
    assert len(crawler.spider.parsed) == 3 * MANY
    assert crawler.stats.get_value("finish_reason") == "finished"


class Wide(Follower):
    """Each page yields many requests of a kilobyte or more; notes how much was only in memory."""

    most = pages = 0

    async def start(self):
        for number in range(MANY):
            self.most = max(self.most, unwritten_in(self.crawler))
            yield Request(f"data:,{number}")

    def parse(self, response):
        self.pages += 1
        name = response.url.partition(",")[2]
        if name.isdigit() and int(name) < MANY // 4:
            for number in range(FEW):
                meta = {"large": "x" * EACH}
                yield Request(f"{response.url}-{number}", meta=meta, priority=-1)
        self.most = max(self.most, unwritten_in(self.crawler))


@pytest.mark.usefixtures("few")
async def test_little_is_only_in_memory_however_much_pages_yield(storage):
    crawler = await crawl(Wide, {**storage, "CONCURRENT_REQUESTS": 4})
    assert crawler.spider.pages == MANY + MANY // 4 * FEW
    assert crawler.spider.most < 4 * EACH * FEW + 4 * FEW * 3 * EACH  # what is in flight yields
    assert crawler.stats.get_value("finish_reason") == "finished"


@pytest.mark.usefixtures("few")
async def test_while_nothing_can_be_said_nothing_is_sent_and_it_goes_on_by_itself(
    storage, monkeypatch
):
    owner, name, error = (
        (Store, "commit", sqlite3.OperationalError("database or disk is full"))
        if "JOBDIR" in storage
        else (
            SharedQueue,
            "carry_out",
            BackendError("Redis is down", temporary=True, answered=True),
        )
    )
    original, fetched = getattr(owner, name), []

    def fail(self, *said, **how):
        if crawler.spider and len(crawler.spider.parsed) > 20 and len(fetched) < 50:
            fetched.append(len(crawler.spider.parsed))
            raise error
        return original(self, *said, **how)

    monkeypatch.setattr(owner, name, fail)
    for module, pause in (backend, "_SLOWEST"), (backend, "INTERVAL"), (RedisBackend, "interval"):
        monkeypatch.setattr(module, pause, 0.001)
    with LocalSite(pages=150, links=6) as site:
        crawler = make_crawler(Follower, storage)
        await crawler.crawl(url=site.url)
        assert (site.missed, site.repeated) == (set(), {})
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert len(fetched) == 50
    assert fetched[-1] <= fetched[0] + 2 * 16  # which were in flight, or being parsed
