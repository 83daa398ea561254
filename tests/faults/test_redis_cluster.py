"""Filter and queue in a real Redis Cluster of three nodes."""

from __future__ import annotations

import pytest
from redis.crc import key_slot
from support.localcluster import LocalCluster
from support.queues import Crawler

from scrapy_bloom.errors import SettingError
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.filter import RedisFilter


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster() as cluster:
        yield cluster


def open_filter(cluster, key, **options):
    options = {"shards": 5, "timeout": 10.0, "capacity": 1000} | options
    return RedisFilter.from_url(cluster.url, key=key, **options)


@pytest.mark.parametrize("name", ["{a}b}", "{{a}}", "a b"])
def test_all_keys_of_a_shard_are_in_one_slot_whatever_the_braces(cluster, name):
    assert key_slot(name.encode()) == key_slot(f"{beginning(name)}queue".encode())
    with open_filter(cluster, name, shards=1) as seen:
        assert [seen.add(b"x"), seen.add(b"x")] == [False, True]


@pytest.mark.parametrize("name", ["a{}b", "a}b", "a{b", "{}{a}"])
def test_a_key_whose_braces_do_not_name_a_slot_is_refused(cluster, name):
    with pytest.raises(SettingError, match="braces must enclose what names the slot"):
        open_filter(cluster, name)


def test_a_node_is_killed_and_another_one_takes_its_place(key):
    """Nothing is lost. What the node had not told its replica yet is done again, at most."""
    with LocalCluster(replica=True) as cluster, Crawler(cluster.url, key, shards=6) as worker:
        worker.offer(*range(300))
        worker.say()
        done = worker.take(60)
        worker.done()
        worker.say()
        for node in cluster.nodes[:3]:
            node.client().wait(1, 100)
        cluster.nodes[2].kill()
        worker.offer(*range(300, 400))
        new = worker.say()
        assert cluster.nodes[3].client().info("replication")["role"] == "master"
        if worker.queue.surprises:  # then start() leads to them again
            worker.offer(*range(400))
            new += worker.say()
        done += worker.drain()
        assert set(map(int, done)) == {*range(400)}
        assert {*new} >= {*range(300, 400)}
        assert len(done) - 400 <= 60


def test_a_slot_moves_to_another_node(cluster):
    key = "{moving}:crawl"
    slot = key_slot(key.encode())
    source = cluster.nodes[slot * 3 // 16384]
    target = cluster.nodes[(slot * 3 // 16384 + 1) % 3]
    with Crawler(cluster.url, key) as one, Crawler(cluster.url, key) as other:
        one.offer(*range(50))
        one.say()
        had = one.take(10)
        errors = []

        def between():
            """The keys are on two nodes: the server refuses every call, and changes nothing."""
            one.offer(*range(40, 60))
            errors.append(one.exchange(5).error)

        cluster.move(slot, source, target, between)
        assert errors[0] is not None
        assert sorted(one.say()) == [*range(50, 60)]
        assert one.queue.surprises == 0
        assert set(one.have) >= set(had)
        had = [*one.have]
        one.done()
        one.say()
        assert sorted(map(int, had + other.drain())) == [*range(60)]
