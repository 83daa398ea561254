"""What is written out before the commit by which its pages are done: feeds, files of pipelines."""

import codecs
import csv
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from scrapy import Spider, signals
from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.utils.test import get_crawler
from support.crawling import messages
from twisted.internet.defer import Deferred

from scrapy_bloom.crawl.items import Items
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.scrapy.loop import pause
from scrapy_bloom.signals import before_commit

pytestmark = pytest.mark.each_scrapy


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


@pytest.mark.parametrize("held", HOLDS)
async def test_what_a_pipeline_has_written_is_in_its_file_before_its_pages_are_done(
    tmp_path, held, synced
):
    path = tmp_path / "items"
    with path.open("wb") as file:
        items, _ = make([object(), SimpleNamespace(seen={"a"}, holds=HOLDS[held](file))])
        file.write(b"an item")
        assert path.read_text() == ""
        assert await items.flush()
        assert path.read_text() == "an item"
    assert not synced


async def test_files_of_pipelines_are_synced_where_a_power_failure_must_lose_nothing(
    tmp_path, synced
):
    with (tmp_path / "items").open("w") as file, (tmp_path / "items").open() as read:
        items, _ = make([SimpleNamespace(file=file, read=read)], sync=True)
        assert await items.flush()
    assert synced == ["items"]
    assert await items.flush()  # a closed file is left alone


async def test_files_of_pipelines_are_looked_for_at_the_start_and_every_five_seconds(
    tmp_path, monkeypatch
):
    class Held(list):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    now, held = [100.0], Held()
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("scrapy_bloom.crawl.items.time", clock)
    items, _ = make([SimpleNamespace(held=held)])
    with (tmp_path / "items").open("w") as file:
        held.append(file)
        file.write("an item")
        for now[0] in (100.1, 102.0, 104.9):
            assert await items.flush()
        assert (held.looks, (tmp_path / "items").read_text()) == (1, "")
        now[0] = 105.0
        assert await items.flush()
        assert (held.looks, (tmp_path / "items").read_text()) == (2, "an item")


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
        raise OSError("no room for items")

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


# Feeds that are synced


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
