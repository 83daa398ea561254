"""Full disks, files that may not be written, and damage: each is said, and no page is lost."""

import json
import resource
import sqlite3
from contextlib import closing
from itertools import count

import pytest
from support.crawling import Follower, at, crawl, kept
from support.internals import synchronous
from support.kills import items_in
from support.sites import Pages
from support.waiting import until
from testbed.localsite import LocalSite

from scrapy_bloom import LocalFilter, forget
from scrapy_bloom.crawl import items, memory
from scrapy_bloom.crawl.memory import Memory
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.local import backend
from scrapy_bloom.local.queue import Queues
from scrapy_bloom.signals import before_commit

pytestmark = pytest.mark.server

PASSES = {"SCHEDULER": "support.kill_points.Scheduler"}  # one for every 60 marks
FULL = "The crawl waits and retries"


def limit(run, size=resource.RLIM_INFINITY):
    """Let no file of a process get larger: what a full disk is, as far as that needs no rights."""
    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def crawl_until_full(project, site, *, said=FULL, **settings):
    """Start a crawl, let its disk be full, and wait until it has noticed."""
    # Commits wait for ten times as long as the last one took: the crawl must not end before one.
    run = project.crawl(site, LOG_LEVEL="INFO", DOWNLOAD_DELAY=0.05, **settings)
    until(lambda: site.delivered >= 40 or run.ended)
    # A feed is larger than the log: it is full first, while commits still have room.
    files = [*project.job.glob("*-wal"), *project.job.glob("*.jsonl")]
    limit(run, max(4096, *(file.stat().st_size for file in files)))
    run.said(said)
    assert not run.ended, run.log
    return run


@pytest.mark.parametrize("ends", ["kill", "interrupt"])
def test_a_crawl_on_a_full_disk_waits_and_survives_a_kill_or_a_stop(project, ends):
    with LocalSite(pages=150, links=6) as site:
        run = crawl_until_full(project, site, **PASSES)
        getattr(run, ends)()
        code = run.end()
        if ends == "kill":
            # A small commit may find room, and the next one none, or be the last before the kill.
            assert run.log.count(FULL) - run.log.count("commits work again") in (0, 1)
        else:
            assert (code, run.stat("bloom/not_stored")) == (1, 1)
            assert run.log.count("the last changes could not be stored") == 1
        # Only where Scrapy stores the spider's state, for which there is no room either.
        assert run.log.count("Traceback") == run.log.count("extensions/spiderstate.py"), run.log
        run = project.finish(site, **PASSES)
        assert site.missed == set()
    assert run.reason == "finished"
    assert "resumed after an unclean stop" in run.log


@pytest.mark.parametrize(
    ("spider", "said", "again"),
    [
        ("follower", FULL, "commits work again"),
        ("items", "Items could not be written out", "Items can be written again"),
    ],
)
def test_a_crawl_whose_disk_has_room_again_has_lost_and_repeated_nothing(
    project, spider, said, again
):
    feed = project.job / "items.jsonl"
    feeds = json.dumps({str(feed): {"format": "jsonlines"}})
    with LocalSite(pages=150, links=6) as site:
        large = {"arguments": {"letters": 32768}} if spider == "items" else {}
        options = {"spider": spider, "FEEDS": feeds, **large, **PASSES}
        run = crawl_until_full(project, site, said=said, **options)
        limit(run)
        run.said(again)
        assert run.end() == 0, run.log
        assert site.missed == set()
        assert site.repeated == {}
    if spider == "items":
        assert len(feed.read_text().splitlines()) == len(items_in(feed)) == 150
    assert "Traceback" not in run.log
    assert run.stat("bloom/not_stored") == 0


class Saving(Follower):
    """Cannot save items until it was tried eight times more and no other page was fetched."""

    @classmethod
    def from_crawler(cls, crawler, *arguments, **keywords):
        self = super().from_crawler(crawler, *arguments, **keywords)
        crawler.signals.connect(self.save, signal=before_commit)
        self.tries, self.rows = [], 0
        return self

    def save(self):
        tries = self.tries
        if len(tries) < 9 or not tries[-9] or tries[-1] != tries[-9]:
            tries.append(len(self.parsed))
            raise OSError("no room")
        if not self.rows:
            with closing(sqlite3.connect(f"{self.settings['JOBDIR']}/bloom.sqlite")) as database:
                (self.rows,) = database.execute("SELECT count(*) FROM requests").fetchone()


async def test_while_items_cannot_be_saved_requests_are_committed_and_few_pages_are_fetched(
    job, monkeypatch
):
    """Else a kill goes back to where that began, and the items of all pages are in memory."""
    monkeypatch.setattr(backend, "INTERVAL", 0.001)
    monkeypatch.setattr(items, "_PAUSE", 0.01)
    with LocalSite(pages=150, links=6) as site:
        crawler = await crawl(Saving, kept(job), url=site.url)
        assert (site.missed, site.repeated) == (set(), {})
    fetched = crawler.spider.tries[-1]
    assert 0 < fetched <= 2 * 16  # which were in flight, or being parsed
    assert crawler.spider.rows > fetched


def cannot(*_):
    raise MemoryError


async def crawl_twice(place, site, patches, spider=Follower):
    """Crawl with these patches, and then without them; return the crawler of the first run."""
    with pytest.MonkeyPatch.context() as patched:
        for patch in patches:
            patched.setattr(*patch)
        crawler = await crawl(spider, place, url=site.url)
    await crawl(spider, place, url=site.url)
    assert site.missed == set()
    return crawler


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        *((Queues, "push", 0), (Queues, "pop", 0)),
        *((Report, "inc scheduler/enqueued", 1), (Report, "inc scheduler/dequeued", 0)),
    ],
)
async def test_what_cannot_be_enqueued_or_taken_is_fetched_by_the_next_run(
    job, caplog, kind, name, said, after
):
    """A method raises twice, before its work or after it: what cannot be checked is tried again.

    What cannot be stored is kept in memory, whatever the reason.
    """
    name, _, argument = name.partition(" ")
    calls, original = count(), getattr(kind, name)

    def call(*arguments, **keywords):
        fails = (not argument or argument in arguments) and next(calls) in (30, 31)
        if fails and not after:
            raise MemoryError
        result = original(*arguments, **keywords)
        if fails:
            raise MemoryError
        return result

    with LocalSite(pages=60, links=6) as site:
        await crawl_twice(kept(job), site, [(kind, name, call)])
        assert next(calls) > 30
        assert len(site.repeated) <= 16 + 2  # what was in flight, at most
    told = caplog.text.count("could not be enqueued, so the page that led to it has failed")
    assert told == said  # Scrapy logs what cannot be taken


class OneLambda(Follower):
    """The tenth link that it meets cannot be stored."""

    name = "one lambda"

    def request(self, response, href):
        request = response.follow(href)
        return request.replace(callback=lambda _: None) if len(self.parsed) == 10 else request


@at("kept job", "shared")
async def test_a_page_whose_only_link_cannot_be_enqueued_is_fetched_by_the_next_run(place):
    """Not even in memory: of a chain of pages all that follow would be lost. Each crawl ends."""
    with LocalSite(pages=20, links=1) as site:
        first = await crawl_twice(place, site, [(Memory, "add", cannot)], OneLambda)
        assert len(first.spider.parsed) == 10
        assert [*site.repeated.values()] == [2]


async def test_what_can_be_neither_enqueued_nor_forgotten_ends_the_crawl(job, caplog):
    calls, original = count(), Report.inc

    def inc(self, name):
        if name == "scheduler/enqueued" and next(calls) >= 30:
            raise MemoryError
        original(self, name)

    with LocalSite(pages=60, links=6) as site:
        patches = (Report, "inc", inc), (LocalFilter, "forget_many", cannot)
        first = await crawl_twice(kept(job), site, patches)
    assert first.stats.get_value("finish_reason") == "bloom_bad_state"
    assert "its page could not be forgotten, so nothing more is stored" in caplog.text


class Forgetful(Follower):
    """Forgets each page that it parses."""

    def parse(self, response):
        assert forget(response.request, self.crawler)
        return super().parse(response)


async def test_pages_are_done_although_forgetting_fails(job):
    with LocalSite(pages=10, links=2) as site:
        patches = [(LocalFilter, "forget_many", cannot)]
        first = await crawl_twice(kept(job), site, patches, Forgetful)
    assert first.stats.get_value("bloom/not_forgotten") == 10
    assert site.repeated == {}


class FailsInMemory(Follower):
    """Has a page that cannot be stored, to which all others link; its callback fails once."""

    fails = ()

    def request(self, response, href):
        return response.follow(href, self.parse if href != "/held" else lambda _: self.fail())

    def fail(self):
        if self.fails:
            raise ValueError(self.fails.pop())


@pytest.mark.parametrize(("apart", "fetched"), [(0, [2, 2]), (memory.APART, [1, 2])])
async def test_what_has_failed_in_memory_is_eligible_again_in_an_hour_and_done_for_good(
    job, monkeypatch, apart, fetched
):
    """Until then what links there fails, too, and the next run fetches both."""
    monkeypatch.setattr(backend, "INTERVAL", 0.001)
    monkeypatch.setattr(memory, "APART", apart)
    monkeypatch.setattr(FailsInMemory, "fails", [None])
    pages = {f"/{number}": ["/held", f"/{number + 1}"] for number in range(1, 40)}
    with Pages({"/": ["/held", "/1"], "/held": [], **pages, "/40": []}) as site:
        hits = []
        for _ in range(2):
            await crawl(FailsInMemory, kept(job), url=site.url + "/")
            hits.append(site.hits["/held"])
    assert hits == fetched


class Looking(Follower):
    """Notes how SQLite writes the commits of its crawl."""

    def parse(self, response):
        self.mode = synchronous(self.crawler)
        return super().parse(response)


@pytest.mark.long
@pytest.mark.parametrize(("setting", "mode"), [("process", (1, 0)), ("machine", (2, 1))])
async def test_a_commit_is_written_for_what_it_is_to_survive(job, monkeypatch, setting, mode):
    monkeypatch.setattr(backend, "INTERVAL", 0)  # else a quick crawl ends before the first one
    with LocalSite(pages=5, links=2) as site:
        crawler = await crawl(Looking, kept(job, BLOOM_COMMIT_SYNC=setting), url=site.url)
    assert crawler.spider.mode == mode
