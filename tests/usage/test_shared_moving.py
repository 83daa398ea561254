"""Stopped crawls move: of scrapy-redis to ours, and from a job directory into Redis."""

import marshal
import pickle
from types import SimpleNamespace

import pytest
from scrapy import Request
from support import kinds
from support.graceful_stop import resumes_well, stop_after
from support.kinds import Color
from support.shared_spiders import TheirFingerprints
from support.waiting import until
from testbed.localsite import LocalSite

from scrapy_bloom.commands import copy_from

pytest.importorskip("redis")
pytest.importorskip("scrapy_redis")
pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_leases")]

THEIR_FILTER = "scrapy_redis.dupefilter.RFPDupeFilter"
OLD = "follower:requests"
KEY = "scrapybot:follower:bloom"


@pytest.fixture
def site(server):
    server.client().flushall()
    with LocalSite(pages=60, links=6) as site:
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


PATIENT = {"BLOOM_REDIS_TIMEOUT": 10}  # a busy machine is no outage


def ours(server, **settings):
    ours = {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_REDIS_URL": server.url}
    return ours | PATIENT | settings


def begin(project, site, settings):
    """Crawl a part of the site; return the run, which was stopped cleanly."""
    run = stop_after(20, site, lambda: project.crawl(site, keep=False, **settings))
    assert run.end() == 0, run.log
    assert site.missed
    return run


def copy(project, server, **settings):
    """Copy the crawl with the sub-command; return the run."""
    options = [f"-s{name}={value}" for name, value in (PATIENT | settings).items()]
    where = [f"{server.url}#{key}" for key in (OLD, KEY)]
    run = project.start("bloom", "copy", *where, "--spider", "follower", *options)
    run.end()
    return run


def finish(project, site, server, workers=1, **settings):
    """Resume the crawl with workers of ours, to its end."""
    runs = [project.crawl(site, keep=False, **ours(server, **settings)) for _ in range(workers)]
    for run in runs:
        run.complete()
        # A worker that a slow machine starts when the others are through says so.
        late = [text for text in run.logged("WARNING") if "have left nothing to fetch" in text]
        assert run.logged("WARNING") == (late if workers > 1 else [])
    assert site.missed == set()


def test_a_crawl_of_scrapy_redis_with_our_filter_is_copied(project, site, server):
    """The filter has the marks of the requests that wait: they are not asked about."""
    begin(project, site, theirs(server))
    waiting, before = server.client().zcard(OLD), server.client().dump(OLD)
    fetched = dict(site.hits)
    run = project.crawl(site, keep=False, **ours(server))
    assert run.end() == 1, run.log  # the pages that wait would count as seen
    assert "'scrapy bloom copy'" in run.log
    assert site.hits == fetched
    done = copy(project, server)
    assert f"{waiting:,} requests copied" in done.output, done.log
    assert server.client().dump(OLD) == before
    finish(project, site, server, workers=2)
    assert site.repeated == {}


def test_a_crawl_of_scrapy_redis_with_its_own_filter_is_copied_when_it_has_stopped(
    project, site, server, bloom, monkeypatch
):
    """Its marks are made in another way, and are not."""

    def watch(_):  # until there is something to see, however slow the crawl is
        before = server.client().lrange(OLD, 0, -1)
        until(lambda: server.client().lrange(OLD, 0, -1) != before)

    monkeypatch.setattr(copy_from, "time", SimpleNamespace(sleep=watch))
    slowly = {"DUPEFILTER_CLASS": THEIR_FILTER, "DOWNLOAD_DELAY": 0.2}
    run = project.crawl(site, keep=False, **theirs(server, "FifoQueue", **slowly))
    until(lambda: site.delivered > 5)
    code, _, (told,) = bloom(f"copy {server.url}#{OLD} {server.url}#{KEY} --spider follower")
    assert (code, "so a worker of scrapy-redis is running" in told) == (2, True), told
    assert not server.client().keys(f"{KEY}:*:queue*")
    run.interrupt()
    assert run.end() == 0, run.log
    assert site.missed
    before = server.client().smembers("follower:dupefilter")
    done = copy(project, server)
    assert "requests copied" in done.output, done.log
    assert server.client().smembers("follower:dupefilter") == before
    finish(project, site, server)


def test_a_killed_crawl_in_a_job_directory_outgrows_its_machine(project, server):
    server.client().flushall()
    with LocalSite(pages=120, links=6) as site:
        project.kill_at(60, site, SCHEDULER="scrapy_bloom.Scheduler", DOWNLOAD_DELAY=0.02)
        done = project.start("bloom", "copy", str(project.job), f"{server.url}#{KEY}")
        assert done.end() == 0, done.log
        assert " requests copied" in done.output
        assert not server.client().ttl(KEY) > 0
        finish(project, site, server)
        assert len(site.repeated) < 50  # what was in flight, and not all 60


def fill(server, key, numbers):
    """Put requests into scrapy-redis's queue."""
    for number in numbers:
        body = pickle.dumps(Request(f"http://example.com/{number}").to_dict(), protocol=4)
        server.client().zadd(f"{key}:requests", {body: -number})


def test_a_queue_is_copied_if_all_of_it_can_be_read_and_marks_that_mean_the_same_are_added(
    server, key, bloom
):
    """A page whose request cannot be read would be lost, or all are written in another way."""
    fill(server, key, range(30))
    source, target = f"{server.url}#{key}:requests", f"{server.url}#{key}:bloom"
    same = {"REQUEST_FINGERPRINTER_CLASS": TheirFingerprints}
    copied, nonsense = f"copy {source} {target} --spider {key}", b"\x80nonsense"
    server.client().zadd(f"{key}:requests", {nonsense: 7})
    for line, told in (
        (copied, "found a request that cannot be read"),
        (f"copy {source} {target}", "expected the name of its spider"),
    ):
        code, _, (error,) = bloom(line, **same)
        assert (code, told in error) == (2, True)
    assert server.client().zcard(f"{key}:requests") == 31
    assert bloom(f"queue {target}")[0] == 2
    server.client().zrem(f"{key}:requests", nonsense)
    assert bloom(copied, **same)[1][0].endswith("30 pages and 30 requests copied")
    pages = [Request(f"http://example.com/{number}") for number in range(50)]
    marks = "\n".join(TheirFingerprints().fingerprint(page).hex() for page in pages).encode()
    code, lines, _ = bloom(f"add {target} -", stdin=marks, **same)
    assert (code, lines) == (0, ["20 pages marked; 30 marked before"])
    assert bloom(f"queue {target}")[1][0] == "30 requests to be fetched, 0 of them in flight"


class Hostile:
    def __reduce__(self):
        return kinds.run, ("hostile",)


def test_the_queue_of_scrapy_redis_is_copied_as_data(server, key, bloom):
    source, target = f"{server.url}#{key}:requests", f"{server.url}#{key}:bloom"
    copied = f"copy {source} {target} --spider {key}"
    for value, told in (
        (Hostile(), "'support.kinds.run'"),
        (kinds.Plain(1), "'support.kinds.Plain'"),
        (kinds.Page(Color.RED), ""),
    ):
        kinds.RAN.clear()
        body = pickle.dumps(Request("http://example.com", meta={"x": value}).to_dict(), 5)
        server.client().delete(f"{key}:requests")
        server.client().zadd(f"{key}:requests", {body: 0})
        code, _, errors = bloom(copied)
        assert (code, kinds.RAN) == (2 if told else 0, [])
        assert told in "".join(errors)
    body = marshal.dumps(Request("http://example.com").to_dict())
    server.client().zadd(f"{key}:requests", {body: 0})
    code, _, (error,) = bloom(copied.replace(target, f"{target}2"))
    assert (code, "another SCHEDULER_SERIALIZER than pickle" in error) == (2, True)


# Back


@pytest.mark.parametrize("settings", [theirs, lambda _, **more: more], ids=["theirs", "Scrapy's"])
def test_another_scheduler_is_refused_where_our_requests_belong(project, site, server, settings):
    """It would find their pages seen, and end as if all was done."""
    begin(project, site, ours(server))
    fetched = dict(site.hits)
    run = project.crawl(site, keep=False, **settings(server, BLOOM_REDIS_URL=server.url))
    assert run.end() == 1, run.log
    assert run.reason == "bloom_bad_state", run.log
    assert any(KEY in line for line in run.logged("ERROR"))
    assert site.hits == fetched
    server.client().delete(OLD)  # the start page, or its links
    finish(project, site, server)
    assert resumes_well(site)
