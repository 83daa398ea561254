"""Items of a job: they wait until their page has ended, and each is in a feed once."""

import asyncio
import csv
import json
import os
from collections import Counter
from contextlib import nullcontext

import pytest
from scrapy import signals
from scrapy.exceptions import CloseSpider
from scrapy.exporters import JsonLinesItemExporter
from support.crawling import Follower, at, crawl, kept, messages, settings_at
from support.sites import Pages, fan

from scrapy_bloom.crawl import items
from scrapy_bloom.crawl.scrapy.feed_ends import End, cut_back, end_of

pytestmark = [pytest.mark.server, pytest.mark.each_scrapy]


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
        for number in range(3):
            yield {"url": response.url, "number": number}


@pytest.fixture
def feed(tmp_path):
    path = tmp_path / "items.jsonl"
    path.touch()
    return path


def lines(feed):
    return [json.loads(line) for line in feed.read_text().splitlines()]


async def run(spider, job, feed, pages, settings=None, **options):
    """Crawl a site, or one of some pages, with one feed; return the crawler."""
    settings = settings or kept(job)
    feeds = {**settings.get("FEEDS", {}), str(feed): {"format": "jsonlines", **options}}
    settings = {**settings, "FEEDS": feeds}
    with nullcontext(pages) if isinstance(pages, Pages) else Pages(pages) as site:
        return await crawl(spider, settings, url=site.url + "/", feed=feed)


async def test_items_wait_until_their_page_has_ended(job, feed):
    crawler = await run(Yielding, job, feed, fan())
    assert crawler.spider.sizes == [0, 0, 0]
    assert [line["number"] for line in lines(feed)] == [0, 1, 2]


class Announcing(Yielding):
    """Has an item of no page before its first page."""

    async def start(self):
        item = {"url": "none", "number": 0}
        self.crawler.signals.send_catch_log(signals.item_scraped, item=item, spider=self)
        async for each in super().start():
            yield each


async def test_an_item_of_no_page_that_cannot_be_written_for_now_ends_no_crawl(
    job, feed, monkeypatch
):
    left, export = [*range(5)], JsonLinesItemExporter.export_item

    def export_item(self, item):
        if left:
            left.pop()
            raise OSError("no room")
        export(self, item)

    monkeypatch.setattr(JsonLinesItemExporter, "export_item", export_item)
    await run(Announcing, job, feed, fan(1, 2))
    assert Counter(line["url"][-1] for line in lines(feed)) == {"e": 1, "/": 3, "1": 3, "2": 3}


@pytest.mark.redis
async def test_in_redis_they_do_not_wait(job, feed, request):
    crawler = await run(Yielding, job, feed, fan(), settings_at("shared", request))
    assert 0 < crawler.spider.sizes[0] < crawler.spider.sizes[1]
    assert len(lines(feed)) == 3


@pytest.mark.parametrize("limit", ["MOST_HELD", "MOST_HELD_BYTES", "MOST_BYTES"])
async def test_items_of_a_page_that_has_very_many_are_exported_at_once(
    job, feed, monkeypatch, limit, caplog
):
    caplog.set_level("INFO")
    monkeypatch.setattr(items, limit, 2 if limit == "MOST_HELD" else 100)
    pages = fan() if limit == "MOST_BYTES" else fan("a")  # what another page holds counts there
    crawler = await run(Yielding, job, feed, pages)
    assert crawler.spider.sizes[0] == 0 < crawler.spider.sizes[2]
    assert sorted(line["number"] for line in lines(feed)) == sorted([0, 1, 2] * len(pages))
    assert caplog.text.count("Its items are exported at once") == 1


async def test_an_item_that_cannot_be_pickled_is_exported_at_once(job, feed, caplog):
    class Odd(Yielding):
        def items(self, response):
            yield {"url": response.url, "number": 0}
            yield {"url": response.url, "number": 1, "odd": NoPickle("x")}

    caplog.set_level("INFO")
    crawler = await run(Odd, job, feed, fan())
    assert crawler.spider.sizes[0] == 0 < crawler.spider.sizes[1]
    assert [line["number"] for line in lines(feed)] == [0, 1]
    assert "or one that cannot be pickled" in caplog.text


class NoPickle(str):
    __slots__ = ()

    def __reduce_ex__(self, _):
        raise TypeError("it cannot be pickled")


async def test_an_item_is_as_it_was_when_it_was_yielded(job, feed):
    class Reusing(Yielding):
        def items(self, response):
            item = {"url": response.url, "tags": []}
            for number in range(3):
                item["number"] = number
                item["tags"].append(number)
                yield item

    await run(Reusing, job, feed, fan())
    assert [line["tags"] for line in lines(feed)] == [[0], [0, 1], [0, 1, 2]]


async def test_items_of_a_page_that_stays_stored_are_in_the_feed_at_the_end(job, feed):
    class Enough(Yielding):
        def items(self, response):
            yield from super().items(response)
            raise CloseSpider("enough")

    with Pages(fan()) as site:
        await run(Enough, job, feed, site)
        assert len(lines(feed)) == 3
        await run(Yielding, job, feed, site)
    assert len(lines(feed)) == 6  # nothing is cut off after a clean stop


# What an exporter refuses


class Odd(Yielding):
    """JSON cannot have one of its items."""

    def items(self, response):
        for item in super().items(response):
            odd = response.url.endswith("/a") and item["number"] == 1
            yield {**item, "odd": b"bytes"} if odd else item


@at("kept job", "shared")
async def test_what_an_exporter_refuses_fails_its_page(job, feed, place, tmp_path, caplog):
    """It stays in the feed that has it."""
    caplog.set_level("INFO")
    table = tmp_path / "items.csv"
    settings = place | {"FEEDS": {str(table): {"format": "csv", "fields": ["url", "number"]}}}
    with Pages(fan("a", "b")) as site:
        await run(Odd, job, feed, site, settings)
        assert len({*table.read_text().splitlines()}) == 10
        assert "1 failed (1 \u00d7 TypeError in exporter of items.jsonl)" in caplog.text
        said = [text for text in messages(caplog) if text.startswith("The exporter of items.jsonl")]
        assert len(said) == 1
        assert Counter(line["number"] for line in lines(feed)) == {0: 3, 1: 2, 2: 3}
        await run(Yielding, job, feed, site, settings)
    assert Counter(line["number"] for line in lines(feed)) == {0: 4, 1: 3, 2: 4}


# Where feeds are cut back to


def test_a_file_is_cut_back_to_where_it_ended(tmp_path, monkeypatch):
    path, saved = tmp_path / "items", tmp_path / "cut" / "items"
    path.write_bytes(b"0123456789" * 1000)
    end, synced = end_of(str(path)), []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file)))
    assert cut_back(path, end, saved) == 0
    assert not saved.parent.exists()
    for number in range(2):
        with path.open("ab") as file:
            file.write(b"more%d" % number)
        assert cut_back(path, end, saved) == 5
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
        cut_back(path, end, tmp_path / "cut" / "items")
    assert (path.read_bytes() if path.exists() else None) == before
    assert not (tmp_path / "cut").exists()


def test_what_is_no_file_has_no_end(tmp_path):
    assert end_of(str(tmp_path / "nothing")) is None
    assert end_of("/dev/null") is None
    (tmp_path / "empty").touch()
    assert end_of(str(tmp_path / "empty")) == End((tmp_path / "empty").stat().st_ino, 0, 0)


# CSV


async def test_a_csv_feed_that_is_resumed_has_one_header_and_the_same_columns(job, tmp_path):
    class Fields(Yielding):
        fields = ("url", "number", "more")

        def items(self, response):
            for item in super().items(response):
                item["more"] = 'a "quoted" text'
                yield {name: item[name] for name in self.fields}

    feed = tmp_path / "items.csv"
    feed.touch()
    for number, fields in enumerate([("url", "number", "more"), ("number", "url"), ("url",)]):
        spider = type("Each", (Fields,), {"fields": fields, "name": "follower"})
        await run(spider, f"{job}-{number}", feed, fan(), format="csv")
    with feed.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["url", "number", "more"]
    assert [row[1] for row in rows] == ["0", "1", "2"] * 2 + [""] * 3
    other = type("Other", (Yielding,), {"items": lambda self, _: iter([{"else": self.name}])})
    await run(other, f"{job}-other", feed, fan(), format="csv")
    assert feed.read_text().splitlines()[-2:] == ["else", "follower"]
