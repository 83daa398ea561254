"""Whose a crawl is: another class under the spider's name, and other arguments, are said."""

import sys

import pytest
from scrapy import Request, Spider
from support.crawling import crawl, placed, settings_at
from support.sites import Pages, fan

from scrapy_bloom.crawl import whose
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.reader import Reader

pytestmark = pytest.mark.server


class Shop(Spider):
    name = "shop"

    def __init__(self, category="none", pages=3, **others):
        super().__init__(**others)
        self.category, self.pages, self.met, self.started = category, pages, 0, id(self)

    async def start(self):
        yield Request(self.url)

    def parse(self, response):
        pass


class Other(Shop):
    pass


class Simple(Spider):
    name = "simple"


class Passing(Simple):
    def __init__(self, *arguments, **others):
        super().__init__(*arguments, **others)
        self.met = 0


class Deeper(Passing, Shop):
    def __init__(self, color=None, **others):
        super().__init__(**others)
        self.color = color


@pytest.mark.parametrize(
    ("kind", "given", "noted"),
    [
        (Shop, {"category": "toys", "url": "x"}, "category='toys' pages=3"),
        (Simple, {"url": "x", "_job": "7", "many": ["a"]}, "url='x'"),
        (Passing, {"url": "x"}, ""),
        (Deeper, {"category": "toys"}, "category='toys' color=None pages=3"),
    ],
)
def test_arguments_are_what_the_constructors_name_or_else_all(kind, given, noted):
    assert whose.writer_of(kind(**given)) == f"{__name__}.{kind.__name__} {noted}".rstrip()


HARMLESS = ["books", "Toys, Games/new", "B\u00fccher", "\u672c", "", "3", -2, 1.5, True]
HARMLESS += ["2026-11-28", "shop.example", "de_AT"]
HIDDEN = ["hunter2", "eyJhbGciOiJIUzI1NiJ9.e30", "4111-1111-1111-1111", "x" * 30, "a " * 31]
HIDDEN += ["Bearer abc123", "redis://me:word@host/", "550e8400-e29b-41d4", "AbCdEfGh", "\x1b[31m"]


SECRET = "pwd", "auth", "session", "api_key", "PASSWORD", "user", "pin"


@pytest.mark.parametrize(
    ("name", "value", "noted"),
    [
        *(("given", value, repr(value)) for value in HARMLESS),
        *(("given", value, "\u2026") for value in HIDDEN),
        *((name, "word", "\u2026") for name in SECRET),
    ],
)
def test_values_that_look_harmless_are_noted_and_of_others_only_the_name(name, value, noted):
    assert whose.writer_of(Simple(**{name: value})).endswith(f" {name}={noted}")


def test_a_spider_of_a_script_is_told_by_the_name_of_the_file(monkeypatch):
    monkeypatch.setattr(Simple, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/home/me/shop.py", raising=False)
    assert whose.writer_of(Simple()) == "shop.py.Simple"


storage = placed("kept job", "job", "shared")


async def test_another_class_or_other_arguments_are_warned_of(storage, caplog):
    def warnings():
        found = [r.getMessage() for r in caplog.records if r.name == whose.__name__]
        caplog.clear()
        return found

    with Pages(fan("a")) as pages:
        url = pages.url + "/"
        await crawl(Shop, storage, url=url, category="books")
        await crawl(Shop, storage, url=url + "a", category="books")  # it names no URL
        assert warnings() == []
        await crawl(Shop, storage, url=url, category="toys")
        [said] = warnings()
        books, toys = (f"{__name__}.Shop category={each!r} pages=3" for each in ("books", "toys"))
        assert f': written by "{books}", this run is "{toys}". ' in said
        assert ("%(spider)s:%(ARGUMENT)s'" in said) is ("BLOOM_REDIS_URL" in storage)
        await crawl(Other, storage, url=url, category="books")
        [said] = warnings()
    assert f'this run is "{__name__}.Other category=' in said


async def test_a_key_may_name_attributes_of_the_spider(server, request, caplog):
    storage = settings_at("shared", request)
    storage["BLOOM_REDIS_KEY"] = "%(project)s:%(spider)s:%(category)s:bloom"
    with Pages(fan("a")) as pages:
        for category in ("books", "toys"):
            await crawl(Shop, storage, url=pages.url + "/", category=category)
    assert pages.hits == {"/": 2}
    worker = Link(Server(server.url), 10)
    for category in ("books", "toys"):
        plan = Reader(worker, f"scrapybot:shop:{category}:bloom").existing().plan
        assert f"category={category!r}" in plan.writer
    worker.close()
    for wrong, said in (
        ("%(colour)s", "BLOOM_REDIS_KEY names %(colour)s: the spider has no such attribute"),
        ("%(category)s", "braces must enclose"),
    ):
        await crawl(Shop, {**storage, "BLOOM_REDIS_KEY": wrong}, url=pages.url, category="{")
        assert said in caplog.text


def test_a_command_is_told_to_name_a_key_that_only_a_crawl_knows(bloom):
    settings = {"BLOOM_REDIS_URL": "redis://localhost", "BLOOM_REDIS_KEY": "%(category)s:bloom"}
    code, _, errors = bloom("info", **settings)
    assert code != 0
    assert "names %(category)s: only a crawl knows that. Name the key" in errors[0]


async def test_info_shows_the_arguments(job, bloom):
    with Pages(fan("a")) as pages:
        settings = {"SCHEDULER": "scrapy_bloom.Scheduler", "JOBDIR": str(job)}
        await crawl(Shop, settings, url=pages.url + "/", category="books")
    shown = dict(line.partition(" ")[::2] for line in bloom(f"info {job}")[1])
    assert shown["arguments"].strip() == "\"category='books' pages=3\""
