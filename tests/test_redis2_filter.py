"""The Redis filter: the contract, on a real server, in both layouts, with a window and with
shards."""

from __future__ import annotations

import os
from types import MappingProxyType

import pytest
from support.contract import FilterContract, fingerprints
from support.localredis import keys
from support.waiting import until

from scrapy_bloom.errors import FilterLostError, StateError
from scrapy_bloom.redis.client import Target
from scrapy_bloom.redis.filter import RedisFilter, plans


@pytest.fixture
def opened():
    """Open filters that are closed after the test."""
    filters = []

    def opened(server, key=None, **options):
        url = server if isinstance(server, str) else server.url
        usual = {"capacity": 10_000, "error_rate": 1e-9, "timeout": 10.0}
        filters.append(RedisFilter.from_url(url, key=key or next(keys), **(usual | options)))
        return filters[-1]

    yield opened
    for seen in filters:
        seen.close()


def without_memory(url, key, **options):
    """Open a filter that asks the server each time."""
    return RedisFilter(Target(url), key, plans(**options), timeout=10.0, known=0)


class TestRedisFilter(FilterContract):
    OPTIONS = MappingProxyType({})

    @pytest.fixture
    def make(self, server, opened, layout):
        def make(**sizes):
            usual = {"capacity": 1_000_000, "error_rate": 1e-6, "layout": layout}
            return opened(server, **(usual | self.OPTIONS | sizes))

        return make

    def test_it_grows_and_forgets_nothing(self, make):
        seen = make(capacity=self.SMALL, error_rate=1e-6)
        known = fingerprints(20 * self.SMALL)
        for start in range(0, len(known), self.SMALL):
            seen.add_many(known[start : start + self.SMALL])
            assert all(seen.contains_many(known[: start + self.SMALL : 37]))
        assert all(seen.contains_many(known))
        info = seen.info()
        assert info.slices > 2
        assert info.items == len(known)
        assert len(known) <= info.capacity <= 4 * len(known)


class TestWithAWindow(TestRedisFilter):
    OPTIONS = MappingProxyType({"window": 3600.0})


class TestShards(TestRedisFilter):
    OPTIONS = MappingProxyType({"shards": 3})

    test_info_tells_what_went_in = None  # each shard has some capacity to spare


class TestWithoutMemory(FilterContract):
    @pytest.fixture
    def make(self, server, layout):
        filters = []

        def make(**sizes):
            filters.append(without_memory(server.url, next(keys), **{"layout": layout, **sizes}))
            return filters[-1]

        yield make
        for seen in filters:
            seen.close()

    test_it_grows_and_forgets_nothing = TestRedisFilter.test_it_grows_and_forgets_nothing


def test_two_workers_are_granted_each_page_once(server, opened, key, layout):
    one, two = (opened(server, key, layout=layout) for _ in range(2))
    known = fingerprints(3000)
    granted = one.add_many(known[:2000]) + two.add_many(known) + one.add_many(known)
    assert granted.count(False) == 3000


def test_what_raised_or_was_lost_is_new_when_the_filter_was_flushed(server, opened, key, layout):
    seen = opened(server, key, layout=layout)
    known = fingerprints(1000)
    seen.add_many(known)
    server.client().delete(key)
    assert seen.add_many(fingerprints(10, "b")) == [False] * 10
    assert seen.add_many(known[:10]) == [False] * 10  # what it knew itself is forgotten
    assert seen.numbers()["losses"] == 1


def test_a_filter_made_in_another_way_is_refused_and_stays(server, opened, key):
    opened(server, key, error_rate=1e-3).add(b"one")
    before = server.client().hgetall(key)
    with pytest.raises(StateError, match=r"error_rate 0.001, not 1e-06.*delete"):
        opened(server, key, error_rate=1e-6)
    after = server.client().hgetall(key)
    assert {n: v for n, v in after.items() if n[:2] != b"w:" and n != b"well"} == {
        n: v for n, v in before.items() if n[:2] != b"w:" and n != b"well"
    }


@pytest.mark.parametrize("kind", ["string", "hash", "list"])
def test_something_else_under_the_key_is_refused_and_stays(server, opened, key, kind):
    client = server.client()
    {
        "string": lambda: client.set(key, "x"),
        "hash": lambda: client.hset(key, "x", "y"),
        "list": lambda: client.lpush(key, "x"),
    }[kind]()
    before = client.dump(key)
    with pytest.raises(StateError, match=f"found a {kind} under"):
        opened(server, key)
    assert client.dump(key) == before


def test_delete_ends_a_frozen_worker_and_leaves_a_note_only(server, opened, key, layout):
    frozen, other = (opened(server, key, layout=layout) for _ in range(2))
    frozen.add_many(fingerprints(2000))
    assert other.delete() is False  # the other one has a lease
    frozen.shards[0]._worker.close()  # its lease is not renewed
    for name in server.client().hkeys(key):
        if name[:2] == b"w:":
            number = server.client().hget(key, name).split()[0]
            server.client().hset(key, name, number + b" 1.000")
    assert other.delete() is True
    other.close()
    assert server.client().keys(f"{key}*") == [key.encode()]
    assert 0 < server.client().ttl(key) <= 86_400
    with pytest.raises(FilterLostError, match="deleted while"):
        frozen.add(b"new")
    assert server.client().keys(f"{key}*") == [key.encode()]
    fresh = opened(server, key, layout=layout)
    assert fresh.add(b"one") is False
    assert server.client().ttl(key) == -1
    with pytest.raises(FilterLostError, match="deleted while"):
        frozen.add(b"new")


def test_clear_keeps_off_what_others_use(server, opened, key):
    one, two = (opened(server, key) for _ in range(2))
    one.add(b"a")
    two.add(b"b")
    assert one.clear() is False
    assert one.add(b"c") is False
    two.close()
    assert one.clear() is True
    assert one.add_many([b"a", b"b", b"c"]) == [False] * 3


def test_a_forked_worker_becomes_one_of_its_own(server, key):
    seen = without_memory(server.url, key)
    one, two, three = fingerprints(3)
    assert seen.add(one) is False
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, bytes([seen.add(two), seen.add(one)]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == bytes([False, True])
    # With the child's numbers it would get the child's answers.
    assert [seen.add(three), seen.add(two)] == [False, True]
    seen.close()
    for end in (read, write):
        os.close(end)


def test_a_server_that_comes_later_is_waited_for_in_the_background(opened, key):
    from support.localredis import LocalRedis

    server = LocalRedis()
    seen = opened(server, key, timeout=1.0)
    known = fingerprints(10)
    assert seen.add_many(known) == [False] * 10
    assert seen.add_many(known) == [False] * 10  # nothing is there to remember it
    with server:
        until(lambda: seen.usable)
        assert seen.add_many(known) == [False] * 10
        assert seen.add_many(known) == [True] * 10
        seen.close()


def test_a_deleted_filter_leaves_nothing_but_its_note(server, opened, key, layout):
    seen = opened(server, key, layout=layout, capacity=1000, window=3600)
    known = fingerprints(5000)
    seen.add_many(known)
    seen.forget_many(known[:10])
    seen.add_aged(known[0], 60)
    assert len(server.client().keys(f"{key}*")) > 3
    assert seen.delete()
    assert server.client().keys(f"{key}*") == [key.encode()]
