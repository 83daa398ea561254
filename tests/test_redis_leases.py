"""Who may empty a filter: nobody under a worker that lives, whatever its lease looks like."""

import os
import signal
import threading
import time

import pytest
from support.contract import fingerprints
from support.filter_workers import Worker, leases, registered, shift_leases
from support.localcluster import LocalCluster
from support.pace import usual
from support.proxy import Proxy
from support.waiting import until

from scrapy_bloom import BloomError, RedisFilter
from scrapy_bloom.redis import pace

pytestmark = pytest.mark.usefixtures("short_leases")

KNOWN = fingerprints(50)
OPENED = {"timeout": 2.0}  # of the fixture `opened`: servers stand still here


def cleared(seen):
    """Whether the filter was emptied; not where that cannot be known."""
    try:
        return seen.clear()
    except BloomError:
        return False


def in_transaction(server, *commands):
    with server.client().pipeline(transaction=True) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        pipeline.execute()


class TestALiveWorker:
    """Another worker must not empty the filter under it."""

    @pytest.fixture
    def workers(self, own_server, opened, key):
        live, other = opened(own_server, key), opened(own_server, key)
        live.add_many(KNOWN)
        return live, other

    def holds(self, server, opened, key):
        """Whether the filter holds what the live worker has put there."""
        return all(opened(server, key, cache=0).contains_many(KNOWN))

    def test_whose_server_was_out_of_memory(self, own_server, opened, key, workers):
        live, other = workers
        admin = own_server.client()
        admin.config_set("maxmemory-policy", "noeviction")
        shift_leases(own_server, key, -pace.LEASE)  # so long it has been full
        admin.config_set("maxmemory", 1)
        for _ in range(3):
            assert not cleared(other)
        admin.config_set("maxmemory", 0)
        assert not cleared(other)
        assert self.holds(own_server, opened, key)
        assert live.add_many(KNOWN) == [True] * 50

    def test_whose_lease_a_moved_clock_has_ended(self, own_server, opened, key, workers):
        _, other = workers
        for _ in range(3):
            shift_leases(own_server, key, -3600)
            assert not cleared(other)
        assert self.holds(own_server, opened, key)

    def test_whose_server_was_frozen(self, own_server, opened, key, workers):
        _, other = workers
        os.kill(own_server.pid, signal.SIGSTOP)
        time.sleep(pace.LEASE + 1)
        os.kill(own_server.pid, signal.SIGCONT)
        assert not cleared(other)
        assert self.holds(own_server, opened, key)

    def test_whose_lease_is_over_when_another_one_comes(self, own_server, opened, key, workers):
        """The newcomer must not take it off the register, or its calls would be a stranger's."""
        live, _ = workers
        before = registered(own_server, key)
        shift_leases(own_server, key, -3600)
        opened(own_server, key)
        assert registered(own_server, key) > before
        until(lambda: min(leases(own_server, key).values()) > time.time())
        assert live.add(b"next") is False
        assert registered(own_server, key) > before

    def test_that_cannot_reach_the_server_for_a_while(self, own_server, opened, key):
        with Proxy(own_server.port) as proxy:
            live, other = opened(proxy.url, key), opened(own_server, key)
            live.add_many(KNOWN)
            answers = []
            clearing = threading.Thread(target=lambda: answers.append(cleared(other)))
            with proxy.down():
                clearing.start()
                clearing.join(pace.LEASE / 2)
                assert clearing.is_alive()
            clearing.join(60)
            assert answers == [False]
            assert self.holds(own_server, opened, key)

    def test_that_has_just_emptied_the_filter(self, own_server, opened, key):
        """Its start requests are not filtered: for a while it asks nothing of the filter."""
        first = opened(own_server, key)
        first.add_many(KNOWN)
        assert first.clear()
        second = opened(own_server, key)
        assert not second.clear()
        assert first.add_many(KNOWN) == [False] * 50

    def test_that_was_refused_to_empty_the_filter(self, own_server, opened, key, workers):
        live, other = workers
        assert not other.clear()
        assert not live.clear()
        assert self.holds(own_server, opened, key)

    def test_that_has_forked(self, own_server, opened, key):
        parent = opened(own_server, key)
        parent.add_many(KNOWN)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, bytes([cleared(parent)]))
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 9) == bytes([False])
        assert self.holds(own_server, opened, key)
        for end in (read, write):
            os.close(end)


def test_what_another_has_emptied_is_not_seen_from_memory(server, opened, key):
    one = opened(server, key)
    one.add_many(KNOWN)
    two = opened(server, key)
    assert not one.clear()
    if two.clear():
        assert one.add_many(KNOWN) == [False] * 50
    else:
        assert opened(server, key).add_many(KNOWN) == [True] * 50


class TestADeadWorker:
    def test_does_not_keep_the_filter(self, server, opened, key):
        with Worker(server, key) as dead:
            seen = opened(server, key)
            seen.add_many(KNOWN)
            dead.kill()
            assert seen.clear()
            assert seen.add_many(KNOWN) == [False] * 50

    def test_does_not_keep_it_longer_when_the_clock_was_moved_back(self, server, opened, key):
        with Worker(server, key) as dead:
            seen = opened(server, key)
            dead.kill()
            shift_leases(server, key, 3600)
            assert seen.clear()  # which waits for two leases at most

    def test_is_taken_off_the_register_by_the_next_one(self, server, opened, key):
        with Worker(server, key) as dead, Worker(server, key) as live:
            assert dead.tell("clear") == "False"
            dead.kill()
            live.kill()
            assert len(registered(server, key)) == 2
            opened(server, key)
            until(lambda: len(registered(server, key)) == 1, 10 * pace.LEASE)


def test_workers_that_finish_together_leave_nothing_and_do_not_wait(server, key, monkeypatch):
    monkeypatch.setattr(pace, "LEASE", 60.0)
    workers = [
        RedisFilter.from_url(server.url, key=key, capacity=1000, keep=False) for _ in range(4)
    ]
    for number, worker in enumerate(workers):
        worker.add_many(fingerprints(10, str(number)))
    start = time.monotonic()
    threads = [threading.Thread(target=worker.close) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < pace.LEASE / 2
    assert server.client().keys(f"{key}*") == []


def test_leases_are_renewed_beside_a_node_that_hangs(opened, monkeypatch):
    usual(monkeypatch)
    with LocalCluster() as cluster:
        opened(cluster.url, "crawl", capacity=1000, shards=48)
        hung, *sound = cluster.nodes
        headers = {node: headers_on(node) for node in sound}
        os.kill(hung.pid, signal.SIGSTOP)
        try:
            ends = [(node, key, leases(node, key)) for node in sound for key in headers[node]]
            deadline = time.monotonic() + pace.LEASE
            for node, key, end in ends:
                until(lambda: leases(node, key) != end, deadline - time.monotonic())  # noqa: B023
            # The same again: it does not get slower with the time.
            ends = [(node, key, leases(node, key)) for node in sound for key in headers[node]]
            deadline = time.monotonic() + pace.LEASE / 2
            for node, key, end in ends:
                until(lambda: leases(node, key) != end, deadline - time.monotonic())  # noqa: B023
        finally:
            os.kill(hung.pid, signal.SIGCONT)


def headers_on(node):
    with node.client() as client:
        return [name for name in client.keys("*") if client.type(name) == b"hash"]
