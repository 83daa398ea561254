"""Whole crawls of a local site: none missed, none twice, stopped, killed and resumed."""

import errno
import json
import random
import shutil
from collections import Counter
from threading import Event, Timer

import pytest
import scrapy
from pytest_twisted import ensureDeferred
from queuelib.queue import LifoDiskQueue
from scrapy.settings import default_settings
from scrapy.squeues import PickleLifoDiskQueue
from support.crawling import OURS, RFP, TIMEOUT, Follower, Run, crawl, make_crawler
from support.localsite import Kind, LocalSite
from support.stopping import hold, stop_after
from twisted.internet import reactor
from twisted.internet.defer import gatherResults
from w3lib.url import canonicalize_url

from scrapy_bloom.storage import store

pytestmark = pytest.mark.scrapy

PAGES = 100

# Scrapy opens the queue before the filter, and fails at an empty file in it. A process that is
# killed, or not yet done, leaves such files for a priority that has but few requests.
ONE_PRIORITY = {"REDIRECT_PRIORITY_ADJUST": 0}


class PlainSite(LocalSite):
    """A site whose pages never redirect to themselves: Scrapy's own filter loses none of them."""

    def kind(self, page):
        return Kind.QUERY if page % 3 else Kind.PLAIN


def site(pages=PAGES, kind=LocalSite, seed=1):
    return kind(pages=pages, links=8, seed=seed)


def complete(run):
    """Wait for a run that is to end by itself."""
    assert run.end() == 0, run.log
    assert run.reason == "finished", run.log


# To the end in one run


@ensureDeferred
async def test_the_one_line_fetches_what_scrapys_own_filter_fetches():
    asked = []
    for settings in ({"DUPEFILTER_CLASS": RFP}, {}):
        with site(kind=PlainSite) as pages:
            crawler = await crawl(settings=settings, url=pages.url)
        assert pages.missed == set()
        assert pages.repeated == {}
        asked.append({canonicalize_url(url.removeprefix(pages.url)) for url in pages.urls})
        assert ("bloom/new" in crawler.stats.get_stats()) == (not settings)
    assert asked[0] == asked[1]


@ensureDeferred
async def test_a_site_with_the_habits_of_real_ones_is_fetched_whole_and_once():
    with site() as pages:
        crawler = await crawl(url=pages.url)
    assert pages.missed == set()
    assert pages.repeated == {}
    assert len(crawler.spider.parsed) == len(set(crawler.spider.parsed)) == PAGES


@ensureDeferred
async def test_a_filter_that_grows_often_misses_nothing():
    with site(170) as pages:
        crawler = await crawl(url=pages.url, settings={"BLOOM_CAPACITY": 1})
    assert pages.missed == set()
    assert pages.repeated == {}
    assert crawler.stats.get_value("bloom/slices") > 8


class Another(Follower):
    name = "another"


@ensureDeferred
async def test_spiders_in_one_process_do_not_share_marks():
    with site(30) as one, site(40, seed=2) as two, site(50, seed=3) as three:
        sites = [one, two, three]
        spiders = [Follower, Another, Follower]
        crawlers = [make_crawler(spider) for spider in spiders]
        await gatherResults(
            [crawler.crawl(url=pages.url) for crawler, pages in zip(crawlers, sites, strict=True)]
        )
        # The same site by a second spider, while no other crawl is on.
        again = await crawl(Another, url=one.url)
    assert [pages.missed for pages in sites] == [set()] * 3
    assert one.repeated == dict.fromkeys(range(30), 2)
    assert two.repeated == three.repeated == {}
    assert len(again.spider.parsed) == 30


if hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):  # older ones need a reactor

    def test_a_crawl_without_a_reactor_misses_nothing(project):
        with site() as pages:
            settings = {"TWISTED_REACTOR_ENABLED": False, "BLOOM_CAPACITY": "100M"}
            run = stop_after(30, pages, lambda: project.crawl(pages, **settings))
            assert run.reason == "shutdown"
            complete(project.crawl(pages, TWISTED_REACTOR_ENABLED=False))
        assert pages.missed == set()
        assert pages.repeated == {}


# Stopped and resumed


def test_a_crawl_stopped_and_resumed_misses_nothing_and_repeats_nothing(project):
    with site() as pages:
        for _ in range(3):
            run = stop_after(15, pages, lambda: project.crawl(pages))
            assert run.reason == "shutdown"
            assert run.logged("WARNING") == []
        fetched = pages.delivered
        last = project.crawl(pages)
        complete(last)
    assert pages.missed == set()
    assert pages.repeated == {}
    assert last.logged("WARNING") == []
    assert last.stat("bloom/restored") >= fetched


def test_a_finished_job_fetches_nothing_again(project):
    with site(60) as pages:
        complete(project.crawl(pages))
        complete(project.crawl(pages))
    assert pages.repeated == {}


def test_a_running_job_of_scrapy_switches_over_at_a_clean_stop(project):
    with site(kind=PlainSite) as pages:
        run = stop_after(30, pages, lambda: project.crawl(pages, DUPEFILTER_CLASS=RFP))
        assert run.reason == "shutdown"
        seen = (project.job / "requests.seen").read_bytes()
        run = stop_after(30, pages, lambda: project.crawl(pages))
        assert "restored from requests.seen" in run.log
        assert run.logged("WARNING") == []
        last = project.crawl(pages)
        complete(last)
    assert pages.missed == set()
    assert pages.repeated == {}
    assert "restored from requests.bloom" in last.log
    assert (project.job / "requests.seen").read_bytes() == seen


# Killed


def counted(pages):
    return Counter(pages.hits)


@pytest.mark.parametrize("seed", range(2))
def test_a_crawl_killed_in_its_first_run_loses_no_page(project, seed):
    chance = random.Random(seed)
    with site() as pages:
        at = chance.randrange(1, PAGES - 20)
        wait = chance.random() / 20

        def kill(run):  # at any moment, not only when a page has just come
            Timer(wait, run.kill).start()

        _, go_on = hold(pages, PAGES)  # it must not end before that
        killed = stop_after(at, pages, lambda: project.crawl(pages), kill)
        go_on.set()
        assert killed.reason == ""
        before = counted(pages)
        resumed = project.crawl(pages)
        complete(resumed)
        after = counted(pages) - before
    assert set(after) == set(range(PAGES))
    (warning,) = resumed.logged("WARNING")
    assert f"process {killed.pid}" in warning
    assert "no page is lost" in warning
    assert resumed.stat("bloom/unclean_stop") == 1
    assert resumed.stat("bloom/restored") == 0


@pytest.mark.parametrize("how", [Run.interrupt, Run.kill])
def test_a_crawl_killed_in_a_resumed_run_names_a_way_that_loses_no_page(project, how):
    queue = project.job / "requests.queue"
    with site() as pages:
        stop_after(25, pages, lambda: project.crawl(pages, **ONE_PRIORITY))
        killed = stop_after(25, pages, lambda: project.crawl(pages, **ONE_PRIORITY), Run.kill)
        warned = project.crawl(pages, **ONE_PRIORITY)
        warned.said("BLOOM_ON_UNCLEAN = 'reset'")
        how(warned)
        warned.end()
        # A warning, or an error if the queue cannot be read at all: it depends on the moment.
        told = (warned.logged("WARNING") + warned.logged("ERROR"))[0]
        assert f"process {killed.pid}" in told
        assert f"delete {queue} and start once with BLOOM_ON_UNCLEAN = 'reset'" in told
        shutil.rmtree(queue)
        before = counted(pages)
        complete(project.crawl(pages, BLOOM_ON_UNCLEAN="reset"))
        after = counted(pages) - before
        assert set(after) == set(range(PAGES))
        assert set(after.values()) == {1}
        complete(project.crawl(pages))
        assert counted(pages) == before + after


def test_a_job_that_was_killed_does_not_start_where_it_is_not_to(project):
    with site(60) as pages:
        stop_after(30, pages, lambda: project.crawl(pages), Run.kill)
        before = counted(pages)
        refused = project.crawl(pages, BLOOM_ON_UNCLEAN="fail")
        refused.end()
        assert counted(pages) == before
        error = refused.logged("ERROR")[0]
        assert "BLOOM_ON_UNCLEAN is 'fail'" in error
        complete(project.crawl(pages))
    assert pages.missed == set()


def test_scrapys_own_job_killed_in_its_first_run_switches_over_and_loses_no_page(project):
    with site(kind=PlainSite) as pages:
        stop_after(40, pages, lambda: project.crawl(pages, DUPEFILTER_CLASS=RFP), Run.kill)
        before = counted(pages)
        resumed = project.crawl(pages)
        complete(resumed)
        after = counted(pages) - before
    assert set(after) == set(range(PAGES))
    assert "no page is lost" in resumed.log


@pytest.mark.parametrize("first", [RFP, ""])
def test_scrapys_own_filter_killed_in_a_resumed_run_is_told_after_the_switch(project, first):
    """Soon after it resumed, when it has not yet written a mark."""
    ours = {"DUPEFILTER_CLASS": first} if first else {}
    with site() as pages:
        stop_after(25, pages, lambda: project.crawl(pages, **ONE_PRIORITY, **ours))
        stop_after(
            20,
            pages,
            lambda: project.crawl(pages, **ONE_PRIORITY, DUPEFILTER_CLASS=RFP),
            Run.kill,
        )
        refused = project.crawl(pages, **ONE_PRIORITY, BLOOM_ON_UNCLEAN="fail")
        refused.end()
        assert "with Scrapy's own filter, did not close cleanly" in refused.logged("ERROR")[0]
        told = project.crawl(pages, **ONE_PRIORITY)
        told.said("did not close cleanly")
        told.kill()
        told.end()
        shutil.rmtree(project.job / "requests.queue")
        before = counted(pages)
        complete(project.crawl(pages, BLOOM_ON_UNCLEAN="reset"))
        assert set(counted(pages) - before) == set(range(PAGES))


def test_a_kill_of_scrapys_own_filter_is_told_after_a_run_with_a_wrong_setting(project):
    """At the end of the refused run Scrapy stores its queue anew, which hides the kill."""
    with site(kind=PlainSite) as pages:
        own = {**ONE_PRIORITY, "DUPEFILTER_CLASS": RFP}
        stop_after(25, pages, lambda: project.crawl(pages, **own))
        stop_after(20, pages, lambda: project.crawl(pages, **own), Run.kill)
        refused = project.crawl(pages, **ONE_PRIORITY, BLOOM_CAPACITY=0)
        refused.end()
        assert "BLOOM_CAPACITY" in refused.logged("ERROR")[0]
        told = project.crawl(pages, **ONE_PRIORITY, BLOOM_ON_UNCLEAN="fail")
        told.end()
        assert "with Scrapy's own filter, did not close cleanly" in told.logged("ERROR")[0]
        shutil.rmtree(project.job / "requests.queue")
        before = counted(pages)
        complete(project.crawl(pages, BLOOM_ON_UNCLEAN="reset"))
        assert set(counted(pages) - before) == set(range(PAGES))


def test_a_deleted_queue_is_refused_until_it_is_reset(project):
    with site() as pages:
        stopped = stop_after(25, pages, lambda: project.crawl(pages))
        shutil.rmtree(project.job / "requests.queue")
        before = counted(pages)
        for _ in range(2):
            refused = project.crawl(pages)
            refused.end()
            said = "".join(refused.logged("ERROR"))
            assert "found no requests" in said, f"{stopped.log}\n{refused.log}"
            assert counted(pages) == before
        reset = project.crawl(pages, BLOOM_ON_UNCLEAN="reset")
        complete(reset)
        assert reset.stat("bloom/unclean_stop") == 0
        assert set(counted(pages) - before) == set(range(PAGES))


# Two at once, and forks


@pytest.mark.parametrize("resumed", [False, True])
def test_a_second_crawl_of_a_job_is_refused_and_the_first_is_not_disturbed(project, resumed):
    with site() as pages:
        if resumed:
            stop_after(30, pages, lambda: project.crawl(pages, **ONE_PRIORITY))
        reached, go_on = hold(pages, pages.delivered + 30)
        first = project.crawl(pages, **ONE_PRIORITY)
        assert reached.wait(TIMEOUT)
        second = project.crawl(pages, **ONE_PRIORITY)
        second.end()
        go_on.set()
        complete(first)
        assert f"process {first.pid}" in second.logged("ERROR")[0]
        assert str(project.job) in second.logged("ERROR")[0]
        assert second.log.count("Crawled (200)") == 0
        assert pages.missed == set()
        assert pages.repeated == {}
        third = project.crawl(pages)
        complete(third)
    assert pages.repeated == {}
    assert third.logged("WARNING") == []


def test_forks_disturb_neither_the_filter_nor_its_lock(project):
    with site() as pages:
        reached, go_on = hold(pages, 70)
        first = project.crawl(pages, spider="forking")
        assert reached.wait(TIMEOUT)
        assert not (project.job / "requests.bloom").exists()
        second = project.crawl(pages, spider="forking")
        second.end()
        assert f"process {first.pid}" in second.logged("ERROR")[0]
        first.interrupt()
        go_on.set()
        first.end()
        assert "is a fork" in first.log
        complete(project.crawl(pages, spider="forking"))
    assert pages.missed == set()
    assert pages.repeated == {}


# Scrapy's other commands


def test_scrapy_shell_works_without_a_filter(project):
    with site(20) as pages:
        code = "crawler.settings['DUPEFILTER_CLASS'], response.status"
        run = project.start("shell", pages.url, "-c", code)
        assert run.end() == 0, run.log
    assert run.output.splitlines()[-1] == "('scrapy.dupefilters.BaseDupeFilter', 200)"


def test_scrapy_shell_works_with_the_filter_named_in_the_settings(project):
    settings = project.folder / "project_settings.py"
    settings.write_text(settings.read_text() + f"\nDUPEFILTER_CLASS = '{OURS}'\n")
    with site(20) as pages:
        code = f"fetch('{pages.url}'), fetch('{pages.url}'), response.status"
        run = project.start("shell", pages.url, "-c", code)
        assert run.end() == 0, run.log
    assert run.output.split()[-1] == "200)"
    assert pages.hits == {0: 3}


def test_scrapy_parse_works(project):
    with site(20) as pages:
        run = project.start("parse", "--spider", "follower", "--nocolour", "-d", "2", pages.url)
        assert run.end() == 0, run.log
    assert run.output.count(f"<GET {pages.url}") >= 8
    assert run.logged("ERROR") == []


def test_scrapy_check_works(project):
    with site(20) as pages:
        run = project.start("check", "checked", CHECKED_URL=pages.url)
        assert run.end() == 0, run.log
    assert "Ran 1 contract" in run.log
    assert "OK" in run.log


def test_a_crawl_on_a_queue_that_cannot_be_read_ends_with_one_error(project):
    """Scrapy itself would fail at it every few seconds, and never end."""
    with site() as server:
        stop_after(30, server, lambda: project.crawl(server))
        queue = project.job / "requests.queue"
        path = next(path for path in queue.rglob("*") if path.is_file() and path.name == "0")
        waiting = LifoDiskQueue(path)  # as a killed run that resumed leaves it
        while waiting.pop():
            pass
        waiting.f.close()
        marker = {"pid": 1, "host": "", "generation": 1, "resumed": True}
        (project.job / "requests.bloom.running").write_text(json.dumps(marker))
        run = project.crawl(server)
        run.end()
        if scrapy.version_info >= (2, 14):  # older ones say "shutdown" for every refusal
            assert run.reason == "bloom_state", run.log
        assert "Scrapy cannot read the queue that it left" in run.logged("ERROR")[0]
        assert "Invalid argument" not in run.log
        shutil.rmtree(queue)
        complete(project.crawl(server, BLOOM_ON_UNCLEAN="reset"))
        assert not server.missed


def test_requests_that_cannot_be_stored_are_let_through_by_the_next_run(project):
    """All pages are linked from the front page, which every run fetches again."""
    pages = 60
    with PlainSite(pages=pages, links=2 * pages) as server:
        # One at a time: no other page comes before the one at which the crawl is stopped.
        one = {"spider": "lambdas", "CONCURRENT_REQUESTS": 1}
        run = stop_after(15, server, lambda: project.crawl(server, **one))
        assert run.reason == "shutdown"
        lost = int(run.stat("bloom/withdrawn"))
        assert lost > 20
        [warning] = run.logged("WARNING")
        assert f"{lost} requests could not be serialized" in warning
        run = project.crawl(server, spider="lambdas")
        complete(run)
        assert server.missed == set()
        assert server.repeated.keys() <= {0}  # the start request is not filtered
        assert 0 < run.stat("bloom/let_through") <= lost


class FullDisk(PickleLifoDiskQueue):
    """A disk queue whose disk is full for the first requests but one."""

    pushed = 0

    def push(self, request):
        type(self).pushed += 1
        if 1 < self.pushed <= 21:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().push(request)


class Again(Follower):
    """Comes back to its start page when the disk has room."""

    name = "again"

    def parse(self, response):
        yield from super().parse(response)
        if response.url == self.url and len(self.parsed) == 1:
            yield response.request.replace(dont_filter=True)

    def request(self, response, href):
        return response.follow(href, priority=1)


@ensureDeferred
async def test_a_push_that_fails_leaves_no_mark(tmp_path):
    with PlainSite(pages=30, links=60) as server:
        FullDisk.pushed = 0
        settings = {"JOBDIR": str(tmp_path), "SCHEDULER_DISK_QUEUE": FullDisk}
        crawler = await crawl(Again, settings, url=server.url)
        assert FullDisk.pushed > 21
        assert crawler.stats.get_value("bloom/withdrawn") >= 20
        assert server.missed == set()


@ensureDeferred
async def test_a_large_filter_is_stored_beside_the_reactor(tmp_path, monkeypatch):
    turned = Event()
    write = store.write_snapshot

    def write_when_the_reactor_has_turned(path, snapshot):
        reactor.callFromThread(turned.set)
        assert turned.wait(TIMEOUT)
        write(path, snapshot)

    monkeypatch.setattr(store, "write_snapshot", write_when_the_reactor_has_turned)
    with PlainSite(pages=5, links=5) as server:
        settings = {"JOBDIR": str(tmp_path), "BLOOM_CAPACITY": "100M"}
        crawler = await crawl(settings=settings, url=server.url)
        assert turned.is_set()
        assert crawler.stats.get_value("bloom/not_stored") == 0
        assert store.read_job(tmp_path).generation == 1
