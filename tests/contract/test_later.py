"""What must not be sent yet in a job: rows that wait, through stops, kills and changed clocks."""

import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest
from scrapy import Request, Spider
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.squeues import PickleFifoDiskQueue
from scrapy.utils.test import get_crawler
from support.internals import database_of
from support.lines import lines_of

from scrapy_bloom.crawl import later
from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local import later as module
from scrapy_bloom.local import queue
from scrapy_bloom.local.later import stored_holds, stored_requests
from scrapy_bloom.local.queue import QueueClasses, Queues
from scrapy_bloom.local.store import Store


def slot_of(request):
    return request.meta.get("slot", "a")


class Job:
    """A job whose clocks are set by a test."""

    def __init__(self, path, monkeypatch, priority=ScrapyPriorityQueue):
        self.priority = priority
        self.path, self.now, self.date = path, 1000.0, 1_700_000_000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module.time, "time", lambda: self.date)
        self.crawler = get_crawler(Spider)
        downloader = SimpleNamespace(slots={}, get_slot_key=slot_of)
        self.crawler.engine = SimpleNamespace(downloader=downloader)
        self.store = None
        self.open()

    def open(self):
        kind = QueueKind.of("", PickleFifoDiskQueue)
        self.store = Store(self.path, LocalFilter())
        classes = QueueClasses(self.priority, kind, None)
        engine = SimpleNamespace(slot_of=slot_of)
        self.queues = Queues(self.crawler, Spider("spider"), engine, self.store, classes)
        self.queues.read_waiting()

    def pass_time(self, seconds):
        self.now, self.date = self.now + seconds, self.date + seconds

    def push(self, *names, wait):
        for name in names:
            request = Request(f"http://a/{name}")
            assert self.queues.push(request, self.now + wait)

    def pop(self):
        """Return the names of all requests that may be sent, in order."""
        names = []
        while (taken := self.queues.pop()) is not None:
            names.append(taken[0].url.rpartition("/")[2])
            self.store.delete(taken[1].row)
        return names

    def kill(self):
        """Lose what was not committed, and open the job again."""
        self.store.abandon()
        self.open()


@pytest.fixture
def job(tmp_path, monkeypatch):
    job = Job(tmp_path / "bloom.sqlite", monkeypatch)
    yield job
    job.store.abandon()


@pytest.mark.parametrize(("shift", "left"), [(5, 5), (-3600, 10)])
def test_what_waits_waits_on_in_the_next_run(job, shift, left):
    """A clock that was set back while no crawl ran costs at most the wait."""
    job.push("a", wait=10)
    job.queues.hold("b", 20)
    job.store.commit()
    job.kill()
    assert len(job.store) == job.queues.later == 1
    job.date += shift  # the other clock begins anew
    job.kill()
    assert stored_holds(job.store.meta) == {"b": job.date + left + 10}
    job.pass_time(left - 0.1)
    assert job.pop() == []
    job.pass_time(0.2)
    assert job.pop() == ["a"]
    assert job.queues.held == ["b"]
    job.pass_time(10)
    assert job.queues.held == []


def test_many_slots_that_are_left_alone_cost_nothing(tmp_path, monkeypatch):
    """Each hold wrote all of them, and each request that was taken hid them and showed them."""
    job = Job(tmp_path / "bloom.sqlite", monkeypatch, DownloaderAwarePriorityQueue)
    sizes, lines = [], []
    for count in (1, 1000):
        for number in range(count):
            held = f"held-{count}-{number}"
            assert job.queues.push(Request("http://a/", meta={"slot": held}))
            job.queues.hold(held, 10)
        job.store.commit()
        before = set(job.store.meta.items())
        job.queues.hold("another", 10 + count)
        sizes.append(sum(len(note) for _, note in {*job.store.meta.items()} - before))
        assert job.queues.push(Request("http://a/", meta={"slot": "free"}))
        lines.append(lines_of((later, module, queue), job.queues.pop))
    assert sizes[1] < 20 * sizes[0]
    assert lines[1] == lines[0]
    assert len(stored_holds(job.store.meta)) == 1002
    job.store.abandon()


def test_what_is_put_aside_is_bounded_and_moves_in_portions(job):
    for number in range(150):
        assert job.queues.push(Request(f"http://a/{number}"))
    job.queues.hold("a", 20)
    for count in 100, 150:
        assert job.queues.pop() is None
        assert (job.queues.later, len(job.store)) == (count, 150)
    job.pass_time(21)
    assert sorted([*job.pop(), *job.pop(), *job.pop()], key=int) == [*map(str, range(150))]


def test_what_cannot_be_read_stays_and_is_listed(job):
    job.push("a", "b", wait=10)
    job.store.commit()
    with closing(sqlite3.connect(job.path)) as other:
        other.execute(
            "UPDATE requests SET body = zeroblob(99) WHERE id = (SELECT min(id) FROM requests)"
        )
        other.commit()
    assert [each.body is None for each in stored_requests(job.store)] == [True, False]
    job.kill()
    job.pass_time(11)
    assert job.pop() == ["b"]
    (error,) = job.queues.unreadable
    assert "checksum" in str(error)
    assert len(job.store) == 1


def test_a_row_that_is_missing_is_damage(job):
    job.push("a", wait=10)
    job.store.commit()
    database_of(job.store).execute("DELETE FROM requests")
    job.pass_time(11)
    with pytest.raises(sqlite3.DatabaseError, match="missing"):
        job.queues.move_due()


def test_priorities_are_kept(job):
    for priority in (-5, 7, 2**70):
        assert job.queues.push(Request("http://a/", priority=priority), job.now + 5)
    assert [each.priority for each in stored_requests(job.store)] == [-5, 7, 2**63 - 1]
