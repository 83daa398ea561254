"""A job directory behind the port, without an engine, and Scrapy's queues over its rows."""

import sqlite3
import threading
import tracemalloc
from collections import defaultdict
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.squeues import FifoMemoryQueue, PickleFifoDiskQueue, PickleLifoDiskQueue
from scrapy.utils.test import get_crawler
from support.backends import HOUR, Moved
from support.contract import lines_of
from support.internals import database_of, store_of

from scrapy_bloom import stats
from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.crawl import later as waiting
from scrapy_bloom.crawl.scrapy.downloads import order_slots
from scrapy_bloom.local import backend as local_backend
from scrapy_bloom.local import later, log
from scrapy_bloom.local import queue as queues
from scrapy_bloom.local.job import Job
from scrapy_bloom.local.later import stored_pauses, stored_requests
from scrapy_bloom.local.log import Log
from scrapy_bloom.local.queue import Queues
from scrapy_bloom.local.store import Store


def spoil_one(in_job):
    """Damage the first request that is stored."""
    with closing(sqlite3.connect(in_job.folder / "bloom.sqlite")) as other, other:
        other.execute("UPDATE requests SET crc = 0 WHERE id = (SELECT min(id) FROM requests)")


# Exchanges


async def test_what_takes_long_is_done_beside_the_event_loop(in_job, monkeypatch):
    """A filter for 100,000,000 pages is read and written for seconds. A long log is copied."""
    threads = defaultdict(set)
    monkeypatch.setattr(local_backend, "SMALL", -1)
    monkeypatch.setattr(log, "LOG_BYTES", 50_000)

    def note(owner, name):
        do = getattr(owner, name)

        def call(*arguments, **options):
            threads[do].add(threading.current_thread())
            return do(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    for name in "_check", "open", "begin", "close":
        note(Job, name)
    note(Queues, "read_waiting")
    note(Log, "checkpoint")
    run = await in_job.open()
    for number in range(50):
        await run.offer(str(number), filtered=False, body=bytes(10_000))
        await run.exchange()
    await run.stop()
    assert len(threads) == 6
    assert sum(map(len, threads.values())) > 8  # the log was copied more than three times
    assert threading.current_thread() not in set().union(*threads.values())


# Runs


async def test_a_start_request_that_cannot_be_read_any_more_does_not_stand_for_a_good_one(in_job):
    run = await in_job.open(Moved, starts=True)
    await run.offer("s", filtered=False, errback=run.crawl.spider.parse_page)
    await run.say()
    await in_job.kill()
    run = await in_job.open(starts=True)
    await run.offer("s", filtered=False)
    assert await run.take() == ["s"]


@pytest.mark.parametrize("order", [PickleFifoDiskQueue, PickleLifoDiskQueue])
async def test_what_has_failed_comes_behind_all_that_waits_or_is_found_until_then(in_job, order):
    in_job.disk, bad, fetched = order, ["bad0", "bad1", "bad2"], []
    run = await in_job.open()
    await run.offer(*bad, priority=5)
    await run.take()
    run.fail(*bad)
    await run.offer(*"0123")
    await run.stop()
    run = await in_job.open()
    while (found := run.backend.take()) is not None:
        page = found[0].url.rpartition("/")[2]
        fetched.append(page)
        if page in ("0", "bad0", "bad1"):  # a page has links
            await run.offer(f"from-{page}")
    assert {*fetched[:5]} == {"0", "1", "2", "3", "from-0"}
    assert fetched[5:] == ["bad0", "from-bad0", "bad1", "from-bad1", "bad2"]
    assert run.backend.over


# What must not be sent yet: rows that wait, through stops, kills and changed clocks


@pytest.mark.parametrize(("shift", "left"), [(5, 5), (-30, 10)])
async def test_what_waits_waits_on_in_the_next_run(in_job, shift, left):
    """A clock that was set back while no crawl ran costs at most the wait."""
    run = await in_job.open()
    await run.offer("a", wait=10 * HOUR)
    run.backend.pause_host(run.request("b", host="b"), 20 * HOUR)
    await run.say()
    await in_job.kill()
    wall = in_job.real[1]
    in_job.real = in_job.real[0], lambda: wall() + shift * HOUR  # the other clock begins anew
    run = await in_job.open()
    assert len(run.backend) == run.backend.later == 1
    for hours, names, held in ((left - 1, [], True), (2, ["a"], True), (10, [], False)):
        in_job.wait(hours * HOUR)
        assert await run.take() == names
        assert bool(run.backend.paused_until(run.request("b", host="b"))) is held


async def test_many_slots_that_are_left_alone_cost_nothing(in_job):
    """Each pause wrote all of them, and each request that was taken hid them and showed them."""
    in_job.queue, sizes, lines = DownloaderAwarePriorityQueue, [], []
    run = await in_job.open()
    backend, stored = run.backend, store_of(run.backend)
    for many in (1, 1000):
        for number in range(many):
            await run.offer("a", host=f"held-{many}-{number}", filtered=False)
            backend.pause_host(run.request("a", host=f"held-{many}-{number}"), HOUR)
        await run.say()
        before = {*stored.meta.items()}
        backend.pause_host(run.request("a", host="another"), (1 + many) * HOUR)
        sizes.append(sum(len(note) for _, note in {*stored.meta.items()} - before))
        await run.offer("a", host="free", filtered=False)
        lines.append(lines_of((waiting, later, queues), backend.take))
    assert sizes[1] < 20 * sizes[0]
    assert lines[1] == lines[0]
    assert len(stored_pauses(stored.meta)) == 1002


async def test_what_is_put_aside_is_bounded_and_in_nobodys_way(in_job, monkeypatch):
    run = await in_job.open()
    names = [*map(str, range(150))]
    await run.offer(*names)
    await run.offer("free", host="b")
    run.backend.pause_host(run.request("a"), HOUR)
    assert run.backend.take() is None  # so many have been put aside that the event loop must go on
    assert (run.backend.later, len(run.backend)) == (100, 151)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "commit", Mock(side_effect=sqlite3.OperationalError("full")))
        assert not await run.backend.exchange(busy=False, in_memory=False)
    assert run.backend.take()[0].url == "http://b.test/free"
    assert (run.backend.later, len(run.backend)) == (150, 150)
    in_job.wait(2 * HOUR)
    assert sorted(await run.take(), key=int) == names


async def test_what_cannot_be_read_stays_and_is_listed(in_job):
    run = await in_job.open()
    for name, priority in ("a", 0), ("b", 2**70), ("c", -5):
        await run.offer(name, wait=HOUR, priority=priority)
    await run.say()
    spoil_one(in_job)
    listed = [*stored_requests(store_of(run.backend))]
    assert [each.body is None for each in listed] == [True, False, False]
    assert [each.priority for each in listed[1:]] == [2**63 - 1, -5]
    await in_job.kill()
    run = await in_job.open()
    in_job.wait(2 * HOUR)
    assert await run.take() == ["b", "c"]
    assert run.crawler.stats.get_value(stats.UNREADABLE.key) == 1
    run.end("b", "c")
    await run.say()
    assert len(store_of(run.backend)) == 1


async def test_what_cannot_be_read_waits_and_is_not_in_flight(in_job):
    def told():
        account = LocalTarget(in_job.folder, None).look()["account"]
        return account["waiting"], account["in_flight"]

    run = await in_job.open()
    await run.offer("a", "b")
    await run.say()
    await in_job.kill()
    spoil_one(in_job)
    run = await in_job.open()
    assert len(await run.take()) == 1
    await run.offer("c")
    await run.say()
    assert told() == (2, 1)
    await in_job.kill()
    assert told() == (3, 0)  # nobody has it any more


async def test_a_row_that_is_missing_is_damage(in_job):
    run = await in_job.open()
    await run.offer("a", wait=HOUR)
    await run.say()
    database_of(store_of(run.backend)).execute("DELETE FROM requests")
    in_job.wait(2 * HOUR)
    assert run.backend.take() is None
    assert run.backend.broken


# Scrapy's priority queues


@pytest.mark.parametrize("base", [DownloaderAwarePriorityQueue, ScrapyPriorityQueue])
async def test_a_priority_queue_may_want_to_wait(in_job, base):
    """It was asked again without end: nothing else ran any more, not even a signal handler."""

    class Waits(base):
        waits = 3

        def pop(self):
            self.waits -= 1
            assert self.waits > -9
            return super().pop() if self.waits < 0 else None

    in_job.queue = Waits
    run = await in_job.open()
    await run.offer("a")
    assert [run.backend.take() for _ in range(3)] == [None] * 3
    assert len(run.backend) == 1
    assert run.backend.pending()
    assert await run.take(1) == ["a"]


@pytest.mark.parametrize("disk", [PickleFifoDiskQueue, PickleLifoDiskQueue])
async def test_what_waits_is_on_disk_however_large(in_job, disk):
    """Requests were read ahead by their number, so that large ones filled the memory."""
    in_job.disk, names = disk, [*map(str, range(40))]
    run = await in_job.open()
    tracemalloc.start()
    for number, name in enumerate(names):
        await run.offer(name, host=f"{number % 2}", meta={"page": bytes(200_000)})
        await run.say()
    first = names[:4] if disk is PickleFifoDiskQueue else names[-4:]
    for _ in range(2):
        assert sorted(await run.take(4), key=int) == first
        run.have.clear()
        await in_job.kill()
        run = await in_job.open()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000  # four requests, the filter, and what SQLite gives


def slot_queue(hidden=(), *, ordered=True):
    """Return Scrapy's queue by slots, and how many requests of each are in flight."""
    crawler, slots = get_crawler(Spider), defaultdict(lambda: SimpleNamespace(active=[]))
    downloader = SimpleNamespace(slots=slots, get_slot_key=lambda request: request.url[7:-1])
    crawler.engine = SimpleNamespace(downloader=downloader)
    queue = DownloaderAwarePriorityQueue.from_crawler(crawler, FifoMemoryQueue, "")
    if ordered:
        assert order_slots(queue, hidden)
    return queue, slots


@given(st.data())
@settings(max_examples=60)
def test_scrapys_own_queue_by_slots_takes_in_scrapys_order(data):
    """It is not asked to look at each slot, which took four times as long with 1,000 of them."""
    hidden = set()
    both = [slot_queue(hidden, ordered=ordered) for ordered in (True, False)]
    (ours, _), (plain, _) = both
    for _ in range(data.draw(st.integers(1, 60))):
        slot = data.draw(st.sampled_from("abcdefgh"))
        what = data.draw(st.sampled_from(["push", "pop", "pop", "hide", "busy"]))
        request, active = Request(f"http://{slot}/"), range(data.draw(st.integers(0, 2)))
        if what == "pop":
            aside = {each: plain.pqueues.pop(each) for each in hidden & {*plain.pqueues}}
            assert ours.pop() is plain.pop()
            assert ours.peek() is plain.peek()
            plain.pqueues |= aside
        elif what == "hide":
            hidden ^= {slot}
        for queue, slots in both:
            if what == "push":
                queue.push(request)
            elif what == "busy":
                slots[slot].active = active
    assert len(ours) == len(plain)


def test_a_take_looks_at_few_slots_however_many_there_are():
    (queue, slots), asked = slot_queue(), []
    for number in range(1_000):
        queue.push(Request(f"http://{number:03}/"))
    for number in range(9):
        slots[f"{number:03}"].active = [1]

    class Counted(dict):
        def __contains__(self, slot):
            asked.append(slot)
            return super().__contains__(slot)

    queue.crawler.engine.downloader.slots = Counted(slots)
    for _ in range(900):
        queue.pop()
    assert len(asked) < 900 * 30
