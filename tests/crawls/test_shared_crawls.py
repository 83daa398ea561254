"""Crawls by real worker processes that share filter and queue in a real Redis."""

import os
import re
import signal

import pytest
from support import short_leases
from support.crawling import KEPT, Crawl, crawl, messages, reach, stop
from support.waiting import until
from testbed.in_flight import pages_of, taken_by
from testbed.localredis import LocalRedis
from testbed.localsite import LocalSite

pytestmark = [pytest.mark.redis, pytest.mark.server, pytest.mark.usefixtures("short_leases")]


@pytest.fixture
def site(server, request):
    server.client().flushall()
    with LocalSite(pages=getattr(request, "param", 150), links=8) as site:
        yield site


# Where it does not matter how much one worker fetches before another one has started.
few_pages = pytest.mark.parametrize("site", [60], indirect=True, ids=["few"])

RETRYING = "Retrying."  # ends the one line that says that Redis cannot be used


def shared(site, server, folder, **settings):
    """Return a crawl whose workers share everything."""
    ours = KEPT | {"BLOOM_REDIS_URL": server.url}
    return Crawl(site, server, folder, **(ours | {"CONCURRENT_REQUESTS_PER_DOMAIN": 16} | settings))


def queue_is_empty(server):
    """Return whether no request waits, is taken or has failed, and no body is left over."""
    client = server.client()
    sizes = [sum(map(client.hlen, client.keys(f"*:{name}"))) for name in ("bodies", "unparsed")]
    return sizes[0] == sizes[1] and not any(
        client.keys(f"*:{name}") for name in ("queue", "taken", "failed")
    )


def test_three_workers_fetch_each_page_once(site, server, tmp_path):
    with shared(site, server, tmp_path) as workers:
        workers.join()
        reach(site, 50)
        workers.join()
        reach(site, 100)
        workers.join()
        assert workers.wait() == ["finished"] * 3
    assert site.missed == set()
    assert site.repeated == {}

    total = workers.total
    assert total("bloom/not_stored") == total("log_count/ERROR") == 0
    verdicts = ("bloom/new", "bloom/seen", "bloom/redirect_exempt")
    assert total("bloom/checked") == sum(map(total, verdicts))
    assert total("scheduler/enqueued") == total("scheduler/dequeued")
    assert queue_is_empty(server)
    # Who waits for the pages of others looks for them, up to twenty times a second.
    assert total("bloom/redis/round_trips") < site.pages + 20 * total("elapsed_time_seconds")


def test_two_ctrl_c_end_a_worker_at_once(site, server, tmp_path):
    """While Redis does not answer. What it had comes back when its lease is over."""
    with shared(site, server, tmp_path) as workers:
        worker = workers.join()
        reach(site, 20)
        os.kill(server.pid, signal.SIGSTOP)  # until it has ended, however long that takes
        try:
            stop(worker)
            worker.interrupt()
            worker.end()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        had = pages_of(site, taken_by(server, worker.pid))
        last = workers.join()
        last.end()
    assert site.missed == set()
    assert set(site.repeated) <= had
    assert last.reason == "finished"
    assert queue_is_empty(server)


def test_a_worker_whose_callback_never_returns_gives_up_what_it_has(
    site, server, tmp_path, monkeypatch
):
    """The page that hangs has failed: it hung one worker after another, until none was left."""
    short_leases.shorten_blocked(monkeypatch)
    with shared(site, server, tmp_path) as workers:
        runs = [workers.join(spider="hanging") for _ in range(2)]
        until(lambda: any(run.ended for run in runs))
        hung, other = sorted(runs, key=lambda run: run.ended)
        assert other.reason == "finished"
        assert re.search(r"1 failed \(1 . blocked for 0 min in parse\)", other.log)
        assert "gives up its lease, because its event loop has been blocked for" in hung.log
        assert "in parse" in hung.log  # where it is
        named = r"waiting for \d+ requests? in flight \(\S+:(\d+) has \d+, for \d+ s\)"
        assert set(re.findall(named, other.log)) <= {str(hung.pid)}
    assert site.missed == set()
    assert 0 < len(site.repeated) < site.pages / 2
    assert not any(server.client().keys(f"*:{name}") for name in ("queue", "taken"))


@few_pages
async def test_a_finished_shared_crawl_is_logged_and_can_be_started_over(
    site, server, caplog, bloom
):
    caplog.set_level("WARNING")
    ours = {**KEPT, "BLOOM_REDIS_TIMEOUT": 10, "BLOOM_REDIS_URL": server.url}
    await crawl(settings=ours, url=site.url)
    assert messages(caplog) == []
    await crawl(settings=ours, url=site.url)
    assert messages(caplog) == []  # whether anything is left nobody can know
    assert site.repeated == {}
    code, *_ = bloom("delete --spider follower --yes", SPIDER_MODULES=["support.crawling"], **ours)
    assert code == 0
    assert server.client().keys("*") == [b"scrapybot:follower:bloom"]  # the note, for a day
    await crawl(settings=ours, url=site.url)
    assert messages(caplog) == []
    assert set(site.repeated.values()) == {2}
    assert len(site.repeated) == site.pages


def test_requests_of_a_killed_worker_are_fetched_by_another_one(site, server, tmp_path):
    with shared(site, server, tmp_path, LOGSTATS_INTERVAL=1) as workers:
        workers.kill_one_of_two(75)
        assert workers.wait() == ["", "finished"]
    assert site.missed == set()
    run = workers.runs[1]
    states = re.findall(
        r"Crawl state: [\d,]+ pages known, \d+ requests? waiting.*, \d+ in flight here, \d+ across"
        r" (\d) workers?, \d+ hosts?, expected loss 0\.0 pages",
        run.log,
    )
    assert set(states) | {"1"} == {"1", "2"}
    # It waits for a lease to end, and looks ever more rarely meanwhile.
    assert run.stat("bloom/redis/round_trips") < 150 + 20 * run.stat("elapsed_time_seconds")
    assert run.log.count("Nothing to fetch right now: waiting for") <= 1
    back = run.stat("bloom/queue/requeued")
    assert len(site.repeated) <= back
    assert re.search(rf"requeued {back:.0f} requests? from workers whose lease expired\.", run.log)
    assert queue_is_empty(server)


@pytest.mark.each_scrapy
@few_pages
def test_spiders_of_scrapy_redis_are_fed_from_redis_by_our_scheduler(project, site, server):
    """They take start URLs from a list while they are idle, and end after `max_idle_time`."""
    pytest.importorskip("scrapy_redis")
    settings = {**KEPT, "BLOOM_REDIS_URL": server.url, "REDIS_URL": server.url}
    settings["MAX_IDLE_TIME_BEFORE_CLOSE"] = 8
    spider = "rules_from_redis"
    server.client().lpush(f"{spider}:start_urls", f'{{"url": "{site.url}"}}')
    run = project.crawl(site, spider=spider, keep=False, **settings)
    until(lambda: not site.missed)
    # Taken while it is idle; redirects to a page that was seen.
    another = f"{site.url}go/{site.pages - 1}"
    server.client().lpush(f"{spider}:start_urls", f'{{"url": "{another}"}}')
    until(lambda: another in site.urls)
    run.complete()
    assert site.missed == set()
    assert site.repeated == {
        0: 2,
        site.pages - 1: 2,
    }  # start requests, and redirects of them, have no filter
    assert queue_is_empty(server)


def test_a_frozen_worker_gives_up_its_requests(site, server, tmp_path):
    with shared(site, server, tmp_path) as workers:
        with workers.two(50) as stopped:
            stopped.freeze()
        had = taken_by(server, stopped.pid)
        assert had
        until(lambda: not taken_by(server, stopped.pid))
        stopped.send_signal(signal.SIGCONT)
        assert workers.wait() == ["finished"] * 2
    assert site.missed == set()
    assert set(site.repeated) <= pages_of(site, had)
    assert workers.runs[1].stat("bloom/queue/requeued") == len(had)
    assert not any("starts over" in run.log for run in workers.runs)
    assert queue_is_empty(server)


# Losses and outages


def start_again(server):
    """Start a server, and wait until it has read its log."""
    server.start()
    until(lambda: not server.client().info("persistence")["loading"])


@pytest.mark.parametrize("policy", ["auto", "close"])
def test_a_server_that_is_killed_and_comes_back_costs_nothing(site, tmp_path, policy):
    """It keeps a log of its writes. Under `close` the next run goes on."""
    with (
        LocalRedis(persist=True) as server,
        shared(site, server, tmp_path, BLOOM_ON_BACKEND_ERROR=policy) as workers,
    ):
        workers.join()
        workers.join()
        reach(site, 90)
        server.kill()
        had = set()
        if policy == "close":
            assert workers.wait() == ["bloom_backend"] * 2
            assert [run.stat("bloom/not_stored") for run in workers.runs] == [1] * 2
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
        assert queue_is_empty(server)


@pytest.mark.parametrize("site", [100], indirect=True)
@pytest.mark.parametrize(("loss", "order"), [("flush", "Lifo"), ("older RDB", "Fifo")])
def test_after_a_loss_the_crawl_starts_over_by_itself(site, tmp_path, loss, order):
    chosen = {"SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order}DiskQueue"}
    chosen["DOWNLOAD_DELAY"] = 0.05  # so that pages are left to both
    with LocalRedis() as server, shared(site, server, tmp_path, **chosen) as workers:
        for _ in range(2):
            workers.join()
        for run in workers.runs:
            run.said("Crawl state in Redis", "New crawl, stored in Redis")
        reach(site, site.delivered + 20)
        if loss == "flush":
            server.client().flushall()
        else:
            server.client().save()
            reach(site, site.delivered + 15)
            server.kill()
            server.start()
        assert workers.wait() == ["finished"] * 2
        assert site.missed == set()
        assert queue_is_empty(server)
    logs = [run.log for run in workers.runs]
    told = [log.count("starts over: it runs start() again") for log in logs]
    if loss == "older RDB":  # only who has said something since is betrayed by its number
        assert max(told) == 1
    else:
        assert told == [1, 1]
    assert "Traceback" not in "".join(logs)
    again = sum(hits - 1 for hits in site.repeated.values())
    print(f"{loss}, {order}: {again} pages fetched again")  # noqa: T201 - to be read
