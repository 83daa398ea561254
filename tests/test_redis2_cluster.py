"""Filter and queue in a Redis Cluster of three nodes."""

from __future__ import annotations

import pytest
from support.contract import fingerprints
from support.localcluster import LocalCluster
from support.localredis import keys

from scrapy_bloom.redis.client import Target
from scrapy_bloom.redis.filter import RedisFilter, plans
from scrapy_bloom.redis.queue import Queue
from scrapy_bloom.redis.shard import Entry
from scrapy_bloom.redis.worker import Worker


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster() as cluster:
        yield cluster


def test_a_filter_is_spread_over_the_nodes(cluster, layout):
    key, pages = next(keys), fingerprints(3000)
    with RedisFilter.from_url(
        cluster.url, key=key, layout=layout, shards=5, timeout=10.0, capacity=1000
    ) as seen:
        assert seen.add_many(pages) == [False] * 3000
        assert seen.add_many(pages) == [True] * 3000
        assert seen.forget_many(pages[:10]) == [True] * 10
        assert seen.info().items == 2990
        having = [node for node in cluster.nodes if node.client().keys(f"{key}*")]
        assert len(having) > 1
        assert seen.delete()


def test_requests_are_taken_from_all_nodes(cluster):
    worker = Worker(Target(cluster.url), 10.0)
    queue = Queue(worker, next(keys), plans(shards=5, order="fifo", project="p", spider="s"))
    queue.open()
    for number in range(100):
        queue.offer(Entry("f", b"%20d" % number, b"%d" % number))
    bodies = set()
    while len(bodies) < 100:
        exchange = queue.prepare(20)
        queue.carry_out(exchange)
        settled = queue.settle(exchange)
        assert settled.error is None
        for ticket, taken in settled.taken:
            bodies.add(int(taken.body))
            queue.done(ticket)
    assert bodies == set(range(100))
    while queue.burdened:
        exchange = queue.prepare(0)
        queue.carry_out(exchange)
        queue.settle(exchange)
    for _ in range(2):
        exchange = queue.prepare(0, look=True)
        queue.carry_out(exchange)
        queue.settle(exchange)
        over = queue.is_over()
    assert over
    queue.close()
