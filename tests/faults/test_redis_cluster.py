"""Filter and queue in a real Redis Cluster of three nodes."""

from __future__ import annotations

import itertools

import pytest
from redis.crc import key_slot
from support.localcluster import LocalCluster
from support.queues import Crawler
from support.waiting import until

from scrapy_bloom.errors import SettingError
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.filter import RedisFilter


def open_filter(cluster, key):
    return RedisFilter.from_url(cluster.url, key=key, timeout=10.0, capacity=1000)


@pytest.mark.parametrize("name", ["{a}b}", "{{a}}", "a b"])
def test_all_keys_of_a_filter_are_in_one_slot_whatever_the_braces(cluster, name):
    assert key_slot(name.encode()) == key_slot(f"{beginning(name)}queue".encode())
    with open_filter(cluster, name) as seen:
        assert [seen.add(b"x"), seen.add(b"x")] == [False, True]


@pytest.mark.parametrize("name", ["a{}b", "a}b", "a{b", "{}{a}"])
def test_a_key_whose_braces_do_not_name_a_slot_is_refused(cluster, name):
    with pytest.raises(SettingError, match="braces must enclose what names the slot"):
        open_filter(cluster, name)


def test_all_keys_of_a_crawl_are_on_one_node(cluster, key):
    with Crawler(cluster.url, key) as worker:
        worker.offer(*range(300))
        worker.say()
        have = [[*node.client().keys(f"{key}*")] for node in cluster.nodes]
    assert sum(map(bool, have)) == 1


def test_closing_ends_the_connections_to_all_nodes(cluster, key):
    def connections():
        return [node.client().info("clients")["connected_clients"] for node in cluster.nodes]

    with Crawler(cluster.url, key):
        assert sum(connections()) > len(cluster.nodes)
    until(lambda: connections() == [1] * len(cluster.nodes))  # the one that asks


def test_a_node_is_killed_and_another_one_takes_its_place():
    """What the replica has been told is neither lost nor done twice."""
    on_third = (f"crawl{number}" for number in itertools.count())
    key = next(name for name in on_third if key_slot(name.encode()) > 11_000)
    with LocalCluster(replica=True) as cluster, Crawler(cluster.url, key) as worker:
        worker.offer(*range(300))
        worker.say()
        done = worker.take(60)
        worker.done()
        worker.say()
        third, replica = (cluster.nodes[number].client() for number in (2, 3))
        until(
            lambda: (
                replica.info("replication")["slave_repl_offset"]
                >= third.info("replication")["master_repl_offset"]
            )
        )
        cluster.nodes[2].kill()
        worker.offer(*range(300, 400))
        assert worker.say() == [*range(300, 400)]
        assert replica.info("replication")["role"] == "master"
        done += worker.drain()
        assert sorted(map(int, done)) == [*range(400)]
