"""Set-ups that do less than they seem to, and whose a crawl is: said with the way out."""

import logging
import sys
from contextlib import suppress
from hashlib import sha1

import pytest
from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider
from scrapy.utils.engine import get_engine_status
from support.crawling import (
    KEPT,
    SCRAPYS,
    Follower,
    StartsNothing,
    at,
    close,
    crawl,
    placed,
    visit,
)
from support.internals import scheduler_of
from support.jobs import identity_of, kept_job
from support.sites import Pages, fan

from scrapy_bloom import StateError
from scrapy_bloom.crawl import whose
from scrapy_bloom.local.job import Job
from scrapy_bloom.local.metadata import REQUESTS

pytestmark = pytest.mark.server


@pytest.fixture
def warned(caplog):
    """Return what finds our warnings since its last call that have these words."""

    def warned(words, level=logging.WARNING):
        ours = [r for r in caplog.records if r.name.startswith("scrapy_bloom")]
        found = [r.getMessage() for r in ours if r.levelno == level and words in r.getMessage()]
        caplog.clear()
        return found

    caplog.set_level(logging.INFO)
    return warned


storage = placed("memory", "kept job", "shared", "redis")


class RedisMixin:
    __module__ = "scrapy_redis.spiders"


class Fed(Follower, RedisMixin):
    """Takes its start URLs from Redis, and shares nothing else."""


@pytest.mark.parametrize("name", ["REDIS_URL", "REDIS_HOST", "SCHEDULER_QUEUE_CLASS", "Fed"])
@at("memory", "shared")
async def test_workers_that_no_longer_share_a_crawl_are_warned(place, warned, name):
    """Each of them fetched the whole site without a word."""
    left = {name: "scrapy_redis.queue.FifoQueue" if "QUEUE" in name else "redis://127.0.0.1:1"}
    spider = Fed if name == "Fed" else Follower
    await visit(fan("a"), spider, {**place, **left})
    said = warned(f"{name} belongs to scrapy-redis, but no pages are shared")
    assert len(said) == ("BLOOM_REDIS_URL" not in place)
    if said and spider is Follower:
        await visit(fan("a"), spider, {**place, **left, "BLOOM_BACKEND": "local"})
        assert warned("no pages are shared") == []


async def test_a_scheduler_that_keeps_nothing_through_a_kill_is_warned_of(job, warned):
    for settings, count in (
        ({"SCHEDULER": SCRAPYS, "JOBDIR": str(job / "1")}, 1),
        ({"SCHEDULER": SCRAPYS}, 0),
        ({**KEPT, "JOBDIR": str(job / "2")}, 0),
    ):
        await visit(fan("a"), Follower, settings)
        said = warned(f"SCHEDULER = {SCRAPYS!r}: this run is not protected: after a kill it starts")
        assert len(said) == count


@at("shared")
async def test_one_filter_for_several_spiders_is_refused_with_the_way_to_it(place, warned):
    with Pages(fan("a")) as pages:
        await crawl(Follower, place, url=pages.url + "/")
        with suppress(CloseSpider):  # Scrapy 2.13 hands it on
            another = type("Another", (Follower,), {"name": "another"})
            await crawl(another, place, url=pages.url + "/")
    [said] = warned("spider 'follower', not 'another'", logging.ERROR)
    assert "write one spider with arguments; or set Scrapy's own SCHEDULER" in said
    assert "delete" not in said


def test_a_job_of_another_spider_is_refused_and_never_to_be_deleted(job):
    kept_job(job)
    with pytest.raises(StateError) as refused:
        Job(job, identity_of("age"), REQUESTS)
    assert 'custom_settings = {"JOBDIR": "job-age"}' in str(refused.value)
    assert "delete" not in str(refused.value)


class Entry(Follower):
    """Has an entry page that is filtered."""

    name = "entry"

    async def start(self):
        for path in ("", "a"):
            yield Request(self.url + path)


class Idle(StartsNothing, Follower):
    """Yields nothing at all."""

    name = "entry"


class Closed(Idle):
    """Closes at once."""

    async def start(self):
        close(self.crawler)
        async for nothing in super().start():
            yield nothing


async def test_the_last_line_says_whether_the_crawl_is_finished_and_what_this_run_fetched(
    storage, warned, caplog
):
    """A run that fetches nothing warns of nothing: a daily sitemap has such days."""
    keeps = storage.get("SCHEDULER") == KEPT["SCHEDULER"]
    settings = {**storage, "ROBOTSTXT_OBEY": True}
    what = "Worker" if "BLOOM_REDIS_URL" in storage and not keeps else "Crawl"
    for spider, ended in (Idle, "finished"), (Closed, "stopped"):
        await crawl(spider, settings)
        [said] = warned(f"{what} ", logging.INFO)[-1:]
        assert said.startswith(f"{what} {ended}: 0 ")
        loss = "expected loss" if keeps else "false positives may have cost"
        assert said.endswith(f"; {loss} 0.0 pages.")
    with Pages({**fan("a"), "/robots.txt": []}) as pages:
        for count in (2, 0 if keeps else 2):
            await crawl(Entry, settings, url=pages.url + "/")
            assert "othing" not in caplog.text.replace("nothing is kept after", "")
            deleted = "deleted, because this was the last worker" in caplog.text
            assert deleted is ("BLOOM_REDIS_URL" in storage and not keeps)
            [said] = warned(f"{what} finished: ", logging.INFO)
            assert f" received {count} responses; " in said


@pytest.mark.each_scrapy
async def test_scrapys_engine_status_says_how_many_wait(storage):
    """It said 0 in the telnet console while hundreds waited."""

    class Asking(Follower):
        def parse(self, response):
            if response.url == self.url:
                scheduler = scheduler_of(self.crawler)
                for number in range(20):
                    scheduler.enqueue_request(response.follow(f"/{number}"))
                status = get_engine_status(self.crawler.engine)
                queues = [count for name, count in status if "dqs" in name or "mqs" in name]
                told.append((sum(queues), len(scheduler)))

    told = []
    await visit(fan(*range(20)), Asking, storage)
    [(said, waiting)] = told
    assert said == waiting >= 20


class Shop(Spider):
    name = "shop"

    def __init__(self, category="none", pages=3, **others):
        super().__init__(**others)
        self.category, self.pages, self.started = category, pages, id(self)

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


class Deeper(Passing, Shop):
    def __init__(self, color=None, **others):
        super().__init__(**others)
        self.color = color


@pytest.mark.parametrize(
    ("kind", "given", "noted"),
    [
        (Shop, {"category": "toys", "url": "x"}, {"category": "toys", "pages": 3}),
        (Simple, {"url": "x", "_job": "7", "many": ["a"]}, {"url": "x"}),
        (Passing, {"url": "x"}, {}),
        (Deeper, {"category": "toys"}, {"category": "toys", "color": None, "pages": 3}),
    ],
)
def test_arguments_are_what_the_constructors_name_or_else_all(kind, given, noted):
    name, *arguments = whose.writer_of(kind(**given)).split(" ")
    assert name == f"{__name__}.{kind.__name__}"
    values = (sha1(repr(value).encode()).hexdigest() for value in noted.values())
    assert arguments == [f"{name}={value[:4]}" for name, value in zip(noted, values, strict=True)]


def test_a_spider_of_a_script_is_told_by_the_name_of_the_file(monkeypatch):
    monkeypatch.setattr(Simple, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/home/me/shop.py", raising=False)
    assert whose.writer_of(Simple(odd="\ud800")).startswith("shop.py.Simple odd=")


@at("kept job", "job", "shared")
async def test_another_class_and_other_arguments_are_named_without_values(place, warned):
    def made():
        return warned("This run fetches what both have yielded")

    with Pages(fan("a")) as pages:
        url = pages.url + "/"
        await crawl(Shop, place, url=url, category="books")
        await crawl(Shop, place, url=url + "a", category="books")  # it names no URL
        assert made() == []
        await crawl(Shop, place, url=url, category="toys")
        [said] = made()
        assert ": made with another 'category'. " in said
        assert ("%(spider)s:%(ARGUMENT)s'" in said) is ("BLOOM_REDIS_URL" in place)
        await crawl(Other, place, url=url, category="dolls", pages=4)
    [said] = made()
    by = f"by '{__name__}.Shop' (this run is '{__name__}.Other') with another 'category', 'pages'. "
    assert by in said
    assert not any(value in said for value in ("books", "toys", "dolls"))


@at("shared")
async def test_a_key_may_name_attributes_of_the_spider(place, server, caplog, bloom):
    place["BLOOM_REDIS_KEY"] = "%(project)s:%(spider)s:%(category)s:bloom"
    with Pages(fan("a")) as pages:
        for category in ("books", "toys"):
            await crawl(Shop, place, url=pages.url + "/", category=category)
            assert bloom(f"info {server.url}#scrapybot:shop:{category}:bloom")[0] == 0
    assert pages.hits == {"/": 2}
    for wrong, said in (
        ("%(colour)s", "BLOOM_REDIS_KEY names %(colour)s: the spider has no such attribute"),
        ("%(category)s", "braces must enclose"),
    ):
        await crawl(Shop, {**place, "BLOOM_REDIS_KEY": wrong}, url=pages.url, category="{")
        assert said in caplog.text
    place["BLOOM_REDIS_KEY"] = "%(category)s:bloom"
    code, _, errors = bloom("info", **place)
    assert code != 0
    assert "names %(category)s: only a crawl knows that. Name the key" in errors[0]
