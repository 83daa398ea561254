"""What can befall a filter in Redis while it is used: noticed, said, and never "seen" for it."""

import os
import signal
import socket
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest
from support.contract import fingerprints
from support.localredis import LocalRedis, keys, program
from support.proxy import Proxy
from support.waiting import until

from scrapy_bloom import BackendError, FilterLostError, RedisFilter
from scrapy_bloom.redis import breaker
from scrapy_bloom.redis.counters import Counters
from scrapy_bloom.redis.options import RedisOptions


def debugging():
    """Return what lets a server obey DEBUG, which Redis 7 asks for."""
    version = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True)
    return () if "v=6" in version.stdout else ("--enable-debug-command", "yes")


@pytest.fixture(scope="module")
def server():
    with LocalRedis(*debugging()) as server:
        yield server


@pytest.fixture
def opened(request, layout_if_asked):
    """Open filters that are closed after the test.

    A short time-out is for tests of what stands still. A busy machine may be slower than that.
    """
    filters = []

    def opened(server, key=None, **options):
        defaults = {"capacity": 10_000, "error_rate": 1e-9, "timeout": 10.0}
        defaults["layout"], (of, capacity) = layout_if_asked, getattr(request.cls, "sizes", ("", 0))
        if layout_if_asked == of:
            defaults["capacity"] = capacity
        url = server if isinstance(server, str) else server.url
        filters.append(RedisFilter.from_url(url, key=key or next(keys), **(defaults | options)))
        return filters[-1]

    yield opened
    for seen in filters:
        seen.close()


def asleep(server, seconds):
    """Put the server to sleep; return the connection that it will answer when it wakes up."""
    connection = socket.create_connection((server.HOST, server.port))
    connection.sendall(b"PING\r\n")
    assert connection.recv(9) == b"+PONG\r\n"
    connection.sendall(b"DEBUG SLEEP %g\r\n" % seconds)
    return connection


def gets_through(seen):
    """Ask about something new; return whether Redis could be asked."""
    before = seen.counters.unknown
    seen.add(os.urandom(20))
    return seen.counters.unknown == before


def segments(server, key):
    return server.client().keys(f"{key}:*")


class TestCircuitBreaker:
    def test_allow_lets_through_what_it_does_not_know_and_marks_nothing(
        self, lasting_server, opened, caplog
    ):
        server, key = lasting_server, next(keys)
        seen = opened(server, key)
        before, during, after = (fingerprints(50, tag) for tag in ("before", "during", "after"))
        seen.add_many(before)
        server.kill()
        assert seen.add_many([*before, *during]) == [True] * 50 + [False] * 50
        assert seen.add_many([*before, *during]) == [True] * 100  # or the crawl would never end
        assert seen.counters.unknown == 50
        assert seen.counters.outages == 1
        assert caplog.text.count("ERROR") == 1
        assert "cannot be reached" in caplog.text
        server.start()
        until(lambda: seen.usable)
        assert seen.add_many(after) == [False] * 50
        assert seen.counters.losses == 0
        other = opened(server, key)
        assert other.contains_many([*before, *during, *after]) == (
            [True] * 50 + [False] * 50 + [True] * 50
        )
        assert seen.add_many(during) == [False] * 50

    def test_an_outage_costs_the_time_of_one_check(self, own_server, opened):
        seen = opened(own_server, timeout=5.0)
        seen.add_many(fingerprints(10))
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            start = time.perf_counter()
            assert [seen.add(item) for item in fingerprints(2000, "new")] == [False] * 2000
            assert 5 <= time.perf_counter() - start < 10  # not of two, nor of 2000
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        assert seen.counters.outages == 1

    def test_a_server_that_sleeps_briefly_is_waited_for(self, server, opened):
        key = next(keys)
        seen, other = opened(server, key), opened(server, key)
        known = fingerprints(20)
        sleeper = asleep(server, 0.3)
        assert seen.add_many(known) == [False] * 20
        assert other.add_many(known) == [True] * 20
        assert sleeper.recv(9) == b"+OK\r\n"
        sleeper.close()
        assert seen.counters.outages == 0

    def test_a_server_that_sleeps_long_is_an_outage(self, server, opened):
        key = next(keys)
        seen = opened(server, key, cache=0, timeout=2.0)
        known = fingerprints(20)
        sleeper = asleep(server, 6)
        assert seen.add_many(known) == [False] * 20
        assert seen.counters.outages == 1
        assert sleeper.recv(9) == b"+OK\r\n"
        sleeper.close()
        until(lambda: seen.usable)
        assert seen.add_many(known) == [True] * 20
        other = opened(server, key)
        assert seen.add(b"next") is False
        assert other.add_many(known) == [True] * 20

    def test_wait_holds_the_check_until_the_server_is_back(self, lasting_server, opened):
        server, key = lasting_server, next(keys)
        seen = opened(server, key, on_error="wait", wait=30)
        known = fingerprints(20)
        seen.add_many(known[:10])
        server.kill()
        helper = threading.Thread(
            target=lambda: (until(lambda: seen.counters.outages), server.start())
        )
        helper.start()
        assert seen.add_many(known) == [True] * 10 + [False] * 10
        helper.join()
        assert 0 < seen.counters.waited < 30
        assert seen.counters.unknown == 0
        assert opened(server, key).add_many(known) == [True] * 20

    def test_wait_has_an_end(self, own_server, opened, caplog):
        seen = opened(own_server, on_error="wait", wait=1)
        own_server.kill()
        start = time.perf_counter()
        assert [seen.add(item) for item in fingerprints(100)] == [False] * 100
        assert 1 <= time.perf_counter() - start < 10  # or each check would wait
        assert 0.9 < seen.counters.waited < 10
        assert "1 s are over" in caplog.text

    def test_close_raises(self, own_server, opened):
        seen = opened(own_server, on_error="close")
        own_server.kill()
        for _ in range(2):
            with pytest.raises(BackendError, match="cannot be reached"):
                seen.add(b"x")
        with pytest.raises(BackendError, match="cannot be reached"):
            seen.contains_many([b"x"])

    @pytest.mark.usefixtures("layout")
    def test_a_server_without_memory_takes_no_marks(self, own_server, opened, caplog):
        key = next(keys)
        seen = opened(own_server, key)
        known = fingerprints(20)
        seen.add_many(known[:10])
        admin = own_server.client()
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", 1000)
        assert seen.add_many(known) == [True] * 10 + [False] * 10
        assert "out of memory" in caplog.text
        assert not seen.usable
        admin.config_set("maxmemory", 0)
        until(lambda: seen.usable)
        assert seen.add(b"next") is False
        assert opened(own_server, key).add_many(known) == [True] * 10 + [False] * 10


@pytest.mark.usefixtures("layout")
class TestLoss:
    sizes = ("sets", 380)  # then there is one bucket, which every check needs

    @pytest.fixture(params=["all", "header", "segment", "header expires", "segment expires"])
    def lose(self, request):
        def lose(server, key):
            client = server.client()
            segment = segments(server, key)[0]
            if request.param == "all":
                client.flushall()
            elif request.param == "header":
                client.delete(key)
            elif request.param == "segment":
                client.delete(segment)
            else:
                name = key if request.param == "header expires" else segment
                client.pexpire(name, 1)
                until(lambda: not client.exists(name))

        return lose

    def test_a_loss_is_noticed_at_once_and_nothing_is_known_any_more(
        self, own_server, opened, lose, caplog
    ):
        key = next(keys)
        one, two = opened(own_server, key), opened(own_server, key)
        ones, twos = fingerprints(100, "one"), fingerprints(100, "two")
        one.add_many(ones)
        two.add_many(twos)
        lose(own_server, key)
        assert one.add(b"next") is False
        assert two.add(b"another") is False
        assert one.counters.losses == two.counters.losses == 1
        assert caplog.text.count("goes on with the marks that are left") == 2
        assert one.add_many(ones) == [False] * 100
        assert two.add_many(ones) == [True] * 100
        assert two.add_many(twos) == [False] * 100
        assert one.counters.losses == two.counters.losses == 1

    def test_what_nobody_remembers_is_new(self, own_server, opened, lose):
        key = next(keys)
        seen = opened(own_server, key, cache=0)
        known = fingerprints(100)
        seen.add_many(known)
        lose(own_server, key)
        assert seen.add_many([*known, b"next"]) == [False] * 101
        assert seen.add_many(known) == [True] * 100
        assert seen.counters.losses == 1

    def test_close_raises_and_grants_what_it_raised_at(self, own_server, opened, lose):
        key = next(keys)
        seen = opened(own_server, key, on_error="close")
        seen.add_many(fingerprints(100))
        lose(own_server, key)
        new = fingerprints(3, "new")
        with pytest.raises(FilterLostError, match="has lost"):
            seen.add_many(new)
        assert seen.add_many(new) == [False] * 3
        assert seen.add_many(new) == [True] * 3

    def test_a_segment_that_no_check_needs_is_missed_within_a_thousand_calls(
        self, own_server, opened, layout
    ):
        key = next(keys)
        seen = opened(own_server, key, capacity={"bitmap": "10M", "sets": 10_000}[layout], cache=0)
        seen.add_many(fingerprints(100))
        names = segments(own_server, key)
        assert len(names) > 10
        own_server.client().delete(names[0])
        for _ in range(1000):
            seen.add(b"the same")
        assert seen.counters.losses == 1

    def test_a_restart_without_persistence(self, own_server, opened):
        key = next(keys)
        seen = opened(own_server, key)
        known = fingerprints(100)
        seen.add_many(known)
        own_server.kill()
        own_server.start()
        assert seen.add(b"next") is False
        assert seen.counters.losses == 1
        assert seen.add_many(known) == [False] * 100

    def test_eviction(self, own_server, opened, caplog):
        key = next(keys)
        admin = own_server.client()
        admin.config_set("maxmemory", 20_000_000)
        admin.config_set("maxmemory-policy", "allkeys-lru")
        seen = opened(own_server, key, capacity="1M", cache=0)
        assert "may evict" in caplog.text
        known = fingerprints(2000)
        seen.add_many(known)
        few = max(2, len(segments(own_server, key)) / 2)
        for number in range(10_000):  # which key goes is Redis's guess
            admin.set(f"other:{number}", b"x" * 100_000)
            if len(segments(own_server, key)) < few:
                break
        assert len(segments(own_server, key)) < few
        assert False in seen.add_many(known)
        assert seen.counters.losses >= 1

    def test_another_filter_in_its_place_empties_the_memory(self, server, opened, caplog):
        key = next(keys)
        one = opened(server, key)
        known = fingerprints(10)
        one.add_many(known)
        server.client().delete(key)
        two = opened(server, key)
        assert two.add_many(known[:5]) == [False] * 5
        assert one.add(b"next") is False
        assert "another one is in its place" in caplog.text
        assert one.add_many(known) == [True] * 5 + [False] * 5

    def test_something_else_in_its_place_is_an_outage(self, server, opened):
        key = next(keys)
        seen = opened(server, key)
        seen.add(b"x")
        server.client().delete(key)
        server.client().set(key, "a foreign string")
        assert [seen.add(b"x"), seen.add(b"y"), seen.add(b"y")] == [True, False, True]
        server.client().delete(key)
        until(lambda: gets_through(seen))
        assert opened(server, key).add(b"y") is False  # it was let through, and not marked

    def test_a_segment_that_became_something_else(self, server, opened, caplog):
        key = next(keys)
        seen = opened(server, key)
        seen.add(b"x")
        segment = segments(server, key)[0]
        server.client().delete(segment)
        server.client().rpush(segment, "foreign")
        assert [seen.add(b"y"), seen.add(b"y")] == [False, True]
        assert "something else than our bits" in caplog.text
        assert server.client().lrange(segment, 0, -1) == [b"foreign"]


@pytest.mark.usefixtures("layout")
class TestFailover:
    timeout = 0.4

    @pytest.fixture
    def pair(self):
        with LocalRedis() as primary, LocalRedis() as replica:
            replica.client().replicaof(primary.HOST, primary.port)
            until(lambda: replica.client().info("replication")["master_link_status"] == "up")
            yield primary, replica

    def test_to_a_replica_that_has_all(self, pair, opened):
        primary, replica = pair
        known = fingerprints(100)
        with Proxy(primary.port) as proxy:
            seen = opened(proxy.url, "crawl", cache=0)
            seen.add_many(known)
            assert primary.client().wait(1, 5000) == 1
            primary.kill()
            replica.client().replicaof("NO", "ONE")
            proxy.upstream = replica.port
            proxy.cut()
            until(lambda: gets_through(seen))
            assert seen.add_many(known) == [True] * 100
            assert seen.counters.losses == 0

    def test_to_a_replica_that_was_behind(self, pair, opened, caplog):
        primary, replica = pair
        early, late = fingerprints(100, "early"), fingerprints(100, "late")
        with Proxy(primary.port) as proxy:
            seen = opened(proxy.url, "crawl")
            seen.add_many(early)
            assert primary.client().wait(1, 5000) == 1
            replica.client().replicaof("NO", "ONE")
            seen.add_many(late)
            primary.kill()
            proxy.upstream = replica.port
            proxy.cut()
            until(lambda: gets_through(seen))
            assert seen.counters.losses == 1
            assert "gone back to an older state" in caplog.text
            assert seen.add_many([*early, *late]) == [True] * 100 + [False] * 100

    def test_to_a_replica_that_nobody_promoted(self, pair, opened, caplog):
        primary, replica = pair
        with Proxy(primary.port) as proxy:
            seen = opened(proxy.url, "crawl")
            seen.add(b"x")
            assert primary.client().wait(1, 5000) == 1
            proxy.upstream = replica.port
            proxy.cut()
            assert [seen.add(b"x"), seen.add(b"y"), seen.add(b"y")] == [True, False, True]
            assert "is a replica" in caplog.text
            replica.client().replicaof("NO", "ONE")
            until(lambda: seen.usable)
            assert seen.add(b"z") is False
            assert opened(replica, "crawl").add_many([b"x", b"y", b"z"]) == [True, False, True]


def test_a_breaker_does_not_hammer(monkeypatch):
    """A server that greets, but fails each call, is tried less and less often."""
    now = 100.0
    monkeypatch.setattr(breaker, "time", SimpleNamespace(monotonic=lambda: now))
    one = breaker.CircuitBreaker("here", RedisOptions(), Counters(), threading.Event())
    holds = []
    for _ in range(9):
        one.trip("fails")
        began = now
        while one.allow_try() or not one.usable:
            now += 0.125
        holds.append(now - began)
    assert holds == [0, 0.25, 0.75, 1.75, 3.75, 7.75, 10, 10, 10]
    one.reset()
    one.trip("fails again")
    one.allow_try()
    assert one.usable
