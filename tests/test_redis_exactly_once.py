"""Whatever the network does: granted once, and nothing is seen that nobody was granted."""

import os

import pytest
from support.contract import fingerprints
from support.layouts import name_of_add
from support.localredis import keys
from support.lockstep import grants
from support.proxy import FAULTS, Proxy
from support.waiting import until

from scrapy_bloom import BackendError, RedisFilter


@pytest.fixture
def open_filter(layout):
    def open_filter(url, key, **options):
        defaults = {"capacity": 1000, "error_rate": 1e-9, "timeout": 2.0, "layout": layout}
        return RedisFilter.from_url(url, key=key, **(defaults | options))

    return open_filter


def test_four_processes_in_lockstep_are_granted_every_item_once(server, layout):
    counts = grants(
        server.url, next(keys), workers=4, items=8000, batch=20, capacity=1000, layout=layout
    )
    assert len(counts) == 8000
    assert set(counts.values()) == {1}


def test_four_processes_one_by_one_through_a_slow_network(server, layout):
    with Proxy(server.port, delay=0.0005) as proxy:
        counts = grants(
            proxy.url, next(keys), workers=4, items=500, batch=1, capacity=100, layout=layout
        )
    assert set(counts.values()) == {1}


class Crowd:
    """Two workers and a record of who was granted what."""

    def __init__(self, faulty, sound):
        self.workers = {"faulty": faulty, "sound": sound}
        self.granted = {}

    def add(self, name, items):
        for item, seen in zip(items, self.workers[name].add_many(items), strict=True):
            if seen:
                assert item in self.granted, f"{name} was told that {item.hex()} is seen"
            else:
                self.granted.setdefault(item, []).append(name)

    @property
    def twice(self):
        return {item for item, names in self.granted.items() if len(names) > 1}


def calls(fault, cache):
    """Return which calls fail: each of the first seven, or each second one if it fails slowly."""
    return range(1 + bool(cache), 8, 2) if "stall" in fault else range(1, 8)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("cache", [0, 1000])
def test_one_fault_in_any_call_changes_no_verdict(server, fault, cache, open_filter, layout):
    known = fingerprints(40)
    for call in calls(fault, cache):
        key = next(keys)
        with Proxy(server.port, counted=name_of_add(layout, 1e-9)) as proxy:
            crowd = Crowd(
                open_filter(proxy.url, key, cache=cache, capacity=10),
                open_filter(server.url, key, cache=cache),
            )
            proxy.faults = {call: fault}
            for start in range(0, 35, 5):
                crowd.add("sound", known[start : start + 2])
                crowd.add("faulty", known[start : start + 5])
                crowd.add("sound", known[: start + 5])
            assert crowd.workers["faulty"].counters.ambiguous == 1
            proxy.deliver()
            crowd.add("faulty", known)
            crowd.add("sound", known)
            assert len(crowd.granted) == 40
            assert not crowd.twice
            for seen in crowd.workers.values():
                seen.close()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("cache", [0, 1000])
def test_a_call_that_is_given_up_costs_a_second_fetch_at_most(
    server, fault, cache, open_filter, layout
):
    known = fingerprints(40)
    for call in calls(fault, cache):
        key = next(keys)
        with Proxy(server.port, counted=name_of_add(layout, 1e-9)) as proxy:
            crowd = Crowd(
                open_filter(proxy.url, key, cache=cache),
                open_filter(server.url, key, cache=cache),
            )
            proxy.faults = {call: fault, call + 1: fault}
            for start in range(0, 35, 5):
                crowd.add("sound", known[start : start + 2])
                crowd.add("faulty", known[start : start + 5])
                if start == 20:
                    proxy.deliver()
                crowd.add("sound", known[: start + 5])
            faulty = crowd.workers["faulty"]
            assert faulty.counters.outages == 1
            assert faulty.counters.unknown
            until_usable(faulty)
            proxy.deliver()
            crowd.add("faulty", known)
            granted_before = len(crowd.granted)
            crowd.add("sound", known)
            assert len(crowd.granted) == granted_before == 40
            assert len(crowd.twice) <= 35
            for seen in crowd.workers.values():
                seen.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_what_raised_is_new_when_it_is_asked_again(server, fault, open_filter, layout):
    key = next(keys)
    one, two, three = fingerprints(3)
    with Proxy(server.port, counted=name_of_add(layout, 1e-9)) as proxy:
        seen = open_filter(proxy.url, key, on_error="close")
        assert seen.add(one) is False
        proxy.faults = {2: fault, 3: fault}
        with pytest.raises(BackendError):
            seen.add_many([one, two, three])
        until_usable(seen)
        proxy.deliver()
        assert seen.add_many([two, three]) == [False, False]
        assert seen.add_many([two, three, one]) == [True, True, True]
        assert seen.add(one) is True
        seen.close()


def test_a_call_that_comes_after_the_next_one_does_nothing(server, open_filter, layout):
    key = next(keys)
    one, two, three = fingerprints(3)
    with Proxy(server.port, counted=name_of_add(layout, 1e-9)) as proxy:
        seen = open_filter(proxy.url, key, cache=0)
        proxy.faults = {1: "late", 2: "late"}
        assert seen.add(one) is False  # both tries are held back
        until_usable(seen)
        assert seen.add(two) is False
        other = open_filter(server.url, key)
        assert proxy.deliver() == 2
        assert other.contains_many([one, two, three]) == [False, True, False]
        for worker in (seen, other):
            worker.close()


def test_scripts_that_the_server_forgot_are_sent_again(server, open_filter):
    seen = open_filter(server.url, next(keys))
    one, two = fingerprints(2)
    assert seen.add(one) is False
    server.client().script_flush()
    assert seen.add_many([two]) == [False]
    assert seen.counters.outages == 0
    server.client().script_flush()
    assert fingerprints(3)[2] not in seen
    seen.close()


def test_a_forked_worker_becomes_one_of_its_own(server, open_filter):
    seen = open_filter(server.url, next(keys), cache=0)
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


def until_usable(seen):
    """Wait until the heartbeat has found the server usable."""
    until(lambda: seen.usable)
