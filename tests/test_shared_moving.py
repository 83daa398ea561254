"""From a crawl of scrapy-redis to ours, and back, by real processes on a real Redis."""

import pickle

import pytest
import scrapy
from scrapy import Request
from support.localsite import Kind, LocalSite
from support.redis_crawls import PATIENCE
from support.stopping import stop_after
from support.waiting import until

from scrapy_bloom import BackendError, RedisFilter, SettingError, StateError, tools

pytest.importorskip("redis")
pytest.importorskip("scrapy_redis")
pytestmark = [pytest.mark.scrapy, pytest.mark.usefixtures("short_leases")]

QUEUES = ["PriorityQueue", "FifoQueue", "LifoQueue"]
SCRAPY_REDIS = "scrapy_redis.scheduler"
THEIR_FILTER = "scrapy_redis.dupefilter.RFPDupeFilter"
OLD = "follower:requests"


class PlainSite(LocalSite):
    """A site whose pages never redirect to themselves: their own filter loses none of them."""

    def kind(self, page):
        return Kind.QUERY if page % 3 else Kind.PLAIN


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


def copy(project, server, **settings):
    """Copy the crawl with the sub-command; return the run."""
    options = [f"-s{name}={value}" for name, value in settings.items()]
    where = [f"{server.url}#follower:{name}" for name in ("requests", "bloom")]
    run = project.start("bloom", "copy", *where, "--spider", "follower", *options)
    run.end(PATIENCE)
    return run


def finish(project, site, server, workers=2, **settings):
    """Resume the crawl with workers of ours, to its end."""
    runs = [project.crawl(site, keep=False, **ours(server, **settings)) for _ in range(workers)]
    for run in runs:
        assert run.end(PATIENCE) == 0, run.log
        assert run.reason == "finished"
        assert not run.logged("WARNING")
    assert site.missed == set()


@pytest.mark.parametrize("queue", QUEUES)
def test_a_crawl_of_scrapy_redis_with_our_filter_is_copied(project, site, server, queue):
    """The filter has the marks of the requests that wait: they are not asked about."""
    begin(project, site, theirs(server, queue))
    waiting, before = size(server), server.client().dump(OLD)
    done = copy(project, server)
    assert f"{waiting:,} requests were copied" in done.output, done.log
    assert "Note" not in done.log + done.output
    assert server.client().dump(OLD) == before
    finish(project, site, server)
    assert site.repeated == {}


@pytest.mark.parametrize("queue", QUEUES)
def test_the_marks_come_with_it_where_they_mean_the_same(project, server, queue):
    chosen = {"REQUEST_FINGERPRINTER_CLASS": "support.shared_spiders.TheirFingerprints"}
    server.client().flushall()
    with PlainSite(pages=240, links=10) as site:
        begin(project, site, theirs(server, queue, DUPEFILTER_CLASS=THEIR_FILTER))
        done = copy(project, server, **chosen)
        assert "requests were copied" in done.output, done.log
        assert "Note: The marks in follower:dupefilter were copied. If" in done.log + done.output
        finish(project, site, server, **chosen)
        assert site.repeated == {}


@pytest.mark.parametrize("serializer", [None, "marshal"])
def test_other_marks_stay_and_that_is_said(project, site, server, serializer):
    chosen = {"SCHEDULER_SERIALIZER": serializer} if serializer else {}
    begin(project, site, theirs(server, DUPEFILTER_CLASS=THEIR_FILTER, **chosen))
    before = server.client().smembers("follower:dupefilter")
    done = copy(project, server, **chosen)
    assert "requests were copied" in done.output, done.log
    assert f"Key follower:dupefilter holds {len(before):,} fingerprints" in done.log + done.output
    assert server.client().smembers("follower:dupefilter") == before
    finish(project, site, server)


def test_a_crawl_that_runs_is_not_copied(project, site, server):
    run = project.crawl(
        site, keep=False, **theirs(server, DUPEFILTER_CLASS=THEIR_FILTER, DOWNLOAD_DELAY=0.1)
    )
    until(lambda: site.delivered > 10, PATIENCE)
    done = copy(project, server)
    assert "so a worker of scrapy-redis is running" in done.log + done.output
    assert not server.client().keys("follower:bloom:*:queue*")
    run.interrupt()
    assert run.end(PATIENCE) == 0, run.log


def test_marks_of_requests_that_were_not_copied_refuse_the_crawl(project, site, server):
    """Their pages would count as seen, and nobody would fetch them."""
    begin(project, site, theirs(server))
    fetched = dict(site.hits)
    run = project.crawl(site, keep=False, **ours(server))
    assert run.end(PATIENCE) == 1, run.log
    assert "Copy them with 'scrapy bloom copy'" in run.log
    assert site.hits == fetched
    assert "requests were copied" in copy(project, server).output
    finish(project, site, server)
    assert site.repeated == {}


def test_a_copied_crawl_that_was_finished_can_be_started_again(project, site, server):
    """What scrapy-redis has still was copied and fetched; what it has since then was not."""
    begin(project, site, theirs(server))
    assert "requests were copied" in copy(project, server).output
    finish(project, site, server)
    again = project.crawl(site, keep=False, **ours(server))
    assert again.end(PATIENCE) == 0, again.log
    assert again.reason == "finished"
    assert site.repeated == {}
    server.client().zpopmin(OLD)
    refused = project.crawl(site, keep=False, **ours(server))
    assert refused.end(PATIENCE) == 1, refused.log
    assert "Copy them with 'scrapy bloom copy'" in refused.log


def test_an_unfinished_copy_refuses_the_crawl(project, site, server, monkeypatch):
    """The requests that are missing are marked, where our filter was used before."""
    begin(project, site, theirs(server))
    fetched = dict(site.hits)
    where = [f"{server.url}#follower:{name}" for name in ("requests", "bloom")]

    def fail(*_):
        raise BackendError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(RedisFilter, "add_many", fail)
        with pytest.raises(BackendError):
            tools.copy(*where, project=tools.Project(spider="follower"))
    run = project.crawl(site, keep=False, **ours(server))
    assert run.end(PATIENCE) == 1, run.log
    (error,) = run.logged("ERROR")
    assert "found an unfinished copy of a crawl of scrapy-redis" in error
    assert site.hits == fetched
    tools.delete(where[1])
    assert "requests were copied" in copy(project, server).output
    finish(project, site, server)


def fill(server, key, numbers):
    """Put requests into scrapy-redis's queue."""
    for number in numbers:
        body = pickle.dumps(Request(f"http://example.com/{number}").to_dict(), protocol=4)
        server.client().zadd(f"{key}:requests", {body: -number})


def copy_here(server, key):
    where = [f"{server.url}#{key}:{name}" for name in ("requests", "bloom")]
    return tools.copy(*where, project=tools.Project(spider=key))


def test_an_interrupted_copy_has_no_mark_without_its_request(server, key, monkeypatch):
    fill(server, key, range(30))

    def fail(*_):
        raise BackendError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(RedisFilter, "add_many", fail)
        with pytest.raises(BackendError):
            copy_here(server, key)
    target = f"{server.url}#{key}:bloom"
    assert tools.info(target).filter.items == 0
    assert tools.queue(target).total == 30
    with pytest.raises(StateError, match="found 30 requests, expected none"):
        copy_here(server, key)
    tools.delete(target)
    assert copy_here(server, key).requests == 30
    assert tools.info(target).filter.items == 30


def test_requests_that_cannot_be_read_leave_the_marks_where_they_are(server, key):
    fill(server, key, range(30))
    server.client().zadd(f"{key}:requests", {b"\x80nonsense": 7})
    server.client().sadd(f"{key}:dupefilter", "ab" * 20)
    done = copy_here(server, key)
    (warning,) = done.warnings
    assert "1 requests could not be read" in warning
    assert (done.requests, done.items) == (30, 30)
    assert size(server, f"{key}:requests") == 31


def test_a_set_alone_is_not_copied(server, key, tmp_path):
    server.client().sadd(f"{key}:dupefilter", "ab" * 20)
    for target in (f"{server.url}#{key}:bloom", tmp_path / "new"):
        with pytest.raises(SettingError, match="the marks are copied after the requests"):
            tools.copy(f"{server.url}#{key}:dupefilter", target, project=tools.Project(spider=key))
    fill(server, key, range(3))
    with pytest.raises(SettingError, match="can only be copied into Redis"):
        tools.copy(f"{server.url}#{key}:requests", tmp_path / "new")
    with pytest.raises(SettingError, match="give the name of its spider"):
        tools.copy(f"{server.url}#{key}:requests", f"{server.url}#{key}:bloom")


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
