"""A filter that is held against an exact sample of the pages that it was asked about."""

import logging
from contextlib import suppress

import pytest
from pytest_twisted import ensureDeferred
from scrapy.exceptions import CloseSpider
from scrapy.utils.test import get_crawler
from support.contract import fingerprints
from support.crawling import Follower, crawl
from support.jobs import open_job
from support.localsite import LocalSite
from support.lossy import LossyFilter
from support.sites import Pages
from support.spiders import Walled

from scrapy_bloom import LocalFilter, SettingError, tools
from scrapy_bloom.backends.base import Opened
from scrapy_bloom.core.intervals import wilson
from scrapy_bloom.layers.audit import COUNTS, SAMPLE, AuditFilter
from scrapy_bloom.session.layers import made_audited
from scrapy_bloom.session.reporter import Reporter
from scrapy_bloom.session.session import Session

pytestmark = pytest.mark.scrapy


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [
        (0, 0, 0, 1),
        (0, 1000, 0, 0.003827),
        (10, 100, 0.05523, 0.17437),
        (1, 10, 0.01788, 0.40415),
        (1000, 1000, 0.996173, 1),
    ],
)
def test_the_interval_is_wilsons(count, total, low, high):
    assert wilson(count, total) == pytest.approx((low, high), rel=1e-3)


def test_what_is_known_to_be_new_is_counted_and_let_through():
    audit = AuditFilter(LossyFilter(), 1)
    known = fingerprints(2000)
    assert not any(audit.add_many(known))
    assert all(audit.add_many(known))
    found = audit.report()
    assert found.checked == 2000
    assert 850 < found.observed < 1150
    assert found.low < 0.5 < found.high


def test_a_share_of_them_is_in_the_sample():
    audit = AuditFilter(LocalFilter(), 0.1)
    audit.add_many(fingerprints(20_000))
    assert 1750 < audit.report().checked < 2250
    assert audit.report().observed == 0


@pytest.mark.unmeasured
def test_the_prediction_is_that_of_the_filter():
    audit = AuditFilter(LocalFilter(capacity=14_000, error_rate=0.5), 1)  # two blocks
    audit.add_many(fingerprints(14_000))
    found = audit.report()
    assert found.predicted == pytest.approx(audit.info().expected_lost, rel=0.05)
    assert found.observed == pytest.approx(found.predicted, abs=8 * found.predicted**0.5)


def test_what_was_forgotten_is_no_error():
    audit = AuditFilter(LocalFilter(), 1)
    known = fingerprints(100)
    audit.add_many(known)
    assert audit.forget_many(known) == [True] * 100
    assert audit.add_many(known) == [False] * 100
    assert audit.add_many(known) == [True] * 100
    assert (audit.checked, audit.observed) == (100, 0)


def test_older_marks_are_seen_and_not_counted():
    inner = LocalFilter(capacity=1000)
    old, new = fingerprints(900), fingerprints(500, "b")
    inner.add_many(old)
    audit = AuditFilter(inner, 1)
    audit.begin()
    assert audit.add_many(old) == [True] * 900
    assert audit.add_many(new) == [False] * 500
    assert (audit.checked, audit.observed) == (500, 0)


def test_an_earlier_run_is_gone_on_with():
    known = fingerprints(300)
    inner = LocalFilter()
    first = AuditFilter(inner, 1)
    first.add_many(known)
    notes = first.notes()
    again = AuditFilter(LocalFilter.from_state(inner.state()), 1)
    again.resume(notes[COUNTS], notes[SAMPLE])
    assert again.add_many(known) == [True] * 300
    assert again.report() == first.report()
    assert len(inner.state().slices) == len(again.inner.state().slices) == 1
    other = AuditFilter(LocalFilter.from_state(inner.state()), 0.5)
    other.resume(notes[COUNTS], notes[SAMPLE])
    assert other.add_many(known) == [True] * 300
    assert other.report().checked == 0


class Stopping(Follower):
    name = "follower"

    def parse(self, response):
        yield from super().parse(response)
        if len(self.parsed) >= 35:
            raise CloseSpider("enough")


SCHEDULERS = pytest.mark.parametrize(
    "scheduler", [{"SCHEDULER": "scrapy_bloom.Scheduler"}, {}], ids=["ours", "Scrapy's"]
)


@SCHEDULERS
@ensureDeferred
async def test_a_crawl_tells_at_its_end_what_all_runs_have_found(
    tmp_path, monkeypatch, caplog, scheduler
):
    monkeypatch.setattr("scrapy_bloom.Scheduler.snapshot_after", 30)
    monkeypatch.setattr("scrapy_bloom.storage.store.LocalFilter", LossyFilter)
    caplog.set_level(logging.INFO)
    settings = {**scheduler, "BLOOM_AUDIT": 1, "JOBDIR": str(tmp_path)}
    new = checked = 0
    with LocalSite(pages=100, links=6) as pages:
        for _ in range(20):
            crawler = await crawl(Stopping, settings, url=pages.url)
            stats = crawler.stats.get_stats()
            new += stats["bloom/new"] + stats["bloom/redirect_exempt"]
            assert stats["bloom/audit/checked"] > checked or not stats["bloom/new"]
            checked = stats["bloom/audit/checked"]
            if stats["finish_reason"] == "finished":
                break
    assert pages.missed == set()  # all are in the sample, so that none is lost
    assert checked == new
    observed = stats["bloom/audit/observed"] / checked
    assert 0.25 < observed < 0.75  # 5 standard deviations of 100 pages
    assert 0 < stats["bloom/audit/low"] < observed < stats["bloom/audit/high"] < 1
    assert tools.info(tmp_path).audit.checked == checked
    assert f"Audit: of {checked:,} new pages in the sample the filter called" in caplog.text


@ensureDeferred
async def test_an_audit_of_nothing_states_no_error_rate(caplog):
    caplog.set_level(logging.INFO)
    with Pages({"/": lambda *_: []}) as site:
        await crawl(Follower, {"BLOOM_AUDIT": 1e-9}, url=site.url + "/")
    assert "Audit: no new page was in the sample yet." in caplog.text
    assert "with a probability" not in caplog.text


@SCHEDULERS
@ensureDeferred
async def test_switched_on_late_and_off_it_calls_nothing_new_that_is_marked(
    tmp_path, caplog, scheduler
):
    caplog.set_level(logging.INFO, "scrapy_bloom")
    pages = {"/": lambda *_: ["/a", "/b", "/by-hand"], "/a": lambda *_: [], "/b": lambda *_: []}
    settings = {**scheduler, "JOBDIR": str(tmp_path / "job")}
    with Pages(pages) as site:
        await crawl(Walled, {**settings, "BLOOM_AUDIT": None}, url=site.url + "/")
        first = dict(site.hits)
        nearly = 1 - 1e-9  # another share, though every page is in its sample
        for share in (1, 1, nearly, None, 1):
            pages["/"] = lambda *_, share=share: ["/a", "/b", "/by-hand", f"/only/{share}"]
            crawler = await crawl(Walled, {**settings, "BLOOM_AUDIT": share}, url=site.url + "/")
            assert crawler.stats.get_value("bloom/audit/observed", 0) == 0
        tools.add(tmp_path / "job", [site.url + "/hand"])
        pages["/"] = lambda *_: ["/a", "/b", "/hand"]
        await crawl(Walled, {**settings, "BLOOM_AUDIT": 1}, url=site.url + "/")
    assert site.hits == first | {"/": 7, "/only/1": 1, f"/only/{nearly}": 1, "/only/None": 1}
    dropped = "so what the audit of earlier runs has counted is dropped: 0 of 1 new pages"
    told = [line.partition(": ")[2] for line in caplog.messages if dropped in line]
    assert [line.partition(",")[0] for line in told] == [
        "BLOOM_AUDIT or BLOOM_WINDOW is another one now",
        "BLOOM_AUDIT was taken out",
    ]


@pytest.mark.parametrize("written", [0, -1, 1.1, "a", "", float("nan"), 1e30, [], True])
def test_a_share_that_is_none_is_refused(written):
    crawler = get_crawler(settings_dict={"BLOOM_AUDIT": written})
    with pytest.raises(SettingError, match=r"BLOOM_AUDIT = .*above 0, at most 1, such as 1e-4"):
        Session.open(crawler, Reporter(crawler))


@pytest.mark.parametrize("window", [None, "1h"])
def test_after_a_kill_it_goes_on_from_where_the_filter_does(tmp_path, window):
    """With Scrapy's own scheduler: the snapshot of a clean stop has both."""
    chosen = {"BLOOM_AUDIT": 1, "JOBDIR": str(tmp_path), "BLOOM_WINDOW": window}
    some, more = fingerprints(100), fingerprints(100, "more")

    def opened(**settings):
        crawler = get_crawler(settings_dict=chosen | settings)
        return Session.open(crawler, Reporter(crawler)).opened

    first = opened()
    first.filter.add_many(some)
    first.close()
    for _ in range(2):
        run = opened()
        assert run.audited().checked == 100
        assert run.filter.add_many(some + more) == [True] * 100 + [False] * 100
        assert run.audited().checked == 200
        run.kept.release()
    assert tools.info(tmp_path).audit.checked == 100
    tools.add(tmp_path, ["http://example.com/"])
    assert tools.info(tmp_path).audit is None, "the sample lacks what was marked by hand"
    run = opened()
    assert run.filter.add_many(some + more) == [True] * 100 + [False] * 100
    assert (run.audited().checked, run.audited().observed) == (100, 0)
    run.close()


def test_notes_that_another_version_has_made_begin_it_anew(tmp_path):
    job = open_job(tmp_path)
    job.filter.add_many(fingerprints(100))
    job.notes = lambda: {COUNTS: '{"checked": 5}', SAMPLE: b"\xff"}
    job.close()
    job = open_job(tmp_path)
    opened = Opened(job.filter, job.close, "", kept=job)
    audited = made_audited(opened, job.filter, 1)
    assert audited.audited().checked == 0
    assert audited.filter.add_many(fingerprints(100)) == [True] * 100
    audited.close()
    job = open_job(tmp_path)
    assert [*job.noted] == [COUNTS, SAMPLE]
    job.release()


@pytest.mark.parametrize(
    "more", [{}, {"BLOOM_REDIS_URL": "redis://127.0.0.1:1", "BLOOM_REDIS_LAYOUT": "sets"}]
)
@ensureDeferred
async def test_beside_the_exact_mode_it_is_refused(tmp_path, caplog, more):
    settings = {"BLOOM_AUDIT": 1e-4, "BLOOM_EXACT": True, "JOBDIR": str(tmp_path), **more}
    settings["SCHEDULER"] = "scrapy_bloom.Scheduler"
    with Pages({"/": lambda *_: []}) as site, suppress(CloseSpider):
        await crawl(Walled, settings, url=site.url + "/")
    assert not site.hits
    assert "Remove BLOOM_AUDIT." in caplog.text
