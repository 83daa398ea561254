"""The Redis filter: the contract, on a real server."""

import itertools

import pytest
from contract import FilterContract, fingerprints
from example.localredis import LocalRedis

from scrapy_bloom import LocalFilter, RedisFilter
from scrapy_bloom.filters.local import FilterState, Slice
from scrapy_bloom.redis.scripts import SEGMENT_BLOCKS

keys = (f"test:{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def server():
    with LocalRedis() as server:
        yield server


@pytest.fixture
def opened():
    """Filters that are closed after the test."""
    filters = []
    yield filters
    for seen in filters:
        seen.close()


class TestRedisFilter(FilterContract):
    @pytest.fixture
    def make(self, server, opened):
        def make(**sizes):
            seen = RedisFilter.from_url(server.url, key=next(keys), **sizes)
            opened.append(seen)
            return seen

        return make


class TestRedisFilterWithoutMemory(FilterContract):
    @pytest.fixture
    def make(self, server, opened):
        def make(**sizes):
            seen = RedisFilter.from_url(server.url, key=next(keys), memory=0, **sizes)
            opened.append(seen)
            return seen

        return make
