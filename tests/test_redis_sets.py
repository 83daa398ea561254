"""The layout "sets": what it can do that the other one cannot, and what it needs of the server."""

import os
import random
import signal

import pytest
from support.contract import fingerprints
from support.layouts import name_of_clear
from support.proxy import Proxy
from support.stored import StoredFilter

from scrapy_bloom import (
    BackendError,
    RedisFilter,
    RedisOptions,
    RedisReader,
    SettingError,
    StateError,
)
from scrapy_bloom.redis.connection import Target

OPENED = {"error_rate": 1e-6, "layout": "sets"}  # of the fixture `opened`


class TestLosses:
    def test_a_bucket_of_a_full_slice_is_missed(self, server, opened, key):
        seen = opened(server, key, capacity=300, cache=0)
        known = fingerprints(1000)
        seen.add_many(known)
        stored = StoredFilter(server.client(), key)
        assert [spec.blocks for spec in stored.slices] == [1, 1, 2]
        server.client().delete(stored.segment(0, 0))
        assert seen.add_many(known).count(False) == 300
        assert seen.counters.losses == 1
        assert seen.add_many(known) == [True] * 1000
        assert seen.counters.losses == 1

    def test_each_bucket_is_missed_once_and_its_first_use_is_no_loss(self, server, opened, key):
        seen = opened(server, key, capacity=1_000_000, cache=0)
        known = fingerprints(3000)
        seen.add_many(known)
        names = [name for name in server.client().keys(f"{key}:*") if name != key.encode()]
        assert 1500 < len(names) < 2605
        assert seen.counters.losses == 0
        gone = random.sample(names, 40)
        server.client().delete(*gone)
        assert seen.add_many(known).count(False) >= 40
        assert 1 <= seen.counters.losses <= 40
        assert server.client().hget(key, "losses") == b"40"
        seen.add_many(known)
        assert server.client().hget(key, "losses") == b"40"

    def test_a_look_goes_round_all_buckets(self, server, opened, key):
        """Nothing that is asked needs the lost bucket."""
        seen = opened(server, key, capacity=1_000_000, cache=0)  # three looks of 1024 buckets
        seen.add_many(fingerprints(3000))
        stored = StoredFilter(server.client(), key)
        lost = next(
            stored.segment(0, bucket)
            for bucket in range(2100, 2605)
            if server.client().exists(stored.segment(0, bucket))
        )
        server.client().delete(lost)
        for _ in range(3000):
            seen.add(b"the same")
        assert seen.counters.losses == 1


class TestClearing:
    def test_no_call_of_it_takes_long_and_nothing_is_left(self, own_server, opened, key):
        client = own_server.client()
        seen = opened(own_server, key, capacity="3M", cache=0)
        seen.add_many(fingerprints(8000))
        assert len(client.keys("*")) > 4000
        with Proxy(own_server.port, counted=name_of_clear()) as proxy:
            other = opened(proxy.url, key)
            seen.close()
            assert other.clear()
            assert proxy.requests >= 4  # 7813 buckets, 2000 in a call
        assert client.keys("*") == [key.encode()]
        assert other.add_many(fingerprints(10)) == [False] * 10

    @pytest.mark.parametrize("calls", [1, 2, 3])
    def test_what_a_killed_worker_has_begun_is_ended_by_the_next_one(
        self, own_server, opened, key, calls
    ):
        client = own_server.client()
        with Proxy(own_server.port, counted=name_of_clear()) as proxy:
            seen = opened(proxy.url, key, capacity="3M")
            seen.add_many(fingerprints(8000))
            proxy.faults = dict.fromkeys(range(calls + 1, calls + 3), "reset")
            with pytest.raises(BackendError):
                seen.clear()
            assert client.hget(key, "clearing")
            left = len(client.keys("*"))
            with pytest.raises(StateError, match="found nothing, expected a filter"):
                RedisReader.from_url(own_server.url, key=key)
            other = opened(own_server, key)
            assert len(client.keys("*")) == 1 < left
            assert other.add_many(fingerprints(10)) == [False] * 10
            assert seen.add_many(fingerprints(10)) == [True] * 10

    def test_others_that_live_are_not_cleared_away(self, own_server, opened, key):
        seen, other = opened(own_server, key), opened(own_server, key)
        known = fingerprints(50)
        seen.add_many(known)
        assert not other.clear()
        assert other.add_many(known) == [True] * 50

    def test_a_frozen_worker_finds_another_filter(self, own_server, key):
        seen = RedisFilter.from_url(own_server.url, key=key, layout="sets")
        known = fingerprints(10)
        seen.add_many(known)
        seen.close()
        child = os.fork()
        if child == 0:
            RedisFilter.from_url(own_server.url, key=key, layout="sets")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        with RedisFilter.from_url(own_server.url, key=key, layout="sets") as seen:
            assert seen.clear()
            assert seen.add_many(known) == [False] * 10


class TestOpening:
    @pytest.mark.parametrize("most", [511, 128])
    def test_a_server_that_keeps_small_arrays_only_is_refused(self, own_server, opened, key, most):
        client = own_server.client()
        client.config_set("set-max-intset-entries", most)
        words = "CONFIG SET set-max-intset-entries 512, or set layout to 'bitmap'"
        with pytest.raises(BackendError, match=words) as caught:
            opened(own_server, key)
        assert caught.value.refused
        assert not client.keys("*")
        with pytest.raises(BackendError, match="BLOOM_REDIS_LAYOUT to 'bitmap'"):
            RedisFilter(
                Target(own_server.url),
                options=RedisOptions(key=key, layout="sets", words=lambda option: option.setting),
            )
        client.config_set("set-max-intset-entries", 512)
        seen = opened(own_server, key)
        seen.add(b"x")
        before = client.keys("*")
        client.config_set("set-max-intset-entries", most)
        with pytest.raises(BackendError, match=words):
            opened(own_server, key)
        assert client.keys("*") == before

    def test_it_tells_its_layout_and_refuses_another(self, server, opened, key):
        seen = opened(server, key)
        assert server.client().hget(key, "layout") == b"sets"
        with pytest.raises(StateError, match=r"a layout of 'sets', expected 'bitmap'\. All worker"):
            opened(server, key, layout="bitmap")
        assert seen.add(b"x") is False

    def test_an_unknown_layout_of_a_filter_is_named(self, server, opened, key):
        opened(server, key).close()
        server.client().hset(key, "layout", "cuckoo")
        with pytest.raises(StateError, match="layout of 'cuckoo', expected 'bitmap' or 'sets'"):
            opened(server, key)

    def test_an_unknown_layout_is_refused_by_name(self, server, key):
        with pytest.raises(SettingError, match="layout = 'cuckoo': give one of 'bitmap', 'sets'"):
            RedisFilter.from_url(server.url, key=key, layout="cuckoo")


class TestNumbers:
    @pytest.mark.parametrize(("error_rate", "digits"), [(1e-6, 10), (1e-12, 19)])
    def test_buckets_are_arrays_of_numbers(self, server, opened, key, error_rate, digits):
        seen = opened(server, key, capacity=4000, error_rate=error_rate)
        seen.add_many(fingerprints(4000))
        stored = StoredFilter(server.client(), key)
        numbers = set()
        for bucket in range(stored.slices[0].blocks):
            name = stored.segment(0, bucket)
            assert server.client().object("encoding", name) == b"intset"
            numbers |= server.client().smembers(name)
        numbers.remove(b"0")
        assert len(numbers) == 4000
        assert max(len(str(abs(int(number)))) for number in numbers) == digits

    @pytest.mark.parametrize("error_rate", [1e-6, 1e-12])
    def test_memory_is_about_what_is_said(self, server, opened, key, error_rate):
        seen = opened(server, key, capacity=100_000, error_rate=error_rate)
        for part in (0, 25_000, 50_000):
            seen.add_many(fingerprints(100_000)[part : part * 2 or 25_000])
            used = StoredFilter(server.client(), key).memory
            assert seen.info().bytes == pytest.approx(used, rel=0.35)  # servers differ

    def test_errors_are_those_that_are_told(self, server, opened, key):
        """Numbers of 32 bits err rarely: so many buckets in one that they do."""
        seen = opened(server, key, capacity=380, error_rate=0.5, cache=0)
        seen.add_many(fingerprints(380))
        client, stored = server.client(), StoredFilter(server.client(), key)
        name = stored.segment(0, 0)
        info = seen.info()
        assert info.estimated_fp_rate == pytest.approx(380 / 2**32)
        numbers = {int(number) for number in client.smembers(name)} - {0}
        assert len(numbers) == 380
        assert sum(number < 0 for number in numbers) == pytest.approx(190, abs=60)
