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
