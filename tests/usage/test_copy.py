"""What `copy` reads, where it writes it, and what it refuses."""

import itertools
import json
import os
import pickle
import shutil
import struct
import time
import tracemalloc
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queuelib import queue
from scrapy import Request, squeues
from scrapy.settings import Settings as ScrapySettings
from scrapy.utils.test import get_crawler
from support.contract import fingerprints, share_of
from support.filters import contents, everything_in
from support.jobs import SPIDER, kept_job, lifo, open_job, stored, stored_job
from support.processes import run_line
from support.queues import Crawler
from testbed.localredis import keys

from scrapy_bloom import CanonicalRequestFingerprinter
from scrapy_bloom.commands import copy_from, runner
from scrapy_bloom.crawl.failed import Failed
from scrapy_bloom.crawl.history import START
from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.local.scrapys import read_queue, stored_requests, why_unclean
from scrapy_bloom.local.starts import Start
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.reader import Reader

URLS = [f"http://example.com/{number}" for number in range(20)]

MOMENTS = [
    "scrapy_bloom.filter.bloom:LocalFilter.save:after:1",
    "scrapy_bloom.local.store:Store.push:after:11",
    "scrapy_bloom.local.store:Store.close:before:1",
    "scrapy_bloom.local.store:Store.close:after:1",
]


def fingerprinter():
    return CanonicalRequestFingerprinter.from_crawler(get_crawler())


def binary(fingerprint):
    return len(fingerprint).to_bytes(2, "big") + fingerprint


def text(fingerprint):
    return fingerprint.hex().encode() + b"\n"


def windows_text(fingerprint):
    return fingerprint.hex().encode() + b"\r\n"


records = st.lists(
    st.tuples(
        st.sampled_from([binary, text, windows_text]),
        st.one_of(st.binary(min_size=20, max_size=20), st.binary(min_size=1, max_size=300)),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def folder():
    folder = Path(mkdtemp())
    yield folder
    shutil.rmtree(folder)


@settings(max_examples=share_of(20))
@given(records=records, cut=st.integers(0, 30))
def test_every_mark_is_copied_and_none_is_invented(folder, records, cut):
    """Whichever version of Scrapy wrote it, also if its last record was cut off by a full disk."""
    shutil.rmtree(folder, ignore_errors=True)
    seen = b"".join(write(mark) for write, mark in records)
    scrapys_job(folder / "job", seen=seen[: max(0, len(seen) - cut)])
    ends = [*itertools.accumulate(len(write(mark)) for write, mark in records)]
    left = ends[-1] - cut if records else 0
    whole = [mark for end, (_, mark) in zip(ends, records, strict=True) if end <= left]
    before = contents(folder / "job")
    assert copy(folder / "job", folder / "new") == 0
    assert contents(folder / "job") == before
    job = open_job(folder / "new", requests=True)
    assert all(one in job.store.filter for one in whole)
    assert job.restored <= len({mark for _, mark in records})
    assert len(job.store) == 10
    job.abandon()


def scrapys_job(folder, *, count=10, seen=b"", body=b"request", kind=queue.LifoDiskQueue):
    """Make a job of Scrapy's own scheduler that was stopped cleanly; return its queue."""
    path = folder / "requests.queue" / "0"
    lifo(path, count=count, body=body, kind=kind)
    (path.parent / "active.json").write_text("[0]")
    (folder / "requests.seen").write_bytes(seen)
    (folder / "spider.state").write_bytes(pickle.dumps({"page": 7}))
    return path


def copy(source, target, *options, **chosen):
    """Copy as a user does who knows that the source was stopped; return the exit code."""
    words = [str(source), str(target), "--spider", SPIDER, "--stopped", *options]
    return runner.call("copy", words, ScrapySettings({"BLOOM_REDIS_TIMEOUT": 10, **chosen}))


def test_requests_that_no_queue_is_named_for_show_that_a_run_was_killed(folder):
    """A later run was stopped cleanly, and Scrapy reads them never again."""
    queue = folder / "orphans" / "requests.queue"
    for name in ("0", "7"):
        lifo(queue / name)
    (queue / "active.json").write_text("[0, 7]")
    (queue.parent / "requests.seen").write_bytes(binary(b"a mark"))
    (queue.parent / "spider.state").touch()
    assert not why_unclean(queue.parent)
    (queue / "active.json").write_text("[0]")
    assert "7 holds requests" in why_unclean(queue.parent)


QUEUES = {
    "PickleLifoDiskQueue": queue.LifoDiskQueue,
    "MarshalFifoDiskQueue": queue.FifoDiskQueue,
    "PickleFifoSQLiteQueue": queue.FifoSQLiteQueue,
    "PickleLifoSQLiteQueue": queue.LifoSQLiteQueue,
}


@pytest.mark.parametrize("name", QUEUES)
@pytest.mark.parametrize("popped", [0, 5, 33, 99])
def test_a_queue_is_read_without_a_change_from_its_oldest_request_on(tmp_path, name, popped):
    if not hasattr(squeues, name):
        pytest.skip("from Scrapy 2.19")
    path, pushed = tmp_path / "0", [b"%d" % number * (number % 50) for number in range(100)]
    chunks = {"chunksize": 30} if "FifoDisk" in name else {}
    filled = QUEUES[name](path, **chunks)
    for body in pushed:
        filled.push(body)
    for _ in range(popped):
        filled.pop()
    filled.close()
    before = contents(tmp_path)
    kind = QueueKind.of("", getattr(squeues, name))
    left = pushed[: 100 - popped] if kind.newest_first else pushed[popped:]
    assert [*read_queue(path, kind)] == left
    assert contents(tmp_path) == before
    assert [*read_queue(tmp_path / "none", kind)] == []


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("PickleLifoDiskQueue", "cut"),
        ("PickleLifoDiskQueue", "more"),
        ("MarshalFifoDiskQueue", "cut"),
    ],
)
def test_a_queue_that_is_not_whole_is_not_read(tmp_path, name, harm):
    """As a kill leaves it: the number of its requests is written when it is closed."""
    path = tmp_path / "0"
    lifo(path, kind=QUEUES[name])
    file = path / "q00000" if path.is_dir() else path
    if harm == "cut":
        os.truncate(file, file.stat().st_size - 3)
    else:
        file.write_bytes(file.read_bytes() + b"one more\0\0\0\x08")
    with pytest.raises((ValueError, struct.error)):
        [*read_queue(path, QueueKind.of("", getattr(squeues, name)))]


@pytest.mark.parametrize("chunk", [7, 30, 100])
@pytest.mark.parametrize("pushed", [1, 30, 100])
def test_what_a_killed_run_pushed_shows_behind_the_last_request_that_is_counted(
    tmp_path, chunk, pushed
):
    """Whatever it popped, and whatever the times of the files are."""
    path, kind = tmp_path / "0", QueueKind.of("", squeues.PickleFifoDiskQueue)
    lifo(path, count=90, kind=partial(queue.FifoDiskQueue, chunksize=chunk))
    assert len([*read_queue(path, kind)]) == 90
    killed = queue.FifoDiskQueue(path)
    for number in range(pushed):
        killed.push(b"new %d" % number)
        assert killed.pop()
    with pytest.raises((ValueError, OSError)):
        [*read_queue(path, kind)]
    killed.close()
    assert len([*read_queue(path, kind)]) == 90


def test_a_large_queue_is_never_in_memory_as_a_whole(tmp_path):
    size = 40_000_000
    scrapys_job(tmp_path / "job", count=400, body=bytes(size // 400))
    tracemalloc.start()
    try:
        assert copy(tmp_path / "job", tmp_path / "new") == 0
        assert tracemalloc.get_traced_memory()[1] < size / 4
    finally:
        tracemalloc.stop()
    job = open_job(tmp_path / "new", requests=True)
    assert len(job.store) == 400
    job.abandon()


@pytest.mark.parametrize("kind", [queue.LifoDiskQueue, queue.LifoSQLiteQueue])
def test_a_kill_that_only_the_times_of_files_show_is_noticed(tmp_path, kind):
    """One request is missing, its mark is there, and all files are in order."""
    path = tmp_path / "requests.queue" / "0"
    lifo(path, kind=kind)
    (path.parent / "active.json").write_text("[0]")
    (tmp_path / "spider.state").touch()
    assert not why_unclean(tmp_path)
    for file in tmp_path.rglob("*"):
        os.utime(file, (1, 1))  # a while ago
    os.utime(tmp_path / "spider.state", (2, 2))
    resumed = kind(path)
    assert resumed.pop()
    resumed.push(b"another one")
    resumed.close()  # that of a LIFO file writes what it has written anyhow
    assert "was written after" in why_unclean(tmp_path)
    (tmp_path / "spider.state").touch()  # as the log says for a copy
    assert not why_unclean(tmp_path)


# Was it stopped?


def killed(folder, kind):
    """Kill a run that has marked as many pages as it has begun, and lose the times of its files."""
    path = scrapys_job(folder, kind=kind)
    run = kind(path)
    for number in range(3):
        assert run.pop()
        run.push(b"new %d" % number)
    if kind is queue.LifoDiskQueue:
        run.f.flush()
    (folder / "requests.seen").write_bytes(b"".join(map(binary, fingerprints(3))))
    for name in ("requests.seen", "spider.state"):
        (folder / name).touch()
    return run


def test_a_killed_queue_is_refused_whatever_the_user_says_and_its_times_say(tmp_path, capsys):
    """Pages would be seen whose requests are lost."""
    run = killed(tmp_path / "job", queue.FifoDiskQueue)
    before = contents(tmp_path)
    chosen = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}
    assert copy(tmp_path / "job", tmp_path / "new", **chosen) == 2
    assert "it holds more requests than its info.json counts" in capsys.readouterr().err
    assert {path for path in contents(tmp_path) if path not in before} == {Path("new")}
    run.close()


@pytest.mark.parametrize("kind", [queue.LifoDiskQueue, queue.LifoSQLiteQueue])
def test_where_nothing_shows_a_kill_the_user_has_to_know(tmp_path, bloom, kind):
    run = killed(tmp_path / "job", kind)
    assert not why_unclean(tmp_path / "job")
    before = contents(tmp_path)
    words = f"copy {tmp_path / 'job'} {tmp_path / 'new'} --spider {SPIDER}"
    code, _, (error,) = bloom(words)
    assert code == 2
    assert "Scrapy does not note whether its last run was stopped or killed" in error
    assert "add --stopped" in error
    assert contents(tmp_path) == before
    run.close()


@pytest.mark.parametrize("goes_to", ["job", "redis"])
def test_what_changes_while_it_is_read_is_not_copied(tmp_path, bloom, server, monkeypatch, goes_to):
    """Scrapy's own scheduler locks nothing: a crawl may have begun meanwhile."""
    job = scrapys(tmp_path / "job", "theirs")
    target = tmp_path / "new" if goes_to == "job" else f"{server.url}#{next(keys)}"

    def read_and_crawl(*arguments):
        yield from stored_requests(*arguments)
        with (job / "requests.seen").open("ab") as stream:
            stream.write(binary(b"a page"))

    with monkeypatch.context() as patch:
        patch.setattr(copy_from, "stored_requests", read_and_crawl)
        code, _, (error,) = bloom(f"copy {job} {target} --spider {SPIDER} --stopped")
    assert (code, "it is changing, so a crawl is running there" in error) == (2, True)
    assert bloom(f"info {target}")[0] == 2
    assert bloom(f"copy {job} {target} --spider {SPIDER} --stopped")[0] == 0


# Everything from everywhere to everywhere


def scrapy_redis_queue(server):
    """Put requests into a queue of scrapy-redis; return its target."""
    key = next(keys)
    for number, url in enumerate(URLS):
        body = pickle.dumps(Request(url).to_dict(), protocol=4)
        server.client().zadd(key, {body: number})
    return f"{server.url}#{key}"


def scrapys(folder, filter_class):
    """Make a job of Scrapy's scheduler, with marks in its filter or in ours."""
    path = scrapys_job(folder, count=0)
    queue_ = queue.LifoDiskQueue(path)
    for url in URLS:
        queue_.push(stored(Request(url)))
    queue_.close()
    marks = [fingerprinter().fingerprint(Request(url)) for url in URLS]
    if filter_class == "ours":
        stored_job(folder, marks)
    else:
        (folder / "requests.seen").write_bytes(b"".join(map(binary, marks)))
    return folder


SOURCES = {
    "a job of Scrapy's": lambda folder, _: scrapys(folder, "theirs"),
    "a job of Scrapy's with our filter": lambda folder, _: scrapys(folder, "ours"),
    "a job of ours": lambda folder, _: kept_job(
        folder,
        known=[fingerprinter().fingerprint(Request(url)) for url in URLS],
        urls=URLS[1:],
        waits=[(URLS[0], 3600)],
        holds=[("busy.test", 300)],
    ),
    "scrapy-redis's queue": lambda _, server: scrapy_redis_queue(server),
}


@pytest.mark.parametrize("goes_to", ["job", "redis"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_crawl_is_copied_with_its_requests_and_its_marks(tmp_path, bloom, server, name, goes_to):
    source = SOURCES[name](tmp_path / "job", server)
    before = contents(tmp_path), everything_in(server)
    target = tmp_path / "new" if goes_to == "job" else f"{server.url}#{next(keys)}"
    by_priority = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
    words = f"copy {source} {target} --spider {SPIDER} --stopped"
    code, (line,), errors = bloom(words, **by_priority)
    assert (code, errors) == (0, [])
    assert line == f"{told(bloom, target)['target']}: 20 pages and 20 requests copied"
    again = bloom(words, **by_priority)
    assert (again[0], "expected nothing" in again[2][0]) == (2, True)
    there = {each["url"] for each in waiting(bloom, target)}
    assert there | ({URLS[0]} if name == "a job of ours" else set()) == {*URLS}
    assert bloom(f"why {target} {' '.join(URLS)}")[0] == 0
    facts = told(bloom, target)
    assert (facts["spider"], facts["account"]["waiting"]) == (SPIDER, 20)
    if name == "a job of ours":
        assert (facts["later"], [*facts["holds"]]) == (1, ["busy.test"])
    old = {path: found for path, found in contents(tmp_path).items() if path.parts[0] != "new"}
    assert old == before[0]
    assert before[1].items() <= everything_in(server).items()
    if goes_to == "job":
        job = open_job(tmp_path / "new", requests=True)
        state = pickle.loads((tmp_path / "new" / "spider.state").read_bytes())
        assert state == ({"page": 7} if name.startswith("a job of Scrapy's") else {})
        job.abandon()


@pytest.mark.parametrize("goes_to", ["job", "redis"])
def test_the_account_of_a_job_is_copied_with_its_failed_list(tmp_path, bloom, server, goes_to):
    job = open_job(tmp_path / "job", requests=True)
    store, failures = job.store, {URLS[1]: ("503", 1), URLS[2]: ("ValueError in parse", 3)}
    for url in URLS[:4]:
        request = Request(url, priority=7, meta={START: b"start of " + url.encode()})
        row = store.push(store.queue("0", None), body := stored(request))
        store.filter.add(fingerprinter().fingerprint(Request(url)))
        if url in failures:
            kind, tries = failures[url]
            store.fail(row, Failed(kind, "why", time.time(), tries, "", body))
    store.meta |= {"done": 5, "redirected": 2, "seen": 9, "statuses": json.dumps({"404": 3})}
    store.starts[b"a start request"] = Start(ended="done 404")
    assert job.close()
    target = tmp_path / "new" if goes_to == "job" else f"{server.url}#{next(keys)}"
    code, (line,), errors = bloom(f"copy {tmp_path / 'job'} {target} --spider {SPIDER}")
    assert (code, errors) == (0, [])
    assert line.endswith("4 pages and 4 requests copied")
    assert told(bloom, target)["account"] == told(bloom, tmp_path / "job")["account"]
    (rows,) = (json.loads("".join(bloom(f"queue {target} --failed --json")[1]))["failed"],)
    assert {row["url"]: (row["reason"], row["tries"]) for row in rows} == failures
    assert {row["message"] for row in rows} == {"why"}
    assert {row["priority"] for row in rows} == {7}
    if goes_to == "redis":
        assert not any(server.client().ttl(name) > 0 for name in everything_in(server))
        key = target.rpartition("#")[2]
        with closing(Link(Server(server.url), 10.0)) as worker:
            reader = Reader(worker, key)
            plan = reader.existing().plan
            assert len({listed.request.id for listed in reader.failed()}) == 2
        with Crawler(server.url, key, **asdict(plan)) as worker:
            worker.exchange(through=True)  # the other one is given up
            assert (worker.queue.worker.counts.waiting, worker.queue.worker.counts.failed) == (3, 1)
        return
    job = open_job(target, requests=True)
    assert job.store.failed.left == 1  # the other one is given up
    assert job.store.failed.take(job.store.starts[b"start of " + URLS[1].encode()].row) is not None
    assert job.store.starts[b"a start request"] == Start(ended="done 404")
    job.abandon()


def told(bloom, target):
    return json.loads("".join(bloom(f"info {target} --json")[1]))


def waiting(bloom, target):
    return json.loads("".join(bloom(f"queue {target} --peek 99 --json")[1]))["first"]


def test_a_filter_without_its_requests_is_not_copied_and_with_them_through_a_link(tmp_path, bloom):
    job, elsewhere = scrapys(tmp_path / "job", "ours"), tmp_path / "elsewhere" / "bloom.sqlite"
    elsewhere.parent.mkdir()
    (job / "bloom.sqlite").rename(elsewhere)
    (job / "bloom.sqlite").symlink_to(elsewhere)
    code, _, (error,) = bloom(f"copy {elsewhere} {tmp_path / 'new'}")
    assert (code, "requests.queue is not as that left it" in error) == (2, True)
    assert bloom(f"copy {job} {tmp_path / 'new'}")[1][0].endswith("20 pages and 20 requests copied")


def test_where_something_is_nothing_is_written(tmp_path, bloom):
    """A job of ours, of Scrapy's, or anything else: what is there would count as the copy's."""
    job = kept_job(tmp_path / "job", known=fingerprints(5))
    for number, name in enumerate(["bloom.sqlite-wal", "requests.queue", "spider.state"]):
        (tmp_path / str(number) / name).mkdir(parents=True)
        before = contents(tmp_path)
        code, _, (error,) = bloom(f"copy {job} {tmp_path / str(number)}")
        assert code == 2
        assert f"/{number}: found {name}, expected nothing" in error
        assert contents(tmp_path) == before


# Killed


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("source", ["job", "theirs"])
def test_a_killed_copy_leaves_its_source_and_no_job(tmp_path, moment, source):
    """The next one is whole."""
    scrapys(tmp_path / "theirs", "theirs")
    known = [fingerprinter().fingerprint(Request(url)) for url in URLS]
    kept_job(tmp_path / "job", known=known, urls=URLS)
    before = contents(tmp_path)
    kill_copy(moment, tmp_path / source, tmp_path / "new")
    left = contents(tmp_path)
    assert {path: left[path] for path in before} == before
    assert not (tmp_path / "new" / "bloom.sqlite").exists()
    assert copy(tmp_path / source, tmp_path / "new") == 0
    job = open_job(tmp_path / "new", requests=True)
    assert (len(job.store), job.restored) == (20, 20)
    job.abandon()
    assert not (tmp_path / "new" / "copying").exists()


def kill_copy(moment, source, target):
    words = ["scrapy", "bloom", "copy", str(source), str(target), "--spider", SPIDER, "--stopped"]
    dies = f"from support.kill_points import die_at; die_at(*{moment.split(':')!r})"
    done = run_line(f"{dies}; from scrapy.cmdline import execute; execute({words!r})")
    assert done.returncode == -9, done.stderr


@pytest.mark.parametrize(
    "moment",
    [
        "scrapy_bloom.commands.copy_to_redis:_add_requests:after:1",
        "scrapy_bloom.commands.copy_to_redis:_copy_slices:after:1",
    ],
)
def test_a_killed_copy_into_redis_is_no_crawl_and_the_next_one_replaces_it(
    tmp_path, bloom, server, moment
):
    job = scrapys(tmp_path / "job", "theirs")
    before = contents(job)
    target = f"{server.url}#{(key := next(keys))}"
    kill_copy(moment, job, target)
    assert contents(job) == before
    assert bloom(f"queue {target}")[0] == 2  # the plan has no requests: no crawl joins it
    there = everything_in(server, key)
    assert len(there) > 2
    code, _, (error,) = bloom(f"copy {job} {target} --spider {SPIDER} --stopped")
    assert (code, "found a filter, expected nothing" in error) == (2, True)  # it has a lease
    server.client().hdel(key, *(name for name in server.client().hkeys(key) if b":" in name))
    assert bloom(f"copy {job} {target} --spider {SPIDER} --stopped")[0] == 0
    slices = {name for name in there if b"." in name}
    assert not slices & everything_in(server, key).keys()
    code, _, (error,) = bloom(f"copy {job} {target} --spider {SPIDER} --stopped")
    assert (code, "found a filter, expected nothing" in error) == (2, True)  # it is whole
