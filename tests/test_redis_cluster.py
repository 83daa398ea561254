"""A filter spread over a real cluster."""

import itertools

import pytest
from support.contract import FilterContract, fingerprints
from support.localcluster import LocalCluster
from support.lockstep import grants
from support.waiting import until

from scrapy_bloom import RedisFilter, SettingError, StateError

keys = (f"cluster:{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def opened(cluster):
    filters = []

    def opened(key=None, **options):
        defaults = {"shards": 6, "timeout": 10.0}
        seen = RedisFilter.from_url(cluster.url, key=key or next(keys), **(defaults | options))
        filters.append(seen)
        return seen

    yield opened
    for seen in filters:
        seen.close()


class TestRedisFilterOnACluster(FilterContract):
    @pytest.fixture
    def make(self, opened, layout):
        return lambda **sizes: opened(shards=1, layout=layout, **sizes)


def test_a_filter_is_spread_over_all_nodes(cluster, opened, layout):
    key = next(keys)
    seen = opened(key, layout=layout, capacity=6000, error_rate=1e-6)
    known = fingerprints(6000)
    assert seen.add_many(known) == [False] * 6000
    assert seen.add_many(known) == [True] * 6000
    assert all(seen.contains_many(known))
    assert not any(seen.contains_many(fingerprints(6000, "b")))
    info = seen.info()
    assert info.items == 6000
    assert info.slices == 1
    assert info.capacity >= 6000
    for node in cluster.nodes:
        with node.client() as client:
            assert [name for name in client.keys("*") if name.startswith(key.encode())]


def test_processes_in_lockstep_are_granted_every_item_once(cluster, layout):
    counts = grants(
        cluster.url,
        next(keys),
        workers=4,
        items=4000,
        batch=50,
        capacity=1000,
        shards=3,
        layout=layout,
    )
    assert set(counts.values()) == {1}


def test_workers_must_agree_on_the_number_of_shards(opened):
    key = next(keys)
    opened(key, shards=3)
    with pytest.raises(StateError, match="a number of shards of 3, expected 1"):
        opened(key, shards=1)


def test_a_tag_in_the_key_fits_one_shard_only(opened):
    seen = opened("{own}:bloom", shards=1)
    assert [seen.add(b"x"), seen.add(b"x")] == [False, True]
    with pytest.raises(SettingError, match="on one node"):
        opened("{own}:other", shards=2)


@pytest.mark.parametrize("key", ["a{}b", "a}b", "{}", "a{b", "}{", "{}{a}"])
def test_a_key_whose_braces_do_not_name_a_slot_is_refused(cluster, opened, key):
    with pytest.raises(SettingError, match=r"key = .*: in a Redis Cluster give a key without brac"):
        opened(key, shards=1)
    for node in cluster.nodes:
        with node.client() as client:
            assert not [name for name in client.keys("*") if name.startswith(key.encode())]


@pytest.mark.parametrize("key", ["{a}b}", "a{b}{}", "{{a}}", "{a}{b}"])
def test_a_key_with_a_tag_holds_a_filter(opened, key):
    seen = opened(key, shards=1)
    assert [seen.add(b"x"), seen.add(b"x")] == [False, True]


def test_only_the_shards_of_a_dead_node_are_out(layout):
    with LocalCluster() as cluster:
        options = {"capacity": 1000, "error_rate": 1e-9, "shards": 6, "layout": layout}
        seen = RedisFilter.from_url(cluster.url, key="crawl", timeout=1.0, **options)
        known = fingerprints(600)
        seen.add_many(known[:300])
        cluster.nodes[2].kill()
        assert seen.add_many(known) == [True] * 300 + [False] * 300
        assert not seen.usable
        assert 0 < seen.counters.unknown < 300
        cluster.nodes[2].start()
        until(lambda: seen.usable)
        # The node came back empty: its shards are made anew.
        assert seen.add_many(fingerprints(300, "more")) == [False] * 300
        assert seen.counters.losses >= 1
        assert False in seen.add_many(known)
        other = RedisFilter.from_url(cluster.url, key="crawl", **options)
        assert other.add_many(known) == [True] * 600
        for worker in (seen, other):
            worker.close()
