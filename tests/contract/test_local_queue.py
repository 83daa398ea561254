"""Scrapy's priority queues over the rows of a job, without a crawl."""

import tracemalloc
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.squeues import FifoMemoryQueue, PickleFifoDiskQueue, PickleLifoDiskQueue
from scrapy.utils.test import get_crawler

from scrapy_bloom.crawl.scrapy.downloads import order_slots, put_slot, take_slot
from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local.queue import QueueClasses, Queues
from scrapy_bloom.local.store import Store


@pytest.fixture
def make(tmp_path):
    """Return a function that opens the queues of a job, which ends as by a kill."""
    opened = []

    def make(priority=DownloaderAwarePriorityQueue, disk=PickleFifoDiskQueue):
        for queues in opened:
            queues.store.abandon()
        store = Store(tmp_path / "bloom.sqlite", LocalFilter())
        crawler = get_crawler(Spider)
        engine = SimpleNamespace(slot_of=lambda request: request.url.split("/")[2])
        downloader = SimpleNamespace(slots={}, get_slot_key=engine.slot_of)
        crawler.engine = SimpleNamespace(downloader=downloader)
        classes = QueueClasses(priority, QueueKind.of("", disk), None)
        opened[:] = [Queues(crawler, Spider("spider"), engine, store, classes)]
        return opened[0]

    yield make
    opened[0].store.abandon()


@pytest.mark.parametrize("base", [DownloaderAwarePriorityQueue, ScrapyPriorityQueue])
def test_a_priority_queue_may_want_to_wait(make, base):
    """It was asked again without end: nothing else ran any more, not even a signal handler."""

    class Waits(base):
        waits = 3

        def pop(self):
            self.waits -= 1
            assert self.waits > -9
            return super().pop() if self.waits < 0 else None

    queues = make(Waits)
    assert queues.push(Request("http://a/"))
    assert [queues.pop() for _ in range(3)] == [None] * 3
    assert len(queues) == queues.ready == 1
    request, _ = queues.pop()
    assert request.url == "http://a/"


@pytest.mark.parametrize("disk", [PickleFifoDiskQueue, PickleLifoDiskQueue])
def test_what_waits_is_on_disk_however_large(make, disk):
    """Requests were read ahead by their number, so that large ones filled the memory."""
    queues = make(ScrapyPriorityQueue, disk)
    tracemalloc.start()
    for number in range(40):
        meta = {"page": bytes(200_000), "number": number}
        assert queues.push(Request(f"http://{number % 2}/", meta=meta))
        queues.store.commit()
    first = range(10) if disk is PickleFifoDiskQueue else range(30, 40)
    for _ in range(2):
        assert sorted(queues.pop()[0].meta["number"] for _ in range(10)) == [*first]
        queues = make(ScrapyPriorityQueue, disk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3_000_000  # the filter, and what SQLite gives


@given(st.data())
@settings(max_examples=60)
def test_scrapys_own_queue_by_slots_takes_in_scrapys_order(data):
    """It is not asked to look at each slot, which took four times as long with 1,000 of them."""
    ours, plain = (slot_queue(DownloaderAwarePriorityQueue, ordered) for ordered in (True, False))
    for _ in range(data.draw(st.integers(1, 60))):
        slot = data.draw(st.sampled_from("abcdefgh"))
        match data.draw(st.sampled_from(["push", "pop", "pop", "rest", "busy"])):
            case "push":
                request = Request(f"http://{slot}/")
                ours.push(request)
                plain.push(request)
            case "pop":
                taken = [queue.pop() for queue in (ours, plain)]
                assert taken[0] is taken[1]
                assert ours.peek() is plain.peek()
            case "rest":  # and is served again
                for queue in (ours, plain):
                    put_slot(queue, slot, take_slot(queue, slot))
            case "busy":
                busy = SimpleNamespace(active=range(data.draw(st.integers(0, 2))))
                for queue in (ours, plain):
                    queue.crawler.engine.downloader.slots[slot] = busy
    assert len(ours) == len(plain)


def test_a_take_looks_at_few_slots_however_many_there_are():
    queue = slot_queue(DownloaderAwarePriorityQueue, ordered=True)
    downloader, asked = queue.crawler.engine.downloader, []
    for number in range(1_000):
        queue.push(Request(f"http://{number:03}/"))
    downloader.slots = CountedSlots(
        asked, {f"{n:03}": SimpleNamespace(active=[1]) for n in range(9)}
    )
    for _ in range(900):
        queue.pop()
    assert len(asked) < 900 * 30


class CountedSlots(dict):
    def __init__(self, asked, slots):
        super().__init__(slots)
        self.asked = asked

    def __contains__(self, slot):
        self.asked.append(slot)
        return super().__contains__(slot)


def slot_queue(cls, ordered):
    crawler = get_crawler(Spider)
    downloader = SimpleNamespace(slots={}, get_slot_key=lambda request: request.url.split("/")[2])
    crawler.engine = SimpleNamespace(downloader=downloader)
    queue = cls.from_crawler(crawler, FifoMemoryQueue, "")
    if ordered:
        order_slots(queue)
    return queue
