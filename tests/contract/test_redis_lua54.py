"""The scripts in Lua 5.4, as Dragonfly has it."""

from __future__ import annotations

import pytest
from support.contract import fingerprints
from support.layouts import plans
from support.localredis import keys
from support.lua54 import Lua54Target

from scrapy_bloom.options import OnBackendError
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.queue import SharedQueue
from scrapy_bloom.redis.shard import Entry
from scrapy_bloom.redis.worker import Worker


@pytest.mark.parametrize("options", [{"window": 3600}, {"layout": "sets", "error_rate": 1e-13}])
def test_a_filter_does_the_same(server, options):
    pages = fingerprints(700)
    made_for = plans(**({"capacity": 150, "error_rate": 1e-9} | options))
    seen = RedisFilter(
        *(Lua54Target(server.url), next(keys), made_for),
        on_error=OnBackendError.CLOSE,
        timeout=60.0,
        known=0,
    )
    with seen:
        assert seen.add_many(pages) == [False] * 700
        assert seen.add_many(pages) == [True] * 700
        assert seen.forget_many(pages[:5]) == [True] * 5
        assert seen.contains_many(pages) == [False] * 5 + [True] * 695
        assert seen.add_many(pages[:5]) == [False] * 5
        assert [seen.add_aged(pages[7], 60) for _ in range(2)] == [False, True]
        seen.shards[0].beat()
        assert seen.delete()


def test_a_queue_does_the_same(server):
    queue = SharedQueue(Worker(Lua54Target(server.url), 60.0), next(keys), plans(order="lifo"))
    queue.open()
    for number in range(30):
        queue.offer(Entry("f", b"%20d" % number, b"%d" % number, number % 3))
    bodies = []

    def exchange(want):
        made = queue.prepare(want, look=True)
        queue.carry_out(made)
        settled = queue.settle(made)
        assert settled.error is None
        for taken in settled.taken:
            bodies.append(int(taken.body))
            queue.done(taken)

    for want in (10, 10, 10, 0):
        exchange(want)
    assert bodies == sorted(range(30), key=lambda number: (-(number % 3), -number))
    assert queue.is_over()
    queue.close()
