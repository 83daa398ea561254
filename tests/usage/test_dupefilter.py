"""Scrapy's contract for duplicate filters, met by the scheduler and by whole crawls."""

import logging
from collections import Counter
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from scrapy import Request
from scrapy.core.scheduler import Scheduler
from scrapy.exceptions import CloseSpider
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.request import fingerprint
from scrapy.utils.test import get_crawler
from support.crawling import KEPT, Follower, at, crawl, messages, visit
from support.filters import contents
from support.jobs import Session, page
from support.sites import Pages, fan

from scrapy_bloom import BloomDupeFilter, CanonicalRequestFingerprinter
from scrapy_bloom.local.job import new_filter
from scrapy_bloom.settings import Settings


def make_filter(settings):
    """Return the filter as Scrapy's scheduler makes it, and its crawler."""
    crawler = get_crawler(settings_dict={"DUPEFILTER_CLASS": BloomDupeFilter, **settings})
    return build_from_crawler(Scheduler, crawler).df, crawler


def named_by(give):
    """Return the setting of a fingerprinter that gives this for a request."""
    members = {"fingerprint": lambda _, request: give(request)}
    return {"REQUEST_FINGERPRINTER_CLASS": type("Fingerprinter", (), members)}


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
    (error,) = messages(caplog)
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

    def inc_value(self, key, count=1, start=0, spider=None):  # noqa: ARG002 - Scrapy's signature
        self.set_value(key, self.get_value(key, start) + count)

    def get_value(self, key, *args, **kwargs):
        if key.startswith("bloom/checked"):
            raise ConnectionError("nobody has it")
        return super().get_value(key, *args, **kwargs)

    def set_value(self, key, *args, **kwargs):
        if key.startswith(self.theirs):
            raise ConnectionError("nobody takes it")
        super().set_value(key, *args, **kwargs)


@pytest.mark.server
@pytest.mark.parametrize("kept", [False, True])
async def test_a_stats_collector_that_raises_costs_no_page(tmp_path, caplog, monkeypatch, kept):
    pages = {"/": ["/1", "/2", "/1?utm_source=x"], "/1": ["/2"] * 2, "/2": ["/1", "/3"], "/3": []}
    chosen = {"STATS_CLASS": BrokenStats}
    if kept:  # nor does it take those of Scrapy's that our scheduler sets
        monkeypatch.setattr(BrokenStats, "theirs", ("bloom/", "dupefilter/", "scheduler/"))
        chosen |= {"SCHEDULER": "scrapy_bloom.Scheduler", "JOBDIR": str(tmp_path)}
    crawler, site = await visit(pages, settings={"BLOOM_CANONICAL": "usual", **chosen})
    assert site.hits == Counter({"/": 1, "/1": 1, "/2": 1, "/3": 1})
    assert crawler.stats.get_value("finish_reason") == "finished"
    (error,) = messages(caplog)
    assert error.startswith("The stats collector failed")


# Log and stats


LINKED = {"/": [f"/{number}" for number in range(120)] * 2}
LINKED |= {f"/{number}": ["/"] for number in range(120)}


@pytest.mark.server
@pytest.mark.each_scrapy
async def test_a_crawl_without_faults_has_few_lines_and_few_stats(caplog):
    caplog.set_level(logging.INFO)
    crawler, _ = await visit(LINKED, settings={"BLOOM_CAPACITY": 50})
    stats = crawler.stats.get_stats()
    ours = {key: value for key, value in stats.items() if key.startswith("bloom/")}
    counted = {"checked": 361, "new": 121, "seen": 240, "restored": 0, "known": 121}
    assert {key: ours.pop(f"bloom/{key}") for key in counted} == counted
    assert ours.keys() == {"bloom/bytes", "bloom/expected_lost"}
    assert stats["dupefilter/filtered"] == 240
    opened, growth, closed = messages(caplog)
    assert opened.startswith("Bloom filter in memory only: 0 marks; without a JOBDIR nothing")
    assert "50 pages" in growth
    assert "BLOOM_CAPACITY" in growth
    assert closed.startswith("Crawl finished: 121 marks, 361 links checked, 121 of them new; this")
    assert closed.endswith("; false positives may have cost 0.0 pages.")


class NamedByArgument(Follower):
    name = None


@pytest.mark.server
@pytest.mark.each_scrapy
async def test_a_spider_may_get_its_name_when_it_is_made(tmp_path, caplog):
    settings = {"JOBDIR": str(tmp_path)}
    with Pages({"/": []}) as pages:
        for _ in range(2):
            crawler = await crawl(NamedByArgument, settings, url=pages.url + "/", name="one")
            assert crawler.stats.get_value("finish_reason") == "finished"
        with suppress(CloseSpider):  # Scrapy 2.13 hands it on
            await crawl(NamedByArgument, settings, url=pages.url + "/", name="two")
    (refused,) = messages(caplog)
    assert "'two'" in refused
    assert pages.hits == {"/": 1}


def test_a_job_with_local_marks_is_not_moved_to_redis(job, caplog):
    """They would be forgotten without a word."""
    with Session({"JOBDIR": str(job)}) as session:
        session.seen(page(1))
    before = contents(job)
    nowhere = {"JOBDIR": str(job), "BLOOM_REDIS_URL": "redis://127.0.0.1:1"}
    dupefilter = BloomDupeFilter.from_crawler(get_crawler(settings_dict=nowhere))
    assert dupefilter.request_seen(page(1)) is False
    dupefilter.close("finished")
    (refused,) = messages(caplog)
    assert "a filter in Redis would suppress pages" in refused
    assert "BLOOM_BACKEND = 'local'" in refused
    assert contents(job) == before
    with Session({**nowhere, "BLOOM_BACKEND": "local"}) as session:
        assert session.seen(page(1)) == [True]


# Canonical fingerprints: settings, header, other fingerprinters

PORT = "http://example.com:80/a"
PLAIN = "http://example.com/a"
TRACKED = "http://example.com/a?utm_source=x"


def test_a_setting_of_each_kind_reaches_the_filter():
    settings = {
        "BLOOM_CANONICAL": "usual",
        "BLOOM_CANONICAL_DROP_PARAMS": "sid,x_*",
        "BLOOM_CANONICAL_KEEP_PARAMS": ["utm_id"],
        "BLOOM_CANONICAL_RULES": '{"example.org": {"steps": ["www"], "level": "scrapy"}}',
    }
    with Session(settings) as crawl:
        assert crawl.seen(PLAIN, f"{PLAIN}?sid=1&x_1=2", TRACKED) == [False, True, True]
        assert crawl.seen(f"{PLAIN}?utm_id=1") == [False]
        assert crawl.seen("http://example.org/", "http://www.example.org/") == [False, True]
        assert crawl.seen("http://example.org/?utm_x=1") == [False]


def test_a_job_resumed_with_other_rules_is_reported(job, caplog):
    for settings, expected in (
        *(({}, 0), ({}, 0)),
        *(({"BLOOM_CANONICAL": "usual"}, 1), ({"BLOOM_CANONICAL": "usual"}, 0)),
        ({"BLOOM_CANONICAL_RULES": {"example.com": {"steps": ["www"]}}}, 1),
    ):
        with Session({"JOBDIR": str(job), **settings}) as crawl:
            crawl.seen(PLAIN)
        said = [text for text in messages(caplog) if "was filled with" in text]
        assert len(said) == expected
    assert "{'*': {'level': 'usual'}}, now {'*': {'level': 'safe'}, 'example.com'" in said[0]
    assert "are fetched again" in said[0]


def test_the_fingerprinter_may_serve_all_of_scrapy():
    asked = []

    class Asked(CanonicalRequestFingerprinter):
        def fingerprint(self, request):
            asked.append(self)
            return super().fingerprint(request)

    settings = {"REQUEST_FINGERPRINTER_CLASS": Asked, "BLOOM_CANONICAL": "usual"}
    with Session(settings) as crawl:
        fingerprinter = crawl.crawler.request_fingerprinter
        assert fingerprinter.fingerprint(Request(TRACKED)) == fingerprint(Request(PLAIN))
        assert crawl.seen(TRACKED, PLAIN) == [False, True]
    assert asked == [fingerprinter] * 3  # the filter has none of its own


class InDatabase(BloomDupeFilter):
    """Knows some pages from elsewhere, and cannot ask about one."""

    def request_seen(self, request):
        path = urlsplit(request.url).path
        if path == "/broken":
            raise OSError("no database")
        return path in {"/known", "/target"} or super().request_seen(request)


@pytest.mark.server
@at("job", "kept job", "shared")
async def test_a_check_of_a_subclass_is_asked_first_under_each_scheduler(place, caplog):
    ours = place.get("SCHEDULER") == KEPT["SCHEDULER"]
    pages = fan("known", "unknown", "target", **({"broken": []} if ours else {}), away="/target")
    crawler, site = await visit(pages, settings=place | {"DUPEFILTER_CLASS": InDatabase})
    assert {path for path, hits in site.hits.items() if hits} == {*pages} - {"/known", "/target"}
    assert crawler.stats.get_value("bloom/errors", 0) == ours
    assert crawler.stats.get_value("dupefilter/filtered") == 3
    assert caplog.text.count("Could not check whether") == ours


class FirstPathSegment(CanonicalRequestFingerprinter):
    """A project's subclass: a page is what stands before the second slash of the path."""

    shown = ()

    def fingerprint(self, request):
        type(self).shown = *self.shown, request.url
        parts = request.url.split("/")
        return super().fingerprint(request.replace(url="/".join(parts[:4])))


def test_a_subclass_that_overrides_fingerprint_decides_and_its_job_names_it(job, caplog):
    settings = {"JOBDIR": str(job), "BLOOM_CANONICAL": "usual"}
    own = settings | {"REQUEST_FINGERPRINTER_CLASS": f"{__name__}.FirstPathSegment"}
    with Session(own) as crawl:
        assert crawl.seen(f"{PLAIN}/b", f"{PLAIN}/c") == [False, True]
        assert crawl.seen(f"{PORT}?utm_id=1", f"{PLAIN}z") == [True, False]
        assert FirstPathSegment.shown[-2:] == (f"{PORT}?utm_id=1", f"{PLAIN}z")  # as they are
    with Session(own) as crawl:
        assert crawl.seen(PLAIN) == [True]
    with pytest.raises(CloseSpider), Session(settings):
        pass
    assert f"found the filter of fingerprinter '{__name__}.FirstPathSegment'" in caplog.text
