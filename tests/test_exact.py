"""No new page is called seen: the exact lists in files, the filter around them, and crawls."""

import logging
import random
import time
from contextlib import ExitStack, suppress
from hashlib import sha1

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pytest_twisted import ensureDeferred
from scrapy.exceptions import CloseSpider
from scrapy.utils.test import get_crawler
from support.contract import fingerprints
from support.crawling import Follower, Project, crawl
from support.localsite import LocalSite
from support.lossy import LossyFilter
from support.sites import Pages
from support.spiders import Walled

from scrapy_bloom import LocalFilter, RedisFilter, SettingError, StateError, tools
from scrapy_bloom.layers.exact import PREFIX, ExactFilter, ExactLists
from scrapy_bloom.session.reporter import Reporter
from scrapy_bloom.session.session import Session
from scrapy_bloom.storage.exact_file import ENTRY, ExactFile, ExactKey, write_exact

KEY = ExactKey(b"s" * 16, digests=True)
POOR = {"capacity": 20, "error_rate": 1e-6}


class TestFile:
    @pytest.fixture
    def opened(self):
        with ExitStack() as files:
            yield lambda path, key: files.enter_context(ExactFile(path, key))

    def test_it_has_what_was_written_and_nothing_else(self, tmp_path, opened):
        known, others = fingerprints(5000), fingerprints(5000, "b")
        assert write_exact(tmp_path / "list", KEY, known) == 5000
        stored = opened(tmp_path / "list", KEY)
        assert all(one in stored for one in known)
        assert not any(one in stored for one in others)
        assert stored.count == 5000

    def test_fingerprints_of_any_length(self, tmp_path, opened):
        known = [b"", b"\0", b"\0" * 20, b"\0" * 21, b"a" * 1000]
        write_exact(tmp_path / "list", KEY, known)
        stored = opened(tmp_path / "list", KEY)
        assert [one in stored for one in [*known, b"\0\0", b"\1" * 20]] == [True] * 5 + [False] * 2

    def test_where_two_entries_meet_there_is_no_third(self, tmp_path, opened):
        one = bytes(range(20))
        bucket = KEY.bucket(one)
        same = (b"%020d" % number for number in range(10**7))
        neighbours = [
            other for other in (next(same) for _ in range(400_000)) if KEY.bucket(other) == bucket
        ]
        write_exact(tmp_path / "list", KEY, neighbours)
        stored = opened(tmp_path / "list", KEY)
        entries = stored.entries(bucket)
        assert len(entries) == ENTRY * len(neighbours) >= 2 * ENTRY
        assert all(other in stored for other in neighbours)
        assert one not in stored

    def test_lists_become_one(self, tmp_path, opened):
        known = fingerprints(3000)
        paths = [tmp_path / name for name in "abc"]
        write_exact(paths[0], KEY, known[:1000])
        write_exact(paths[1], KEY, known[1000:1500])
        assert write_exact(paths[2], KEY, known[1500:], paths[:2]) == 3000
        stored = opened(paths[2], KEY)
        assert all(one in stored for one in known)

    @pytest.mark.parametrize(
        ("damage", "told"),
        [
            (lambda _: b"", "starts with b''"),
            (lambda data: data[:-1], "bytes for 100 entries"),
            (lambda data: data + b"x", "bytes for 100 entries"),
            (lambda data: b"x" + data[1:], "starts with b'x"),
            (lambda data: data[:60] + b"\xff" + data[61:], "does not match its checksum"),
        ],
    )
    def test_damage_is_refused_and_left(self, tmp_path, damage, told):
        path = tmp_path / "list"
        write_exact(path, KEY, fingerprints(100))
        path.write_bytes(damaged := damage(path.read_bytes()))
        with pytest.raises(StateError, match=f"{told}.*take BLOOM_EXACT out once"):
            ExactFile(path, KEY)
        assert path.read_bytes() == damaged

    def test_what_is_not_there_or_anothers_is_refused(self, tmp_path):
        with pytest.raises(StateError, match="found no file"):
            ExactFile(tmp_path / "list", KEY)
        write_exact(tmp_path / "list", KEY, [])
        with pytest.raises(StateError, match="another filter"):
            ExactFile(tmp_path / "list", ExactKey(b"t" * 16, digests=True))


class Jobs(RuleBasedStateMachine):
    """A filter with its lists, stopped, killed and started again, against a set."""

    folder = None

    @initialize()
    def open(self):
        for path in self.folder.iterdir():
            path.unlink()
        self.model = set()
        self.exact = ExactFilter(LossyFilter(**POOR))
        self.lists = ExactLists(self.folder, self.exact)
        self.lists.begin()
        self.note = self.lists.note()

    @rule(items=st.lists(st.integers(0, 300), max_size=60))
    def add(self, items):
        expected = []
        for item in items:
            expected.append(item in self.model)
            self.model.add(item)
        assert self.exact.add_many(map(as_fingerprint, items)) == expected

    @rule(items=st.lists(st.integers(0, 300), max_size=20))
    def forget(self, items):
        expected = []
        for item in items:
            expected.append(item in self.model)
            self.model.discard(item)
        assert self.exact.forget_many(map(as_fingerprint, items)) == expected

    @rule(killed=st.booleans())
    def store(self, killed):
        frozen = self.lists.freeze()
        frozen.write()
        if killed:
            frozen.drop()
            return
        self.note = frozen.use()
        frozen.tidy_up()

    @rule()
    def start_again(self):
        """As after a kill: what is in no list comes out of the journal, and the filter as well."""
        groups = (*self.exact.recent, *self.exact.writing)
        recent = set().union(*(each.fingerprints for each in groups))
        inner = self.exact.inner
        self.exact.close()
        self.exact = ExactFilter(LossyFilter.from_state(inner.state(), **POOR))
        self.lists = ExactLists(self.folder, self.exact)
        self.lists.resume(self.note)
        self.exact.restore(recent)
        self.exact.forget_many(inner.forgotten)
        assert self.lists.note() == self.note

    @rule()
    def look(self):
        everything = [as_fingerprint(item) for item in range(301)]
        found = self.exact.contains_many(everything)
        assert {item for item in range(301) if found[item]} == self.model

    def teardown(self):
        self.exact.close()


def as_fingerprint(item):
    return sha1(b"%d" % item).digest()


def test_it_answers_as_a_set_does(tmp_path):
    machine = type("Machine", (Jobs,), {"folder": tmp_path})
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
    machine.TestCase().runTest()


def test_what_it_catches_is_counted_and_about_what_was_predicted():
    exact = ExactFilter(LocalFilter(capacity=20_000, error_rate=0.5))
    assert not any(exact.add_many(fingerprints(20_000)))
    predicted = exact.info().expected_lost
    assert predicted > 100
    assert exact.false_positives == pytest.approx(predicted, abs=8 * predicted**0.5)


@pytest.mark.unmeasured
def test_there_are_few_lists_and_each_mark_is_written_few_times(tmp_path):
    exact = ExactFilter(LocalFilter(capacity=10_000))
    lists = ExactLists(tmp_path, exact)
    lists.begin()
    for start in range(64):
        exact.add_many(fingerprints(50, f"{start}"))
        frozen = lists.freeze()
        frozen.write()
        frozen.use()
        frozen.tidy_up()
        assert len(exact.lists) <= 7
    assert sum(one.file.count for one in exact.lists) == 3200
    assert len(list(tmp_path.glob(f"{PREFIX}*"))) == len(exact.lists)
    exact.close()


# Crawls

pytestmark = pytest.mark.scrapy
POOR_CRAWL = {
    "SCHEDULER": "scrapy_bloom.Scheduler",
    "BLOOM_CAPACITY": 50,
    "BLOOM_EXACT": True,
}


@pytest.fixture
def job(tmp_path):
    return tmp_path / "job"


def kept(job, **more):
    return {**POOR_CRAWL, "JOBDIR": str(job), **more}


def stat(crawler, name):
    return crawler.stats.get_value(f"bloom/{name}")


class Stopping(Follower):
    name = "follower"
    pages = 35

    def parse(self, response):
        yield from super().parse(response)
        if len(self.parsed) >= self.pages:
            raise CloseSpider("enough")


@ensureDeferred
async def test_no_page_is_missed_over_stops_though_the_filter_loses_many(job, monkeypatch):
    monkeypatch.setattr("scrapy_bloom.Scheduler.snapshot_after", 30)
    monkeypatch.setattr("scrapy_bloom.storage.store.LocalFilter", LossyFilter)
    caught = 0
    with LocalSite(pages=130, links=6) as pages:
        for _ in range(20):
            crawler = await crawl(Stopping, kept(job), url=pages.url)
            caught += stat(crawler, "false_positives")
            if stat(crawler, "frontier/pending") == 0:
                break
    assert pages.missed == set()
    assert pages.repeated == {}
    assert caught > 35  # of 130 pages: 5 standard deviations
    assert list(job.glob(f"{PREFIX}*"))
    assert tools.info(job).exact >= 130
    with LocalSite(pages=130, links=6) as pages:
        alone = {**kept(job.with_name("alone")), "BLOOM_EXACT": False}
        await crawl(Follower, alone, url=pages.url)
        assert pages.missed


@pytest.mark.parametrize("window", [None, "30d"])
def test_a_kill_takes_nothing(tmp_path, window):
    project = Project(tmp_path)
    missed_by = random.Random(7)
    more = {**POOR_CRAWL, "BLOOM_WINDOW": window} if window else POOR_CRAWL
    try:
        with LocalSite(pages=160, links=6) as site:
            for _ in range(4):
                run = project.crawl(site, spider="lossy", **more)
                site.when(site.delivered + missed_by.randrange(20, 40), run.kill)
                run.end()
            run = project.crawl(site, spider="lossy", **more)
            run.end()
            assert "Traceback" not in run.log, run.log
            assert site.missed == set()
    finally:
        for run in project.runs:
            run.clear_away()


@ensureDeferred
async def test_switched_on_late_old_marks_are_seen_and_off_the_lists_go(job, caplog):
    pages = {"/": lambda *_: ["/a", "/b"], "/a": lambda *_: [], "/b": lambda *_: ["/c"]}
    pages["/c"] = lambda *_: []
    with Pages(pages) as site:
        await crawl(Walled, kept(job, BLOOM_EXACT=False), url=site.url + "/")
        first = dict(site.hits)
        pages["/a"] = lambda *_: ["/d", "/b", "/c"]
        pages["/d"] = lambda *_: []
        pages["/"] = lambda *_: ["/a", "/b", "/e"]
        pages["/e"] = lambda *_: []
        caplog.set_level(logging.INFO, "scrapy_bloom")
        for _ in range(2):
            await crawl(Walled, kept(job), url=site.url + "/")
        assert site.hits == first | {"/": 3, "/e": 1}
        assert caplog.text.count("BLOOM_EXACT is new to this job") == 1
        assert "from now on. The 3 fingerprints of before are in no list" in caplog.text
        tools.add(job, [site.url + "/by-hand"])
        pages["/"] = lambda *_: ["/a", "/b", "/e", "/by-hand"]
        await crawl(Walled, kept(job), url=site.url + "/")
        assert site.hits == first | {"/": 4, "/e": 1}
        assert list(job.glob(f"{PREFIX}*"))
        await crawl(Walled, kept(job, BLOOM_EXACT=False), url=site.url + "/")
        assert "the exact list of marks is deleted" in caplog.text
        assert not list(job.glob(f"{PREFIX}*"))
        await crawl(Walled, kept(job), url=site.url + "/")
        assert site.hits == first | {"/": 6, "/e": 1}


@ensureDeferred
async def test_a_missing_list_is_refused(job, caplog):
    with Pages({"/": lambda *_: ["/a"], "/a": lambda *_: []}) as site:
        await crawl(Walled, kept(job), url=site.url + "/")
        (path,) = job.glob(f"{PREFIX}*")
        path.unlink()
        before = dict(site.hits)
        with suppress(CloseSpider):  # Scrapy 2.13 hands it on
            await crawl(Walled, kept(job), url=site.url + "/")
    assert site.hits == before
    assert f"{path.name}: found no file, expected the exact list" in caplog.text


@ensureDeferred
async def test_without_a_snapshot_the_lists_begin_anew(job, caplog):
    with Pages({"/": lambda *_: ["/a"], "/a": lambda *_: []}) as site:
        await crawl(Walled, kept(job), url=site.url + "/")
        (job / "requests.bloom").unlink()
        for _ in range(2):
            await crawl(Walled, kept(job), url=site.url + "/")
    assert site.hits == {"/": 3, "/a": 2}
    assert "marks are missing. No page is lost" in caplog.text


@ensureDeferred
async def test_it_may_be_switched_on_within_a_window(job, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "scrapy_bloom")
    start = time.time()
    now = [start]
    monkeypatch.setattr(time, "time", lambda: now[0])
    pages = {"/": lambda *_: ["/a", "/b", "/by-hand"], "/a": lambda *_: [], "/b": lambda *_: []}
    with Pages(pages) as site:

        async def run(day, **more):
            now[0] = start + 86_400 * day
            await crawl(Walled, kept(job, BLOOM_WINDOW="8d", **more), url=site.url + "/")
            return site.hits["/a"]

        assert await run(0, BLOOM_EXACT=False) == 1
        assert await run(0.5) == 1
        tools.add(job, [site.url + "/hand"])
        pages["/"] = lambda *_: ["/a", "/b", "/hand"]
        assert await run(7.9) == 1
        assert site.hits["/hand"] == 0
        assert tools.info(job).exact == 0
        said = "from the next generation of BLOOM_WINDOW, at the latest in 1d, on."
        assert caplog.text.count(said) == caplog.text.count("is new to this job") == 1
        assert await run(9.5) == 2
        assert site.hits["/hand"] == 1
        assert tools.info(job).exact == 3


@pytest.mark.parametrize("more", [{}, {"JOBDIR": "job"}])
def test_without_our_scheduler_it_is_refused(more, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    crawler = get_crawler(settings_dict={"BLOOM_EXACT": True, **more})
    with pytest.raises(SettingError, match=r"BLOOM_EXACT = True.*SCHEDULER = 'scrapy_bloom"):
        Session.open(crawler, Reporter(crawler))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("written", ["yes", 2, [], "", 0.5])
def test_the_setting_is_true_or_false(written):
    crawler = get_crawler(settings_dict={"BLOOM_EXACT": written})
    with pytest.raises(SettingError, match=r"BLOOM_EXACT = .*give True or False"):
        Session.open(crawler, Reporter(crawler))


def test_in_redis_it_needs_numbers_and_they_are_wide(server, key):
    exact = {"BLOOM_EXACT": True, "BLOOM_REDIS_URL": server.url, "BLOOM_REDIS_KEY": key}
    crawler = get_crawler(settings_dict=exact)
    with pytest.raises(SettingError, match="BLOOM_REDIS_LAYOUT = 'sets'"):
        Session.open(crawler, Reporter(crawler))
    crawler = get_crawler(settings_dict={**exact, "BLOOM_REDIS_LAYOUT": "sets"})
    session = Session.open(crawler, Reporter(crawler))
    assert isinstance(session.opened.filter, RedisFilter)
    info = session.opened.filter.info()
    assert info.error_rate == 1e-15
    session.opened.filter.add_many(fingerprints(1000))
    assert session.opened.filter.info().estimated_fp_rate < 1e-16
    session.close()
