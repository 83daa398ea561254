"""Scrapy's contract for duplicate filters, met by the scheduler and by whole crawls."""

import inspect
import logging
from collections import Counter
from hashlib import sha1
from numbers import Number
from pathlib import Path

import pytest
import scrapy
from pytest_twisted import ensureDeferred
from scrapy import Request
from scrapy.core.scheduler import Scheduler
from scrapy.exceptions import CloseSpider
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler
from support.crawling import Follower, Project, crawl, make_crawler
from support.sites import Pages

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local import plain
from scrapy_bloom.local.job import new_filter
from scrapy_bloom.settings import Settings
from scrapy_bloom.stats import STATS

VERDICTS = ("bloom/new", "bloom/seen", "bloom/redirect_exempt", "bloom/errors")


def make_filter(settings=None, spider=None):
    """Return the filter as Scrapy's scheduler makes it, and its crawler."""
    ours = {"DUPEFILTER_CLASS": BloomDupeFilter}
    crawler = get_crawler(spider, {**ours, **(settings or {})})
    return build_from_crawler(Scheduler, crawler).df, crawler


def page(number):
    return Request(f"https://example.com/{number}")


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def messages(caplog, level, name="scrapy_bloom"):
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == level and record.name.startswith(name)
    ]


class Raises:
    def fingerprint(self, request):
        raise RuntimeError(f"no name for {request}")


class GivesText:
    def fingerprint(self, request):
        return sha1(request.url.encode()).hexdigest()


class GivesNothing:
    def fingerprint(self, _request):
        return None


# Construction, opening and closing


@pytest.mark.each_scrapy
def test_the_scheduler_makes_it_before_there_is_a_spider():
    dupefilter, crawler = make_filter()
    assert crawler.spider is None
    assert type(dupefilter) is BloomDupeFilter
    assert dupefilter  # schedulers ask "if not self.df"


def test_making_it_takes_nothing_and_checks_nothing(tmp_path):
    crawler = get_crawler(settings_dict={"JOBDIR": str(tmp_path), "BLOOM_CAPACITY": 0})
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert files(tmp_path) == []
    dupefilter.close("finished")
    assert files(tmp_path) == []


@pytest.mark.each_scrapy
def test_the_first_request_opens_it_where_nobody_else_does(tmp_path):
    dupefilter, crawler = make_filter({"JOBDIR": str(tmp_path)})
    assert "bloom.sqlite" not in files(tmp_path)
    assert dupefilter.request_seen(page(1)) is False
    assert "bloom.sqlite" in files(tmp_path)
    assert dupefilter.request_seen(page(1)) is True
    dupefilter.close("finished")
    assert crawler.stats.get_value("bloom/checked") == 2


@pytest.mark.each_scrapy
def test_open_and_close_are_plain_functions():
    dupefilter, _ = make_filter()
    for method in ("open", "close", "request_seen", "log"):
        assert not inspect.iscoroutinefunction(getattr(dupefilter, method))
    assert dupefilter.open() is None
    assert dupefilter.close("finished") is None


# Verdicts


def test_a_request_is_seen_from_the_second_time_on():
    dupefilter, _ = make_filter()
    dupefilter.open()
    first, second, again = page(1), page(2), page(2)
    verdicts = [dupefilter.request_seen(r) for r in (first, first, second, again, second)]
    assert verdicts == [False, True, False, True, True]
    assert {type(verdict) for verdict in verdicts} == {bool}
    dupefilter.close("finished")


def test_a_job_remembers_its_requests(tmp_path):
    settings = {"JOBDIR": str(tmp_path)}
    first, _ = make_filter(settings)
    first.open()
    assert [first.request_seen(page(n)) for n in (1, 1)] == [False, True]
    first.close("shutdown")
    # The filter is opened without its scheduler here, which stores the queue at a clean stop.
    (tmp_path / "requests.queue" / "active.json").write_text("[]")
    second, crawler = make_filter(settings)
    second.open()
    assert [second.request_seen(page(n)) for n in (1, 2, 2)] == [True, False, True]
    second.close("finished")
    assert crawler.stats.get_value("bloom/restored") == 1


# What fails


@pytest.mark.parametrize("fingerprinter", [Raises, GivesText, GivesNothing])
def test_a_request_without_a_fingerprint_is_crawled_and_said_once(fingerprinter, caplog):
    dupefilter, crawler = make_filter({"REQUEST_FINGERPRINTER_CLASS": fingerprinter})
    dupefilter.open()
    assert [dupefilter.request_seen(page(1)) for _ in range(250)] == [False] * 250
    dupefilter.close("finished")
    assert crawler.stats.get_value("bloom/errors") == 250
    assert crawler.stats.get_value("bloom/checked") == 250
    (error,) = messages(caplog, logging.ERROR)
    assert "<GET https://example.com/1>" in error
    assert "bloom/errors" in error


class Flaky(LocalFilter):
    """A filter whose home is away at times, as one on a server's can be."""

    away = False

    def add(self, fingerprint):
        if self.away:
            raise ConnectionError("nobody is there")
        return super().add(fingerprint)


def test_a_failing_filter_loses_no_request(monkeypatch, caplog):
    flaky = Flaky()
    monkeypatch.setattr(plain, "new_filter", lambda *_, **__: flaky)
    dupefilter, crawler = make_filter()
    dupefilter.open()
    dupefilter.request_seen(page(1))
    flaky.away = True
    assert [dupefilter.request_seen(page(1)) for _ in range(3)] == [False] * 3
    flaky.away = False
    assert dupefilter.request_seen(page(1)) is True
    dupefilter.close("finished")
    assert crawler.stats.get_value("bloom/errors") == 3
    assert len(messages(caplog, logging.ERROR)) == 1


def test_a_filter_that_memory_cannot_hold_is_warned_of(monkeypatch, caplog):
    for pages in (1 << 30, 100):  # of 4 KiB
        sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}
        monkeypatch.setattr("os.sysconf", sizes.__getitem__, raising=False)
        new_filter(Settings({}), digests=True)
        warned = "BLOOM_CAPACITY = 1,000,000: when full, the filter takes 4.1 MB" in caplog.text
        assert warned == (pages == 100)


def test_a_filter_that_cannot_be_opened_lazily_loses_no_request(caplog):
    settings = {"BLOOM_CAPACITY": 0, "BLOOM_NONSENSE": 1}
    dupefilter, crawler = make_filter(settings)
    assert [dupefilter.request_seen(page(1)) for _ in range(250)] == [False] * 250
    dupefilter.close("finished")
    assert crawler.stats.get_value("bloom/errors") == 250
    assert len(messages(caplog, logging.ERROR)) == 1
    assert "BLOOM_CAPACITY = 0" in caplog.text
    assert len(messages(caplog, logging.WARNING)) == 1


def test_a_request_after_the_close_is_crawled():
    dupefilter, crawler = make_filter()
    dupefilter.open()
    dupefilter.request_seen(page(1))
    dupefilter.close("finished")
    assert dupefilter.request_seen(page(1)) is False
    dupefilter.close("finished")
    assert crawler.stats.get_value("bloom/errors") == 1


class BrokenStats(MemoryStatsCollector):
    """Takes no number of ours, as one may whose server is away."""

    also = ()

    def inc_value(self, key, *args, **kwargs):
        if key.startswith(("bloom/", "dupefilter/", *self.also)):
            raise ConnectionError(f"nobody takes {key}")
        super().inc_value(key, *args, **kwargs)

    def get_value(self, key, *args, **kwargs):
        if key == "bloom/checked":
            raise ConnectionError(f"nobody knows {key}")
        return super().get_value(key, *args, **kwargs)

    def set_value(self, key, *args, **kwargs):
        if key.startswith("bloom/"):
            raise ConnectionError(f"nobody takes {key}")
        super().set_value(key, *args, **kwargs)


class BrokenQueueStats(BrokenStats):
    """Nor those of Scrapy's that `scrapy_bloom.Scheduler` sets."""

    also = ("scheduler/",)


@ensureDeferred
@pytest.mark.parametrize("kept", [False, True])
async def test_a_stats_collector_that_raises_costs_no_page(tmp_path, caplog, kept):
    pages = {"/": lambda *_: ["/1", "/2", "/1?utm_source=x"], "/1": lambda *_: ["/2"] * 2}
    pages |= {"/2": lambda *_: ["/1", "/3"], "/3": lambda *_: []}
    chosen = {"STATS_CLASS": BrokenStats}
    if kept:
        chosen = {"STATS_CLASS": BrokenQueueStats, "JOBDIR": str(tmp_path)}
        chosen["SCHEDULER"] = "scrapy_bloom.Scheduler"
    with Pages(pages) as site:
        crawler = await crawl(url=site.url + "/", settings={"BLOOM_CANONICAL": "usual", **chosen})
    assert site.hits == Counter({"/": 1, "/1": 1, "/2": 1, "/3": 1})
    assert crawler.stats.get_value("finish_reason") == "finished"
    (error,) = messages(caplog, logging.ERROR)
    assert error.startswith("The stats collector failed")


# Log and stats


@pytest.mark.parametrize("debug", [True, False])
@pytest.mark.each_scrapy
def test_the_log_texts_are_those_of_the_scrapy_that_is_installed(debug, caplog):
    caplog.set_level(logging.DEBUG)
    texts = []
    for name in ("scrapy.dupefilters.RFPDupeFilter", "scrapy_bloom.BloomDupeFilter"):
        settings = {"DUPEFILTER_DEBUG": debug, "DUPEFILTER_CLASS": name}
        dupefilter, crawler = make_filter(settings, Follower)
        spider = Follower.from_crawler(crawler)
        caplog.clear()
        for number in (1, 1, 2):
            request = page(number).replace(headers={"Referer": f"https://{number}.example"})
            dupefilter.log(request, spider)
        texts.append([record.getMessage() for record in caplog.records])
        assert all(record.spider is spider for record in caplog.records)
        assert crawler.stats.get_value("dupefilter/filtered") == 3
    assert texts[0] == texts[1]
    assert len(texts[0]) == (3 if debug else 1)


LINKED = {
    "/": lambda *_: [f"/{number}" for number in range(120)] * 2,
    **{f"/{number}": lambda *_: ["/"] for number in range(120)},
}


@ensureDeferred
@pytest.mark.each_scrapy
async def test_a_crawl_without_faults_has_few_lines_and_few_stats_and_all_are_documented(caplog):
    caplog.set_level(logging.INFO)
    with Pages(LINKED) as site:
        crawler = await crawl(url=site.url + "/", settings={"BLOOM_CAPACITY": 50})
    stats = crawler.stats.get_stats()
    ours = {key for key in stats if key.startswith("bloom/")}
    assert ours <= {stat.key for stat in STATS}
    assert ours == {
        *("bloom/checked", "bloom/new", "bloom/seen", "bloom/restored", "bloom/items"),
        *("bloom/bytes", "bloom/expected_lost"),
    }
    assert all(isinstance(stats[key], Number) for key in ours)
    assert stats["bloom/checked"] == sum(stats.get(key, 0) for key in VERDICTS) == 361
    assert stats["bloom/new"] == stats["bloom/items"] == 121
    assert stats["bloom/seen"] == stats["dupefilter/filtered"] == 240
    (dump,) = (text for text in messages(caplog, logging.INFO, "") if text.startswith("Dumping"))
    for key in ours:
        assert f"'{key}': {stats[key]!r}" in dump
    opened, closed = messages(caplog, logging.INFO)
    assert closed == (
        "Bloom filter closed: 121 of 361 requests were new, 121 pages known, 0.0 expected lost"
    )
    assert opened == (
        "Bloom filter in memory only: 0 pages known; a stop or a kill loses them and all requests,"
        " which a JOBDIR keeps. Capacity 50, error rate 1e-06, 8.2 kB when full"
    )
    (growth,) = messages(caplog, logging.WARNING)
    assert "50 fingerprints" in growth
    assert "BLOOM_CAPACITY" in growth
    assert messages(caplog, logging.ERROR) == []


# Wrong settings


@pytest.mark.parametrize(
    "written",
    [
        {"BLOOM_CAPACITY": 0, "SCHEDULER": "scrapy_bloom.Scheduler", "JOBDIR": "job"},
        {"BLOOM_REDIS_URL": "redis://127.0.0.1:1", "BLOOM_ON_BACKEND_ERROR": "close"},
    ],
)
@pytest.mark.each_scrapy
def test_a_refused_crawl_ends_with_one_line_and_an_exit_code(written, tmp_path):
    with Pages({"/": lambda *_: []}) as site:
        run = Project(tmp_path).crawl(site, keep=False, **written)
        assert run.end() == 1
    assert site.hits == {}
    if scrapy.version_info >= (2, 14):
        assert len(run.logged("ERROR")) == 1
        assert "Traceback" not in run.log
        assert run.reason in ("bloom_setting", "bloom_backend")


async def refusal(crawler, **arguments):
    """Return the reason with which a crawl refuses to start."""
    if scrapy.version_info >= (2, 14):
        await crawler.crawl(**arguments)
        return crawler.stats.get_value("finish_reason")
    with pytest.raises(CloseSpider) as refused:  # Scrapy hands it on as it is
        await crawler.crawl(**arguments)
    return refused.value.reason


class NamedByArgument(Follower):
    name = None


@ensureDeferred
@pytest.mark.each_scrapy
async def test_a_spider_may_get_its_name_when_it_is_made(tmp_path):
    settings = {"JOBDIR": str(tmp_path)}
    with Pages({"/": lambda *_: []}) as pages:
        for _ in range(2):
            crawler = await crawl(NamedByArgument, settings, url=pages.url + "/", name="one")
            assert crawler.stats.get_value("finish_reason") == "finished"
        other = make_crawler(NamedByArgument, settings)
        assert await refusal(other, url=pages.url + "/", name="two") == "bloom_state"
    assert pages.hits == {"/": 1}
