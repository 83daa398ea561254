"""The Redis filter: the contract, on a real server."""

import pytest
from bitarray import bitarray
from support.contract import FilterContract, fingerprints
from support.localredis import keys
from support.stored import StoredFilter

from scrapy_bloom import LocalFilter, RedisFilter
from scrapy_bloom.core.state import FilterState, Slice
from scrapy_bloom.redis.bitmap import SEGMENT_BLOCKS


@pytest.fixture
def opened():
    """Filters that are closed after the test."""
    filters = []
    yield filters
    for seen in filters:
        seen.close()


class TestRedisFilter(FilterContract):
    @pytest.fixture
    def make(self, server, opened, layout):
        def make(**sizes):
            patient = {"layout": layout, "timeout": 10.0, **sizes}
            seen = RedisFilter.from_url(server.url, key=next(keys), **patient)
            opened.append(seen)
            return seen

        return make


class TestRedisFilterWithoutMemory(FilterContract):
    @pytest.fixture
    def make(self, server, opened, layout):
        def make(**sizes):
            patient = {"layout": layout, "cache": 0, "timeout": 10.0, **sizes}
            seen = RedisFilter.from_url(server.url, key=next(keys), **patient)
            opened.append(seen)
            return seen

        return make


def test_its_bytes_are_those_of_the_local_filter(server, opened):
    key = next(keys)
    shared = RedisFilter.from_url(server.url, key=key, capacity=2_000_000, error_rate=1e-6)
    opened.append(shared)
    known = fingerprints(20_000)
    shared.add_many(known)
    stored = StoredFilter(server.client(), key)
    (spec,) = stored.slices
    assert spec.blocks > 2 * SEGMENT_BLOCKS
    body = b""
    for number in range(-(-spec.blocks // SEGMENT_BLOCKS)):
        segment = server.client().get(stored.segment(0, number))
        assert segment[-1] == 0x80
        body += segment[:-1]

    blocks = [bitarray(buffer=body[i : i + 8192], endian="big") for i in range(0, len(body), 8192)]
    local = LocalFilter.from_state(
        FilterState(
            stored.secret, stored.hashes, digests=True, slices=[Slice(spec, 20_000, blocks)]
        )
    )
    assert all(local.contains_many(known))
    assert not any(local.contains_many(fingerprints(20_000, "b")))

    again = LocalFilter.from_state(
        FilterState(stored.secret, stored.hashes, digests=True, slices=[Slice.new(spec)])
    )
    again.add_many(known)
    assert b"".join(block.tobytes() for block in again.state().slices[0].blocks) == body


def test_a_filter_of_more_than_two_to_the_32_bits(server, opened):
    key = next(keys)
    shared = RedisFilter.from_url(server.url, key=key, capacity="1G", error_rate=1e-6)
    opened.append(shared)
    stored = StoredFilter(server.client(), key)
    (spec,) = stored.slices
    assert spec.blocks * 65536 > 2**34
    known = fingerprints(20)
    assert shared.add_many(known) == [False] * 20
    assert all(shared.contains_many(known))
    local = LocalFilter.from_state(
        FilterState(stored.secret, stored.hashes, digests=True, slices=[Slice.new(spec)])
    )
    local.add_many(known)
    touched = {n: block for n, block in enumerate(local.state().slices[0].blocks) if block.any()}
    assert max(touched) * 65536 > 2**32
    for number, block in touched.items():
        segment, rest = divmod(number, SEGMENT_BLOCKS)
        start = rest * 8192
        found = server.client().getrange(stored.segment(0, segment), start, start + 8191)
        assert found == block.tobytes()


def test_segments_take_what_their_bits_take(server, opened):
    key = next(keys)
    shared = RedisFilter.from_url(server.url, key=key, capacity=1_000_000, error_rate=1e-6)
    opened.append(shared)
    shared.add_many(fingerprints(2000))
    stored = StoredFilter(server.client(), key)
    used, bits = stored.memory, stored.slices[0].blocks * 8192
    assert bits < used < bits * 1.05
    assert used < 5_000_000
