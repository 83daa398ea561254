"""Scrapy's queues and its requests.seen, in all their formats, read when a job is taken over."""

import itertools
import os
import shutil
import sqlite3
import struct
import tracemalloc
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queuelib import queue
from scrapy import squeues
from scrapy.squeues import PickleLifoDiskQueue
from support.contract import share_of
from support.filters import contents
from support.jobs import identity_of, lifo, stored_job

from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.errors import StateError
from scrapy_bloom.local.job import REQUESTS, Job
from scrapy_bloom.local.scrapys import read_queue, why_unclean
from scrapy_bloom.local.taking_over import take_over
from scrapy_bloom.settings import Settings


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
def test_every_mark_is_taken_over_and_none_is_invented(folder, records, cut):
    """Whichever version of Scrapy wrote it, also if its last record was cut off by a full disk."""
    job = taken_over(folder, b"".join(write(mark) for write, mark in records), cut)
    ends = [*itertools.accumulate(len(write(mark)) for write, mark in records)]
    left = ends[-1] - cut if records else 0
    whole = [mark for end, (_, mark) in zip(ends, records, strict=True) if end <= left]
    assert all(one in job.store.filter for one in whole)
    assert job.restored <= len({mark for _, mark in records})
    assert len(job.store) == 10
    job.abandon()


def taken_over(folder, seen, cut):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    lifo(folder / "requests.queue" / "0")
    (folder / "requests.seen").write_bytes(seen[: max(0, len(seen) - cut)])
    (folder / "requests.queue" / "active.json").write_text("[0]")
    (folder / "spider.state").write_bytes(b"state")
    job = taken_over_by(folder)
    assert not (folder / "requests.seen").exists()
    assert not (folder / "requests.queue").exists()
    return job


def taken_over_by(folder):
    job = Job(folder, identity_of(), REQUESTS)
    chosen, kind = Settings({}), QueueKind.of("", PickleLifoDiskQueue)
    take_over(job, chosen, kind, None, digests=True)
    job.open(chosen, digests=True)
    return job


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


def test_a_large_queue_is_never_in_memory_as_a_whole(tmp_path):
    path, size = tmp_path / "requests.queue" / "0", 40_000_000
    lifo(path, count=400, body=bytes(size // 400))
    (path.parent / "active.json").write_text("[0]")
    (tmp_path / "spider.state").touch()
    tracemalloc.start()
    try:
        job = taken_over_by(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < size / 4
    finally:
        tracemalloc.stop()
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


def test_marks_never_stay_without_their_requests(folder, monkeypatch):
    """Else a crawl that goes back to Scrapy's own scheduler would not fetch their pages."""
    remove = shutil.rmtree

    def removing(path, **keywords):
        if path.name == "requests.queue":
            raise SystemExit  # as a kill
        remove(path, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", removing)
        with pytest.raises(SystemExit):
            taken_over(folder, binary(b"a mark"), 0)
    assert (folder / "requests.queue" / "0").exists()
    assert not (folder / "requests.seen").exists()
    assert (folder / "bloom.sqlite").exists()


def test_a_filter_whose_log_is_in_use_is_not_replaced(tmp_path):
    """SQLite would apply the log to the new file."""
    path = stored_job(tmp_path, [])
    lifo(tmp_path / "requests.queue" / "0")
    (tmp_path / "requests.queue" / "active.json").write_text("[0]")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM counters").fetchone()
        stored_job(tmp_path, [b"a mark"])
        with pytest.raises(StateError, match="-wal: found a log"):
            taken_over_by(tmp_path)
        reader.execute("COMMIT")
        assert (tmp_path / "requests.queue" / "active.json").exists()
        log = path.with_name(f"{path.name}-wal").read_bytes()
    path.with_name(f"{path.name}-wal").write_bytes(log)  # as a reader leaves it that may not write
    job = taken_over_by(tmp_path)
    assert (len(job.store), job.restored) == (10, 1)
    job.abandon()
