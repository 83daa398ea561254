"""The Redis filter: the contract, on a real server, and how it lies there."""

from __future__ import annotations

import os
import struct
from unittest.mock import patch

import pytest
from support.contract import FilterContract, fingerprints
from support.internals import stop_beating
from support.layouts import plans
from support.leases import shift_leases

from scrapy_bloom.errors import BackendError, FilterLostError, SettingError
from scrapy_bloom.redis.client import Target, beginning
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.plan import KEY_BLOCKS, place
from scrapy_bloom.redis.shard import Known, delete
from scrapy_bloom.redis.worker import Worker


def without_memory(url, key, **options):
    """Open a filter that asks the server each time."""
    return RedisFilter(Target(url), key, plans(**options), timeout=10.0, known=0)


class TestSetsWithAWindow(FilterContract):
    SMALL = 300
    EXAMPLES = 10

    @pytest.fixture
    def make(self, server, opened):
        usual = {"capacity": 1_000_000, "error_rate": 1e-6, "layout": "sets", "window": 3600.0}
        return lambda **sizes: opened(server, **(usual | sizes))


class TestBitmapInShardsWithoutMemory(TestSetsWithAWindow):
    """With a memory of its own a worker answers much by itself."""

    @pytest.fixture
    def make(self, monkeypatch, server, opened):
        monkeypatch.setattr(Known, "__contains__", lambda *_: False)
        return lambda **sizes: opened(server, shards=3, **sizes)

    test_info_tells_what_went_in = None  # each shard has some capacity to spare


def test_a_question_that_fails_half_way_grants_nothing(server, opened, key):
    """Only a mark without a verdict is owed one."""
    mine, other = (opened(server, key, shards=2) for _ in "ab")
    first, second = (
        next(one for one in fingerprints(40) if place(one, 2) == number) for number in (0, 1)
    )
    out = patch.object(mine.shards[0], "call", side_effect=BackendError("out", temporary=True))
    with out, pytest.raises(BackendError):
        mine.forget_many([first, second])
    assert [other.add(second), mine.add(second)] == [False, True]


def test_of_workers_that_finish_at_once_one_deletes_the_filter(server, opened, key):
    """The first was told that another uses it; by then it was a worker no more."""
    first, second = (opened(server, key) for _ in range(2))
    for seen in (first, second):
        seen.add(b"one")
    assert first.delete() is False
    assert second.delete() is True
    assert server.client().keys(f"{key}*") == []


def test_delete_ends_a_frozen_worker_and_leaves_a_note_only(server, opened, key):
    frozen, other = (opened(server, key) for _ in range(2))
    frozen.add_many(fingerprints(2000))
    assert other.delete() is False  # the other one has a lease
    stop_beating(frozen.worker)
    shift_leases(server, key, -3600)
    other.close()
    worker = Worker(Target(server.url), 10.0)
    worker.connect()
    assert delete(worker, key) == {}  # as the command does
    worker.close()
    assert server.client().keys(f"{key}*") == [key.encode()]
    assert 0 < server.client().ttl(key) <= 86_400
    with pytest.raises(FilterLostError, match="deleted while"):
        frozen.add(b"new")
    assert server.client().keys(f"{key}*") == [key.encode()]
    fresh = opened(server, key)
    assert fresh.add(b"one") is False
    assert server.client().ttl(key) == -1
    with pytest.raises(FilterLostError, match="deleted while"):
        frozen.add(b"new")


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


# How it lies in Redis


def keys_of_slice(server, seen, number=0):
    """Return what the keys of a slice have, by their numbers."""
    client, shard = server.client(), seen.shards[0]
    start = f"{beginning(shard.key)}{shard.epoch}.{shard.slices[number].number}."
    found = (name for name in client.keys(f"{start}*") if name.rpartition(b".")[2].isdigit())
    return {int(name.rpartition(b".")[2]): name for name in found}


def local_bits(seen, pages):
    """Return the blocks that a local filter with the same secret has touched."""
    shard = seen.shards[0]
    spec = shard.slices[0].spec
    probe, touched = shard.plan.hash(shard.secret), {}
    for page in pages:
        words = probe(page)
        *positions, high = struct.unpack(">14HI", words)
        block = touched.setdefault(high * spec.blocks >> 32, bytearray(8192))
        for position in positions:
            block[position >> 3] |= 0x80 >> (position & 7)
    return touched


@pytest.mark.parametrize("capacity", ["2M", "1G"])
def test_its_bytes_are_those_of_the_blocks(server, opened, capacity):
    """The second one has more than 2^34 bits."""
    seen, pages = opened(server, capacity=capacity, error_rate=1e-6), fingerprints(20)
    assert seen.add_many(pages) == [False] * 20
    names, touched = keys_of_slice(server, seen), local_bits(seen, pages)
    assert len(touched) > 15
    assert {number // KEY_BLOCKS for number in touched} == set(names)
    for number, block in touched.items():
        key, rest = divmod(number, KEY_BLOCKS)
        found = server.client().getrange(names[key], rest * 8192, rest * 8192 + 8191)
        assert found == block


@pytest.mark.parametrize(("name", "rate"), [("bitmap", 1e-6), ("sets", 1e-12)])
def test_memory_is_about_what_is_said(server, opened, name, rate):
    seen = opened(server, capacity=30_000, error_rate=rate, layout=name)
    for part in (0, 7500, 15_000):
        seen.add_many(fingerprints(30_000)[part : part * 2 or 7500])
        client = server.client()
        names = keys_of_slice(server, seen).values()
        used = sum(client.memory_usage(one, samples=0) for one in names)
        assert seen.info().bytes == pytest.approx(used, rel=0.35)  # servers differ


def test_a_server_that_keeps_small_arrays_only_is_refused(own_server, opened, key):
    client = own_server.client()
    client.config_set("set-max-intset-entries", 511)
    with pytest.raises(SettingError, match="Raise its set-max-intset-entries to 512"):
        opened(own_server, key, layout="sets")
    assert not client.keys("*")
    client.config_set("set-max-intset-entries", 512)
    opened(own_server, key, layout="sets").add(b"x")


def test_no_call_of_clear_takes_long_and_nothing_is_left(own_server, opened, key):
    client = own_server.client()
    seen = opened(own_server, key, capacity="3M", error_rate=1e-6, layout="sets")
    seen.add_many(fingerprints(8000))
    assert len(client.keys("*")) > 4000
    calls = seen.worker.counters.round_trips
    assert seen.clear()
    assert seen.worker.counters.round_trips - calls > 4  # 7813 buckets in parts
    assert client.keys("*") == [key.encode()]
    assert seen.add_many(fingerprints(10)) == [False] * 10
