"""Items, in feeds and pipelines: each is there before its page is done; in a job's feeds, once."""

import asyncio
import codecs
import csv
import io
import json
import logging
import os
import pickle
import sqlite3
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from shutil import copy
from threading import Event
from types import SimpleNamespace

import pytest
from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider
from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.extensions import feedexport
from scrapy.extensions.feedexport import BlockingFeedStorage
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.test import get_crawler
from support.crawling import Follower, close, crawl, kept, messages, placed, visit
from support.queues import undone
from support.sites import Pages, fan
from support.waiting import PATIENCE, until
from testbed.localsite import LocalSite
from twisted.internet.defer import Deferred

from scrapy_bloom.crawl import frontier
from scrapy_bloom.crawl import items as items_module
from scrapy_bloom.crawl.items import Items
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.scrapy.feeds import FeedExporter, _LocalFile
from scrapy_bloom.crawl.scrapy.loop import pause
from scrapy_bloom.errors import StateError
from scrapy_bloom.local.backend import LocalBackend
from scrapy_bloom.local.feeds import complete, complete_feeds, pack_due
from scrapy_bloom.local.store import Store
from scrapy_bloom.signals import before_commit

pytestmark = [pytest.mark.server, pytest.mark.each_scrapy]

SCRAPYS = "scrapy.extensions.feedexport.FeedExporter"
NO_ROOM = OSError("no room for items")

storage = placed("kept job", "shared")


# Feeds of crawls


class Yielding(Follower):
    """Yields what its `items` yields; notes its feed's size after each of the first page."""

    name = "follower"
    written = None  # numbers of items that it waits for: they are in the feed before its page ends

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.sizes = []

    async def parse(self, response):
        for found in super().parse(response):
            yield found
        for item in self.items(response):
            before = self.feed.stat().st_size
            yield item
            for turn in range(10 * PATIENCE):
                await asyncio.sleep(0.01 if self.written is None else 0.1)
                size = self.feed.stat().st_size
                if self.written is None or size > before:
                    break
                if turn and item["number"] not in self.written:
                    break
            if response.url == self.url:
                self.sizes.append(size)

    def items(self, response):
        item = {"url": response.url, "so far": []}
        for number in range(3):
            item["number"] = number
            item["so far"].append(number)
            yield item


@pytest.fixture
def feed(tmp_path):
    path = tmp_path / "items.jsonl"
    path.touch()
    return path


def lines(feed):
    return [json.loads(line) for line in feed.read_text().splitlines()]


async def run(spider, settings, feed, pages, **options):
    """Crawl a site, or one of some pages, with one feed; return the spider."""
    feeds = {**settings.get("FEEDS", {}), str(feed): {"format": "jsonlines", **options}}
    settings = {**settings, "FEEDS": feeds}
    with nullcontext(pages) if isinstance(pages, Pages) else Pages(pages) as site:
        return (await crawl(spider, settings, url=site.url + "/", feed=feed)).spider


async def test_items_wait_until_their_page_has_ended_unless_redis_has_it(
    storage, feed, monkeypatch
):
    """Each is as it was when it was yielded."""
    monkeypatch.setattr(Yielding, "written", () if "JOBDIR" in storage else (0, 1, 2))
    sizes = (await run(Yielding, storage, feed, fan())).sizes
    assert sizes == [0, 0, 0] if "JOBDIR" in storage else 0 < sizes[0] < sizes[1]
    assert [line["so far"] for line in lines(feed)] == [[0], [0, 1], [0, 1, 2]]


class NoPickle(str):
    __slots__ = ()

    def __reduce_ex__(self, _):
        raise TypeError("it cannot be pickled")


@pytest.mark.parametrize("limit", ["MOST_DEFERRED", "MOST_BYTES", None])
async def test_items_of_a_page_that_has_very_many_or_one_that_cannot_be_pickled_do_not_wait(
    job, feed, monkeypatch, limit, caplog
):
    class Odd(Yielding):
        def items(self, response):
            for item in super().items(response):
                yield item if limit or item["number"] == 0 else item | {"odd": NoPickle("x")}

    caplog.set_level("INFO")
    monkeypatch.setattr(Yielding, "written", (1,))
    if limit:
        monkeypatch.setattr(items_module, limit, 100)
    pages = fan("a") if limit == "MOST_DEFERRED" else fan()
    sizes = (await run(Odd, kept(job), feed, pages)).sizes
    assert sizes[0] == 0 < sizes[1]
    assert sorted(line["number"] for line in lines(feed)) == sorted([0, 1, 2] * len(pages))
    assert caplog.text.count("or one that cannot be pickled. They are exported before it ends") == 1


@pytest.mark.parametrize("closes", [True, False])
async def test_a_page_that_stays_stored_leaves_its_items_to_the_next_run(job, feed, closes):
    """Unless it closes the spider itself, as it may do so in each run: that ends it."""

    class Enough(Yielding):
        def items(self, response):
            yield from super().items(response)
            if closes:
                raise CloseSpider("enough")
            close(self.crawler)
            yield response.follow("/held", lambda _: None)

    with Pages({"/": [], "/held": []}) as site:
        for spider, count in (Enough, 3 * closes), (Yielding, 3):
            await run(spider, kept(job), feed, site)
            assert len(lines(feed)) == count
        assert site.hits["/"] == 2 - closes


async def test_what_could_not_be_committed_at_the_end_is_in_no_feed(job, feed, monkeypatch):
    with Pages(fan("a")) as site:
        with monkeypatch.context() as patched:
            patched.setattr(Store, "commit", failing := Store.commit)

            def fail(self, **options):
                if self.stored_meta:  # the run has begun
                    raise sqlite3.OperationalError("no room")
                failing(self, **options)

            patched.setattr(Store, "commit", fail)
            patched.setattr(Store, "close", lambda _: fail(SimpleNamespace(stored_meta=True)))
            await run(Closing, kept(job), feed, site)
        assert lines(feed) == []
        await run(Yielding, kept(job), feed, site)
    assert len(lines(feed)) == 6


class Closing(Yielding):
    """Stops while it is at its first page."""

    def items(self, response):
        close(self.crawler)
        return super().items(response)


class Rescuing(Follower):
    """Yields an item for what cannot be downloaded; what it links to closes it."""

    name = "follower"

    def request(self, response, href):
        return response.follow(href, errback=self.rescue)

    def parse(self, response):
        yield from super().parse(response)
        if response.url != self.url:
            close(self.crawler)

    def rescue(self, failure):
        if not failure.request.url.endswith("/mute"):
            yield {"url": failure.request.url}


async def test_what_fails_while_a_spider_closes_stays_stored_unless_an_errback_yields_an_item(
    job, feed, caplog
):
    """It stayed stored all the same, so the next run yielded the item again."""
    caplog.set_level("INFO")

    def fail(*_):
        until(lambda: "Closing: finishing" in caplog.text)
        return 503

    with Pages(fan("enough", bad=fail, mute=fail)) as site:
        for _ in range(2):
            await run(Rescuing, kept(job, RETRY_ENABLED=False), feed, site)
            site.pages |= {"/bad": [], "/mute": []}
        assert lines(feed) == [{"url": f"{site.url}/bad"}]
        assert (site.hits["/bad"], site.hits["/mute"]) == (1, 2)


class Odd(Yielding):
    """JSON cannot have one of its items."""

    def items(self, response):
        for item in super().items(response):
            odd = response.url.endswith("/a") and item["number"] == 1
            yield {**item, "odd": b"bytes"} if odd else item


async def test_what_an_exporter_refuses_fails_its_page(storage, feed, tmp_path, caplog):
    """It stays in the feed that has it."""
    caplog.set_level("INFO")
    table = tmp_path / "items.csv"
    settings = storage | {"FEEDS": {str(table): {"format": "csv", "fields": ["url", "number"]}}}
    with Pages(fan("a", "b")) as site:
        await run(Odd, settings, feed, site)
        assert len({*table.read_text().splitlines()}) == 10
        assert "1 failed (1 \u00d7 TypeError in exporter of items.jsonl)" in caplog.text
        said = [text for text in messages(caplog) if text.startswith("The exporter of items.jsonl")]
        assert len(said) == 1
        assert Counter(line["number"] for line in lines(feed)) == {0: 3, 1: 2, 2: 3}
        await run(Yielding, settings, feed, site)
    assert Counter(line["number"] for line in lines(feed)) == {0: 4, 1: 3, 2: 4}


class Announcing(Yielding):
    """Yields an item first, which belongs to no page."""

    async def start(self):
        yield {"url": "none", "number": 0}
        async for each in super().start():
            yield each


async def test_what_cannot_be_written_is_tried_again_and_ends_no_crawl(storage, feed, monkeypatch):
    """Nothing is sent before it is written, and the crawl is not busy, however much waits."""
    flushes, failed, open_file, flush = [], [], _LocalFile.open_file, Items.flush

    def failing(self):
        if len(failed) < 3:
            failed.append(time.monotonic())
            raise NO_ROOM
        return open_file(self)

    def counting(self, **options):
        flushes.append(time.monotonic())
        return flush(self, **options)

    monkeypatch.setattr(frontier, "MOST_UNWRITTEN", 0)
    monkeypatch.setattr(_LocalFile, "open_file", failing)
    monkeypatch.setattr(Items, "flush", counting)
    await run(Announcing, storage, feed, fan(1, 2))
    first, *_, last = failed
    assert sum(first < at < last for at in flushes) < 100 * (last - first)
    assert Counter(line["url"][-1] for line in lines(feed)) == {"e": 1, "/": 3, "1": 3, "2": 3}


class Own(feedexport.FeedExporter):
    """A project's own."""


async def test_another_exporter_writes_feeds_as_it_does(storage, feed, caplog):
    caplog.set_level("INFO")
    settings = storage | {"EXTENSIONS": {SCRAPYS: None, Own: 0}}
    await run(Yielding, settings, feed, fan("a"))
    assert len(lines(feed)) == 6
    assert caplog.text.count("Feeds are written by Own, not by scrapy_bloom.FeedExporter") == 1


async def test_a_csv_feed_that_is_resumed_has_one_header_and_the_same_columns(job, tmp_path):
    class Fields(Yielding):
        def items(self, response):
            for item in super().items(response):
                item |= {"more": 'a "quoted" text', "else": self.name}
                yield {name: item[name] for name in self.fields}

    feed = tmp_path / "items.csv"
    feed.touch()

    async def run_with(*fields):
        spider = type("Each", (Fields,), {"fields": fields, "name": "follower"})
        await run(spider, kept(f"{job}-{fields}"), feed, fan(), format="csv")

    for fields in ("url", "number", "more"), ("number", "url"), ("url",):
        await run_with(*fields)
    with feed.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["url", "number", "more"]
    assert [row[1] for row in rows] == ["0", "1", "2"] * 2 + [""] * 3
    await run_with("else")
    assert feed.read_text().splitlines()[-4:] == ["else", *["follower"] * 3]


class Uploading(BlockingFeedStorage):
    def __init__(self, uri, *, feed_options=None):
        pass

    def _store_in_thread(self, file):
        file.close()


async def test_feeds_that_a_kill_would_damage_are_warned_of_at_the_start(job, tmp_path, caplog):
    zipped = {"postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]}
    lines, whole = {"format": "jsonlines"}, {"format": "json"}
    feeds = {"far://me:secret@a.test/items.jsonl": lines}
    feeds |= {str(tmp_path / "items.gz"): lines | zipped, str(tmp_path / "items.jsonl"): lines}
    feeds |= {str(tmp_path / "anew.jsonl"): lines | {"overwrite": True}}
    feeds[str(tmp_path / "items.json")] = whole
    settings = kept(job, FEEDS=feeds, FEED_STORAGES={"far": Uploading})
    await visit(fan(), Gathered, settings)
    uploaded, processed, overwritten, whole = (
        r.getMessage() for r in caplog.records if r.levelno == logging.WARNING
    )
    assert "items.json is invalid after a kill or a second run" in whole
    assert "anew.jsonl is overwritten by each run" in overwritten
    assert "The feed far://a.test/items.jsonl is post-processed or uploaded" in uploaded
    assert "items.gz is post-processed or uploaded: a kill loses the last items" in processed


# Pipelines of crawls


class Gathering:
    """A pipeline that writes its items when it is asked to before a commit, and at the end."""

    written, fails, raises, ends_well = (), 0, NO_ROOM, True

    def __init__(self, crawler):
        self.items = []
        crawler.signals.connect(self.write, signal=before_commit)

    from_crawler = classmethod(lambda cls, crawler: cls(crawler))

    def process_item(self, item, spider=None):  # noqa: ARG002
        self.items.append(item["url"])
        return item

    async def write(self):
        await asyncio.sleep(0.01)
        if self.fails:
            type(self).fails -= 1
            raise self.raises
        self.save()

    def close_spider(self, spider=None):  # noqa: ARG002
        if not self.ends_well:
            raise self.raises
        self.save()

    def save(self):
        self.written.extend(self.items)
        self.items.clear()


@pytest.fixture
def written(monkeypatch):
    """What `Gathering` has written."""
    monkeypatch.setattr(Gathering, "written", written := [])
    return written


class Gathered(Follower):
    """Makes an item of each page, and stops after so many."""

    stops_after = 0

    def parse(self, response):
        yield from super().parse(response)
        yield {"url": response.url}
        if len(self.parsed) == self.stops_after:
            close(self.crawler)


@pytest.mark.parametrize("error", [NO_ROOM, asyncio.CancelledError()])
async def test_coroutine_handlers_of_before_commit_are_awaited(
    storage, written, monkeypatch, error
):
    monkeypatch.setattr(Gathering, "fails", 2)
    monkeypatch.setattr(Gathering, "raises", error)
    with LocalSite(pages=60, links=6) as site:
        site.when(50, lambda: until(lambda: not Gathering.fails))  # else it may end before that
        settings = storage | {"ITEM_PIPELINES": {Gathering: 1}}
        crawler = await crawl(Gathered, settings, url=site.url)
    assert site.missed == set()
    assert crawler.stats.get_value("bloom/queue/commit_errors", 0) == 2
    done = 60 - undone(storage)
    assert len(set(written)) >= done > 40


async def test_pages_that_end_while_items_are_written_are_not_done(job, written, monkeypatch):
    began, released, release = Event(), [], LocalBackend.release

    class Slow(Gathering):
        async def write(self):
            some, self.items = self.items, []
            began.set()
            while len(written) + len(some) + len(self.items) < 13:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for _ in range(100):  # the engine is finished with them
                await asyncio.sleep(0)
            written.extend(some)

    def note(self, *page):
        released.append(len(written))
        release(self, *page)

    monkeypatch.setattr(LocalBackend, "release", note)
    leaves = {str(number): lambda *_: began.wait(PATIENCE) and [] for number in range(12)}
    await visit(fan(**leaves), Gathered, kept(job, ITEM_PIPELINES={Slow: 1}))
    assert len(released) == 13
    assert all(count <= written for count, written in enumerate(released, 1))


@pytest.mark.parametrize("lost", [40, 0])
async def test_pages_whose_items_are_lost_at_the_end_are_fetched_again(
    storage, written, caplog, monkeypatch, feed, lost
):
    """What the handler has written last is safe; what it could not write is not done."""

    class AtOnce(Gathered):
        async def start(self):
            for number in range(40):
                yield Request(f"{self.url}/{number}")

    def all_are_sent(*_):  # nothing is once items could not be written
        return until(lambda: len(site.hits) == 40) and []

    settings = storage | {"ITEM_PIPELINES": {Gathering: 1}, "CONCURRENT_REQUESTS": 40}
    settings["CONCURRENT_REQUESTS_PER_DOMAIN"] = 40
    settings["FEEDS"] = {str(feed): {"format": "jsonlines"}}
    monkeypatch.setattr(Gathered, "stops_after", 40)
    with Pages({f"/{number}": all_are_sent for number in range(40)}) as site:
        with monkeypatch.context() as patched:
            patched.setattr(Gathering, "fails", 10**6 if lost else 0)
            patched.setattr(Gathering, "ends_well", False)
            await crawl(AtOnce, settings, url=site.url)
        assert len(written) == 40 - lost
        assert undone(storage) == lost
        assert "JOBDIR" not in storage or len(lines(feed)) == 40 - lost
        assert caplog.text.count("Items of 40 pages could not be written out") == bool(lost)
        crawler = await crawl(AtOnce, settings, url=site.url)
    assert len(set(written)) == 40
    assert "JOBDIR" not in storage or len(lines(feed)) == 40
    assert undone(storage) == 0
    assert "bloom/unclean_stop" not in crawler.stats.get_stats()


# Without a crawl


def make(
    pipelines=(),
    *,
    feed=None,
    sync=False,
    write=None,
    closing=None,
    ours=FeedExporter,
    notes=None,
    **options,
):
    """Return the items of a crawl that is open, and what scrapes one.

    :param write: a handler of `before_commit`.
    :param closing: a list for what is to be awaited before the pipelines are closed.
    :param ours: the exporter of feeds.
    :param notes: a list for what commits have for feeds. Without it there are none.
    """
    feeds = {"FEEDS": {feed: {"format": "jsonlines", **options}}} if feed else {}
    crawler = get_crawler(settings_dict={**feeds, "EXTENSIONS": {SCRAPYS: None, ours: 0}})
    crawler.spider = spider = Spider("books")
    closing = [] if closing is None else closing
    engine = SimpleNamespace(before_closing=closing.append, pipelines=pipelines)
    if write is not None:
        crawler.signals.connect(write, before_commit)
    in_flight = SimpleNamespace(page_of_response=lambda _: None)
    note = (lambda _: False) if notes is None else lambda due: not notes.append(due)
    backend = SimpleNamespace(shared=True, store_due=note)
    items = Items(crawler, engine, in_flight, backend, Report(crawler), sync=sync)
    crawler.signals.send_catch_log(signals.spider_opened, spider=spider)

    def scrape(number):
        item = {"number": number}
        crawler.signals.send_catch_log(signals.item_scraped, item=item, spider=spider)

    scrape.crawler = crawler
    return items, scrape


@pytest.fixture
def synced(monkeypatch):
    """The names of files that were synced to disk, in order."""
    names, fsync = [], os.fsync

    def note(number):
        names.append(Path(f"/proc/self/fd/{number}").readlink().name)
        fsync(number)

    monkeypatch.setattr(os, "fsync", note)
    return names


@pytest.fixture
def now(monkeypatch):
    """The time, in a list."""
    now = [100.0]
    monkeypatch.setattr(items_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


# Files of pipelines

HOLDS = {
    "a file": lambda file: file,
    "one of codecs": codecs.getwriter("utf-8"),
    "an exporter": JsonLinesItemExporter,
    "exporters by year": lambda file: {"2026": (CsvItemExporter(file), file)},
}


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("held", HOLDS)
async def test_what_a_pipeline_has_written_is_in_its_file_before_its_pages_are_done(
    tmp_path, held, sync, synced
):
    """And on disk, where a power failure must lose nothing."""
    path = tmp_path / "items"
    with path.open("wb") as file, path.open() as read:
        pipeline = SimpleNamespace(seen={"a"}, holds=HOLDS[held](file), reads=read)
        items, _ = make([object(), pipeline], sync=sync)
        file.write(b"an item")
        assert path.read_text() == ""
        assert await items.flush()
        assert path.read_text() == "an item"
    assert await items.flush()  # a closed file is left alone
    assert synced == ["items"] * sync


async def test_files_of_pipelines_are_looked_for_at_the_start_and_every_five_seconds(tmp_path, now):
    class Held(list):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    held, path = Held(), tmp_path / "items"
    items, _ = make([SimpleNamespace(held=held)])
    with path.open("w") as file:
        held.append(file)
        file.write("an item")
        for now[0] in (100.1, 102.0, 104.9, 105.0):
            assert (held.looks, path.read_text()) == (1, "")
            assert await items.flush()
        assert (held.looks, path.read_text()) == (2, "an item")


async def test_while_the_file_of_a_pipeline_cannot_be_written_its_pages_are_not_done(caplog, now):
    """That is said again each minute."""
    file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    items, _ = make([SimpleNamespace(file=file)])
    file.write("an item")
    for now[0], times in (100.0, 1), (159.0, 1), (160.0, 2), (161.0, 2):
        assert not await items.flush(at_once=True)
        assert caplog.text.count("Items could not be written out: [Errno 28]") == times
    with pytest.raises(OSError, match="No space left"):
        file.close()
    assert await items.flush(at_once=True)


async def test_what_could_not_be_written_is_not_forgotten_when_pipelines_are_closed_next():
    """Its pages were done: the last question had begun by then, and not failed yet."""
    closing = []

    async def write():
        await pause(0)
        raise NO_ROOM

    items, _ = make(write=write, closing=closing)
    flushed, closed = map(Deferred.fromCoroutine, (items.flush(), closing[0]()))
    assert await flushed is False
    await closed
    assert await items.flush(at_once=True) is False


async def test_the_event_loop_turns_between_the_steps_of_a_large_commit(feed, monkeypatch):
    monkeypatch.setattr(items_module, "_MUCH", 10)
    items, scrape = make(feed=str(feed), notes=[])
    scrape(1)
    for step in items.flush(), items.committed():
        doing = Deferred.fromCoroutine(step)
        assert not doing.called
        await doing
    assert lines(feed) == [{"number": 1}]


# Feeds


CUTS = ["", "a,b", "a,", '"a', 'a,"']


@pytest.mark.parametrize("cut", CUTS)
async def test_a_csv_feed_with_an_unfinished_last_line_only_gets_its_end(tmp_path, cut):
    path = tmp_path / "items.csv"
    path.write_text(f"number\n{cut}")
    items, scrape = make(feed=str(path), format="csv")
    scrape("after")
    assert await items.flush()
    assert path.read_text().replace("\r", "") == f"number\n{cut}{chr(10) * bool(cut)}after\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("head", ["", "number\n", "\ufeff number \n"])
async def test_a_csv_feed_has_one_head_and_one_byte_order_mark(tmp_path, encoding, head):
    path = tmp_path / "items.csv"
    path.write_text(head, encoding=encoding if head else "utf-8")
    for _ in range(2):
        items, scrape = make(feed=str(path), format="csv", encoding=encoding)
        scrape(1)
        assert await items.flush()
    rows = path.read_bytes().decode(encoding).removeprefix("\ufeff").split()
    assert rows == ["number", "1", "1"]


async def test_further_runs_go_on_with_the_next_batch(tmp_path):
    sizes = []
    for count in 5, 3, 2:
        items, scrape = make(feed=f"{tmp_path}/%(batch_id)d.jl", batch_item_count=2)
        for number in range(count):
            scrape(number)
        assert await items.flush()
        sizes += [2] * (count // 2) + [1] * (count % 2)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"{number}.jl" for number, _ in enumerate(sizes, 1)]
    assert [len(lines(file)) for file in files] == sizes


@pytest.mark.parametrize("kind", ["pipe", "null"])
async def test_what_cannot_be_synced_needs_no_sync(tmp_path, kind):
    feed, ends = "/dev/null", []
    if kind == "pipe":
        os.mkfifo(feed := str(tmp_path / "pipe"))
        ends.append(os.open(feed, os.O_RDWR))
    items, scrape = make(feed=feed, sync=True)
    scrape(1)
    assert await items.flush()
    for end in ends:
        assert os.read(end, 100) == b'{"number": 1}\n'
        os.close(end)


@pytest.mark.parametrize("exporter", [FeedExporter, feedexport.FeedExporter])
async def test_a_batch_that_is_full_is_written_before_its_pages_are_done(tmp_path, exporter):
    """Scrapy closes its file at once, or much later."""
    feed = f"{tmp_path}/%(batch_id)d.jl"
    items, scrape = make(feed=feed, batch_item_count=2, ours=exporter)
    for number in range(5):
        scrape(number)
    await pause(0.01)
    for _ in range(2):
        assert await items.flush()
        assert [len(lines(tmp_path / f"{batch}.jl")) for batch in (1, 2, 3)] == [2, 2, 1]


async def test_what_is_appended_is_synced_before_its_note_is_replaced(
    tmp_path, synced, monkeypatch
):
    notes = []
    items, scrape = make(feed=f"{tmp_path}/items.jl", sync=True, notes=notes)
    scrape(1)
    assert await items.flush()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: exec("raise OSError('not synced')"))
        await items.committed()
        assert not await items.flush(at_once=True)
    assert len(notes) == 1
    assert await items.flush(at_once=True)
    assert (synced, notes[1:]) == (["items.jl"], [{}])
    assert lines(tmp_path / "items.jl") == [{"number": 1}]


@pytest.mark.parametrize("handed_over", [False, True])
async def test_what_no_commit_has_and_could_not_be_written_is_in_no_feed(
    feed, monkeypatch, handed_over
):
    items, scrape = make(feed=str(feed))
    scrape(1)
    with monkeypatch.context() as patched:
        owner, name = (_LocalFile, "open_file") if handed_over else (items_module, "flush_others")
        patched.setattr(owner, name, lambda *_, **__: exec("raise OSError"))
        assert not await items.flush()
    items.stop_exporting(1)
    await deferred_from_coro(scrape.crawler.get_extension(FeedExporter).close_spider(None))
    assert lines(feed) == []


@pytest.mark.parametrize("fails", [False, True])
async def test_a_feed_whose_disk_takes_some_bytes_has_each_item_once_and_whole(
    tmp_path, monkeypatch, fails
):
    """At each byte, whether the next commit fails, too, and after a kill at each step."""

    class Disk(io.FileIO):
        room = 0

        def write(self, data):
            if not Disk.room:
                raise NO_ROOM
            count = super().write(data[: Disk.room])
            Disk.room -= count
            return count

    monkeypatch.setattr(_LocalFile, "open_file", lambda self: Disk(self.path, "ab"))
    resumed = tmp_path / "resumed"
    for room in range(35):
        feed, notes = tmp_path / f"{room}.jl", []
        items, scrape = make(feed=str(feed), notes=notes)
        for number, Disk.room in enumerate((20, room, 3, 1000)):
            scrape(number)
            scrape(-number)
            assert await items.flush(at_once=True)
            if fails and number == 2:
                del notes[-1]
                continue
            await items.committed()
            for size, data in notes[-1].values():
                copy(feed, resumed)
                complete(resumed, size, data, tmp_path)
                expected = [{"number": each} for end in range(number + 1) for each in (end, -end)]
                assert lines(resumed) == expected
        assert lines(feed) == expected


# What a commit has for feeds

OURS = [b'{"a": 1}\n', b'{"b": 2}\n', b'{"b": 3}\n']


@pytest.mark.parametrize("before", [b"", b'{"x": 0}\n'])
@pytest.mark.parametrize("theirs", [b"", b'{"b": 4}\n'])
def test_each_item_is_whole_wherever_it_was_cut_and_others_went_on(tmp_path, before, theirs):
    """Half a line that others have ended is the only one that is broken."""
    path, data = tmp_path / "items", b"".join(OURS)
    for cut in range(len(data) + 1):
        path.write_bytes(before + data[:cut] + theirs)
        torn = data[data.rfind(b"\n", 0, cut) + 1 : cut] * bool(theirs)
        for more in b"", theirs:  # that run may be killed, too
            with path.open("ab") as file:
                file.write(more)
            complete_feeds(tmp_path, pack_due({str(path): (len(before), data)}))
            found = Counter(path.read_bytes().splitlines(keepends=True))
            assert found == Counter(filter(None, [*OURS, torn + theirs, more, before]))


@pytest.mark.parametrize(
    ("ours", "theirs", "between"),
    [(pickle.dumps(1 << 99), pickle.dumps(1 << 98), b""), (b"a\n", b"no end", b"\n")],
)
def test_others_items_without_an_end_are_left_alone(tmp_path, ours, theirs, between):
    path = tmp_path / "items"
    path.write_bytes(theirs)
    for _ in range(2):
        complete(path, 0, ours, tmp_path)
        assert path.read_bytes() == theirs + between + ours


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("relative", [False, True])
async def test_a_feed_moves_with_its_job_if_its_path_is_relative(
    tmp_path, monkeypatch, relative, moved
):
    """To where the crawl began: a spider may change that."""
    old, new, notes = tmp_path / "old", tmp_path / "new", []
    for folder in new, old:
        folder.mkdir()
        monkeypatch.chdir(folder)
    items, scrape = make(feed="a/b" if relative else str(old / "a" / "b"), notes=notes)
    scrape(1)
    monkeypatch.chdir(tmp_path)
    assert await items.flush()
    monkeypatch.chdir(new if moved else old)
    complete_feeds(tmp_path, pack_due(notes[0]))
    there, other = (new, old) if relative and moved else (old, new)
    assert lines(there / "a" / "b") == [{"number": 1}]
    assert not any(other.iterdir())


@pytest.mark.parametrize("left", [None, b"01"])
def test_a_feed_that_is_shorter_than_it_was_is_left_as_it_is(tmp_path, left, caplog):
    path, lost = tmp_path / "items", tmp_path / "feeds" / "items"
    if left is not None:
        path.write_bytes(left)
    complete(path, 5, b"a\nb\n", lost.parent)
    assert (path.read_bytes() if path.exists() else None) == left
    assert lost.read_bytes() == b"a\nb\n"
    assert "is not as the last run left it" in caplog.text


def test_a_feed_that_cannot_be_completed_refuses_the_run(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot be written"):
        complete_feeds(tmp_path, pack_due({str(tmp_path / "file" / "items"): (0, b"a")}))
