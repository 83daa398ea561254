"""Crawls by real worker processes that share a filter, or queue and filter, in a real Redis."""

import os
import re
import signal
from itertools import chain
from threading import Event

import pytest
import scrapy
from support.crawling import Crawl, crawl, hold, reach, sharing, stop
from support.waiting import PATIENCE, until
from testbed.in_flight import pages_of, taken_by
from testbed.localredis import LocalRedis
from testbed.localsite import LocalSite

pytestmark = [pytest.mark.redis, pytest.mark.server, pytest.mark.usefixtures("short_leases")]


@pytest.fixture
def site(server, request):
    server.client().flushall()
    with LocalSite(pages=getattr(request, "param", 150), links=8) as site:
        yield site


@pytest.fixture
def workers(site, server, tmp_path, request):
    """Workers that share everything, with more settings if need be."""
    with sharing(site, server, tmp_path, **getattr(request, "param", {})) as workers:
        yield workers


# Where it does not matter how much one worker fetches before another one has started.
few_pages = pytest.mark.parametrize("site", [60], indirect=True, ids=["few"])

RETRYING = "Retrying."  # ends the one line that says that Redis cannot be used


def join_one_by_one(site, workers, *pages):
    """Start one worker after the other, each when the site has delivered so many pages."""
    for some in pages:
        reach(site, some)
        workers.join()


def when(site, deliveries, do):
    """Let something be done at a delivery, not later; return the event that it has been done."""
    done = Event()
    site.when(deliveries, lambda: (do(), done.set()))
    return done


def left_in(server):
    """Return keys of what waits, is taken or has failed, and bodies that belong to nothing."""
    client = server.client()
    found = {
        name: client.keys(f"*:{name}")
        for name in ("queue", "taken", "failed", "bodies", "unparsed")
    }
    bodies, unparsed = (sum(map(client.hlen, found.pop(name))) for name in ("bodies", "unparsed"))
    return [*chain(*found.values()), *["a body"] * (bodies - unparsed)]


def test_three_workers_fetch_each_page_once(site, server, workers):
    join_one_by_one(site, workers, 0, 50, 100)
    assert workers.wait() == ["finished"] * 3
    assert (site.missed, site.repeated) == (set(), {})

    total = workers.total
    assert total("bloom/not_stored") == total("log_count/ERROR") == 0
    verdicts = ("bloom/new", "bloom/seen", "bloom/redirect_exempt")
    assert total("bloom/checked") == sum(map(total, verdicts))
    assert total("scheduler/enqueued") == total("scheduler/dequeued")
    assert left_in(server) == []
    # Who waits for the pages of others looks for them, up to twenty times a second.
    assert total("bloom/redis/round_trips") < site.pages + 20 * total("elapsed_time_seconds")


def test_two_ctrl_c_end_a_worker_at_once(site, server, workers):
    """While Redis does not answer. What it had comes back when its lease is over."""
    frozen = when(site, 20, lambda: os.kill(server.pid, signal.SIGSTOP))
    worker = workers.join()
    try:  # until it has ended, however long that takes
        assert frozen.wait(PATIENCE)
        stop(worker)
        worker.interrupt()
        worker.end()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    had = pages_of(site, taken_by(server, worker.pid))
    workers.join()
    assert workers.wait()[1] == "finished"
    assert site.missed == set()
    assert set(site.repeated) <= had
    assert left_in(server) == []


def test_a_worker_whose_callback_never_returns_gives_up_what_it_has(site, server, tmp_path):
    """The page that hangs has failed: it hung one worker after another, until none was left."""
    with sharing(site, server, tmp_path) as workers:
        runs = [workers.join(spider="hanging") for _ in range(2)]
        until(lambda: any(run.ended for run in runs))
        hung, other = sorted(runs, key=lambda run: run.ended)
        assert other.reason == "finished"
        assert re.search(r"1 failed \(1 . blocked for 0 min in parse\)", other.log)
        assert "gives up its lease, because its event loop has been blocked for" in hung.log
        assert "in parse" in hung.log  # where it is
    assert site.missed == set()
    assert len(site.repeated) < site.pages / 2
    assert not any(server.client().keys(f"*:{name}") for name in ("queue", "taken"))


@few_pages
async def test_a_finished_shared_crawl_can_be_started_over(site, server, workers, bloom):
    for _ in range(2):  # whether anything is left for the second one nobody can know
        await crawl(settings=workers.settings, url=site.url)
    assert site.repeated == {}
    ours = {**workers.settings, "SPIDER_MODULES": ["support.crawling"]}
    assert bloom("delete --spider follower --yes", **ours)[0] == 0
    assert server.client().keys("*") == [b"scrapybot:follower:bloom"]  # the note, for a day
    await crawl(settings=workers.settings, url=site.url)
    assert site.repeated == dict.fromkeys(range(site.pages), 2)


@pytest.mark.parametrize("workers", [{"LOGSTATS_INTERVAL": 1}], indirect=True, ids=[""])
def test_requests_of_a_killed_worker_are_fetched_by_another_one(site, server, workers):
    workers.kill_one_of_two(75)
    assert workers.wait() == ["", "finished"]
    assert site.missed == set()
    run = workers.runs[1]
    states = re.findall(
        r"Crawl state: [\d,]+ marks, \d+ requests? waiting.*, \d+ in flight here, \d+ across"
        r" (\d) workers?, \d+ hosts?, expected loss 0\.0 pages",
        run.log,
    )
    assert states
    assert {*states} <= {"1", "2"}  # the killed one counts until somebody notices
    # It waits for a lease to end, and looks ever more rarely meanwhile.
    assert run.stat("bloom/redis/round_trips") < 150 + 20 * run.stat("elapsed_time_seconds")
    waiting = run.log.count("Nothing to fetch right now: waiting for")
    assert waiting <= 1 + run.stat("elapsed_time_seconds") / 60
    back = run.stat("bloom/queue/requeued")
    assert len(site.repeated) <= back
    assert re.search(rf"requeued {back:.0f} requests? from workers whose lease expired\.", run.log)
    assert left_in(server) == []


@pytest.mark.each_scrapy
@few_pages
def test_spiders_of_scrapy_redis_are_fed_from_redis_by_our_scheduler(site, server, workers):
    """They take start URLs from a list while they are idle, and end after `max_idle_time`."""
    pytest.importorskip("scrapy_redis")
    spider, client = "rules_from_redis", server.client()
    # Taken while it is idle; redirects to a page that was seen. It is there before it is idle for
    # the first time: the time since the list had something counts, idle or not.
    another = f"{site.url}go/{site.pages - 1}"
    site.when(site.pages, lambda: feed(another))

    def feed(url):
        client.lpush(f"{spider}:start_urls", f'{{"url": "{url}"}}')

    feed(site.url)
    run = workers.join(spider, REDIS_URL=server.url, MAX_IDLE_TIME_BEFORE_CLOSE=8)
    run.complete()
    assert another in site.urls
    assert site.missed == set()
    # Start requests, and redirects of them, have no filter.
    assert site.repeated == {0: 2, site.pages - 1: 2}
    assert left_in(server) == []


def start_again(server):
    """Start a server, and wait until it has read its log."""
    server.start()
    until(lambda: not server.client().info("persistence")["loading"])


@pytest.mark.parametrize("policy", ["auto", "close"])
def test_a_server_that_is_killed_and_comes_back_costs_nothing(site, tmp_path, policy):
    """It keeps a log of its writes. Under `close` the next run goes on."""
    with (
        LocalRedis(persist=True) as server,
        sharing(site, server, tmp_path, BLOOM_ON_BACKEND_ERROR=policy) as workers,
    ):
        killed, had = when(site, 90, server.kill), set()
        join_one_by_one(site, workers, 0, 0)
        assert killed.wait(PATIENCE)
        if policy == "close":
            assert workers.wait() == ["bloom_backend"] * 2
            assert [run.stat("bloom/not_stored") for run in workers.runs] == [1] * 2
            assert [run.end() for run in workers.runs] == [1] * 2
            start_again(server)
            for run in workers.runs:
                had |= pages_of(site, taken_by(server, run.pid))
            workers.join()
        else:
            until(lambda: any(RETRYING in run.log for run in workers.runs))
            start_again(server)
        assert {*workers.wait()[-1 if policy == "close" else 0 :]} == {"finished"}
        assert workers.runs[0].log.count(RETRYING) <= 1
        assert site.missed == set()
        assert set(site.repeated) <= had
        assert left_in(server) == []


def scrapy_redis(site, server, folder, **settings):
    """Return a crawl of workers that also share a queue of scrapy-redis."""
    pytest.importorskip("scrapy_redis")
    theirs = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue",
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "REDIS_URL": server.url,
        "arguments": {"done": server.url},
    }
    return Crawl(site, server, folder, **(theirs | settings))


def test_three_scrapy_redis_workers_fetch_each_page_once(site, server, tmp_path):
    with scrapy_redis(site, server, tmp_path, SCHEDULER_PERSIST=True) as crawl:
        join_one_by_one(site, crawl, 0, 50, 100)
        reach(site, 150)
        assert crawl.finish() == ["finished"] * 3
        assert (site.missed, site.repeated) == (set(), {})
        assert b"scrapybot:worker:bloom" in server.client().keys("*:worker:*")
    assert not crawl.total("log_count/ERROR")
    checks = crawl.total("bloom/checked")
    assert checks > 150 * 6
    # One call for all links of a page, and heartbeats: more on a slow machine.
    heartbeats = 2 * crawl.total("elapsed_time_seconds")
    assert crawl.total("bloom/redis/round_trips") < checks / 2 + heartbeats
    queued, dropped = map(crawl.total, ("scheduler/enqueued/redis", "dupefilter/filtered"))
    assert queued + dropped == checks


def test_a_worker_that_finishes_early_leaves_the_queue_to_the_others(site, server, tmp_path):
    with scrapy_redis(site, server, tmp_path) as crawl:
        reached, go_on = hold(site, 20, 1)
        early = crawl.join(CLOSESPIDER_PAGECOUNT=20)
        assert reached.wait(PATIENCE)
        crawl.join().said("Bloom filter in")
        go_on.set()
        early.end()
        assert "The filter and the request queue are not emptied" in early.log
        reach(site, 150)
        crawl.finish()
        assert (site.missed, site.repeated) == (set(), {})


@pytest.mark.parametrize("local", [False, True])
def test_flush_on_start_empties_what_an_earlier_crawl_left(site, server, tmp_path, local):
    """The queue, and a filter in Redis."""
    settings = {"SCHEDULER_FLUSH_ON_START": True, "SCHEDULER_PERSIST": True}
    if local:
        settings |= {"BLOOM_BACKEND": "local", "JOBDIR": str(tmp_path / "job")}
    for pages in (150, 300):
        if local:
            server.client().lpush("worker:requests", b"of another crawl, and not to be read")
        with scrapy_redis(site, server, tmp_path, **settings) as crawl:
            server.client().delete("done")
            run = crawl.join()
            reach(site, pages)
            assert crawl.finish() == ["finished"]
        assert run.logged("ERROR") == []
        assert not local or "other workers" not in run.log
    assert set(site.hits.values()) == {2}
    if not local:
        assert "emptied, since SCHEDULER_FLUSH_ON_START is set" in run.log
        assert " 0 marks" in run.log


def test_workers_with_queues_of_their_own_share_a_filter(site, server, tmp_path):
    done = {"done": server.url}
    with Crawl(site, server, tmp_path, BLOOM_REDIS_URL=server.url) as crawl:
        # Neither goes on from its start page before the other has come.
        site.when(1, lambda: reach(site, 2))
        crawl.join(arguments=done)
        # A way to a page that few pages have.
        crawl.join(arguments=done | {"url": f"{site.url}go/149"})
        reach(site, 150)
        crawl.finish()
        assert (site.missed, site.repeated) == (set(), {})
        assert all(run.stat("downloader/response_count") for run in crawl.runs)
        assert server.client().keys("*:worker:*") == []


def test_the_filter_of_a_killed_crawl_is_emptied(site, server, tmp_path):
    with Crawl(site, server, tmp_path, BLOOM_REDIS_URL=server.url) as crawl:
        killed = crawl.join()
        site.when(75, killed.kill)
        killed.end()
        run = crawl.join()
        run.end()
        assert not site.missed
        assert "left by a crawl that has ended" in run.log


def test_redis_goes_away_in_the_middle_of_a_crawl_whose_queue_is_elsewhere(
    site, own_server, tmp_path
):
    settings = {"BLOOM_REDIS_URL": own_server.url, "BLOOM_ON_BACKEND_ERROR": "close"}
    with Crawl(site, own_server, tmp_path, **settings) as crawl:
        site.when(50, own_server.kill)
        run = crawl.join()
        assert run.end() == 1
    assert run.reason == "bloom_backend"
    assert site.missed
    assert run.log.count("] ERROR:") == run.stat("log_count/ERROR") == 1
    assert "Connection refused" in run.log
    assert "Worker stopped: " in run.log


def test_a_crawl_that_cannot_be_filtered_does_not_start(site, tmp_path, server):
    server.client().set("scrapybot:worker:bloom", "something else")
    with (
        scrapy_redis(site, server, tmp_path) as shared,
        Crawl(site, server, tmp_path / "own", BLOOM_REDIS_URL=server.url) as own,
    ):
        for crawl in (shared, own):
            run = crawl.join()
            run.end()
            assert run.reason == "bloom_bad_state"
            assert "found a string" in run.log
            # Before 2.18 the start page of scrapy-redis is already on its way.
            assert sum(site.hits.values()) <= (scrapy.version_info < (2, 18))
        assert "Traceback" not in run.log
    assert server.client().get("scrapybot:worker:bloom") == b"something else"
