"""Looking at a filter in Redis: it must be there, and nothing of it changes."""

from __future__ import annotations

import pytest
from support.contract import fingerprints
from support.localredis import LocalRedis
from support.queues import Crawler
from support.waiting import until

from scrapy_bloom import RedisFilter, StateError
from scrapy_bloom.redis.client import Target
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.worker import Worker


def everything(server):
    client = server.client()
    return {name: client.dump(name) for name in client.scan_iter()}


def reader(url, key):
    worker = Worker(Target(url), 10.0)
    worker.connect()
    return Reader(worker, key)


def test_it_tells_what_the_filter_does_and_changes_nothing(server, key, layout):
    shards = 3
    sizes = {"capacity": 1000, "error_rate": 1e-6, "shards": shards, "layout": layout}
    sizes |= {"window": 3600}
    with RedisFilter.from_url(server.url, key=key, **sizes) as seen:
        seen.add_many(fingerprints(3000))
        told = seen.info()
    before = everything(server)
    look = reader(server.url, key)
    assert look.info() == told
    assert told.items == 3000
    assert told.generations == 1
    states = look.shards()
    assert [state.plan.shard for state in states] == list(range(shards))
    assert all(state.plan.shards == shards and state.plan.layout == layout for state in states)
    assert not any(state.leases for state in states)
    assert everything(server) == before


def test_it_shows_the_requests_in_their_order_and_who_has_a_lease(server, key):
    with Crawler(server.url, key, order="lifo") as worker:
        worker.offer(*range(250))
        worker.say()
        worker.take(10)
        (state,) = reader(server.url, key).shards()
        assert (state.waiting, state.taken, state.failed) == (240, 10, 0)
        assert len(state.leases) == 1
        now = server.client().time()[0]
        assert all(now < lease < now + 40 for lease in state.leases.values())
        waiting = reader(server.url, key).requests("queue")
        assert [int(one.body) for one in waiting] == [*range(239, -1, -1)]
    (state,) = reader(server.url, key).shards()
    assert (state.waiting, state.taken, state.leases) == (250, 0, {})


def test_a_key_without_a_filter_stays_without_one(server, key):
    with RedisFilter.from_url(server.url, key=key) as seen:
        seen.add(b"x")
        assert seen.delete()
    before = everything(server)
    assert reader(server.url, key).shards() == []
    with pytest.raises(StateError, match="found no filter under"):
        reader(server.url, key).info()
    assert everything(server) == before


def test_a_replica_will_do(key):
    with LocalRedis() as primary, LocalRedis() as replica:
        replica.client().replicaof(primary.HOST, primary.port)
        with RedisFilter.from_url(primary.url, key=key) as seen:
            seen.add(b"x")
            until(
                lambda: replica.client().hget(key, "slices") == primary.client().hget(key, "slices")
            )
            assert reader(replica.url, key).info().items == 1
