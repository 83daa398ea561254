"""The layout "sets": what it can do that the other one cannot, and what it needs of the server."""

import itertools
import os
import random
import signal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.contract import fingerprints
from support.layouts import name_of_clear, name_of_forget
from support.localredis import keys
from support.proxy import FAULTS, Proxy
from support.stored import StoredFilter
from support.waiting import until

from scrapy_bloom import (
    BackendError,
    FilterLostError,
    RedisFilter,
    RedisOptions,
    RedisReader,
    SettingError,
    StateError,
)
from scrapy_bloom.redis.connection import Target

OPENED = {"error_rate": 1e-6, "layout": "sets"}  # of the fixture `opened`


class TestForgetting:
    def test_what_was_forgotten_is_new_once_more(self, server, opened, key):
        seen = opened(server, key)
        known = fingerprints(100)
        seen.add_many(known)
        assert seen.forget(known[3]) is True
        assert seen.forget(known[3]) is False
        assert seen.contains_many(known) == [True] * 3 + [False] + [True] * 96
        assert seen.info().items == 99
        assert seen.add_many([known[3], known[3], known[4]]) == [False, True, True]
        assert seen.info().items == 100

    def test_of_many(self, server, opened, key):
        seen = opened(server, key, capacity=1000, shards=3)
        known = fingerprints(6000)
        seen.add_many(known[:5000])
        asked = [*known[10:20], known[10], *known[5000:5010]]
        assert seen.forget_many(asked) == [True] * 10 + [False] * 11
        assert seen.forget_many([]) == []
        assert seen.add_many(known[:5000]).count(False) == 10
        assert seen.info().items == 5000

    @pytest.mark.parametrize("error_rate", [1e-6, 1e-12])
    def test_in_every_slice_and_with_numbers_of_both_sizes(self, server, opened, key, error_rate):
        seen = opened(server, key, capacity=100, error_rate=error_rate, cache=0)
        known = fingerprints(3000)
        seen.add_many(known)
        assert seen.info().slices == 6
        assert seen.forget_many(known[::2]) == [True] * 1500
        assert seen.contains_many(known) == [False, True] * 1500
        assert seen.info().items == seen.info().estimated_items == 1500

    def test_all_workers_learn_of_it_and_one_is_granted(self, server, opened, key):
        workers = [opened(server, key) for _ in range(4)]
        one, two = fingerprints(2)
        for worker in workers:
            worker.add_many([one, two])
        assert workers[0].forget(one)
        until(lambda: not any(one in worker for worker in workers))
        assert [worker.add(one) for worker in workers].count(False) == 1
        assert [worker.add(one) for worker in workers] == [True] * 4
        assert [worker.add(two) for worker in workers] == [True] * 4

    def test_what_a_busy_worker_knows_is_forgotten_with_its_next_call(self, server, opened, key):
        forgetful, busy = opened(server, key), opened(server, key)
        one = fingerprints(1)[0]
        busy.add(one)
        forgetful.forget(one)
        numbers = itertools.count()
        until(lambda: busy.add(b"%d" % next(numbers)) or one not in busy)
        assert busy.add(one) is False

    def test_what_was_forgotten_is_not_reported_after_a_loss(self, server, key):
        seen = RedisFilter(
            Target(server.url), options=RedisOptions(key=key, layout="sets", shared_queue=True)
        )
        with seen:
            one, two = fingerprints(2)
            seen.add_many([one, two])
            seen.finish(one)
            seen.finish(two)
            seen.forget(one)
            seen.finish(two)
            server.client().delete(key)
            until(lambda: seen.counters.losses)
            assert seen.add(one) is False

    def test_what_is_to_be_reported_is_forgotten_as_well(self, own_server, opened, key):
        with Proxy(own_server.port) as proxy:
            seen = opened(proxy.url, key, timeout=0.5)
            port, proxy.upstream = proxy.upstream, 1
            proxy.cut()
            one = fingerprints(1)[0]
            assert seen.add(one) is False
            with pytest.raises(BackendError, match="cannot be reached"):
                seen.forget(one)
            proxy.upstream = port
            until(lambda: seen.usable)
            seen.forget(one)
            assert seen.add(one) is False

    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_fault_takes_nothing_out_twice(self, own_server, opened, key, fault):
        """If a repeated call did, it would undo what somebody was granted since."""
        one = fingerprints(1)[0]
        with Proxy(own_server.port, counted=name_of_forget(), delay=0.05) as proxy:
            faulty, other = opened(proxy.url, key), opened(own_server, key, cache=0)
            faulty.add(one)
            proxy.faults = {1: fault}
            assert faulty.forget(one)
            assert other.add(one) is False
            proxy.deliver()
            assert other.add(one) is True
            assert faulty.add(one) is True

    def test_close_raises_if_the_filter_has_vanished(self, own_server, opened, key):
        seen = opened(own_server, key, on_error="close")
        one = fingerprints(1)[0]
        seen.add(one)
        own_server.client().delete(key)
        with pytest.raises(FilterLostError, match="has lost"):
            seen.forget(one)
        assert seen.add(one) is False

    def test_a_bitmap_refuses(self, server, key):
        with (
            RedisFilter.from_url(server.url, key=key) as seen,
            pytest.raises(SettingError, match=r"layout = 'bitmap' cannot forget.*layout = 'sets'"),
        ):
            seen.forget(b"x")

    @settings(max_examples=30, stateful_step_count=30)
    class Machine(RuleBasedStateMachine):
        """Several workers without memory against a set."""

        server = None

        @initialize()
        def open(self):
            key = next(keys)
            self.filters = [
                RedisFilter.from_url(
                    self.server.url, key=key, layout="sets", cache=0, capacity=20, error_rate=1e-9
                )
                for _ in range(2)
            ]
            self.model = set()

        @rule(items=st.lists(st.integers(0, 200)), worker=st.integers(0, 1))
        def add(self, items, worker):
            expected = []
            for item in items:
                expected.append(item in self.model)
                self.model.add(item)
            assert self.filters[worker].add_many(map(as_bytes, items)) == expected

        @rule(items=st.lists(st.integers(0, 200)), worker=st.integers(0, 1))
        def forget(self, items, worker):
            expected = []
            for item in items:
                expected.append(item in self.model)
                self.model.discard(item)
            assert self.filters[worker].forget_many(map(as_bytes, items)) == expected

        @rule(worker=st.integers(0, 1))
        def look(self, worker):
            seen = self.filters[worker]
            found = seen.contains_many(map(as_bytes, range(201)))
            assert {item for item in range(201) if found[item]} == self.model
            assert seen.info().items == len(self.model)

        def teardown(self):
            for seen in self.filters:
                assert seen.counters.losses == 0
                seen.close()

    def test_it_answers_as_a_set_does(self, server):
        machine = type("Machine", (self.Machine,), {"server": server})
        machine.TestCase.settings = self.Machine.TestCase.settings
        machine.TestCase().runTest()


def as_bytes(item):
    return b"%d" % item


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
            seen = opened(proxy.url, key, capacity="3M", timeout=1)
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
        assert server.client().hget(key, "format") == b"2"  # earlier versions refuse that
        with pytest.raises(StateError, match=r"a layout of 'sets', expected 'bitmap'\. All worker"):
            opened(server, key, layout="bitmap")
        assert seen.add(b"x") is False

    def test_a_bitmap_is_written_as_ever(self, server, opened, key):
        opened(server, key, layout="bitmap")
        fields = server.client().hgetall(key)
        assert fields[b"format"] == b"1"
        assert b"layout" not in fields

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
