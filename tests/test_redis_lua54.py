"""The scripts run on Lua 5.4, too: everything that a filter does."""

import pytest
from support.contract import FilterContract, fingerprints
from support.localredis import keys
from support.lua54 import Lua54Target

from scrapy_bloom import RedisFilter, RedisOptions, RedisReader


@pytest.fixture
def made(server, layout):
    """Make filters that are closed after the test."""
    filters = []

    def made(key=None, **options):
        # Outside of the server a script that takes too long would be carried out in part.
        options = {"key": key or next(keys), "layout": layout, "cache": 0, "timeout": 60} | options
        sizes = {name: options.pop(name) for name in ("capacity", "error_rate") if name in options}
        target = Lua54Target(server.url)
        filters.append(RedisFilter(target, options=RedisOptions(**options), **sizes))
        return filters[-1]

    yield made
    for seen in filters:
        seen.close()


class TestRedisFilterOnLua54(FilterContract):
    SMALL, EXAMPLES = 50, 6  # it is slow

    @pytest.fixture
    def make(self, made):
        return made


def test_both_versions_of_lua_keep_a_filter_in_the_same_way(server, made, layout):
    """For numbers of both sizes, and in slices that are large."""
    for error_rate in (1e-6, 1e-12):
        key = next(keys)
        options = {"capacity": 20_000_000, "error_rate": error_rate, "timeout": 60}
        seen = made(key, **options)
        with RedisFilter.from_url(server.url, key=key, layout=layout, cache=0, **options) as other:
            ones, twos = fingerprints(300, "one"), fingerprints(300, "two")
            assert not any(seen.add_many(ones))
            assert not any(other.add_many(twos))
            assert all(other.add_many(ones))
            assert all(seen.add_many(twos))
            assert other.counters.losses == seen.counters.losses == 0
            with RedisReader.from_url(server.url, key=key) as reader:
                assert all(reader.contains_many(ones + twos))


def test_losses_are_noticed(server, made, key):
    seen = made(key, capacity=300, cache=1000)
    known = fingerprints(200)
    seen.add_many(known)
    (name,) = server.client().keys(f"{key}:*")
    server.client().delete(name)
    assert seen.add(b"next") is False
    assert seen.counters.losses == 1
    assert seen.add_many(known) == [False] * 200
    other = made(key)
    assert other.add_many(known) == [True] * 200
    server.client().delete(name)
    for _ in range(1000):  # among them a look
        other.add(b"the same")
    assert other.counters.losses == 1


@pytest.mark.parametrize("layout", ["sets"])
def test_one_forgets(key, made):
    seen = made(key, capacity=100, error_rate=1e-12)
    known = fingerprints(500)
    seen.add_many(known)
    assert seen.forget_many(known[:100]) == [True] * 100
    assert seen.contains_many(known) == [False] * 100 + [True] * 400
    assert seen.info().items == 400
