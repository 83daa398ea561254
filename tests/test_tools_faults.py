"""What may happen to the tools: no room, no rights, no server, Ctrl-C, and crawls beside them."""

import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
import redis
from support.contract import fingerprints
from support.crawling import Project
from support.filters import bits_of, everything, everything_in, project
from support.jobs import stored_job
from support.localredis import LocalRedis
from support.localsite import LocalSite
from support.processes import PATIENCE, environment, run_program
from support.redis_crawls import PATIENCE as REDIS_PATIENCE
from support.redis_crawls import SCRAPY_REDIS, Crawl, at
from support.waiting import until

from scrapy_bloom import BackendError, RedisFilter, StateError, tools

BLOOM = (sys.executable, "-m", "scrapy", "bloom")
OURS = {"SCHEDULER": "scrapy_bloom.Scheduler"}
keys = (f"faults:{number}" for number in itertools.count())


@pytest.fixture
def large(tmp_path):
    """A filter of several segments."""
    stored_job(tmp_path / "large", fingerprints(2_000), capacity=3_000_000)
    return tmp_path / "large"


@pytest.fixture(params=["bitmap", "sets"])
def source(request, server, large, tmp_path):
    """A filter of either layout that goes to Redis in several pieces."""
    if request.param == "bitmap":
        return large
    key = next(keys)
    with RedisFilter.from_url(server.url, key=key, layout="sets", capacity=100_000) as seen:
        seen.add_many(fingerprints(20_000))
    tools.copy(f"{server.url}#{key}", tmp_path / "sets.bloom")
    return tmp_path / "sets.bloom"


@pytest.mark.parametrize("after", [1, 2, 3])
def test_redis_lost_in_mid_copy_changes_nothing(source, after):
    """And the copy is made when the server is back."""
    with LocalRedis(persist=True) as server:
        target = f"{server.url}#lost"
        sent = itertools.count(1)

        def crash(_):
            if next(sent) == after:
                server.kill()

        with pytest.raises(BackendError, match="cannot be reached"):
            tools.copy(source, target, progress=telling(crash))
        server.start()
        until(lambda: answers(server))
        assert not server.client().exists("lost")
        assert all(server.client().ttl(name) > 0 for name in server.client().scan_iter())
        tools.copy(source, target)
        assert bits_of(target) == bits_of(source)


@pytest.mark.parametrize("after", [1, 2])
def test_redis_lost_while_a_filter_is_read_leaves_no_file(tmp_path, large, after):
    with LocalRedis(persist=True) as server:
        tools.copy(large, f"{server.url}#lost")
        sent = itertools.count(1)

        def crash(_):
            if next(sent) == after:
                server.kill()

        before = everything(tmp_path)
        with pytest.raises(BackendError, match="cannot be reached"):
            tools.copy(f"{server.url}#lost", tmp_path / "x.bloom", progress=telling(crash))
        with pytest.raises(BackendError, match="cannot be reached"):
            tools.copy(f"{server.url}#lost", tmp_path / "job")
        assert everything(tmp_path) == before


def test_an_interrupted_copy_leaves_nothing(server, large):
    before = everything_in(server)

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tools.copy(large, f"{server.url}#{next(keys)}", progress=telling(interrupt))
    assert everything_in(server) == before


def test_ctrl_c_at_the_command_line_leaves_nothing(tmp_path):
    process = subprocess.Popen(
        [*BLOOM, "add", "new", "-", "--spider", "books"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Who runs the tests in the background of a shell has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a call alone
    )
    process.stdin.write(b"http://example.com/\n" * 20_000)  # so many times what a pipe holds
    process.stdin.flush()
    assert (tmp_path / "new" / "requests.bloom.lock").exists()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert errors.decode() == "scrapy bloom add: interrupted\n"
    assert process.returncode == 130
    assert not (tmp_path / "new").exists()


def answers(server):
    """Return whether a server answers: one that was started again reads its log first."""
    try:
        return server.client().ping()
    except redis.RedisError:
        return False


def telling(do):
    """Return a progress that calls `do` with every piece that was done."""

    class Telling:
        def __init__(self, what, total, unit):
            pass

        def __enter__(self):
            return do

        def __exit__(self, *_):
            pass

    return Telling


def test_a_full_disk_leaves_what_was_there(tmp_path):
    told = run_program("tools_on_a_full_disk", tmp_path)
    assert told.returncode == 0, told.stderr
    assert "No space left on device" in told.stdout or "File too large" in told.stdout


@pytest.mark.skipif(os.name == "nt", reason="rights are others there")
def test_without_rights_nothing_is_done():
    told = run_program("tools_without_rights")
    assert told.returncode == 0, told.stderr


def make_newer(server, key):
    with RedisFilter.from_url(server.url, key=key) as seen:
        seen.add(b"a" * 20)
    server.client().hset(key, "format", 9)


def test_what_is_there_is_not_ours(server, tmp_path):
    client = server.client()
    for kind in ("string", "hash", "zset", "newer"):
        key = next(keys)
        {
            "newer": lambda key=key: make_newer(server, key),
            "string": lambda key=key: client.set(key, "x"),
            "hash": lambda key=key: client.hset(key, "a", 1),
            "zset": lambda key=key: client.zadd(key, {"a": 1}),
        }[kind]()
        before = everything_in(server)
        stored_job(tmp_path / kind, fingerprints(5))
        for verb in (
            lambda key=key: tools.info(f"{server.url}#{key}"),
            lambda key=key: tools.contains(f"{server.url}#{key}"),
            lambda key=key: tools.delete(f"{server.url}#{key}"),
            lambda key=key, kind=kind: tools.copy(tmp_path / kind, f"{server.url}#{key}"),
            lambda key=key: tools.add(f"{server.url}#{key}"),
        ):
            with pytest.raises(StateError, match="expected"):
                verb()
        assert everything_in(server) == before


@pytest.mark.scrapy
@pytest.mark.long
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_job_of_our_scheduler_is_looked_at_and_stays_as_it_is(tmp_path, kill):
    scrapys = Project(tmp_path)
    with LocalSite(pages=60) as site:
        run = scrapys.crawl(site, **OURS, DOWNLOAD_DELAY=0.05, CONCURRENT_REQUESTS=4)
        until(lambda: site.delivered > 20, 60)
        looked = tools.queue(scrapys.job)  # while it runs
        assert looked.total > 0
        assert tools.info(scrapys.job).crawl == "running"
        if kill:
            run.kill()
        else:
            run.interrupt()
        run.end()
        run.clear_away()
        before = everything(scrapys.job)
        found = tools.queue(scrapys.job, peek=1000)
        assert found.total == len(found.first) == sum(found.by_priority.values())
        assert sum(found.by_host.values()) == found.total
        told = tools.info(scrapys.job)
        assert told.waiting == found.total
        assert told.crawl == ("killed" if kill else "stopped cleanly")
        assert all(tools.contains(scrapys.job, [one.url for one in found.first], project=project()))
        assert {one.level for one in tools.check(scrapys.job)} <= {"good", "note"}
        assert everything(scrapys.job) == before
        run = scrapys.crawl(site, **OURS)
        assert run.end() == 0
        assert site.missed == set()


SCHEDULERS = {"scrapy-redis": SCRAPY_REDIS, "ours": OURS}


@pytest.mark.scrapy
@pytest.mark.long
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_three_workers_crawl_as_if_nobody_looked(tmp_path, scheduler):
    pytest.importorskip("scrapy_redis")
    with LocalRedis() as server, LocalSite(pages=300, links=8) as site:
        shared = {"REDIS_URL": server.url, "BLOOM_REDIS_URL": server.url}
        if scheduler == "scrapy-redis":
            shared |= {"done": f"{server.url}#done", "SCHEDULER_PERSIST": True}
        with Crawl(site, server, tmp_path, **SCHEDULERS[scheduler], **shared) as crawl:
            begun, all_pages = at(site, 50), at(site, 300)
            for _ in range(3):
                crawl.start()
            assert begun.wait(REDIS_PATIENCE)
            target = f"{server.url}#worker:bloom"
            looks = 0
            while not all_pages.is_set() or not looks:
                told = tools.info(target)
                assert told.filter.items > 0
                assert len(tools.contains(target, [site.url], project=project())) == 1
                assert "bad" not in {one.level for one in tools.check(target)}
                tools.copy(target, tmp_path / f"{looks}.bloom")
                if scheduler == "ours":
                    assert told.waiting is not None
                    waiting = tools.queue(target)
                    assert all(site.url[:-1] in one.url for one in waiting.first)
                if site.delivered < 200:  # later the crawl may have ended
                    with pytest.raises(StateError, match="a crawl uses this filter"):
                        tools.delete(target)
                looks += 1
            stats = crawl.finish() if scheduler == "scrapy-redis" else crawl.wait()
        assert site.missed == set()
        assert site.repeated == {}
        assert not any(each.get("log_count/ERROR") for each in stats)
        tools.delete(target)
        assert [name for name in server.client().keys() if b"bloom" in name] == []  # noqa: SIM118


@pytest.mark.scrapy
@pytest.mark.long
@pytest.mark.usefixtures("short_leases")
def test_what_a_killed_worker_has_taken_is_told(tmp_path):
    with LocalRedis() as server, LocalSite(pages=150, links=8) as site:
        url = {"BLOOM_REDIS_URL": server.url}
        target = f"{server.url}#worker:bloom"
        with Crawl(site, server, tmp_path, **OURS, **url) as crawl:
            begun = at(site, 60)
            worker = crawl.start()
            assert begun.wait(REDIS_PATIENCE)
            worker.kill()
            worker.wait()

            def found():
                return {one.what: one.found for one in tools.check(target)}

            until(lambda: "taken" in found(), 60)  # the lease has to end
            assert "were taken by 1 workers that are gone" in found()["taken"]
            page = site.url
            assert tools.contains(target, [page], project=project()) == [True]
            assert tools.forget(target, [page], project=project()) == [True]
            assert tools.contains(target, [page], project=project()) == [False]
            assert tools.info(target).let_through >= 1
            crawl.start()
            crawl.wait()
        assert site.missed == set()
        assert tools.contains(target, [page], project=project()) == [True]


# In a project


@pytest.mark.scrapy
@pytest.mark.long
def test_a_project_names_the_filter(tmp_path):
    """Each verb finds the filter of a spider, by the settings of the project."""
    scrapys = Project(tmp_path)
    with LocalSite(pages=30) as site:
        assert scrapys.crawl(site, **OURS).end() == 0
        page = site.url
    job = ["--spider", "follower", "-s", f"JOBDIR={scrapys.job}"]
    before = everything(scrapys.job)
    looked = [
        scrapys.start("bloom", *arguments, *job)
        for arguments in (
            ["info", "--json"],
            ["info", "--check"],
            ["contains", page],
            ["queue"],
        )
    ]
    assert [run.end() for run in looked] == [0] * 4
    told = json.loads(looked[0].output)
    assert (told["spider"], told["waiting"], told["crawl"]) == ("follower", 0, "stopped cleanly")
    assert everything(scrapys.job) == before
    changed = (["forget", page], ["add", page], ["delete", "--yes"])
    assert [scrapys.start("bloom", *arguments, *job).end() for arguments in changed] == [0] * 3
    assert not (scrapys.job / "requests.bloom").exists()
    nobody = scrapys.start("bloom", "info", "--spider", "nobody", "-s", f"JOBDIR={scrapys.job}")
    assert nobody.end() == 2
    assert "there is no spider 'nobody' in this project" in nobody.log


# While a crawl runs


@pytest.fixture
def frozen():
    """Return what stops processes until the test has ended."""
    stopped = []

    def freeze(*pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    yield freeze
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def look_at(target, folder, page):
    """Look in every way; return how often."""
    tools.info(target)
    assert "bad" not in {one.level for one in tools.check(target)}
    tools.contains(target, [page], project=project())
    tools.queue(target)
    tools.copy(target, folder / "out.bloom")


@pytest.mark.scrapy
@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="nothing freezes a process there")
def test_looking_at_a_local_crawl_changes_no_byte(tmp_path, frozen):
    """The crawl is frozen, so whatever changes was changed by whoever looks."""
    scrapys = Project(tmp_path)
    with LocalSite(pages=60) as site:
        run = scrapys.crawl(site, **OURS, DOWNLOAD_DELAY=0.05, CONCURRENT_REQUESTS=4)
        until(lambda: site.delivered > 20, 60)
        frozen(run.pid)
        before = everything(scrapys.job)
        assert "requests.sqlite-shm" in {path.name for path in before}
        look_at(scrapys.job, tmp_path, site.url)
        assert everything(scrapys.job) == before
        os.kill(run.pid, signal.SIGCONT)
        assert run.end() == 0
        assert site.missed == set()
        assert site.repeated == {}


@pytest.mark.scrapy
@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="nothing freezes a process there")
def test_looking_at_three_workers_changes_no_key(tmp_path, frozen):
    """As above; a worker that is frozen for a short while keeps its lease."""
    with LocalRedis() as server, LocalSite(pages=200, links=8) as site:
        with Crawl(site, server, tmp_path, **OURS, BLOOM_REDIS_URL=server.url) as crawl:
            begun = at(site, 60)
            workers = [crawl.start() for _ in range(3)]
            assert begun.wait(REDIS_PATIENCE)
            frozen(*(worker.pid for worker in workers))
            before = everything_in(server)
            look_at(f"{server.url}#worker:bloom", tmp_path, site.url)
            assert everything_in(server) == before
            for worker in workers:
                os.kill(worker.pid, signal.SIGCONT)
            crawl.wait()
        assert site.missed == set()
