"""`scrapy_bloom.Scheduler` in crawls of this process, and what it refuses."""

import gc
import logging
import math
import pickle
import random
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import scrapy.squeues
from scrapy import Request
from scrapy.exceptions import CloseSpider
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.settings import default_settings
from support.crawling import (
    KEPT,
    RFP,
    Follower,
    crawl,
    crawl_refused,
    kept,
    messages,
    resumes_well,
    visit,
)
from support.filters import contents
from support.internals import scheduler_of
from support.spiders import Stopping
from testbed.localsite import LocalSite
from twisted.python import log

from scrapy_bloom.crawl.items import Items
from scrapy_bloom.crawl.scrapy import crawler as crawler_module
from scrapy_bloom.crawl.scrapy.downloads import slot_of
from scrapy_bloom.local import backend

pytestmark = pytest.mark.server

LIFO = "scrapy.squeues.PickleLifoDiskQueue"
FIFO = "scrapy.squeues.PickleFifoDiskQueue"
BY_SLOT = "scrapy.pqueues.DownloaderAwarePriorityQueue"
BY_PRIORITY = "scrapy.pqueues.ScrapyPriorityQueue"
BLOOM = "scrapy_bloom.BloomDupeFilter"


def site(pages=90, *, kind=LocalSite, **arguments):
    return kind(pages=pages, links=6, **arguments)


BY_DEFAULT = default_settings.SCHEDULER_PRIORITY_QUEUE
OTHER_ORDER = {"SCHEDULER_PRIORITY_QUEUE": BY_SLOT if BY_DEFAULT == BY_PRIORITY else BY_PRIORITY}


def stat(crawler, name):
    return crawler.stats.get_value(f"bloom/queue/{name}", 0)


def rows(job):
    with closing(sqlite3.connect(job / "bloom.sqlite")) as database:
        return [row[0] for row in database.execute("SELECT body FROM requests")]


# One run after another


class Scored(Stopping):
    """Its priorities are no integers: Scrapy checks only what a request is made with."""

    __module__, __qualname__ = Stopping.__module__, Stopping.__qualname__  # it is no other spider

    def request(self, response, href):
        request = super().request(response, href)
        request.priority = (0.5, None, math.nan, "high")[len(href) % 4]
        return request


FIRST_IN = {"SCHEDULER_DISK_QUEUE": FIFO, "DEPTH_PRIORITY": 1, "BLOOM_COMMIT_SYNC": "machine"}
MARSHAL = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.MarshalLifoDiskQueue", **OTHER_ORDER}


@pytest.mark.parametrize(
    ("spider", "settings"),
    [(Stopping, FIRST_IN), (Scored, MARSHAL | {"SCHEDULER_START_DISK_QUEUE": None})],
)
@pytest.mark.each_scrapy
async def test_a_stopped_crawl_resumes_where_it_was(job, caplog, spider, settings):
    caplog.set_level(logging.INFO)
    with site() as pages:
        first = await crawl(spider, kept(job, **settings), url=pages.url)
        assert pages.missed
        assert stat(first, "waiting") == len(rows(job)) > 0
        again = await crawl(Follower, kept(job, **settings), url=pages.url)
    assert resumes_well(pages)
    assert stat(again, "recovered") == stat(again, "waiting") == 0
    assert again.stats.get_value("bloom/unclean_stop", 0) == 0
    assert again.stats.get_value("bloom/not_stored", 0) == 0
    assert rows(job) == []

    # Whether there was time to say what it waits for depends on speed.
    texts = (text for text in messages(caplog) if not text.startswith("Closing: "))
    new, stopped, resumed, finished = texts
    state, known = f"{job}/bloom.sqlite", again.stats.get_value("bloom/restored")
    assert new.startswith(f"New crawl, stored in {state}. Capacity 1,000,000, error rate 1e-06, ")
    summary = re.fullmatch(
        r"Crawl stopped: \d+ pages, [1-9]\d* done,(?: \d+ unparsed \([^)]+\),)?"
        r" (\d+) waiting; this run received [1-9]\d* responses?; expected loss 0\.0 pages\.",
        stopped,
    )
    assert f"{state}, resumed: {known} marks, {summary[1]} requests to fetch. " in resumed
    assert finished.startswith("Crawl finished: ")
    assert ", 0 waiting; " in finished


class Peeking(ScrapyPriorityQueue):
    """Looks at the next request before it takes it: that is left where it is."""

    def pop(self):
        shown = self.peek()
        taken = super().pop()
        assert (shown and shown.to_dict()) == (taken and taken.to_dict())
        return taken


class Ordering(Follower):
    """Drives the scheduler itself: what comes between the engine's own calls depends on speed."""

    def parse(self, response):  # noqa: ARG002 - Scrapy's call
        chance, scheduler = random.Random(1), scheduler_of(self.crawler)
        callback = (lambda _: None) if self.settings.getbool("HELD") else None
        for number in range(600):
            if number < 400 and chance.random() < 0.7:
                url = f"http://{chance.choice('abc')}.example/{number}"
                meta = {"is_start_request": chance.random() < 0.3}
                request = Request(url, callback, priority=chance.randrange(3), meta=meta)
                scheduler.enqueue_request(request)
            elif (request := scheduler.next_request()) is not None:
                self.parsed.append(request.url)


@pytest.mark.parametrize(
    "settings",
    [
        # Else Scrapy's own peek may show another one.
        {"SCHEDULER_PRIORITY_QUEUE": Peeking, "SCHEDULER_START_DISK_QUEUE": None},
        {"SCHEDULER_PRIORITY_QUEUE": BY_SLOT},
        {"SCHEDULER_PRIORITY_QUEUE": BY_SLOT, "HELD": True},  # in memory, for want of a name
        {"SCHEDULER_DISK_QUEUE": FIFO, "SCHEDULER_START_DISK_QUEUE": LIFO},
    ],
)
@pytest.mark.each_scrapy
async def test_the_order_is_that_of_scrapys_own_queues(tmp_path, settings):
    orders = []
    for scheduler in (default_settings.SCHEDULER, KEPT["SCHEDULER"]):
        ours = {"JOBDIR": str(tmp_path / scheduler), "SCHEDULER": scheduler}
        crawler, _ = await visit({"/": []}, Ordering, settings | ours)
        orders.append(crawler.spider.parsed)
    assert len(set(orders[0])) == len(orders[0]) > 200
    assert orders[0] == orders[1]


async def test_the_same_request_object_may_be_in_flight_twice(job):
    class Again(Follower):
        times = 0

        def parse(self, response):
            self.times += 1
            if self.times < 5:
                same = response.request.replace(dont_filter=True)
                same.callback = lambda page: self.parse(page)  # noqa: PLW0108
                yield same
                yield same

    crawler, pages = await visit({"/": []}, Again, kept(job))
    assert pages.hits["/"] > 5
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert rows(job) == []


async def test_request_seen_marks_nothing_that_the_scheduler_does_not_get(job, caplog):
    class Asking(Follower):
        def parse(self, response):
            yield from super().parse(response)
            for page in "/", "/1":
                asked = scheduler_of(self.crawler).df.request_seen(response.follow(page))
                assert asked is False

    _, pages = await visit({"/": ["/1"], "/1": []}, Asking, kept(job))
    assert pages.hits == {"/": 1, "/1": 1}
    assert caplog.text.count("Could not check whether") == 1


def test_the_slot_of_a_request_is_asked_of_the_throttler_where_there_is_one():
    request, engine = Request("http://a.test/"), Mock()
    engine.downloader.get_slot_key.side_effect = lambda request: f"slot of {request.url}"
    crawler = SimpleNamespace(engine=engine)
    assert slot_of(crawler, request) == "slot of http://a.test/"
    engine.downloader.get_slot_key.side_effect = DeprecationWarning
    crawler.throttler = Mock(get_scopes_key=lambda request: f"scopes of {request.url}")
    assert slot_of(crawler, request) == "scopes of http://a.test/"


# What it refuses

PLAIN = {"SCHEDULER": default_settings.SCHEDULER}
SCRAPYS = PLAIN | {"DUPEFILTER_CLASS": RFP}
NOWHERE = {"BLOOM_REDIS_URL": "redis://127.0.0.1:1"}
NO_QUEUE = "queuelib.queue.LifoDiskQueue"
THEIRS = "found a job of Scrapy's own scheduler"

on_sqlite = hasattr(scrapy.squeues, "PickleLifoSQLiteQueue")  # from Scrapy 2.19
OTHER_QUEUES = {
    "SCHEDULER_PRIORITY_QUEUE": BY_SLOT,
    "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.MarshalFifo{'SQLite' if on_sqlite else 'Disk'}Queue",
}


class Starting(Follower):
    """Stops while many of its start requests wait, and some that do not come from start()."""

    started = False

    async def start(self):
        for number in range(50):
            yield Request(f"{self.url}?{number}")
        self.started = True

    def parse(self, response):
        if self.started and len(scheduler_of(self.crawler)) > 5:
            raise CloseSpider("enough")
        for _ in range(2):  # they come before start requests
            yield response.request.replace(dont_filter=True)


async def start_and_stop(job, **settings):
    await visit({"/": []}, Starting, kept(job, CONCURRENT_REQUESTS=1, **settings))


@pytest.mark.each_scrapy
@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        # Settings that cannot be kept.
        (None, {"DUPEFILTER_CLASS": RFP}, "Remove your DUPEFILTER_CLASS, or your SCHEDULER"),
        (None, {"DUPEFILTER_CLASS": RFP, "JOBDIR": None, **NOWHERE}, "with the filter in Redis"),
        (None, {"SCHEDULER_DISK_QUEUE": NO_QUEUE}, f"SCHEDULER_DISK_QUEUE = {NO_QUEUE!r}"),
        (None, {"BLOOM_COMMIT_SYNC": "disk"}, "BLOOM_COMMIT_SYNC = 'disk': must be one of"),
        # Jobs of Scrapy's own scheduler: after a kill it may have lost what is marked.
        (SCRAPYS, {}, THEIRS),
        (PLAIN | OTHER_QUEUES | {"DUPEFILTER_CLASS": BLOOM}, OTHER_QUEUES, THEIRS),
        # Jobs with requests that would not be fetched.
        ({}, NOWHERE, "It was left as it is"),
        (SCRAPYS, NOWHERE, "It was left as it is"),
        ({}, PLAIN, "Set SCHEDULER = 'scrapy_bloom.Scheduler'"),
        ({}, OTHER_ORDER, "holds requests from a run with another SCHEDULER_PRIORITY_QUEUE"),
        ({}, {"SCHEDULER_START_DISK_QUEUE": None}, "SCHEDULER_START_DISK_QUEUE"),
    ],
)
async def test_what_cannot_be_kept_or_would_not_be_fetched_refuses_the_crawl(
    job, caplog, first, then, text
):
    if first is not None:
        await start_and_stop(job, **first)
    before = contents(job)
    assert text in await crawl_refused(kept(job, **then), caplog)
    assert before.items() <= contents(job).items()
    assert (job / "bloom.sqlite").exists() == (Path("bloom.sqlite") in before)


@pytest.mark.each_scrapy
async def test_a_queue_of_scrapys_own_scheduler_is_refused_if_nothing_else_is_left(job, caplog):
    """After a kill, and with another filter."""
    await start_and_stop(job, **SCRAPYS)
    for name in ("requests.queue/active.json", "requests.seen"):
        (job / name).unlink()
    assert THEIRS in await crawl_refused(kept(job), caplog)


@pytest.mark.each_scrapy
async def test_a_crawl_is_refused_without_a_traceback_however_busy_its_machine_is(
    job, caplog, monkeypatch, request
):
    """There each turn of the event loop takes so long that all timers are due."""
    unhandled, due = [], crawler_module.call_later

    def observe(event):
        if event["isError"]:
            unhandled.append(event)

    log.addObserver(observe)
    request.addfinalizer(lambda: log.removeObserver(observe))
    monkeypatch.setattr(crawler_module, "call_later", lambda _, do: due(0, do))
    await crawl_refused(kept(job, BLOOM_COMMIT_SYNC="disk"), caplog)
    gc.collect()  # then Twisted logs what nobody has handled
    assert unhandled == []


@pytest.mark.each_scrapy
async def test_an_engine_that_does_not_show_what_is_done_is_refused(job, caplog, monkeypatch):
    from scrapy.core.engine import _Slot

    original = _Slot.__init__

    def changed(self, *arguments, **keywords):
        original(self, *arguments, **keywords)
        self.inprogress = tuple(self.inprogress)

    monkeypatch.setattr(_Slot, "__init__", changed)
    said = await crawl_refused(kept(job), caplog)
    assert "cannot see in Scrapy" in said


async def test_an_error_that_nobody_expects_ends_the_crawl_costs_no_page_and_keeps_no_lock(
    job, caplog, monkeypatch
):
    async def flush(_):
        raise RuntimeError("nobody expected this")

    with site(30) as pages:
        with monkeypatch.context() as patched:
            patched.setattr(Items, "flush", flush)
            crawler = await crawl(settings=kept(job), url=pages.url)
        assert crawler.stats.get_value("finish_reason") == "bloom_bad_state"
        assert caplog.text.count("The crawl continues and retries") == 1
        assert caplog.text.count("Traceback") == 1
        pages.hits.clear()
        await crawl(settings=kept(job), url=pages.url)
        assert pages.missed == set()  # none was done


# Items and state


@pytest.mark.each_scrapy
def test_the_state_of_a_spider_is_that_of_its_requests(project):
    """Also if that which Scrapy has written at an earlier stop is there, and older."""
    with site() as pages:
        project.crawl(pages, spider="items", CLOSESPIDER_PAGECOUNT=10, **KEPT).end()
        project.kill_at(pages.delivered + 30, pages, spider="items", **KEPT)
        run = project.finish(pages, spider="items", **KEPT)
    state = pickle.loads((project.job / "spider.state").read_bytes())
    # A page that was under way at the kill may be counted twice, but none is forgotten.
    assert 0 <= state["pages"] - pages.pages <= run.stat("bloom/queue/recovered")


class Heavy:
    """Something that takes a hundred seconds to pickle, by a clock that stands still otherwise."""

    def __init__(self, clock):
        self.clock = clock

    def __reduce__(self):
        self.clock.append(self.clock[-1] + 100.0)
        return int, (len(self.clock),)  # another one each time


async def test_a_state_that_is_slow_to_store_is_stored_less_often(job, monkeypatch):
    """A quarter of an hour passes before the next commit, in which the crawl is over."""
    clock = [0.0]
    monkeypatch.setattr(backend, "perf_counter", lambda: clock[-1])
    monkeypatch.setattr(backend, "INTERVAL", 0)  # else a quick crawl has few commits anyhow
    await crawl_with_state(job, Heavy(clock))
    assert 100 <= clock[-1] <= 500  # at the first commit, perhaps one more, and at the end


async def test_a_spider_state_that_cannot_be_pickled_is_logged(job, caplog):
    await crawl_with_state(job, threading.Lock())
    assert caplog.text.count("spider.state cannot be pickled (TypeError(") == 1


async def crawl_with_state(job, state):
    """Crawl a site to its end while `spider.state` has this."""

    class Loaded(Follower):
        def parse(self, response):
            self.state["this"] = state
            yield from super().parse(response)

        def closed(self, _):
            self.state.clear()  # else Scrapy pickles it, too

    with site() as pages:
        await crawl(Loaded, kept(job), url=pages.url)
    assert pages.missed == set()
