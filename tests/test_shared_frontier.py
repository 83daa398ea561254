"""Crawls of this process whose requests and marks are in a queue that workers share."""

import asyncio
import os
import random
import threading
import time
from collections import Counter

import pytest
from pytest_twisted import ensureDeferred
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.utils.defer import deferred_from_coro
from support import kept_spiders
from support.crawling import Follower, crawl, make_crawler
from support.gap import Gap
from support.kept_sites import StormySite
from support.localsite import LocalSite
from support.shared_queue import Server, SharedBackend
from support.sites import Pages
from support.waiting import until_later
from twisted.internet.defer import gatherResults

from scrapy_bloom import registry
from scrapy_bloom.errors import BackendError
from scrapy_bloom.frontier.admission import BOUND
from scrapy_bloom.frontier.clock import call_later
from scrapy_bloom.redis import pace
from scrapy_bloom.session.engine import close_spider
from scrapy_bloom.signals import before_commit

START_REQUESTS = int(os.environ.get("START_REQUESTS", "20000"))
PATIENCE = 600

pytestmark = pytest.mark.scrapy

OURS = {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_BACKEND": "redis"}
ONE = {"CONCURRENT_REQUESTS": 1, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
FIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setitem(registry.BACKENDS, "redis", "support.shared_queue:SharedBackend")
    monkeypatch.setattr(SharedBackend, "server", Server())
    return SharedBackend.server


def ours(**settings):
    return {**OURS, **settings}


def left(server):
    """Return what is still waiting, and what is taken."""
    return len(server.waiting), sum(len(worker.taken) for worker in server.workers)


@ensureDeferred
async def test_a_crawl_fetches_each_page_once(server):
    with LocalSite(pages=200, links=8) as pages:
        crawler = await crawl(settings=ours(), url=pages.url)
    assert pages.missed == set()
    assert pages.repeated == {}
    assert left(server) == (0, 0)
    stats = crawler.stats.get_stats()
    assert stats["finish_reason"] == "finished"
    assert stats.get("bloom/not_stored", 0) == 0
    assert stats["scheduler/enqueued"] == stats["scheduler/dequeued"]
    assert stats["bloom/checked"] == stats["bloom/new"] + stats["bloom/seen"] + stats.get(
        "bloom/redirect_exempt", 0
    )


@ensureDeferred
async def test_workers_share_the_pages_and_end_together(server):
    server.latency = 0.002
    with LocalSite(pages=300, links=8) as pages:
        crawlers = [make_crawler(Follower, ours()) for _ in range(3)]
        await gatherResults([each.crawl(url=pages.url) for each in crawlers])
    assert pages.missed == set()
    assert pages.repeated == {}
    assert left(server) == (0, 0)
    fetched = [each.stats.get_value("response_received_count") for each in crawlers]
    assert min(fetched) > 20


class Leaving(Follower):
    """Follows the links of the first page only, with these priorities, and stops."""

    priorities = ()

    def parse(self, response):
        self.parsed.append(response.url)
        for number, priority in enumerate(self.priorities):
            yield Request(response.urljoin(f"/{number}"), priority=priority)
        raise CloseSpider("enough")


class Nothing(Follower):
    """Makes no requests of its own."""

    async def start(self):
        for _ in ():
            yield

    def parse(self, response):
        self.parsed.append(response.url)


@ensureDeferred
@pytest.mark.parametrize("order", ["lifo", "fifo"])
async def test_the_order_is_by_priority_and_then_that_of_the_setting(server, order):
    settings = ours(**ONE, **(FIFO if order == "fifo" else {}))
    spider = type("Leaving", (Leaving,), {"priorities": (0, 5, 5, -1, 0, 10)})
    with Pages({"/": lambda *_: [], **{f"/{n}": lambda *_: [] for n in range(6)}}) as pages:
        await crawl(spider, settings, url=pages.url + "/")
        assert left(server) == (6, 0)
        crawler = await crawl(Nothing, settings)
    last_first = ["/5", "/2", "/1", "/4", "/0", "/3"]
    first_first = ["/5", "/1", "/2", "/0", "/4", "/3"]
    came = [url.removeprefix(pages.url) for url in crawler.spider.parsed]
    assert came == (last_first if order == "lifo" else first_first)


@ensureDeferred
async def test_a_stopped_crawl_goes_on_where_it_was(server, caplog):
    caplog.set_level("INFO")

    class Stopping(Follower):
        def parse(self, response):
            yield from super().parse(response)
            if len(self.parsed) >= 60:
                raise CloseSpider("enough")

    with LocalSite(pages=200, links=8) as pages:
        first = await crawl(Stopping, ours(), url=pages.url)
        assert pages.missed
        waiting = first.stats.get_value("bloom/frontier/pending")
        assert left(server) == (waiting, 0)
        assert waiting
        said = f"{waiting:,} requests wait in Redis. Start the crawl again to go on."
        assert said in caplog.messages
        caplog.clear()
        await crawl(settings=ours(), url=pages.url)
        assert "wait in Redis" not in caplog.text
    assert pages.missed == set()
    assert pages.repeated == {}


@ensureDeferred
async def test_a_page_whose_callback_fails_in_a_stop_is_put_back(server):
    class Failing(Follower):
        stops = True

        async def parse(self, response):
            if self.stops:
                close_spider(self.crawler, "enough")
                await asyncio.sleep(0.1)
                raise ValueError("the crawl is over")
            for href in response.css("a::attr(href)").getall():
                yield response.follow(href)

    with Pages({"/": lambda *_: ["/a"], "/a": lambda *_: []}) as pages:
        await crawl(Failing, ours(), url=pages.url + "/")
        assert pages.hits == {"/": 1}
        assert left(server) == (1, 0)
        Failing.stops = False
        await crawl(Failing, ours(), url=pages.url + "/")
        assert pages.hits == {"/": 2, "/a": 1}
    assert left(server) == (0, 0)


# What pages lead to


@ensureDeferred
@pytest.mark.usefixtures("server")
async def test_duplicates_that_are_found_late_are_told():
    """The second worker does not know what the first one has marked."""

    class Listening(Follower):
        @classmethod
        def from_crawler(cls, crawler, *arguments, **keywords):
            spider = super().from_crawler(crawler, *arguments, **keywords)
            spider.dropped = Counter()
            crawler.signals.connect(spider.drop, signal=signals.request_dropped)
            return spider

        def drop(self, request):
            self.dropped[request.url] += 1

    answers = {"/": lambda *_: ["/a", "/b", "/a"], "/a": lambda *_: [], "/b": lambda *_: []}
    with Pages(answers) as pages:
        await crawl(settings=ours(), url=pages.url + "/")
        assert pages.hits == {"/": 1, "/a": 1, "/b": 1}

        class Again(Listening):
            async def start(self):
                yield Request(self.url, dont_filter=True)

        crawler = await crawl(Again, ours(), url=pages.url + "/")
        assert pages.hits == {"/": 2, "/a": 1, "/b": 1}
    dropped = crawler.spider.dropped
    assert dropped == {pages.url + "/a": 2, pages.url + "/b": 1}
    assert crawler.stats.get_value("dupefilter/filtered") == 3
    assert crawler.stats.get_value("bloom/seen") == 3


@ensureDeferred
@pytest.mark.usefixtures("server")
async def test_a_redirect_to_the_same_page_is_followed_once_by_any_worker():
    def bounce(_, cookie):
        return ["/other"] if cookie else "/bounce"

    with Pages({"/bounce": bounce, "/other": lambda *_: ["/bounce"]}) as pages:
        crawler = await crawl(settings=ours(), url=pages.url + "/bounce")
        assert pages.hits == {"/bounce": 2, "/other": 1}
        assert crawler.spider.parsed == [pages.url + "/bounce", pages.url + "/other"]
        assert crawler.stats.get_value("bloom/redirect_exempt") == 1
        await crawl(settings=ours(), url=pages.url + "/bounce")
        assert pages.hits == {"/bounce": 2, "/other": 1}


@ensureDeferred
async def test_a_redirect_is_asked_about_again_when_another_worker_has_marked_its_page(server):
    """This worker took the page from the queue and knows no mark of it."""

    class Leaves(Follower):
        def parse(self, response):
            yield response.follow("/bounce")
            raise CloseSpider("enough")

    def bounce(_, cookie):
        return [] if cookie else "/bounce"

    with Pages({"/": lambda *_: [], "/bounce": bounce}) as pages:
        await crawl(Leaves, ours(**ONE), url=pages.url + "/")
        assert pages.hits == {"/": 1}
        crawler = await crawl(Nothing, ours())
        assert pages.hits == {"/": 1, "/bounce": 2}
    assert crawler.spider.parsed == [pages.url + "/bounce"]
    assert left(server) == (0, 0)


@ensureDeferred
@pytest.mark.parametrize("name", ["SomeLambdas", "Waiting", "Errors", "Ruled"])
async def test_all_that_spiders_do_leads_to_every_page(server, name):
    spider = getattr(kept_spiders, name)
    kind = StormySite if name == "Errors" else LocalSite
    server.latency = 0.001
    with kind(pages=150, links=8) as pages:
        crawlers = [make_crawler(spider, ours()) for _ in range(2)]
        for each in crawlers:
            each.spider_state = {}
        await gatherResults([each.crawl(url=pages.url) for each in crawlers])
    assert pages.missed == set()
    assert name == "Errors" or set(pages.repeated) <= {0}  # which `Waiting` downloads by itself
    assert left(server) == (0, 0)
    assert all(each.stats.get_value("finish_reason") == "finished" for each in crawlers)


# Engine and extensions


@ensureDeferred
async def test_an_idle_spider_may_be_given_more(server):
    class More(Follower):
        """Makes a request when it is idle, three times."""

        @classmethod
        def from_crawler(cls, crawler, *arguments, **keywords):
            spider = super().from_crawler(crawler, *arguments, **keywords)
            spider.times = 0
            crawler.signals.connect(spider.idle, signal=signals.spider_idle)
            return spider

        def idle(self):
            if self.times < 3:
                self.times += 1
                self.crawler.engine.crawl(Request(f"{self.url}{self.times}"))
                raise DontCloseSpider

    with Pages({"/": lambda *_: [], **{f"/{n}": lambda *_: [] for n in (1, 2, 3)}}) as pages:
        await crawl(More, ours(), url=pages.url + "/")
        assert pages.hits == {"/": 1, "/1": 1, "/2": 1, "/3": 1}
    assert left(server) == (0, 0)


@ensureDeferred
async def test_a_worker_stays_while_another_one_has_a_page_under_way(server):
    """Its page may lead to more, and there it is needed."""
    gate = asyncio.Event()

    class First(Follower):
        async def parse(self, response):
            self.parsed.append(response.url)
            if response.url.endswith("/"):
                gate.set()
                await until_later(lambda: server.workers[1:] and server.workers[1].answered >= 5)
                for number in range(40):
                    yield response.follow(f"/{number}")

    answers = {"/": lambda *_: [], **{f"/{n}": lambda *_: [] for n in range(40)}}
    with Pages(answers) as pages:
        # Slow, or it would be through before the other one has looked again.
        first = make_crawler(First, ours(CONCURRENT_REQUESTS=2, DOWNLOAD_DELAY=0.5))
        second = make_crawler(type("Second", (Nothing,), {}), ours(CONCURRENT_REQUESTS=2))
        running = first.crawl(url=pages.url + "/")
        await deferred_from_coro(gate.wait())
        await gatherResults([running, second.crawl()])
        assert set(pages.hits.values()) == {1}
        assert len(pages.hits) == 41
    assert second.spider.parsed
    assert left(server) == (0, 0)


@ensureDeferred
async def test_start_requests_wait_for_the_server(server):
    """While the downloader is full, Scrapy reads them without giving the event loop a turn."""
    most = 0
    read = threading.Event()

    class Starting(Follower):
        async def start(self):
            nonlocal most
            for number in range(START_REQUESTS):
                most = max(most, number - server.number)
                yield Request(f"{self.url}?{number}")
            read.set()

        def parse(self, _):
            raise CloseSpider("enough")

    def answer(*_):
        read.wait(PATIENCE)
        return []

    server.latency = 0.01
    settings = ours(**ONE, **FIFO, DOWNLOAD_TIMEOUT=PATIENCE)
    with Pages({"/": answer}) as pages:
        crawler = await crawl(Starting, settings, url=pages.url + "/")
    assert read.is_set()
    assert 100 < most <= BOUND + 600
    assert crawler.stats.get_value("finish_reason") == "enough"
    assert sum(left(server)) == START_REQUESTS - crawler.stats.get_value("response_received_count")
    assert left(server)[1] == 0


@ensureDeferred
async def test_no_more_pages_are_fetched_while_too_many_requests_wait(server):
    """Each page has 1,000 links, and the server takes a quarter of a second for 500."""
    most = 0

    class Wide(Follower):
        def parse(self, response):
            nonlocal most
            self.parsed.append(response.url)
            page = len(self.parsed)
            for number in range(1000):
                yield response.follow(f"/?{page}-{number}")
            most = max(most, 1000 * len(self.parsed) - server.number)
            if page >= 15:
                raise CloseSpider("enough")

    server.latency = 0.25
    with Pages({"/": lambda *_: []}) as pages:
        await crawl(Wide, ours(CONCURRENT_REQUESTS=2), url=pages.url + "/")
    assert most <= BOUND + 5 * 1000 + 500  # of 15 pages
    assert left(server)[1] == 0
    assert left(server)[0] >= 14_000


@ensureDeferred
async def test_the_event_loop_goes_on_while_the_server_is_frozen(server):
    gap = Gap(call_later)
    frozen = threading.Event()

    def freeze(_, make):
        if not frozen.is_set() and server.number > 150:
            frozen.set()
            time.sleep(5)
        return make()

    server.fault = freeze
    with LocalSite(pages=200, links=8) as pages:
        gap.tick()
        await crawl(settings=ours(), url=pages.url)
        gap.stop()
    assert frozen.is_set()
    assert gap.longest < 4
    assert pages.missed == set()
    assert pages.repeated == {}


# Faults


@ensureDeferred
@pytest.mark.parametrize("when", ["before", "after"])
async def test_calls_that_fail_lose_and_repeat_nothing(server, when):
    dice = random.Random(when)

    def fault(_, make):
        fails = dice.random() < 0.4
        if when == "after" or not fails:
            answer = make()
        if fails:
            raise BackendError("Redis cannot be reached", temporary=True)
        return answer

    server.fault = fault
    with LocalSite(pages=150, links=8) as pages:
        crawlers = [make_crawler(Follower, ours()) for _ in range(2)]
        await gatherResults([each.crawl(url=pages.url) for each in crawlers])
    assert pages.missed == set()
    assert {each.stats.get_value("finish_reason") for each in crawlers} == {"finished"}
    if when == "before":
        assert pages.repeated == {}


@ensureDeferred
@pytest.mark.parametrize("policy", ["wait", "close"])
async def test_a_server_that_stays_away_ends_the_crawl_and_loses_nothing(
    server, caplog, monkeypatch, policy
):
    def fault(_, make):
        if server.number > 60:
            raise BackendError("Redis at somewhere cannot be reached.", temporary=True)
        return make()

    server.fault = fault
    monkeypatch.setattr(pace, "WAIT", 0.5)
    settings = ours(BLOOM_ON_BACKEND_ERROR=policy)
    with LocalSite(pages=150, links=8) as pages:
        crawler = await crawl(settings=settings, url=pages.url)
        assert crawler.stats.get_value("finish_reason") == "bloom_backend"
        assert crawler.stats.get_value("bloom/not_stored") == 1
        assert caplog.text.count("Redis at somewhere cannot be reached") == 1
        assert pages.missed
        server.fault = lambda _, make: make()
        server.kill(server.workers[0])
        await crawl(settings=settings, url=pages.url)
    assert pages.missed == set()
    assert sum(hits - 1 for hits in pages.repeated.values()) <= 40


@ensureDeferred
async def test_a_worker_that_was_taken_for_dead_drops_what_it_has_not_started(server):
    stood_still = threading.Event()

    def fault(_, make):
        answer = make()
        if server.number > 100 and not stood_still.is_set():
            stood_still.set()
            server.kill(server.workers[0])
        return answer

    server.fault = fault
    with LocalSite(pages=150, links=8) as pages:
        await crawl(settings=ours(), url=pages.url)
    assert stood_still.is_set()
    assert pages.missed == set()
    assert sum(hits - 1 for hits in pages.repeated.values()) <= 40
    assert left(server) == (0, 0)


@ensureDeferred
async def test_a_request_that_cannot_be_read_is_put_aside(server, caplog):
    def fault(name, make):
        if name == "take" and server.waiting and not server.failed:
            entry = server.waiting[0].entry
            server.waiting[0].entry = type(entry)(b"\0" * 20, *entry[1:])
            server.fault = lambda _, make: make()
        return make()

    server.fault = fault
    with LocalSite(pages=20, links=4) as pages:
        crawler = await crawl(settings=ours(), url=pages.url)
    assert len(server.failed) == 1
    assert crawler.stats.get_value("bloom/frontier/unreadable") == 1
    assert caplog.text.count("cannot be read") == 1
    assert left(server) == (0, 0)


@ensureDeferred
async def test_pages_are_not_acknowledged_before_their_items_are_written(server):
    class Flushing(Follower):
        fails = 3

        @classmethod
        def from_crawler(cls, crawler, *arguments, **keywords):
            spider = super().from_crawler(crawler, *arguments, **keywords)
            crawler.signals.connect(spider.flush, signal=before_commit)
            return spider

        def flush(self):
            self.fails -= 1
            if self.fails >= 0:
                raise OSError("no room for items")

    with LocalSite(pages=60, links=4) as pages:
        crawler = await crawl(Flushing, ours(), url=pages.url)
    assert crawler.stats.get_value("bloom/frontier/commit_errors") == 3
    assert pages.missed == set()
    assert left(server) == (0, 0)
