"""Looking at a filter in Redis: it must be there, and nothing of it changes."""

import os
import signal

import pytest
from support.contract import fingerprints
from support.localcluster import LocalCluster
from support.localredis import LocalRedis
from support.waiting import until

from scrapy_bloom import BackendError, RedisFilter, RedisReader, SettingError, StateError


def everything(server):
    client = server.client()
    return {name: client.dump(name) for name in client.scan_iter()}


@pytest.mark.parametrize("shards", [1, 3])
def test_it_answers_as_the_filter_does_and_changes_nothing(server, key, shards, layout):
    known, others = fingerprints(3000), fingerprints(3000, "b")
    with RedisFilter.from_url(
        server.url,
        key=key,
        capacity=1000,
        error_rate=1e-6,
        shards=shards,
        layout=layout,
        fingerprinter="theirs.F",
        digests=False,
        canonical='{"level": "usual"}',
    ) as seen:
        seen.add_many(known)
        told = seen.info()
    before = everything(server)
    with RedisReader.from_url(server.url, key=key) as reader:
        assert reader.contains_many(known + others) == [True] * 3000 + [False] * 3000
        assert reader.contains_many([]) == []
        assert known[0] in reader
        assert others[0] not in reader
        assert reader.info() == told
        assert (reader.key, reader.shards, reader.error_rate) == (key, shards, 1e-6)
        assert (reader.fingerprinter, reader.digests) == ("theirs.F", False)
        assert reader.canonical == '{"level": "usual"}'
        assert reader.workers() == []
    reader.close()
    assert everything(server) == before


def test_a_key_without_a_filter_is_an_error_and_stays_without_one(server, key):
    before = everything(server)
    with pytest.raises(StateError, match=f"key {key}: found nothing, expected a filter. It is"):
        RedisReader.from_url(server.url, key=key)
    assert everything(server) == before


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_something_else_is_an_error(server, key, kind):
    client = server.client()
    if kind == "string":
        client.set(key, "foreign")
    else:
        client.hset(key, "foreign", 1)
    with pytest.raises(StateError, match=f"key {key}: found a {kind}.* the key of a filter"):
        RedisReader.from_url(server.url, key=key)


def test_the_key_of_a_shard_is_refused_with_that_of_the_filter(server, key):
    RedisFilter.from_url(server.url, key=key, capacity=1000, shards=3).close()
    with pytest.raises(StateError, match=f"shard 2 of a filter, which has the key {key}\\."):
        RedisReader.from_url(server.url, key=f"{key}:2")


def test_a_shard_that_is_missing_is_named(server, key):
    RedisFilter.from_url(server.url, key=key, capacity=1000, shards=3).close()
    server.client().delete(f"{key}:1")
    with pytest.raises(StateError, match=f"key {key}:1: found nothing"):
        RedisReader.from_url(server.url, key=key)


def test_arguments_are_checked_by_name(server):
    with pytest.raises(SettingError, match="timeout = 0: give a number of seconds"):
        RedisReader.from_url(server.url, key="x", timeout=0)


def test_workers_are_listed_and_the_reader_is_none_of_them(server, key):
    one = RedisFilter.from_url(server.url, key=key, capacity=1000)
    child = os.fork()
    if child == 0:
        RedisFilter.from_url(server.url, key=key, capacity=1000)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with RedisReader.from_url(server.url, key=key) as reader:
        pids = {int(worker.id.split(":")[-2]): worker.alive for worker in reader.workers()}
        assert pids == {os.getpid(): True, child: True}
        until(lambda: [worker.alive for worker in reader.workers()].count(False) == 1)
        pids = {int(worker.id.split(":")[-2]): worker.alive for worker in reader.workers()}
        assert pids == {os.getpid(): True, child: False}
    one.close()


def test_it_reads_what_others_add_and_says_when_the_filter_is_gone(server, key, layout):
    with (
        RedisFilter.from_url(server.url, key=key, capacity=1000, layout=layout) as seen,
        RedisReader.from_url(server.url, key=key) as reader,
    ):
        assert b"x" not in reader
        seen.add(b"x")
        assert b"x" in reader
        assert reader.info().items == 1
        assert seen.clear()
        for ask in (lambda: b"x" in reader, reader.info, reader.workers):
            with pytest.raises(StateError, match=f"key {key}: "):
                ask()
        seen.add(b"x")
        for ask in (lambda: b"x" in reader, reader.info, reader.workers):
            with pytest.raises(StateError, match="is gone, or another one is in its place"):
                ask()


def test_it_shows_no_secret(server, key):
    with RedisFilter.from_url(server.url, key=key, capacity=1000) as seen:
        secret = seen.secret
    with RedisReader.from_url(server.url, key=key) as reader:
        assert not hasattr(reader, "secret")
        assert repr(secret) not in repr([repr(value) for value in vars(reader).values()])


def test_a_replica_will_do(key, layout):
    with LocalRedis() as primary, LocalRedis() as replica:
        replica.client().replicaof(primary.HOST, primary.port)
        with RedisFilter.from_url(primary.url, key=key, capacity=1000, layout=layout) as seen:
            seen.add(b"x")
            until(lambda: replica.client().hget(key, "filled") == b"1")
            with RedisReader.from_url(replica.url, key=key) as reader:
                assert reader.contains_many([b"x", b"y"]) == [True, False]
                assert reader.info().items == 1
                assert len(reader.workers()) == 1


def test_a_server_that_is_out_is_an_error(key):
    with LocalRedis() as server:
        RedisFilter.from_url(server.url, key=key, capacity=1000).close()
        reader = RedisReader.from_url(server.url, key=key, timeout=10.0)
        server.kill()
        for ask in (lambda: b"x" in reader, reader.info, reader.workers):
            with pytest.raises(BackendError, match="cannot be reached"):
                ask()
        reader.close()


def test_in_a_cluster(layout):
    known = fingerprints(500)
    with LocalCluster() as cluster:
        with RedisFilter.from_url(
            cluster.url, key="k", capacity=1000, shards=6, layout=layout, timeout=10
        ) as seen:
            seen.add_many(known)
        with RedisReader.from_url(cluster.url, key="k", timeout=10) as reader:
            assert all(reader.contains_many(known))
            assert reader.info().items == 500
