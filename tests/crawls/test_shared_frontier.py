"""Crawls of this process whose requests and marks are in a real Redis, shared by workers."""

import asyncio
import os
import signal as signals_of_os
import threading
from collections import Counter

import pytest
from pytest_twisted import ensureDeferred
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider
from scrapy.utils.request import fingerprint
from support import kept_spiders
from support.crawling import KEPT, SCRAPYS, Follower, crawl, make_crawler
from support.graceful_stop import Stopping
from support.localredis import free_port
from support.localsite import LocalSite, StormySite
from support.proxy import Proxy
from support.queues import left
from support.sites import Pages
from support.waiting import PATIENCE, until
from twisted.internet.defer import gatherResults
from twisted.internet.threads import deferToThread

from scrapy_bloom.crawl.engine import call_later, close_spider
from scrapy_bloom.crawl.redirects import step_fingerprint
from scrapy_bloom.redis import queue, upkeep
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.key import SharedKey

START_REQUESTS = int(os.environ.get("START_REQUESTS", "3000"))
FULL = 500 if START_REQUESTS == 3000 else 5_000  # as in a crawl

pytestmark = pytest.mark.server

ONE = {"CONCURRENT_REQUESTS": 1, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
FIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}


def reactor_calls(function):
    """Have a function called in the thread of the event loop."""
    from twisted.internet import reactor

    reactor.callFromThread(function)


class Shared:
    """What the workers of a crawl share."""

    def __init__(self, server, key):
        self.server, self.key, self.client = server, key, server.client()
        self.url = server.url

    def settings(self, **more):
        """Return the settings of a worker."""
        ours = {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_REDIS_TIMEOUT": 10}
        return {**ours, "BLOOM_REDIS_URL": self.url, "BLOOM_REDIS_KEY": self.key, **more}

    def left(self):
        """Return what is waiting, what is taken, and what was put aside."""
        return left(self.server, self.key)

    def number(self):
        """Return how many pages were marked."""
        slices = self.client.hget(self.key, "slices") or b""
        return sum(int(row.split(b":")[6]) for row in slices.split())


@pytest.fixture
def shared(server, key):
    return Shared(server, key)


@pytest.fixture
def distant(server, key):
    """The same, some milliseconds away."""
    with Proxy(server.port, delay=0.003) as proxy:
        shared = Shared(server, key)
        shared.url = proxy.url
        shared.proxy = proxy
        yield shared


class Listening(Follower):
    """Has its method `heard` called at the signal that it `hears`."""

    @classmethod
    def from_crawler(cls, crawler, *arguments, **keywords):
        spider = super().from_crawler(crawler, *arguments, **keywords)
        crawler.signals.connect(spider.heard, signal=cls.hears)
        return spider


class Leaving(Follower):
    """Follows the links of the first page only, with these priorities, and stops."""

    priorities = ()

    def parse(self, response):
        self.parsed.append(response.url)
        for number, priority in enumerate(self.priorities):
            yield Request(response.urljoin(f"/{number}"), priority=priority)
        close_spider(self.crawler, "enough")


class Nothing(Follower):
    """Makes no requests of its own."""

    async def start(self):
        for _ in ():
            yield

    def parse(self, response):
        self.parsed.append(response.url)


@ensureDeferred
@pytest.mark.parametrize("order", ["lifo", "fifo"])
@pytest.mark.each_scrapy
async def test_the_order_is_by_priority_and_then_that_of_the_setting(shared, order):
    settings = shared.settings(**ONE, **(FIFO if order == "fifo" else {}))
    spider = type("Leaving", (Leaving,), {"priorities": (0, 5, 5, -1, 0, 10**400)})
    with Pages({"/": lambda *_: [], **{f"/{n}": lambda *_: [] for n in range(6)}}) as pages:
        await crawl(spider, settings, url=pages.url + "/")
        assert shared.left() == (6, 0, 0)
        crawler = await crawl(Nothing, settings)
    last_first = ["/5", "/2", "/1", "/4", "/0", "/3"]
    first_first = ["/5", "/1", "/2", "/0", "/4", "/3"]
    came = [url.removeprefix(pages.url) for url in crawler.spider.parsed]
    assert came == (last_first if order == "lifo" else first_first)


# What pages lead to


@ensureDeferred
@pytest.mark.each_scrapy
async def test_a_crawl_that_is_stopped_is_resumed_by_the_next_worker(shared):
    with LocalSite(pages=120, links=8) as pages:
        await crawl(Stopping, shared.settings(), url=pages.url)
        assert pages.missed
        waiting, *others = shared.left()
        assert waiting > 0
        assert others == [0, 0]
        await crawl(Follower, shared.settings(), url=pages.url)
    assert pages.missed == set()
    assert pages.repeated == {}
    assert shared.left() == (0, 0, 0)


@ensureDeferred
async def test_duplicates_found_after_enqueueing_are_signalled(shared):
    """The second worker does not know what the first one has marked."""

    class Again(Listening):
        hears = signals.request_dropped

        def __init__(self, **arguments):
            super().__init__(**arguments)
            self.dropped = Counter()

        async def start(self):
            yield Request(self.url, dont_filter=True)

        def heard(self, request):
            self.dropped[request.url] += 1

    answers = {"/": lambda *_: ["/a", "/b", "/a"], "/a": lambda *_: [], "/b": lambda *_: []}
    with Pages(answers) as pages:
        await crawl(settings=shared.settings(), url=pages.url + "/")
        assert pages.hits == {"/": 1, "/a": 1, "/b": 1}
        crawler = await crawl(Again, shared.settings(), url=pages.url + "/")
        assert pages.hits == {"/": 2, "/a": 1, "/b": 1}
    dropped = crawler.spider.dropped
    assert dropped == {pages.url + "/a": 2, pages.url + "/b": 1}
    assert crawler.stats.get_value("dupefilter/filtered") == 3
    assert crawler.stats.get_value("bloom/seen") == 3


@ensureDeferred
async def test_a_redirect_is_asked_about_again_when_another_worker_has_marked_its_page(shared):
    """This worker took the page from the queue and knows no mark of it."""

    class Leaves(Follower):
        def parse(self, response):
            yield response.follow("/bounce")
            close_spider(self.crawler, "enough")

    def bounce(_, cookie):
        return [] if cookie else "/bounce"

    with Pages({"/": lambda *_: [], "/bounce": bounce}) as pages:
        await crawl(Leaves, shared.settings(**ONE), url=pages.url + "/")
        assert pages.hits == {"/": 1}
        crawler = await crawl(Nothing, shared.settings())
        assert pages.hits == {"/": 1, "/bounce": 2}
    assert crawler.spider.parsed == [pages.url + "/bounce"]
    assert shared.left() == (0, 0, 0)


@ensureDeferred
@pytest.mark.parametrize("name", ["SomeLambdas", "Waiting", "Errors", "Ruled"])
async def test_every_kind_of_spider_fetches_every_page(distant, name):
    shared = distant
    spider = getattr(kept_spiders, name)
    kind = StormySite if name == "Errors" else LocalSite
    with kind(pages=40, links=8) as pages:
        crawlers = [make_crawler(spider, shared.settings()) for _ in range(2)]
        for each in crawlers:
            each.spider_state = {}
        await gatherResults([each.crawl(url=pages.url) for each in crawlers])
    assert pages.missed == set()
    if name not in ("Errors", "SomeLambdas"):  # what is held in memory is unique there only
        assert set(pages.repeated) <= {0}  # which `Waiting` downloads by itself
    assert shared.left() == (0, 0, 0)
    assert all(each.stats.get_value("finish_reason") == "finished" for each in crawlers)


# Engine and extensions


@ensureDeferred
async def test_start_requests_wait_for_the_server(shared, monkeypatch):
    """While the downloader is full, Scrapy reads them without giving the event loop a turn."""
    monkeypatch.setattr(queue, "FULL", FULL)
    most = 0
    read = threading.Event()

    class Starting(Follower):
        async def start(self):
            nonlocal most
            for number in range(START_REQUESTS):
                most = max(most, number - (shared.number() if number % 100 == 0 else number))
                yield Request(f"{self.url}?{number}")
            read.set()

        def parse(self, _):
            raise CloseSpider("enough")

    def answer(*_):
        read.wait(PATIENCE)
        return []

    settings = shared.settings(**ONE, **FIFO, DOWNLOAD_TIMEOUT=PATIENCE)
    with Pages({"/": answer}) as pages:
        crawler = await crawl(Starting, settings, url=pages.url + "/")
    assert read.is_set()
    assert 100 < most <= FULL + 1000
    assert crawler.stats.get_value("finish_reason") == "enough"
    # Whatever it received closed the spider, so nothing is done.
    assert shared.left() == (START_REQUESTS, 0, 0)


@ensureDeferred
async def test_no_more_pages_are_fetched_while_too_many_requests_wait(distant, monkeypatch):
    """Each page has 200 links, and the server takes a quarter of a second for 500."""
    monkeypatch.setattr(queue, "FULL", 500)
    shared = distant
    shared.proxy.delay = 0.25
    most = 0

    class Wide(Follower):
        def parse(self, response):
            nonlocal most
            self.parsed.append(response.url)
            page = len(self.parsed)
            for number in range(200):
                yield response.follow(f"/?{page}-{number}")
            most = max(most, 200 * len(self.parsed) - shared.number())
            if page >= 12:
                raise CloseSpider("enough")

    with Pages({"/": lambda *_: []}) as pages:
        await crawl(Wide, shared.settings(CONCURRENT_REQUESTS=2), url=pages.url + "/")
    assert most <= 500 + 5 * 200 + 500  # of 12 pages, 2,400
    assert shared.left()[1] == 0
    assert shared.left()[0] >= 2_200


@ensureDeferred
async def test_the_event_loop_goes_on_while_the_server_is_frozen(own_server, key):
    own, shared = own_server, Shared(own_server, key)
    turns = []  # of the event loop while the server stands still

    def turn():
        turns.append(1)
        if len(turns) == 200:
            os.kill(own.pid, signals_of_os.SIGCONT)
        else:
            call_later(0.005, turn)

    def freeze():
        os.kill(own.pid, signals_of_os.SIGSTOP)
        turn()

    with LocalSite(pages=100, links=8) as pages:
        pages.when(50, lambda: reactor_calls(freeze))
        crawler = await crawl(settings=shared.settings(BLOOM_REDIS_TIMEOUT=60), url=pages.url)
    assert len(turns) == 200
    assert crawler.stats.get_value("bloom/redis/outages", 0) == 0
    assert pages.missed == set()
    assert pages.repeated == {}


# Faults


# What a warning says of a server that has no room or no replica, and the setting that makes it so.
REFUSALS = {
    "The server is out of memory": ("maxmemory", 1000),
    "good replicas": ("min-replicas-to-write", 1),
}


@ensureDeferred
@pytest.mark.parametrize("error", REFUSALS, ids=["no memory", "no replica"])
async def test_a_server_that_takes_no_writes_is_waited_for(own_server, key, caplog, error):
    own, (name, value) = Shared(own_server, key), REFUSALS[error]

    def refuse():
        own.client.config_set(name, value)
        try:
            until(lambda: "Retrying" in caplog.text)
        finally:
            own.client.config_set(name, 0)

    with LocalSite(pages=60, links=8) as pages:
        pages.when(20, refuse)
        crawler = await crawl(settings=own.settings(), url=pages.url)
    assert error in caplog.text
    assert pages.missed == set()
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert own.left() == (0, 0, 0)


@ensureDeferred
@pytest.mark.parametrize("scheduler", ["scrapy_bloom.Scheduler", SCRAPYS])
async def test_a_server_that_deletes_keys_when_it_is_full_is_warned_of_once(
    own_server, key, caplog, scheduler
):
    own = Shared(own_server, key)
    own.client.config_set("maxmemory-policy", "allkeys-lru")
    with LocalSite(pages=5, links=2) as pages:
        await crawl(settings=own.settings(SCHEDULER=scheduler), url=pages.url)
    assert caplog.text.count("maxmemory-policy is allkeys-lru, expected noeviction") == 1


@ensureDeferred
async def test_a_wrong_address_ends_the_crawl_with_one_line(caplog, monkeypatch):
    monkeypatch.setattr(upkeep, "FIRST_ANSWER", 1.0)
    wrong = {"BLOOM_REDIS_URL": f"redis://127.0.0.1:{free_port()}"}
    settings = {**KEPT, **wrong, "CLOSESPIDER_TIMEOUT": PATIENCE}
    crawler = await crawl(settings=settings, url="http://127.0.0.1:1")
    assert crawler.stats.get_value("finish_reason") == "bloom_backend"
    assert crawler.spider is None  # what makes `scrapy crawl` exit with code 1
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "Nothing has answered there for 1 s: check BLOOM_REDIS_URL" in line


@ensureDeferred
async def test_a_server_that_has_answered_is_waited_for_at_the_start(
    own_server, key, caplog, monkeypatch
):
    monkeypatch.setattr(upkeep, "FIRST_ANSWER", 0.0)
    own = Shared(own_server, key)
    own.client.config_set("min-replicas-to-write", 1)
    with LocalSite(pages=5, links=2) as pages:
        crawling = make_crawler(Follower, own.settings()).crawl(url=pages.url)
        await deferToThread(until, lambda: "The crawl waits until it can be used" in caplog.text)
        assert not pages.hits
        own.client.config_set("min-replicas-to-write", 0)
        await crawling
    assert pages.missed == set()


@ensureDeferred
async def test_a_request_on_the_failed_list_may_only_have_been_slow(shared, caplog):
    with LocalSite(pages=5, links=2) as pages:
        await crawl(settings=shared.settings(), url=pages.url)
        shared.client.hset(beginning(shared.key) + "failed", b"12345678", b"0 ...")
        shared.client.hset(shared.key, "failed", 1)
        await crawl(settings=shared.settings(), url=pages.url)
    assert "1 request on the failed list, after 10 tries" in caplog.text
    assert "took longer than its lease of 30 s" in caplog.text
    assert "no worker could process" not in caplog.text


@ensureDeferred
async def test_an_outage_is_reported_once_a_minute(own_server, key, caplog, monkeypatch):
    monkeypatch.setattr(upkeep, "WARN", 0.3)
    own = Shared(own_server, key)

    def pause():
        own.client.config_set("min-replicas-to-write", 1)
        try:
            until(lambda: caplog.text.count("Retrying") == 3)
        finally:
            own.client.config_set("min-replicas-to-write", 0)

    with LocalSite(pages=60, links=8) as pages:
        pages.when(20, pause)
        crawler = await crawl(settings=own.settings(), url=pages.url)
    assert pages.missed == set()
    assert crawler.stats.get_value("bloom/redis/outages") == 1


@ensureDeferred
async def test_a_loss_while_start_runs_again_runs_it_once_more(shared):
    """It may await what is asyncio's, as when it runs for the first time."""

    class Unlucky(Follower):
        starts = 0

        async def start(self):
            Unlucky.starts += 1
            yield Request(self.url)
            await asyncio.to_thread(str)
            if Unlucky.starts == 2:
                shared.client.flushall()
            yield Request(f"{self.url}?again")

    with LocalSite(pages=60, links=6) as pages:
        pages.when(20, shared.client.flushall)
        await crawl(Unlucky, shared.settings(), url=pages.url)
    assert pages.missed == set()
    assert Unlucky.starts == 3


@pytest.fixture
def early(monkeypatch):
    """Collect pages that are said to be done before what `first` has for each of them is said."""
    unpatched, taken, said, found, first = SharedKey.call, {}, set(), set(), {}

    def call(shared, each):
        said.update((entry.op, entry.fingerprint) for entry in each.entries)
        done = {taken.get(id_) for id_ in each.done} & first.keys()
        found.update(page for page in done if first[page] not in said)
        answer = unpatched(shared, each)
        taken.update((one.id, one.fingerprint) for one in answer.taken)
        return answer

    monkeypatch.setattr(SharedKey, "call", call)
    yield first, found
    assert said.issuperset(first.values())


@ensureDeferred
async def test_a_page_that_redirects_to_itself_is_done_after_its_second_question(shared, early):
    """Its request is asked about twice: a kill between the two must leave the page it came from."""
    first, found = early
    names = [f"/{number}" for number in range(60)]

    def answer(path, _):
        return path if site.hits[path] == 1 else []

    with Pages({"/": lambda *_: names, **dict.fromkeys(names, answer)}) as site:
        for name in names:
            mark = fingerprint(Request(site.url + name))
            first[mark] = ("f", step_fingerprint(1, mark))
        await crawl(settings=shared.settings(), url=site.url + "/")
        assert site.hits == {"/": 1, **dict.fromkeys(names, 2)}
    assert not found


@ensureDeferred
async def test_a_page_that_failed_is_forgotten_before_it_is_done(shared, early):
    """A worker that is killed comes to no end at which that could be done."""
    first, found = early
    with Pages({"/": lambda *_: ["/gone", "/none"]}) as site:
        for name in ("/gone", "/none"):
            mark = fingerprint(Request(site.url + name))
            first[mark] = ("x", mark)
        settings = shared.settings(BLOOM_FORGET_FAILED=[404])
        crawler = await crawl(settings=settings, url=site.url + "/")
    assert crawler.stats.get_value("bloom/failed") == 2
    assert not found
