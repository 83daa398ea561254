"""Filter and queue in a real Redis Cluster of three nodes."""

import itertools
import time

import pytest
from redis.crc import key_slot
from support.clusters import LocalCluster
from support.queues import Crawler
from support.waiting import until

from scrapy_bloom.errors import BackendError, SettingError
from scrapy_bloom.redis.client import Server, beginning, eviction_policy
from scrapy_bloom.redis.filter import RedisFilter

pytestmark = [pytest.mark.redis, pytest.mark.server]


def open_filter(cluster, key):
    return RedisFilter.from_url(cluster.url, key=key, timeout=10.0, capacity=1000)


@pytest.mark.parametrize("name", ["{a}b}", "{{a}}", "a b"])
def test_all_keys_of_a_filter_are_in_one_slot_whatever_the_braces(cluster, name):
    assert key_slot(name.encode()) == key_slot(f"{beginning(name)}queue".encode())
    with open_filter(cluster, name) as seen:
        assert [seen.add(b"x"), seen.add(b"x")] == [False, True]


@pytest.mark.parametrize("name", ["a{}b", "a}b", "a{b", "a}b{", "{}{a}"])
def test_a_key_whose_braces_do_not_name_a_slot_is_refused(cluster, name):
    with pytest.raises(SettingError, match="braces must enclose what names the slot"):
        open_filter(cluster, name)


def test_it_can_be_asked_what_it_does_when_it_is_full(cluster):
    whole = Server(cluster.url).connect(2.0)
    assert eviction_policy(whole) == "noeviction"
    whole.close()


def test_closing_ends_the_connections_to_all_nodes(cluster, key):
    def connections():
        return [node.client().info("clients")["connected_clients"] for node in cluster.nodes]

    with Crawler(cluster.url, key):
        assert sum(connections()) > len(cluster.nodes)
    until(lambda: connections() == [1] * len(cluster.nodes))  # the one that asks


def test_a_node_is_killed_and_another_one_takes_its_place():
    """What the replica has been told is neither lost nor done twice."""
    with LocalCluster(replica=True) as cluster, Crawler(cluster.url, key_on_third()) as worker:
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


def test_a_script_that_is_gone_is_loaded_while_another_node_is_down():
    with LocalCluster() as cluster, Crawler(cluster.url, key_on_third(), timeout=2.0) as worker:
        worker.offer(*range(10))
        worker.say()
        cluster.nodes[1].kill()
        cluster.nodes[2].client().script_flush()
        worker.offer(*range(10, 20))
        assert worker.exchange().verdicts


class Move:
    """The slot of a key moves from the third node of a cluster to the first."""

    def __init__(self, cluster, key):
        self.slot, self.to = key_slot(key.encode()), cluster.nodes[0]
        self.source, self.target = cluster.nodes[2].client(), self.to.client()
        ids = [node.execute_command("CLUSTER", "MYID") for node in (self.target, self.source)]
        self._set(self.target, "IMPORTING", ids[1])
        self._set(self.source, "MIGRATING", ids[0])
        self._id = ids[0]

    def _set(self, node, *words):
        node.execute_command("CLUSTER", "SETSLOT", self.slot, *words)

    def move(self, name):
        self.source.execute_command("MIGRATE", self.to.HOST, self.to.port, name, 0, 5000)

    def names(self):
        return self.source.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 100)

    def end(self):
        for node in (self.target, self.source):
            self._set(node, "NODE", self._id)


def test_while_its_slot_moves_a_crawl_waits():
    """The client's error was one that ends a crawl: all workers ended, with the exit code 0."""
    key = key_on_third()
    with LocalCluster() as cluster, Crawler(cluster.url, key, timeout=2.0) as worker:
        worker.offer(*range(100))
        worker.say()
        done = worker.take(10)
        worker.done()
        move = Move(cluster, key)
        for name in sorted(move.names(), key=key.encode().__eq__):  # the header comes last
            move.move(name)
            with pytest.raises(BackendError) as told:
                worker.queue.worker.beat()
            assert told.value.temporary
        move.end()
        done += worker.drain()
        assert sorted(map(int, done)) == [*range(100)]
        assert worker.queue.surprises == 0


def test_a_script_runs_during_a_move_if_its_second_key_is_there():
    """Then it ends half-way, at a key that is not on its node: so that key is never there."""
    key = key_on_third()
    with LocalCluster() as cluster, Crawler(cluster.url, key, timeout=2.0) as worker:
        client, base = cluster.nodes[2].client(), beginning(key)
        worker.offer("later", wait=3600)
        worker.offer(*range(10))
        worker.say(1)
        assert not client.exists(base)
        client.hset(f"{base}failed", "id", "")
        client.set(base, "")
        Move(cluster, key)
        worker.offer("lost")
        worker.queue.next_call.holds[b"host"] = time.monotonic() + 1
        with pytest.raises(BackendError, match="non local key"):
            worker.exchange()


def key_on_third():
    return next(name for name in map("crawl{}".format, itertools.count()) if on_third(name))


def on_third(name):
    return key_slot(name.encode()) > 11_000
