"""Who may empty a filter: nobody under a worker that lives. Processes that are killed or frozen."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.contract import fingerprints
from support.filter_workers import Worker, leases, shift_leases
from support.localcluster import LocalCluster
from support.processes import freeze
from support.proxy import Proxy
from support.waiting import until

from scrapy_bloom import BloomError, FilterLostError, RedisFilter
from scrapy_bloom.redis import worker as pace
from scrapy_bloom.redis.client import Target
from scrapy_bloom.redis.shard import delete

pytestmark = pytest.mark.usefixtures("short_leases")

KNOWN = fingerprints(50)
OPENED = {"timeout": 2.0}  # of the fixture `opened`: servers stand still here


def cleared(seen):
    """Whether the filter was emptied; not where that cannot be known."""
    try:
        return seen.clear()
    except BloomError:
        return False


class TestALiveWorker:
    """Another worker must not empty the filter under it."""

    @pytest.fixture
    def workers(self, own_server, opened, key):
        live, other = opened(own_server, key), opened(own_server, key)
        live.add_many(KNOWN)
        return live, other

    def holds(self, server, opened, key):
        """Whether the filter holds what the live worker has put there."""
        return all(opened(server, key).contains_many(KNOWN))

    @pytest.mark.parametrize("seconds", [-3600, 3600])
    def test_whose_lease_a_moved_clock_has_ended(self, own_server, opened, key, workers, seconds):
        _, other = workers
        shift_leases(own_server, key, seconds)
        other.shards[0].beat()
        until(lambda: 0 < min(leases(own_server, key).values()) - time.time() < 60)
        assert not cleared(other)
        assert self.holds(own_server, opened, key)

    def test_whose_server_was_frozen(self, own_server, opened, key, workers):
        _, other = workers
        os.kill(own_server.pid, signal.SIGSTOP)
        since = time.monotonic()
        until(lambda: time.monotonic() - since > pace.LEASE + 1)
        os.kill(own_server.pid, signal.SIGCONT)
        until(lambda: min(leases(own_server, key).values()) > time.time())  # both have come back
        assert not cleared(other)
        assert self.holds(own_server, opened, key)

    def test_that_has_forked(self, own_server, opened, key, workers):
        """The child is a worker of its own, and lives on when the parent has left."""
        live, other = workers
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            live.add(b"one more")  # becomes a worker
            os.write(write, b"x")
            signal.pause()
        os.read(read, 1)
        live.close()
        assert not cleared(other)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert other.clear()
        for end in (read, write):
            os.close(end)
        assert not any(opened(own_server, key).contains_many(KNOWN))


def test_a_killed_worker_does_not_keep_the_filter(own_server, opened, key):
    seen = opened(own_server, key)
    with Worker(own_server, key) as victim:
        assert victim.tell("add") == "False"
        victim.kill()
        assert len(leases(own_server, key)) == 1
        assert seen.clear()
    assert leases(own_server, key) == {}


def test_who_was_taken_for_dead_gets_no_lease_from_a_heartbeat(own_server, opened, key):
    """Others have what it had: it is a worker again when its next call has learnt of that."""
    seen = opened(own_server, key)
    (shard,) = seen.shards
    own_server.client().hset(key, f"w:{shard.name}", f"1 dead {time.time():.0f}")
    before = shard.renewed
    shard.beat()
    assert shard.renewed == before
    assert seen.add_many(KNOWN) == [False] * 50
    assert shard.renewed > before


@pytest.mark.parametrize("deleted", [False, True])
def test_a_frozen_worker_that_wakes_finds_what_is_there(own_server, opened, key, deleted):
    """Emptied by another worker, it goes on. Deleted by a user, it ends and creates nothing."""
    seen = opened(own_server, key)
    seen.add_many(KNOWN)
    with Worker(own_server, key) as frozen:
        assert frozen.tell("add") == "False"
        freeze(frozen.process)
        if deleted:
            seen.close()
            own = pace.Worker(Target(own_server.url), 10.0)
            own.connect()
            until(lambda: not delete(own, key))
            own.close()
        else:
            assert seen.clear()
            assert seen.add_many(KNOWN) == [False] * 50
        before = own_server.client().keys("*")
        frozen.process.send_signal(signal.SIGCONT)
        if deleted:
            assert frozen.tell("add") == FilterLostError.__name__
            assert own_server.client().keys("*") == before == [key.encode()]
        else:
            assert frozen.tell("add") == "False"
            assert seen.add_many(KNOWN) == [True] * 50


def test_no_page_is_lost_that_was_emptied_on_a_full_server(own_server, opened, key):
    """No lease can be renewed there, so it may be emptied under a worker that lives.

    Its pages may be fetched twice then, but no mark may hide one.
    """
    live, other = opened(own_server, key), opened(own_server, key)
    live.add_many(KNOWN)
    assert live.forget(KNOWN[0])
    admin = own_server.client()
    admin.config_set("maxmemory-policy", "noeviction")
    shift_leases(own_server, key, -2 * pace.LEASE)  # so long it has been full
    admin.config_set("maxmemory", 1)
    for _ in range(3):
        cleared(other)
    assert live.add_many(fingerprints(20, "new")) == [False] * 20
    admin.config_set("maxmemory", 0)
    until(lambda: live.usable and other.usable)
    cleared(other)
    verdicts = opened(own_server, key).add_many(KNOWN)
    assert verdicts[0] is False
    assert verdicts[1:] in ([True] * 49, [False] * 49)  # it has all of them, or none
    live.add_many(KNOWN)
    assert live.add_many(KNOWN) == other.add_many(KNOWN) == [True] * 50


def test_what_another_has_emptied_is_not_seen_from_memory(server, opened, key):
    seen, other = opened(server, key), opened(server, key)
    seen.add_many(KNOWN)
    with Proxy(server.port):
        other.close()
    assert seen.clear()
    assert seen.add_many(KNOWN) == [False] * 50
    assert seen.add_many(KNOWN) == [True] * 50


def test_leases_are_renewed_beside_a_node_that_hangs(monkeypatch):
    """One of several shards that does not answer must not end the leases at the others."""
    monkeypatch.setattr(pace, "BEAT", 0.2)
    with (
        LocalCluster() as cluster,
        RedisFilter.from_url(cluster.url, key="k", shards=6, timeout=1.0) as seen,
    ):
        seen.add_many(KNOWN)
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
