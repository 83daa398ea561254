"""Items, in feeds and pipelines: each is there before its page is done; in a job's feeds, once."""

import asyncio
import codecs
import csv
import json
import logging
import os
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider
from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.extensions.feedexport import BlockingFeedStorage
from scrapy.utils.test import get_crawler
from support.crawling import Follower, close, crawl, kept, messages, placed, visit
from support.queues import undone
from support.sites import Pages, fan
from support.waiting import PATIENCE, until
from testbed.localsite import LocalSite
from twisted.internet.defer import Deferred

from scrapy_bloom.crawl import items as items_module
from scrapy_bloom.crawl.items import Items
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.scrapy.feed_ends import WRITING, End, cut_back, end_of
from scrapy_bloom.crawl.scrapy.loop import pause
from scrapy_bloom.local.backend import LocalBackend
from scrapy_bloom.local.feeds import FeedNotes, cut_feeds
from scrapy_bloom.local.notes import FEEDS
from scrapy_bloom.signals import before_commit

pytestmark = [pytest.mark.server, pytest.mark.each_scrapy]

NO_ROOM = OSError("no room for items")

storage = placed("kept job", "shared")


# Feeds of crawls


class Yielding(Follower):
    """Yields what its `items` yields; notes its feed's size after each of the first page."""

    name = "follower"

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.sizes = []

    async def parse(self, response):
        for found in super().parse(response):
            yield found
        for item in self.items(response):
            yield item
            await asyncio.sleep(0.01)  # it was exported by now if it does not wait
            if response.url == self.url:
                self.sizes.append(self.feed.stat().st_size)

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


async def test_items_wait_until_their_page_has_ended_unless_redis_has_it(storage, feed):
    """Each is as it was when it was yielded."""
    sizes = (await run(Yielding, storage, feed, fan())).sizes
    assert sizes == [0, 0, 0] if "JOBDIR" in storage else 0 < sizes[0] < sizes[1]
    assert [line["so far"] for line in lines(feed)] == [[0], [0, 1], [0, 1, 2]]


class NoPickle(str):
    __slots__ = ()

    def __reduce_ex__(self, _):
        raise TypeError("it cannot be pickled")


@pytest.mark.parametrize("limit", ["MOST_HELD", "MOST_HELD_BYTES", "MOST_BYTES", None])
async def test_items_of_a_page_that_has_very_many_or_one_that_cannot_be_pickled_do_not_wait(
    job, feed, monkeypatch, limit, caplog
):
    class Odd(Yielding):
        def items(self, response):
            for item in super().items(response):
                yield item if limit or item["number"] == 0 else item | {"odd": NoPickle("x")}

    caplog.set_level("INFO")
    if limit:
        monkeypatch.setattr(items_module, limit, 2 if limit == "MOST_HELD" else 100)
    pages = fan("a") if limit in {"MOST_HELD", "MOST_HELD_BYTES"} else fan()
    sizes = (await run(Odd, kept(job), feed, pages)).sizes
    assert sizes[0] == 0 < sizes[2]
    assert sorted(line["number"] for line in lines(feed)) == sorted([0, 1, 2] * len(pages))
    assert caplog.text.count("or one that cannot be pickled. Its items are exported at once") == 1


async def test_items_of_a_page_that_stays_stored_are_in_the_feed_at_the_end(job, feed):
    class Enough(Yielding):
        def items(self, response):
            yield from super().items(response)
            raise CloseSpider("enough")

    for spider, count in (Enough, 3), (Yielding, 6):  # nothing is cut off after a clean stop
        with Pages(fan()) as site:
            await run(spider, kept(job), feed, site)
        assert len(lines(feed)) == count


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


async def test_an_item_of_no_page_that_cannot_be_written_is_tried_again_and_ends_no_crawl(
    storage, feed, monkeypatch
):
    """No page waits for it, but nothing is sent before it is written."""
    left, export = [*range(5)], JsonLinesItemExporter.export_item

    def export_item(self, item):
        if left:
            left.pop()
            raise NO_ROOM
        export(self, item)

    monkeypatch.setattr(JsonLinesItemExporter, "export_item", export_item)
    await run(Announcing, storage, feed, fan(1, 2))
    assert Counter(line["url"][-1] for line in lines(feed)) == {"e": 1, "/": 3, "1": 3, "2": 3}


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
    gzip = {"postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]}
    lines, whole = {"format": "jsonlines"}, {"format": "json"}
    feeds = {"far://me:secret@a.test/items.jsonl": lines}
    feeds |= {str(tmp_path / "items.gz"): lines | gzip, str(tmp_path / "items.jsonl"): lines}
    feeds |= {str(tmp_path / "anew.jsonl"): lines | {"overwrite": True}}
    feeds |= {str(tmp_path / name): whole for name in ("items.json", "%(time)s.json")}
    settings = kept(job, FEEDS=feeds, FEED_STORAGES={"far": Uploading})
    await visit(fan(), Gathered, settings)
    uploaded, processed, overwritten, whole = (
        r.getMessage() for r in caplog.records if r.levelno == logging.WARNING
    )
    assert "A second run cannot append to the json feed" in whole
    assert "items.json: the file would not be valid" in whole
    assert "anew.jsonl is overwritten by each run" in overwritten
    assert "The feed far://a.test/items.jsonl is uploaded when it ends" in uploaded
    assert "items.gz is post-processed: a kill loses the last items" in processed


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
            for _ in range(100):  # the engine is through with them
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
    storage, written, caplog, monkeypatch, lost
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
    monkeypatch.setattr(Gathered, "stops_after", 40)
    with Pages({f"/{number}": all_are_sent for number in range(40)}) as site:
        with monkeypatch.context() as patched:
            patched.setattr(Gathering, "fails", 10**6 if lost else 0)
            patched.setattr(Gathering, "ends_well", False)
            await crawl(AtOnce, settings, url=site.url)
        assert len(written) == 40 - lost
        assert undone(storage) == lost
        assert caplog.text.count("Items of 40 pages could not be written out") == bool(lost)
        crawler = await crawl(AtOnce, settings, url=site.url)
    assert len(set(written)) == 40
    assert undone(storage) == 0
    assert "bloom/unclean_stop" not in crawler.stats.get_stats()


# Without a crawl


def make(pipelines=(), *, feed=None, sync=False, write=None, closing=None, **options):
    """Return the items of a crawl that is open, and what scrapes one.

    :param write: a handler of `before_commit`.
    :param closing: a list for what is to be awaited before the pipelines are closed.
    """
    feeds = {"FEEDS": {feed: {"format": "jsonlines", **options}}} if feed else {}
    crawler = get_crawler(settings_dict=feeds)
    crawler.spider = spider = Spider("books")
    closing = [] if closing is None else closing
    engine = SimpleNamespace(before_closing=closing.append, pipelines=pipelines)
    if write is not None:
        crawler.signals.connect(write, before_commit)
    in_flight = SimpleNamespace(page_of_response=lambda _: None)
    items = Items(crawler, engine, in_flight, None, Report(crawler), sync=sync)
    crawler.signals.send_catch_log(signals.spider_opened, spider=spider)

    def scrape(number):
        item = {"number": number}
        crawler.signals.send_catch_log(signals.item_scraped, item=item, spider=spider)

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


async def test_files_of_pipelines_are_looked_for_at_the_start_and_every_five_seconds(
    tmp_path, monkeypatch
):
    class Held(list):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    now, held, path = [100.0], Held(), tmp_path / "items"
    monkeypatch.setattr(items_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    items, _ = make([SimpleNamespace(held=held)])
    with path.open("w") as file:
        held.append(file)
        file.write("an item")
        for now[0] in (100.1, 102.0, 104.9, 105.0):
            assert (held.looks, path.read_text()) == (1, "")
            assert await items.flush()
        assert (held.looks, path.read_text()) == (2, "an item")


async def test_while_the_file_of_a_pipeline_cannot_be_written_its_pages_are_not_done(caplog):
    file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    items, _ = make([SimpleNamespace(file=file)])
    file.write("an item")
    assert not await items.flush(at_once=True)
    assert not await items.flush(at_once=True)
    [said] = messages(caplog)
    assert "Items could not be written out: [Errno 28]" in said
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


# Feeds


CUTS = ["", "a,b", "a,", '"a', '"a""', '"a"', 'a,"', 'a,"\n,']


@pytest.mark.parametrize("cut", CUTS)
def test_wherever_a_csv_feed_was_cut_what_comes_after_is_read(tmp_path, cut):
    """A power failure may do that."""
    path = tmp_path / "items.csv"
    path.write_text(f"number,text\n{cut}")
    _items, scrape = make(feed=str(path), format="csv")
    scrape("after")
    with path.open(newline="") as file:
        assert [*csv.reader(file)][-1] == ["after", ""]


async def test_each_file_of_a_feed_in_batches_is_repaired(tmp_path):
    files = [tmp_path / f"{batch}.jl" for batch in (1, 2, 3)]
    for file in files:
        file.write_text('{"number": 1')
    items, scrape = make(feed=f"{tmp_path}/%(batch_id)d.jl", batch_item_count=2)
    for number in range(5):
        scrape(number)
        await pause(0.01)
    assert await items.flush()
    assert [file.read_text().split("\n", 1) for file in files] == [
        ['{"number": 1', '{"number": 0}\n{"number": 1}\n'],
        ['{"number": 1', '{"number": 2}\n{"number": 3}\n'],
        ['{"number": 1', '{"number": 4}\n'],
    ]


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


@pytest.mark.parametrize("closed", [True, False])
async def test_a_batch_that_is_full_is_synced_before_its_pages_are_done(tmp_path, synced, closed):
    """Scrapy has closed its file by then, or is about to."""
    items, scrape = make(feed=f"{tmp_path}/%(batch_id)d.jl", batch_item_count=2, sync=True)
    for number in range(5):
        scrape(number)
    if closed:
        await pause(0.01)
    assert await items.flush()
    assert sorted(synced) == ["1.jl", "2.jl", "3.jl"]
    await pause(0.01)
    synced.clear()
    scrape(5)
    await pause(0.01)
    assert await items.flush()
    assert await items.flush()
    assert {"3.jl"} <= {*synced} <= {"1.jl", "2.jl", "3.jl"}
    assert synced.count("3.jl") <= 2


async def test_a_full_batch_that_somebody_has_taken_away_holds_up_nothing(tmp_path):
    items, scrape = make(feed=f"{tmp_path}/%(batch_id)d.jl", batch_item_count=1, sync=True)
    scrape(0)
    await pause(0.01)
    (tmp_path / "1.jl").unlink()
    assert await items.flush()


# Where feeds are cut back to


def test_a_file_is_cut_back_to_where_it_ended(tmp_path, monkeypatch):
    path, saved = tmp_path / "items", tmp_path / "cut" / "items"
    path.write_bytes(b"0123456789" * 1000)
    end, synced = end_of(str(path)), []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file)))
    assert cut_back(path, end, end.size, saved) == 0
    assert not saved.parent.exists()
    for number, left in enumerate((WRITING, end.size + 5)):
        with path.open("ab") as file:
            file.write(b"more%d" % number)
        assert cut_back(path, end, left, saved) == 5
        assert path.read_bytes() == b"0123456789" * 1000
    assert saved.read_bytes() == b"more0more1"
    assert [each.st_size for each in synced] == [5, end.size, 10, end.size]


CHANGES = {
    "another file": lambda path: (path.rename(path.with_name("old")), path.write_bytes(b"x" * 99)),
    "there is no file": lambda path: path.unlink(),
    "it was changed": lambda path: path.write_bytes(b"x" * 99),
    "it was changed, and is shorter": lambda path: path.write_bytes(b"01"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_not_as_it_was_is_left_as_it_is(tmp_path, change):
    path = tmp_path / "items"
    path.write_bytes(b"0123456789")
    end = end_of(str(path))
    CHANGES[change](path)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(ValueError, match=change.partition(",")[0]):
        cut_back(path, end, WRITING, tmp_path / "cut" / "items")
    assert (path.read_bytes() if path.exists() else None) == before
    assert not (tmp_path / "cut").exists()


OURS, THEIRS = b"1234", b"12"
LEFT = {
    "ours, after a kill": ((OURS, OURS), True),
    "ours, while one is written": ((OURS, b"half"), True),
    "theirs before": ((THEIRS, OURS), False),
    "theirs after": ((OURS, THEIRS), False),
    "theirs between": ((OURS, THEIRS, OURS), False),
    "theirs alone": ((THEIRS,), False),
}


@pytest.mark.parametrize("case", LEFT)
@pytest.mark.parametrize("committed", [False, True])
def test_only_what_the_crawl_has_written_is_cut_off(tmp_path, case, committed):
    path, (parts, is_cut) = tmp_path / "items", LEFT[case]
    store = SimpleNamespace(stored_meta={FEEDS: "{}"}, write_note=lambda *_, **__: None)
    notes = FeedNotes(store, tmp_path, sync=False)

    def append(part):
        if part != THEIRS:
            notes.note_left(str(path), path.stat().st_size, writing=True)
        with path.open("ab") as file:
            file.write(part)
        if part == OURS:
            notes.note_left(str(path), path.stat().st_size)

    path.write_bytes(b"0123456789")
    notes.note_opened(str(path), end := end_of(str(path)))
    append(OURS)
    if committed:
        end = end_of(str(path))
        notes.note_left(str(path), end.size)
    for part in parts:
        append(part)
    notes.close()
    before = path.read_bytes()
    cut_feeds(tmp_path, json.dumps({str(path): end}))
    assert path.read_bytes() == (before[: end.size] if is_cut else before)


def test_sizes_of_batches_that_are_full_are_not_written_with_each_item(tmp_path):
    store = SimpleNamespace(meta={}, stored_meta={FEEDS: "{}"}, write_note=lambda *_, **__: None)
    notes, end = FeedNotes(store, tmp_path, sync=False), End(1, 0, 0)
    for name in "abc":
        notes.note_opened(name, end)
    notes.ends = {"c": end}
    notes.note()
    notes.note_left("c", 9)
    notes.close()
    (line, *_) = (tmp_path / "bloom.feeds").read_text().splitlines()
    assert json.loads(line) == {"c": 9}


@pytest.mark.parametrize("left", ["", "no JSON\n", '{"items": 9}\n'])
def test_after_a_power_failure_all_that_follows_is_cut_off(tmp_path, left):
    """The size that the feed was left with is not synced. It may be an older one, or none."""
    path = tmp_path / "items"
    path.write_bytes(b"0123456789")
    end = end_of(str(path))
    path.write_bytes(b"0123456789more")
    (tmp_path / "bloom.feeds").write_text(left.replace("items", str(path)))
    cut_feeds(tmp_path, json.dumps({str(path): end}))
    assert path.read_bytes() == b"0123456789"


def test_what_is_no_file_has_no_end(tmp_path):
    assert end_of(str(tmp_path / "nothing")) is None
    assert end_of("/dev/null") is None
    (tmp_path / "empty").touch()
    assert end_of(str(tmp_path / "empty")) == End((tmp_path / "empty").stat().st_ino, 0, 0)
