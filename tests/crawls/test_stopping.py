"""Which pages are fetched again after a stop, and what is written before a page is done."""

import asyncio
import json
import logging
import sqlite3
import threading
from contextlib import closing
from unittest.mock import Mock

import pytest
from redis import Redis
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider
from scrapy.extensions.feedexport import BlockingFeedStorage
from support.crawling import Follower, close, crawl, download, kept, placed
from support.queues import left
from support.sites import Pages, fan
from support.waiting import PATIENCE, until
from testbed.localsite import LocalSite

from scrapy_bloom import Scheduler
from scrapy_bloom.local.backend import LocalBackend
from scrapy_bloom.signals import before_commit

pytestmark = pytest.mark.server


storage = placed("kept job", "shared")


def undone(storage):
    """Return how many requests of a crawl are neither done nor on the failed list."""
    if "BLOOM_REDIS_URL" in storage:
        with Redis.from_url(storage["BLOOM_REDIS_URL"]) as client:
            return sum(left(Mock(client=lambda: client), storage["BLOOM_REDIS_KEY"])[:2])
    with closing(sqlite3.connect(f"{storage['JOBDIR']}/bloom.sqlite")) as database:
        return database.execute("SELECT count(*) FROM requests").fetchone()[0]


# CloseSpider


class Enough(Follower):
    """Every page after the first ones closes the spider, before it gives its links."""

    name = "follower"
    pages = 6

    def parse(self, response):
        if len(self.parsed) == self.pages:
            raise CloseSpider("enough")
        yield from super().parse(response)


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

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

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


async def test_a_page_held_in_memory_is_not_lost_with_the_page_that_yielded_it(storage):
    """Another page links to it, too, and is not done before it: the first one may have changed."""
    front, archive = threading.Event(), threading.Event()

    class Two(Follower):
        stops = True

        def parse(self, response):
            self.parsed.append(response.url)
            is_front = response.url.endswith("/front")
            for href in response.css("a::attr(href)").getall():
                late = {"callback": lambda page: self.late(page)} if is_front else {}  # noqa: PLW0108
                yield response.follow(href, **late)
            (front if is_front else archive if "archive" in response.url else Mock()).set()

        def late(self, _):
            if self.stops:
                raise CloseSpider("enough")

    news = ["/1", "/2", "/3"]
    pages = {"/": ["/front", "/archive"], "/front": lambda *_: news if Two.stops else []}
    pages["/archive"] = lambda *_: front.wait(PATIENCE) and news
    pages |= dict.fromkeys(news, lambda *_: archive.wait(PATIENCE) and [])
    with Pages(pages) as site:
        await crawl(Two, storage, url=site.url + "/")
        assert site.hits["/front"] == site.hits["/archive"] == 1
        Two.stops = False
        spider = (await crawl(Two, storage, url=site.url + "/")).spider
    assert {site.url + path for path in news} <= {*spider.parsed}
    assert undone(storage) == 0


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
            yield Request(self.url, callback=lambda page: self.parse(page))  # noqa: PLW0108

            yield Request(self.url + "?2", callback=lambda page: self.parse(page))  # noqa: PLW0108

    with Pages({"/": []}) as site:
        await crawl(Idle, storage, url=site.url + "/")
    assert caplog.text.count("no page led to it: after a kill or a stop it is lost unless") == 1
    assert caplog.text.count("Unable to serialize request") == 1


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
    with Pages({"/": ["/a"], "/a": []}) as site:
        crawler = await crawl(Slots, settings, url=site.url + "/")
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


# Items


class Gathering:
    """A pipeline whose handler of `before_commit` is a coroutine."""

    written = ()
    fails = 0
    raises = OSError("no room for items")

    def __init__(self, crawler):
        self.items, self.file = [], type(self).written
        crawler.signals.connect(self.write, signal=before_commit)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_item(self, item, spider=None):  # noqa: ARG002
        self.items.append(item["url"])
        return item

    async def write(self):
        await asyncio.sleep(0.01)
        if type(self).fails:
            type(self).fails -= 1
            raise self.raises
        self.save()

    def close_spider(self, spider=None):  # noqa: ARG002
        self.save()

    def save(self):
        self.file.extend(self.items)
        self.items.clear()


class Items(Follower):
    """Makes an item of each page, and stops after so many."""

    stops_after = 0

    def parse(self, response):
        yield from super().parse(response)
        yield {"url": response.url}
        if len(self.parsed) == self.stops_after:
            close(self.crawler)


@pytest.mark.each_scrapy
@pytest.mark.parametrize("error", [OSError("no room for items"), asyncio.CancelledError()])
async def test_coroutine_handlers_of_before_commit_are_awaited(storage, monkeypatch, error):
    Gathering.written, Gathering.fails = [], 2
    monkeypatch.setattr(Gathering, "raises", error)
    with LocalSite(pages=60, links=6) as site:
        site.when(50, lambda: until(lambda: not Gathering.fails))  # else it may end before that
        settings = storage | {"ITEM_PIPELINES": {Gathering: 1}}
        crawler = await crawl(Items, settings, url=site.url)
    assert site.missed == set()
    assert crawler.stats.get_value("bloom/queue/commit_errors", 0) == 2
    done = 60 - undone(storage)
    assert len(set(Gathering.written)) >= done > 40


async def test_pages_that_end_while_items_are_written_are_not_done(job, monkeypatch):
    began, released, release = threading.Event(), [], LocalBackend.release

    class Slow(Gathering):
        async def write(self):
            some, self.items = self.items, []
            began.set()
            while len(self.file) + len(some) + len(self.items) < 13:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for _ in range(100):  # the engine is through with them
                await asyncio.sleep(0)
            self.file.extend(some)

    def note(self, *page):
        released.append(len(Gathering.written))
        release(self, *page)

    Gathering.written = []
    monkeypatch.setattr(LocalBackend, "release", note)
    leaves = {f"/{number}": lambda *_: began.wait(PATIENCE) and [] for number in range(12)}
    with Pages({"/": [*leaves], **leaves}) as site:
        await crawl(Items, kept(job, ITEM_PIPELINES={Slow: 1}), url=site.url + "/")
    assert len(released) == 13
    assert all(count <= written for count, written in enumerate(released, 1))


@pytest.mark.parametrize(("fails_in", "lost"), [("write", 40), ("close", 0)])
async def test_pages_whose_items_are_lost_at_the_end_are_fetched_again(
    storage, caplog, monkeypatch, fails_in, lost
):
    """What the handler has written last is safe; what it could not write is not done."""

    class Down(Gathering):
        async def write(self):
            if fails_in == "write":
                raise OSError("no room for items")
            await super().write()

        def close_spider(self, spider=None):  # noqa: ARG002
            if fails_in:
                raise OSError("no room for items")
            self.save()

    class AtOnce(Items):
        async def start(self):
            for number in range(40):
                yield Request(f"{self.url}/{number}")

    def all_are_sent(*_):  # nothing is once items could not be written
        return until(lambda: len(site.hits) == 40) and []

    settings = storage | {"ITEM_PIPELINES": {Down: 1}, "CONCURRENT_REQUESTS": 40}
    settings["CONCURRENT_REQUESTS_PER_DOMAIN"] = 40
    Gathering.written, Gathering.fails = [], 0
    monkeypatch.setattr(Items, "stops_after", 40)
    with Pages({f"/{number}": all_are_sent for number in range(40)}) as site:
        await crawl(AtOnce, settings, url=site.url)
        assert len(Gathering.written) == 40 - lost
        assert undone(storage) == lost
        assert caplog.text.count("Items of 40 pages could not be written out") == bool(lost)
        fails_in = ""
        crawler = await crawl(AtOnce, settings, url=site.url)
    assert len(set(Gathering.written)) == 40
    assert undone(storage) == 0
    assert "bloom/unclean_stop" not in crawler.stats.get_stats()


class Uploading(BlockingFeedStorage):
    def __init__(self, uri, *, feed_options=None):
        pass

    def _store_in_thread(self, file):
        file.close()


@pytest.mark.each_scrapy
async def test_feeds_that_a_kill_would_damage_are_warned_of_at_the_start(job, tmp_path, caplog):
    gzip = {"postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]}
    lines = {"format": "jsonlines"}
    feeds = {"far://me:secret@a.test/items.jsonl": lines}
    feeds |= {str(tmp_path / "items.gz"): lines | gzip, str(tmp_path / "items.jsonl"): lines}
    feeds[str(tmp_path / "anew.jsonl")] = lines | {"overwrite": True}
    feeds[str(tmp_path / "items.json")] = feeds[str(tmp_path / "%(time)s.json")] = {
        "format": "json"
    }
    settings = kept(job, FEEDS=feeds, FEED_STORAGES={"far": Uploading})
    with Pages(fan(*range(3))) as site:
        await crawl(Items, settings, url=site.url + "/")
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    uploaded, processed, overwritten, whole = warned
    assert "A second run cannot append to the json feed" in whole
    assert "items.json: the file would not be valid" in whole
    assert "anew.jsonl is overwritten by each run" in overwritten
    assert "The feed far://a.test/items.jsonl is uploaded when it ends" in uploaded
    assert "items.gz is post-processed: a kill loses the last items" in processed


@pytest.mark.each_scrapy
async def test_each_file_of_a_feed_in_batches_is_repaired(job, tmp_path):
    cut = '{"url": "http://a.te'
    for batch in 1, 2, 3:
        (tmp_path / f"{batch}.jsonl").write_text(cut)
    feeds = {str(tmp_path / "%(batch_id)d.jsonl"): {"format": "jsonlines", "batch_item_count": 2}}
    with Pages(fan(*range(4))) as site:
        await crawl(Items, kept(job, FEEDS=feeds), url=site.url + "/")
    for batch, items in (1, 2), (2, 2), (3, 1):
        first, *lines = (tmp_path / f"{batch}.jsonl").read_text().splitlines()
        assert first == cut
        assert len([json.loads(line)["url"] for line in lines]) == items
