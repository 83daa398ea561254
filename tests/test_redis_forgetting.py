"""A filter in Redis forgets: what was forgotten is granted again, once, whatever happens."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.contract import fingerprints
from support.layouts import name_of_forget
from support.localredis import keys
from support.lockstep import grants
from support.proxy import FAULTS, Proxy
from support.stored import StoredFilter
from support.waiting import until

from scrapy_bloom import BackendError, FilterLostError, RedisFilter, RedisReader

OPENED = {"error_rate": 1e-6}  # of the fixture `opened`

pytestmark = pytest.mark.usefixtures("layout")


def test_what_was_forgotten_is_new_once_more(server, opened, key):
    seen = opened(server, key)
    known = fingerprints(100)
    seen.add_many(known)
    assert seen.forget(known[3]) is True
    assert seen.forget(known[3]) is False
    assert seen.contains_many(known) == [True] * 3 + [False] + [True] * 96
    assert seen.info().items == 99
    assert seen.add_many([known[3], known[3], known[4]]) == [False, True, True]
    assert seen.info().items == 100


def test_of_many(server, opened, key):
    seen = opened(server, key, capacity=1000, shards=3)
    known = fingerprints(6000)
    seen.add_many(known[:5000])
    asked = [*known[10:20], known[10], *known[5000:5010]]
    assert seen.forget_many(asked) == [True] * 10 + [False] * 11
    assert seen.forget_many([]) == []
    assert seen.add_many(known[:5000]).count(False) == 10
    assert seen.info().items == 5000


@pytest.mark.parametrize("error_rate", [1e-6, 1e-12])
def test_in_every_slice_and_with_numbers_of_both_sizes(server, opened, key, error_rate):
    seen = opened(server, key, capacity=100, error_rate=error_rate, cache=0)
    known = fingerprints(3000)
    seen.add_many(known)
    assert seen.info().slices == 6
    assert seen.forget_many(known[::2]) == [True] * 1500
    assert seen.contains_many(known) == [False, True] * 1500
    assert seen.info().items == 1500


def test_all_workers_learn_of_it_and_one_is_granted(server, opened, key):
    workers = [opened(server, key) for _ in range(4)]
    one, two = fingerprints(2)
    for worker in workers:
        worker.add_many([one, two])
    assert workers[0].forget(one)
    until(lambda: not any(one in worker for worker in workers))
    assert [worker.add(one) for worker in workers].count(False) == 1
    assert [worker.add(one) for worker in workers] == [True] * 4
    assert [worker.add(two) for worker in workers] == [True] * 4


def test_what_a_busy_worker_knows_is_forgotten_with_its_next_call(server, opened, key):
    forgetful, busy = opened(server, key), opened(server, key)
    one = fingerprints(1)[0]
    busy.add(one)
    forgetful.forget(one)
    numbers = itertools.count()
    until(lambda: busy.add(b"%d" % next(numbers)) or one not in busy)
    assert busy.add(one) is False


def test_nothing_can_be_forgotten_in_an_outage(own_server, opened, key):
    with Proxy(own_server.port) as proxy:
        seen = opened(proxy.url, key)
        one = fingerprints(1)[0]
        with proxy.down():
            assert seen.add(one) is False
            with pytest.raises(BackendError, match="cannot be reached"):
                seen.forget(one)
        until(lambda: seen.usable)
        assert not seen.forget(one)
        assert seen.add(one) is False


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_takes_nothing_out_twice(own_server, opened, key, layout, fault):
    """If a repeated call did, it would undo what somebody was granted since."""
    one = fingerprints(1)[0]
    with Proxy(own_server.port, counted=name_of_forget(layout, 1e-6), delay=0.05) as proxy:
        faulty = opened(proxy.url, key, timeout=3.0)
        other = opened(own_server, key, cache=0)
        faulty.add(one)
        proxy.faults = {1: fault}
        assert faulty.forget(one)
        assert other.add(one) is False
        proxy.deliver()
        assert other.add(one) is True
        assert faulty.add(one) is True


def test_close_raises_if_the_filter_has_vanished(own_server, opened, key):
    seen = opened(own_server, key, on_error="close")
    one = fingerprints(1)[0]
    seen.add(one)
    own_server.client().delete(key)
    with pytest.raises(FilterLostError, match="has lost"):
        seen.forget(one)
    assert seen.add(one) is False


class Workers(RuleBasedStateMachine):
    """Several workers without memory against a set."""

    server = layout = None

    @initialize()
    def open(self):
        key = next(keys)
        self.filters = [
            RedisFilter.from_url(
                self.server.url,
                key=key,
                layout=self.layout,
                cache=0,
                capacity=20,
                error_rate=1e-9,
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


def test_it_answers_as_a_set_does(server, layout):
    machine = type("Machine", (Workers,), {"server": server, "layout": layout})
    machine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
    machine.TestCase().runTest()


@pytest.mark.parametrize("shards", [1, 2])
def test_what_one_forgets_is_granted_to_one_of_many(own_server, key, layout, shards):
    """All workers ask for the same fingerprints in step, before and after one forgets them all."""
    counts = grants(
        own_server.url,
        key,
        workers=4,
        items=400,
        batch=20,
        capacity=100,
        shards=shards,
        layout=layout,
        forget=True,
    )
    assert set(counts.values()) == {2}


class TestTheListBesideBits:
    """In the layout "bitmap"; "sets" has none."""

    @pytest.fixture
    def layout(self):
        return "bitmap"

    def listed(self, server, key):
        (name,) = server.client().keys(f"{key}:*:again")
        return name

    def test_it_goes_when_it_is_used_up(self, server, opened, key):
        seen = opened(server, key)
        known = fingerprints(10)
        seen.add_many(known)
        before = sorted(server.client().keys(f"{key}*"))
        seen.forget_many(known)
        with RedisReader.from_url(server.url, key=key) as reader:
            assert reader.forgotten() == {*known}
            assert reader.contains_many(known) == [False] * 10
        assert seen.add_many(known) == [False] * 10
        assert sorted(server.client().keys(f"{key}*")) == before
        assert StoredFilter(server.client(), key).header.get(b"again") is None

    def test_it_goes_with_the_filter(self, server, opened, key):
        seen = opened(server, key)
        known = fingerprints(10)
        seen.add_many(known)
        seen.forget_many(known[:5])
        assert seen.clear()
        assert not server.client().keys(f"{key}:*:again")
        assert seen.add_many(known) == [False] * 10
        assert seen.add_many(known) == [True] * 10

    def test_it_goes_with_a_filter_whose_header_is_lost(self, server, opened, key):
        seen = opened(server, key)
        seen.add(b"one")
        seen.forget(b"one")
        old = self.listed(server, key)
        server.client().delete(key)
        until(lambda: seen.counters.losses)
        until(lambda: not server.client().exists(old))

    def test_its_loss_is_a_loss(self, server, opened, key):
        """What was forgotten may stay seen then, and nobody but the log would say so."""
        seen = opened(server, key, cache=0)
        one, two = fingerprints(2)
        seen.add_many([one, two])
        seen.forget(one)
        server.client().delete(self.listed(server, key))
        assert seen.add(two) is True
        assert seen.counters.losses == 1
        assert seen.add(two) is True
        assert seen.counters.losses == 1
        assert seen.forget(one)
        assert seen.add(one) is False


def as_bytes(item):
    return b"%d" % item
