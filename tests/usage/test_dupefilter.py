"""Scrapy's contract for duplicate filters, met by the scheduler and by whole crawls."""

import logging
from collections import Counter
from contextlib import suppress

import pytest
import scrapy
from scrapy.core.scheduler import Scheduler
from scrapy.exceptions import CloseSpider
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler
from support.crawling import Follower, Project, crawl
from support.filters import contents
from support.jobs import Session, page
from support.sites import Pages

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.local.job import new_filter
from scrapy_bloom.settings import Settings


def make_filter(settings=None, spider=None):
    """Return the filter as Scrapy's scheduler makes it, and its crawler."""
    ours = {"DUPEFILTER_CLASS": BloomDupeFilter}
    crawler = get_crawler(spider, {**ours, **(settings or {})})
    return build_from_crawler(Scheduler, crawler).df, crawler


def messages(caplog, level, name="scrapy_bloom"):
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == level and record.name.startswith(name)
    ]


def named_by(give):
    """Return the setting of a fingerprinter that gives this for a request."""
    members = {"fingerprint": lambda _, request: give(request)}
    return {"REQUEST_FINGERPRINTER_CLASS": type("Fingerprinter", (), members)}


# Construction, opening and closing


@pytest.mark.each_scrapy
def test_the_first_request_opens_it_and_the_first_close_ends_it(tmp_path):
    dupefilter, crawler = make_filter({"JOBDIR": str(tmp_path)})
    assert dupefilter  # schedulers ask "if not self.df"
    assert not (tmp_path / "bloom.sqlite").exists()
    assert dupefilter.request_seen(page(1)) is False
    assert (tmp_path / "bloom.sqlite").exists()
    assert dupefilter.open() is None
    assert dupefilter.request_seen(page(1)) is True
    assert dupefilter.close("finished") is None
    assert crawler.stats.get_value("bloom/checked") == 2
    stats, stored = dict(crawler.stats.get_stats()), (tmp_path / "bloom.sqlite").read_bytes()
    dupefilter.close("finished")
    assert (crawler.stats.get_stats(), (tmp_path / "bloom.sqlite").read_bytes()) == (stats, stored)
    assert [dupefilter.request_seen(page(1)) for _ in range(2)] == [False] * 2


# What fails


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (named_by(lambda _: 1 // 0), "<GET https://example.com/1>"),
        (named_by(lambda request: request.url), "<GET https://example.com/1>"),
        (named_by(lambda _: None), "<GET https://example.com/1>"),
        ({"BLOOM_CAPACITY": 0}, "BLOOM_CAPACITY = 0"),
    ],
)
def test_a_request_that_cannot_be_checked_is_crawled_and_said_once(settings, said, caplog):
    dupefilter, crawler = make_filter(settings)
    assert [dupefilter.request_seen(page(1)) for _ in range(250)] == [False] * 250
    dupefilter.close("finished")
    assert crawler.stats.get_value("bloom/errors") == 250
    (error,) = messages(caplog, logging.ERROR)
    assert said in error


def test_a_filter_that_memory_cannot_hold_is_warned_of(monkeypatch, caplog):
    for pages in (1 << 30, 100):  # of 4 KiB
        sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}
        monkeypatch.setattr("os.sysconf", sizes.__getitem__, raising=False)
        new_filter(Settings({}), digests=True)
        warned = "BLOOM_CAPACITY = 1,000,000: when full, the filter takes 4.1 MB" in caplog.text
        assert warned == (pages == 100)


class BrokenStats(MemoryStatsCollector):
    """Takes no number of ours, as one may whose server is away."""

    theirs = ("bloom/", "dupefilter/")

    def _refuse(self, key, theirs):
        if key.startswith(theirs):
            raise ConnectionError(f"nobody has {key}")

    def inc_value(self, key, *args, **kwargs):
        self._refuse(key, self.theirs)
        super().inc_value(key, *args, **kwargs)

    def get_value(self, key, *args, **kwargs):
        self._refuse(key, "bloom/checked")
        return super().get_value(key, *args, **kwargs)

    def set_value(self, key, *args, **kwargs):
        self._refuse(key, self.theirs)
        super().set_value(key, *args, **kwargs)


@pytest.mark.server
@pytest.mark.parametrize("kept", [False, True])
async def test_a_stats_collector_that_raises_costs_no_page(tmp_path, caplog, monkeypatch, kept):
    pages = {"/": lambda *_: ["/1", "/2", "/1?utm_source=x"], "/1": lambda *_: ["/2"] * 2}
    pages |= {"/2": lambda *_: ["/1", "/3"], "/3": lambda *_: []}
    chosen = {"STATS_CLASS": BrokenStats}
    if kept:  # nor does it take those of Scrapy's that our scheduler sets
        monkeypatch.setattr(BrokenStats, "theirs", ("bloom/", "dupefilter/", "scheduler/"))
        chosen |= {"SCHEDULER": "scrapy_bloom.Scheduler", "JOBDIR": str(tmp_path)}
    with Pages(pages) as site:
        crawler = await crawl(url=site.url + "/", settings={"BLOOM_CANONICAL": "usual", **chosen})
    assert site.hits == Counter({"/": 1, "/1": 1, "/2": 1, "/3": 1})
    assert crawler.stats.get_value("finish_reason") == "finished"
    (error,) = messages(caplog, logging.ERROR)
    assert error.startswith("The stats collector failed")


# Log and stats


LINKED = {
    "/": lambda *_: [f"/{number}" for number in range(120)] * 2,
    **{f"/{number}": lambda *_: ["/"] for number in range(120)},
}


@pytest.mark.server
@pytest.mark.each_scrapy
async def test_a_crawl_without_faults_has_few_lines_and_few_stats(caplog):
    caplog.set_level(logging.INFO)
    with Pages(LINKED) as site:
        crawler = await crawl(url=site.url + "/", settings={"BLOOM_CAPACITY": 50})
    stats = crawler.stats.get_stats()
    ours = {key: value for key, value in stats.items() if key.startswith("bloom/")}
    counted = {"checked": 361, "new": 121, "seen": 240, "restored": 0, "known": 121}
    assert {key: ours.pop(f"bloom/{key}") for key in counted} == counted
    assert ours.keys() == {"bloom/bytes", "bloom/expected_lost"}
    assert stats["dupefilter/filtered"] == 240
    opened, closed = messages(caplog, logging.INFO)
    assert closed == (
        "Crawl finished: 121 pages known, 361 links checked, 121 of them new; this run fetched"
        " 121 pages; expected loss 0.0 pages."
    )
    assert opened == (
        "Bloom filter in memory only: 0 pages known; without a JOBDIR nothing is kept after this"
        " run. Capacity 50, error rate 1e-06, 8.2 kB when full, URLs 'safe'"
    )
    (growth,) = messages(caplog, logging.WARNING)
    assert "50 pages" in growth
    assert "BLOOM_CAPACITY" in growth
    assert messages(caplog, logging.ERROR) == []


# Wrong settings


@pytest.mark.server
@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            {"BLOOM_CAPACITY": 0, "SCHEDULER": "scrapy_bloom.Scheduler", "JOBDIR": "job"},
            "BLOOM_CAPACITY = '0': must be a whole number of items from 1",
        ),
        (
            {"BLOOM_REDIS_URL": "redis://127.0.0.1:1", "BLOOM_ON_BACKEND_ERROR": "close"},
            "127.0.0.1:1",
        ),
    ],
)
@pytest.mark.each_scrapy
def test_a_refused_crawl_fetches_nothing_and_ends_with_one_line(written, said, tmp_path):
    with Pages({"/": lambda *_: []}) as site:
        run = Project(tmp_path).crawl(site, keep=False, **written)
        assert run.end() == 1
    assert site.hits == {}
    assert said in run.log
    if scrapy.version_info >= (2, 14):
        assert len(run.logged("ERROR")) == 1
        assert "Traceback" not in run.log
        assert run.reason in ("bloom_invalid_setting", "bloom_backend")


class NamedByArgument(Follower):
    name = None


@pytest.mark.server
@pytest.mark.each_scrapy
async def test_a_spider_may_get_its_name_when_it_is_made(tmp_path, caplog):
    settings = {"JOBDIR": str(tmp_path)}
    with Pages({"/": lambda *_: []}) as pages:
        for _ in range(2):
            crawler = await crawl(NamedByArgument, settings, url=pages.url + "/", name="one")
            assert crawler.stats.get_value("finish_reason") == "finished"
        with suppress(CloseSpider):  # Scrapy 2.13 hands it on
            await crawl(NamedByArgument, settings, url=pages.url + "/", name="two")
    (refused,) = messages(caplog, logging.ERROR)
    assert "'two'" in refused
    assert pages.hits == {"/": 1}


def test_a_job_with_local_marks_is_not_moved_to_redis(tmp_path, caplog):
    """They would be forgotten without a word."""
    with Session({"JOBDIR": str(tmp_path)}) as session:
        session.seen(page(1))
    before = contents(tmp_path)
    nowhere = {"JOBDIR": str(tmp_path), "BLOOM_REDIS_URL": "redis://127.0.0.1:1"}
    dupefilter = BloomDupeFilter.from_crawler(get_crawler(settings_dict=nowhere))
    assert dupefilter.request_seen(page(1)) is False
    dupefilter.close("finished")
    assert "a filter in Redis would suppress pages" in caplog.text
    assert "BLOOM_BACKEND = 'local'" in caplog.text
    assert contents(tmp_path) == before
    with Session({**nowhere, "BLOOM_BACKEND": "local"}) as session:
        assert session.seen(page(1)) == [True]
