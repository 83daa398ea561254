"""From a crawl of scrapy-redis to ours, and back, by real processes on a real Redis."""

import os
import pickle
import signal

import pytest
import scrapy
from scrapy import Request
from support.localsite import LocalSite
from support.redis_crawls import PATIENCE
from support.stopping import stop_after
from support.waiting import until

pytest.importorskip("redis")
pytest.importorskip("scrapy_redis")
pytestmark = [pytest.mark.scrapy, pytest.mark.usefixtures("short_leases")]

QUEUES = ["PriorityQueue", "FifoQueue", "LifoQueue"]
SCRAPY_REDIS = "scrapy_redis.scheduler"
THEIR_FILTER = "scrapy_redis.dupefilter.RFPDupeFilter"
OLD = "follower:requests"


@pytest.fixture
def site(server):
    server.client().flushall()
    with LocalSite(pages=240, links=10) as site:
        yield site


def theirs(server, queue="PriorityQueue", **settings):
    """Return the settings of a crawl with scrapy-redis's scheduler."""
    return {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        "SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{queue}",
        "REDIS_URL": server.url,
        **settings,
    }


def ours(server, **settings):
    return {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_REDIS_URL": server.url, **settings}


def begin(project, site, settings):
    """Crawl a part of the site; return the run, which was stopped cleanly."""
    run = stop_after(80, site, lambda: project.crawl(site, keep=False, **settings))
    assert run.end(PATIENCE) == 0, run.log
    assert site.missed
    return run


def size(server, key=OLD):
    client = server.client()
    kind = client.type(key)
    return client.zcard(key) if kind == b"zset" else client.llen(key)


@pytest.mark.parametrize("queue", QUEUES)
def test_a_crawl_of_scrapy_redis_with_our_filter_goes_on(project, site, server, queue):
    """The filter has the marks of the requests that wait: they are not asked about."""
    begin(project, site, theirs(server, queue))
    waiting = size(server)
    assert waiting
    runs = [project.crawl(site, keep=False, **ours(server)) for _ in range(2)]
    for run in runs:
        assert run.end(PATIENCE) == 0, run.log
        assert run.reason == "finished"
        assert not run.logged("WARNING")
    assert site.missed == set()
    assert site.repeated == {}
    assert not server.client().exists(OLD)
    log = runs[0].log + runs[1].log
    assert f"Key {OLD}: {waiting:,} requests of scrapy-redis wait there" in log
    assert f"{waiting:,} requests are taken over, which is all of them" in log


@pytest.mark.parametrize("serializer", [None, "marshal"])
def test_a_crawl_of_scrapy_redis_with_its_own_filter_goes_on(project, site, server, serializer):
    chosen = {"SCHEDULER_SERIALIZER": serializer} if serializer else {}
    begin(project, site, theirs(server, DUPEFILTER_CLASS=THEIR_FILTER, **chosen))
    waiting = size(server)
    assert waiting
    run = project.crawl(site, keep=False, **ours(server, **chosen))
    assert run.end(PATIENCE) == 0, run.log
    assert site.missed == set()
    assert run.stat("bloom/frontier/imported") == waiting
    assert not server.client().exists(OLD)
    (warning,) = run.logged("WARNING")
    assert "Key follower:dupefilter holds" in warning
    assert server.client().exists("follower:dupefilter")
    again = project.crawl(site, keep=False, **ours(server))
    assert again.end(PATIENCE) == 0, again.log
    (warning,) = again.logged("WARNING")  # not once more
    assert "An earlier crawl has finished" in warning


def fill(server, site, queue, numbers, spider="follower"):
    """Put requests for pages of the site into scrapy-redis's queue."""
    client = server.client()
    for number in numbers:
        request = Request(site.url[:-1] + site.address(number), callback=None)
        body = pickle.dumps(request.to_dict(), protocol=4)
        if queue == "PriorityQueue":
            client.zadd(f"{spider}:requests", {body: -(number % 3)})
        else:
            client.lpush(f"{spider}:requests", body)


@pytest.mark.parametrize(("queue", "marked"), [("PriorityQueue", True), ("FifoQueue", False)])
def test_no_request_is_lost_however_often_its_bearer_is_killed(project, server, queue, marked):
    """Nothing leads to these pages but their requests."""
    server.client().flushall()
    with LocalSite(pages=600, links=1) as site:
        fill(server, site, queue, range(1, 600), "leaves")
        if marked:  # as by our filter beside scrapy-redis's scheduler
            where = f"{server.url}#leaves:bloom"
            urls = [site.url[:-1] + site.address(number) for number in range(1, 600)]
            marking = project.start("bloom", "add", "--spider", "leaves", where, *urls)
            assert marking.end(PATIENCE) == 0, marking.log
        killed = 0
        for left in (500, 300, 100):
            run = project.crawl(site, spider="leaves", keep=False, **ours(server))
            until(lambda left=left: size(server, "leaves:requests") < left, PATIENCE)
            run.kill()
            run.end()
            killed += 1
        run = project.crawl(site, spider="leaves", keep=False, **ours(server))
        assert run.end(PATIENCE) == 0, run.log
    assert run.reason == "finished"
    assert site.missed == set()
    # In the worker, done and not acknowledged yet, and the requests of one step.
    under_way = 3 * 16 + 100
    assert sum(hits - 1 for hits in site.repeated.values()) <= killed * under_way
    assert not server.client().exists("leaves:requests")


def test_another_worker_goes_on_where_one_was_killed(project, server):
    """It knows by the lease. Until then it stays, though nothing waits in our queue."""
    server.client().flushall()
    with LocalSite(pages=600, links=1) as site:
        fill(server, site, "PriorityQueue", range(1, 600), "leaves")
        first = project.crawl(site, spider="leaves", keep=False, **ours(server))
        until(lambda: size(server, "leaves:requests") < 500, PATIENCE)
        os.kill(first.pid, signal.SIGSTOP)
        second = project.crawl(site, spider="leaves", keep=False, **ours(server))
        second.said("Crawl kept in Redis")
        first.kill()
        assert second.end(PATIENCE) == 0, second.log
    assert site.missed == set()
    assert second.reason == "finished"
    assert second.stat("bloom/frontier/imported") > 0
    assert not server.client().exists("leaves:requests")


@pytest.mark.parametrize("queue", ["PriorityQueue", "LifoQueue"])
def test_requests_that_cannot_be_read_stay_where_they_are(project, site, server, queue):
    fill(server, site, queue, range(1, 150))
    client, bad = (
        server.client(),
        [b"\x80nonsense", pickle.dumps({"url": site.url, "callback": "no"})],
    )
    for body in bad:
        client.zadd(OLD, {body: -2}) if queue == "PriorityQueue" else client.lpush(OLD, body)
    fill(server, site, queue, range(150, 240))
    run = project.crawl(site, keep=False, **ours(server))
    assert run.end(PATIENCE) == 0, run.log
    assert site.missed == set()
    assert run.stat("bloom/frontier/imported") == 239
    assert len(run.logged("ERROR")) == 1
    assert "a request cannot be read" in run.logged("ERROR")[0]
    assert "239 requests are taken over, 2 cannot be read and stay there" in run.log
    left = client.zrange(OLD, 0, -1) if queue == "PriorityQueue" else client.lrange(OLD, 0, -1)
    assert sorted(left) == sorted(bad)


def test_other_things_under_its_key_are_left_alone(project, site, server):
    server.client().hset(OLD, "some", "thing")
    run = project.crawl(site, keep=False, **ours(server))
    assert run.end(PATIENCE) == 0, run.log
    assert site.missed == set()
    assert server.client().hgetall(OLD) == {b"some": b"thing"}


def test_ctrl_c_leaves_the_rest_for_the_next_run(project, server):
    server.client().flushall()
    with LocalSite(pages=600, links=1) as site:
        fill(server, site, "FifoQueue", range(1, 600), "leaves")
        run = project.crawl(site, spider="leaves", keep=False, **ours(server))
        until(lambda: size(server, "leaves:requests") < 500, PATIENCE)
        run.interrupt()
        assert run.end(PATIENCE) == 0, run.log
        run = project.crawl(site, spider="leaves", keep=False, **ours(server))
        assert run.end(PATIENCE) == 0, run.log
    assert site.missed == set()
    assert site.repeated == {}


# Back


def everything(server):
    """Return all that the server has, by key."""
    return {key: server.client().dump(key) for key in server.client().keys("*")}


@pytest.mark.parametrize(
    ("scheduler", "persist"),
    [(f"{SCRAPY_REDIS}.Scheduler", True), (f"{SCRAPY_REDIS}.Scheduler", False), (None, True)],
)
def test_another_scheduler_is_refused_where_requests_of_ours_wait(
    project, site, server, scheduler, persist
):
    """It would find their pages seen, and end as if all was done."""
    begin(project, site, ours(server))
    before, fetched = everything(server), dict(site.hits)
    settings = theirs(server, SCHEDULER_PERSIST=persist, BLOOM_REDIS_URL=server.url)
    if scheduler is None:  # Scrapy's own
        settings = {"BLOOM_REDIS_URL": server.url}
    run = project.crawl(site, keep=False, **settings)
    assert run.end(PATIENCE) == 1, run.log
    if scrapy.version_info >= (2, 14):  # older ones say "shutdown" for every refusal
        assert run.reason == "bloom_state", run.log
    (error,) = (line for line in run.logged("ERROR") if "key follower:bloom: found" in line)
    assert "set that SCHEDULER again" in error
    # Scrapy before 2.18 may fetch the start page before it ends a crawl with scrapy-redis.
    again = set() if scrapy.version_info >= (2, 18) else {0}
    assert {page for page, hits in site.hits.items() if hits != fetched[page]} <= again
    server.client().delete(OLD)  # the start page, or its links
    assert everything(server) == before
    run = project.crawl(site, keep=False, **ours(server))
    assert run.end(PATIENCE) == 0, run.log
    assert site.missed == set()
    assert set(site.repeated) <= again


def test_a_queue_of_ours_that_is_empty_refuses_nobody(project, site, server):
    run = project.crawl(site, keep=False, **ours(server))
    assert run.end(PATIENCE) == 0, run.log
    assert site.missed == set()
    run = project.crawl(site, keep=False, **theirs(server))
    assert run.end(PATIENCE) == 0, run.log
    assert not run.logged("ERROR")
    assert site.repeated == {}


def test_requests_whose_filter_is_gone_are_fetched_and_that_is_said(project, site, server):
    begin(project, site, ours(server))
    server.client().delete("follower:bloom")
    run = project.crawl(site, keep=False, **ours(server))
    assert run.end(PATIENCE) == 0, run.log
    assert site.missed == set()
    assert max(site.hits.values()) <= 2
    (warning,) = run.logged("WARNING")
    assert "requests wait in Redis at" in warning
    assert "but the filter was gone" in warning
