"""Filter and queue in a real Redis Cluster of three nodes."""

from __future__ import annotations

import os
import signal

import pytest
from redis.crc import key_slot
from support.contract import fingerprints
from support.localcluster import LocalCluster
from support.queues import Crawler
from support.waiting import until

from scrapy_bloom.errors import SettingError
from scrapy_bloom.redis import worker as pace
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


def test_leases_are_renewed_beside_a_node_that_hangs(monkeypatch):
    """One of several shards that does not answer must not end the leases at the others."""
    monkeypatch.setattr(pace, "BEAT", 0.2)
    with (
        LocalCluster() as cluster,
        RedisFilter.from_url(cluster.url, key="k", shards=6, timeout=1.0) as seen,
    ):
        seen.add_many(fingerprints(50))
        third = cluster.nodes[2]
        os.kill(third.pid, signal.SIGSTOP)
        try:
            before = [shard.renewed for shard in seen.shards]

            def renewed():
                pairs = zip(before, seen.shards, strict=True)
                return [shard.renewed > was + 2 for was, shard in pairs].count(True) >= 3

            until(renewed)
        finally:
            os.kill(third.pid, signal.SIGCONT)
