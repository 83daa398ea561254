"""Defects that an earlier design had, each as it was found, where no other test shows it."""

from __future__ import annotations

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from support.internals import stop_beating
from support.layouts import plans
from support.leases import all_are_well, shift_leases
from support.proxy import Proxy
from support.queues import Crawler, left, mark_of

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.redis.client import Target
from scrapy_bloom.redis.queue import SharedQueue
from scrapy_bloom.redis.shard import Entry
from scrapy_bloom.redis.worker import LEASE, Worker


@pytest.mark.parametrize(("seconds", "dead"), [(13, False), (LEASE + 1, True)])
def test_a_callback_may_hold_the_gil_for_13_s(server, key, seconds, dead):
    """Such a page was fetched ten times, and then put aside."""
    with Crawler(server.url, key) as one, Crawler(server.url, key) as two:
        one.offer("a")
        one.say()
        assert two.take(1) == ["a"]
        stop_beating(two.queue.worker)
        shift_leases(server, key, -seconds, two.queue.shards[0].name)
        all_are_well(server, key)
        one.queue.shards[0].beat()
        assert one.take(1) == (["a"] if dead else [])
        if not dead:
            two.done()
            two.say()
            assert left(server, key)[1] == 0


class SlowLink(Proxy):
    """4 MB go over it in a second."""

    def fault(self, request):
        self.delay = len(request) / 4e6
        return super().fault(request)


def test_large_requests_come_over_a_slow_link(server, key):
    """In one call they did not come through in its time: the crawl stood still, and was closed."""
    with SlowLink(server.port) as link:
        queue = SharedQueue(Worker(Target(link.url), 2.0), key, plans(order="fifo"))
        queue.open()
        for number in range(199):
            body = b"%d" % number + bytes(100_000)
            queue.offer(Entry("f", mark_of(number), body, source=number))
        new = []
        for _ in range(60):  # a third of that will do
            exchange = queue.prepare(0)
            queue.carry_out(exchange)
            new += [entry.source for entry, seen in queue.settle(exchange).verdicts if not seen]
            if not queue.burdened:
                break
        assert sorted(new) == [*range(199)]
        queue.close()


def test_a_flush_hides_no_page_whose_request_it_took_along(server):
    """With scrapy-redis's scheduler the queue is flushed, too: what a worker knew hid its pages."""
    server.client().flushall()
    crawler = get_crawler(Spider, {"BLOOM_REDIS_URL": server.url, "BLOOM_REDIS_TIMEOUT": 10})
    crawler.spider = Spider("one")
    crawler.spider.crawler = crawler
    seen = BloomDupeFilter.from_spider(crawler.spider)
    request = Request("http://localhost/")
    assert [seen.request_seen(request) for _ in range(3)] == [False, True, True]
    server.client().flushall()
    assert [seen.request_seen(request) for _ in range(2)] == [False, True]
    seen.close("finished")
