"""Whatever the network does: each page is granted once, and none is seen that nobody was
granted."""

from __future__ import annotations

from hashlib import sha1

import pytest
from support.contract import fingerprints
from support.localredis import keys
from support.proxy import MORE_FAULTS, Proxy
from support.waiting import until

from scrapy_bloom.errors import BackendError
from scrapy_bloom.options import OnBackendError
from scrapy_bloom.redis.client import Target, script
from scrapy_bloom.redis.filter import RedisFilter, plans


def name_of_call(layout):
    """Return what a request has in it if and only if it is a call."""
    return sha1(script("call", layout).encode()).hexdigest().encode()


@pytest.fixture
def opened(layout):
    filters = []

    def opened(url, key, *, on_error=OnBackendError.ALLOW, known=0):
        made_for = plans(capacity=10, error_rate=1e-9, layout=layout)
        one = RedisFilter(Target(url), key, made_for, on_error=on_error, timeout=2.0, known=known)
        filters.append(one)
        return one

    yield opened
    for one in filters:
        one.close()


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


@pytest.mark.parametrize("fault", MORE_FAULTS)
@pytest.mark.parametrize("known", [0, 1000])
def test_one_fault_in_any_call_changes_no_verdict(server, opened, layout, fault, known):
    pages = fingerprints(40)
    with Proxy(server.port, counted=name_of_call(layout)) as proxy:
        for call in range(2, 8, 2 if "stall" in fault else 1):
            key = next(keys)
            crowd = Crowd(opened(proxy.url, key, known=known), opened(server.url, key))
            crowd.add("faulty", [b"loads the script"])
            proxy.requests, proxy.faults = 0, {call: fault}
            for start in range(0, 35, 5):
                crowd.add("sound", pages[start : start + 2])
                crowd.add("faulty", pages[start : start + 5])
                crowd.add("sound", pages[: start + 5])
            proxy.deliver()
            crowd.add("faulty", pages)
            crowd.add("sound", pages)
            assert len(crowd.granted) == 41
            assert not crowd.twice
            assert crowd.workers["faulty"].counters.outages == 0


@pytest.mark.parametrize("fault", MORE_FAULTS)
def test_a_call_that_is_given_up_costs_a_second_fetch_at_most(server, opened, layout, fault):
    pages = fingerprints(40)
    with Proxy(server.port, counted=name_of_call(layout)) as proxy:
        key = next(keys)
        crowd = Crowd(opened(proxy.url, key, known=1000), opened(server.url, key))
        crowd.add("faulty", [b"loads the script"])
        proxy.requests, proxy.faults = 0, {3: fault, 4: fault}
        for start in range(0, 35, 5):
            crowd.add("sound", pages[start : start + 2])
            crowd.add("faulty", pages[start : start + 5])
            if start == 20:
                proxy.deliver()
            crowd.add("sound", pages[: start + 5])
        faulty = crowd.workers["faulty"]
        until(lambda: faulty.usable)
        proxy.deliver()
        crowd.add("faulty", pages)
        crowd.add("sound", pages)
        assert len(crowd.granted) == 41


@pytest.mark.parametrize("fault", [one for one in MORE_FAULTS if one != "twice"])
def test_what_raised_is_new_when_it_is_asked_again(server, opened, layout, fault):
    one, two, three = fingerprints(3)
    with Proxy(server.port, counted=name_of_call(layout)) as proxy:
        seen = opened(proxy.url, next(keys), on_error=OnBackendError.CLOSE, known=1000)
        assert seen.add(one) is False
        proxy.requests, proxy.faults = 0, {1: fault, 2: fault}
        with pytest.raises(BackendError):
            seen.add_many([one, two, three])
        until(lambda: seen.usable)
        proxy.deliver()
        assert seen.add_many([two, three]) == [False, False]
        assert seen.add_many([two, three, one]) == [True, True, True]


def test_a_mark_made_in_the_background_is_not_known_before_its_caller_is_told(
    server, opened, layout
):
    """A fault that a prototype had: 125 of 12,000 pages were lost to it."""
    pages = fingerprints(20)
    with Proxy(server.port, counted=name_of_call(layout)) as proxy:
        seen = opened(proxy.url, next(keys), on_error=OnBackendError.CLOSE, known=1000)
        seen.add(b"loads the script")
        for number, page in enumerate(pages):
            proxy.requests, proxy.faults = 0, {1: "drop reply", 2: "drop reply"}
            with pytest.raises(BackendError):
                seen.add(page)
            until(lambda: seen.usable)
            assert seen.add(b"%d settles it" % number) is False
            assert seen.add(page) is False
            assert seen.add(page) is True


def test_a_beat_after_the_worker_has_left_is_no_loss(server, opened):
    """Another one: it was taken for a loss."""
    seen = opened(server.url, next(keys))
    seen.add(b"one")
    shard = seen.shards[0]
    shard.leave()
    shard.beat()
    assert server.client().hget(shard.key, "waiting") == b"0"
    assert seen.numbers()["losses"] == 0
