"""Who may empty a filter: nobody under a worker that lives."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.contract import fingerprints
from support.internals import stop_beating
from support.leases import shift_leases
from support.localcluster import LocalCluster
from support.waiting import until

from scrapy_bloom import BloomError, RedisFilter
from scrapy_bloom.redis import worker as pace

pytestmark = pytest.mark.usefixtures("short_leases")

KNOWN = fingerprints(50)
OPENED = {"timeout": 2.0}  # of the fixture `opened`: servers stand still here


def cleared(seen):
    """Whether the filter was emptied; not where that cannot be known."""
    try:
        return seen.clear()
    except BloomError:
        return False


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


def test_a_frozen_worker_goes_on_with_a_filter_that_another_has_emptied(own_server, opened, key):
    frozen, seen = opened(own_server, key), opened(own_server, key)
    seen.add_many(KNOWN)
    assert frozen.add(b"its own") is False
    stop_beating(frozen.worker)
    assert seen.clear()
    assert seen.add_many(KNOWN) == [False] * 50
    assert frozen.add(b"next") is False  # it hears of that
    assert frozen.add(b"its own") is False
    assert frozen.add_many(KNOWN) == seen.add_many(KNOWN) == [True] * 50


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
