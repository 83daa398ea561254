"""Workers that are killed or stand still: others do what they had, and nothing else twice."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from support.internals import call_dead, fail_to_leave
from support.localredis import LocalRedis
from support.processes import PROGRAMS
from support.proxy import Proxy
from support.queue_lockstep import crawl_in_lockstep
from support.queues import Worker, Workers, drain, entry, failed, keys_of, names, patiently
from support.waiting import until

from scrapy_bloom.core.growth import filter_hashes
from scrapy_bloom.redis import pace, scripts
from scrapy_bloom.redis.layout import layout_of

pytestmark = pytest.mark.usefixtures("short_leases")

keys = (f"leases:{number}" for number in itertools.count())
OFFER = scripts.offer(layout_of("bitmap"), filter_hashes(1e-9))
A_WHILE = 60  # seconds for what takes a lease and a bit


@pytest.fixture
def key():
    return next(keys)


class Process:
    """A worker in a process of its own; as a context manager it does not outlive the test."""

    def __init__(self, url, key, max_deliveries=5):
        program = str(PROGRAMS / "queue_worker.py")
        self.process = subprocess.Popen(
            [sys.executable, program, url, key, str(max_deliveries)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "open\n"

    def begin(self, *words):
        """Let it do something."""
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def end(self):
        """Return what came of it."""
        return json.loads(self.process.stdout.readline())

    def tell(self, *words):
        self.begin(*words)
        return self.end()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@contextmanager
def two_workers(url, key, other=None, **options):
    """Open two workers, the other one at a URL of its own perhaps.

    Return both, and the two of four requests that the first has taken.
    """
    with Worker(url, key, **options) as live, Worker(other or url, key) as watcher:
        live.queue.offer([entry(number) for number in range(4)])
        yield live, watcher, live.queue.take(2)


def requeued(queue):
    """Wait until a dead worker's requests are back; return how many."""
    return until(lambda: patiently(queue.requeue_dead), A_WHILE)


def test_what_a_killed_worker_had_goes_to_another_one(server, key, caplog):
    with Worker(server.url, key) as worker, Process(server.url, key) as killed:
        queue = worker.queue
        queue.offer([entry(number) for number in range(10)])
        assert killed.tell("take", 4) == ["0", "1", "2", "3"]
        killed.tell("acknowledge", ["2"])
        mine = queue.take(2)
        killed.signal(signal.SIGKILL)
        assert requeued(queue) == 3
        assert queue.look()[:2] == (7, 0)
        assert queue.numbers()["requeued"] == 3
        taken = queue.take(9)
        assert names(taken) == ["0", "1", "3", "6", "7", "8", "9"]
        assert [one.deliveries for one in taken] == [1, 1, 1, 0, 0, 0, 0]
        assert all(queue.holds(one.ticket) for one in mine)
        (said,) = [line for line in map(str, caplog.messages) if "gave no sign of life" in line]
        assert (
            f"for {pace.LEASE:.0f} s: the 3 requests that it had taken are in the queue again"
            in said
        )
        assert "put aside" not in said


def test_a_request_that_kills_its_workers_is_put_aside_alone(server, key, caplog):
    """Its neighbours die with it, again and again, and none of them is put aside."""
    with Worker(server.url, key, max_deliveries=3) as watcher:
        watcher.queue.offer([entry("killer", 1), *(entry(number) for number in range(8))])
        for number in range(3):
            with Process(server.url, key, max_deliveries=3) as victim:
                taken = victim.tell("take", 4)
            assert taken == (["killer", "0", "1", "2"] if number < 2 else ["killer"])
            until(lambda: watcher.queue.requeue_dead() or failed(watcher), A_WHILE)
        aside = [one.body for one in failed(watcher)]
        assert aside == [entry("killer").body]
        assert failed(watcher)[0].deliveries == 3
        said = [line for line in map(str, caplog.messages) if "gave no sign of life" in line]
        assert ["1 were put aside, because too many" in line for line in said] == [0, 0, 1]
        assert sorted(drain(watcher.queue)) == [str(number) for number in range(8)]


class TestHeld:
    """What cannot be stored is marked for as long as its worker lives."""

    @contextmanager
    def two_workers(self, url, key, shards):
        """Open two workers. The first one has six requests, and holds what they led to."""
        with Workers() as workers:
            first, other = (workers.open(url, key, shards=shards) for _ in range(2))
            first.offer([entry(number) for number in range(6)])
            assert len(first.take(6)) == 6
            held = [entry(f"held {number}", held=True) for number in range(12)]
            assert not any(first.offer(held).seen)
            yield first, other, held

    @pytest.mark.parametrize("shards", [1, 3])
    @pytest.mark.parametrize("dies", [True, False])
    def test_it_is_new_for_those_who_know_it_as_seen(self, server, key, shards, dies):
        with self.two_workers(server.url, key, shards) as (first, other, held):
            assert all(other.offer(held).seen)
            assert all(other.knows(one.fingerprint) for one in held)
            if dies:
                call_dead(other, first, range(shards))
                assert other.requeue_dead() == 6 + 12
            else:
                first.close()
            assert len(other.take(1)) == 1
            assert not any(other.knows(one.fingerprint) for one in held)
            assert not any(other.offer(held).seen)

    def test_nothing_goes_back_before_it_is_new_in_all_shards(self, server, key):
        with self.two_workers(server.url, key, 2) as (first, other, held):
            call_dead(other, first, [0])
            assert other.requeue_dead() == 0
            assert other.take(9) == []
            call_dead(other, first, [0, 1])
            assert other.requeue_dead() == 6 + 12
            assert len(other.take(9)) == 6
            assert not any(other.offer(held).seen)

    def test_a_worker_that_lives_for_one_shard_is_not_waited_for(self, server, key, monkeypatch):
        with self.two_workers(server.url, key, 2) as (first, other, _):
            call_dead(other, first, [0])
            assert other.requeue_dead() == 0
            with monkeypatch.context() as patch:
                patch.setattr(pace, "LEASE", 0.0)
                assert other.requeue_dead() > 0
            assert 1 <= len(other.take(9)) < 6

    def test_a_worker_that_cannot_leave_one_shard_leaves_none(self, server, key):
        """Else others were given what led to marks that still are."""
        with self.two_workers(server.url, key, 2) as (first, other, _):
            fail_to_leave(first, 1)
            first.close()
            assert other.take(9) == []


class TestFrozen:
    """A worker stands still for longer than its lease lasts, and wakes."""

    def freeze(self, process, queue):
        """Stop it until others have put back what it had; return how many requests that were."""
        process.signal(signal.SIGSTOP)
        count = requeued(queue)
        process.signal(signal.SIGCONT)
        return count

    def test_between_two_calls(self, server, key):
        with Worker(server.url, key) as worker, Process(server.url, key) as frozen:
            queue = worker.queue
            frozen.tell("offer", [str(number) for number in range(10)])
            had = frozen.tell("take", 4)
            assert frozen.tell("holds", had) == had
            assert self.freeze(frozen, queue) == 4
            until(lambda: frozen.tell("sure"))
            assert frozen.tell("holds", had) == []
            taken = queue.take(4)
            assert names(taken) == had
            frozen.tell("acknowledge", had)  # it finishes what was under way
            assert all(queue.holds(one.ticket) for one in taken)
            assert frozen.tell("look") == [6, 4]
            assert frozen.tell("take", 2) == ["4", "5"]
            assert frozen.tell("offer", ["0", "9", "new"]) == [True, True, False]

    @pytest.mark.parametrize("word", ["take", "offer"])
    def test_in_the_middle_of_a_call(self, server, key, word):
        """The call is carried out, and its answer waits."""
        calls = {"take": scripts.QUEUE_EXCHANGE, "offer": OFFER}
        with (
            Proxy(server.port, counted=calls[word].sha.encode()) as proxy,
            Worker(server.url, key) as worker,
            Process(proxy.url, key) as frozen,
        ):
            queue = worker.queue
            queue.offer([entry(number) for number in range(10)])
            frozen.tell("take", 2)
            before, requests = queue.look().version, proxy.requests
            proxy.delay = 0.4
            frozen.begin(word, 3 if word == "take" else ["3", "a", "b"])
            until(lambda: proxy.requests > requests)
            frozen.signal(signal.SIGSTOP)
            until(lambda: queue.look().version != before)
            proxy.delay = 0.0
            assert self.freeze(frozen, queue) == (5 if word == "take" else 2)
            answer = frozen.end()
            until(lambda: frozen.tell("sure"))
            if word == "offer":
                assert answer == [True, False, False]
                assert sorted(drain(queue)) == [*map(str, range(10)), "a", "b"]
            else:
                still = frozen.tell("holds", answer)
                frozen.tell("acknowledge", still)
                assert sorted([*still, *drain(queue)]) == [*map(str, range(10))]

    def test_in_the_middle_of_a_call_that_arrives_later(self, server, key):
        with (
            Proxy(server.port, counted=scripts.QUEUE_EXCHANGE.sha.encode()) as proxy,
            Worker(server.url, key) as worker,
            Process(proxy.url, key) as frozen,
        ):
            queue = worker.queue
            queue.offer([entry(number) for number in range(6)])
            had = frozen.tell("take", 2)
            proxy.faults = {2: "late", 3: "late"}
            frozen.begin("take", 2)
            until(lambda: proxy.requests == 3)
            assert self.freeze(frozen, queue) == 2
            proxy.deliver()
            answer = frozen.end()
            until(lambda: frozen.tell("sure"))
            assert not set(had) & set(frozen.tell("holds", had)) - set(answer)
            still = frozen.tell("holds", answer)
            frozen.tell("acknowledge", still)
            assert sorted([*still, *drain(queue)]) == [str(number) for number in range(6)]


class TestALiveWorker:
    """Others must not put back what it has."""

    def shifted(self, server, key, seconds):
        """Make the leases what they are for a server whose clock was moved the other way."""
        client = server.client()
        state = keys_of(key)["state"]
        for field, end in client.hgetall(state).items():
            if field[:2] == b"l:":
                client.hset(state, field, f"{float(end) + seconds:.6f}")

    @pytest.mark.parametrize("seconds", [-3600, 3600])
    def test_when_the_clock_is_moved(self, server, key, seconds):
        with two_workers(server.url, key) as (live, other, taken):
            end = time.monotonic() + pace.LEASE + 2
            while time.monotonic() < end:
                self.shifted(server, key, seconds)
                assert other.queue.requeue_dead() == 0
                time.sleep(0.5)
            assert all(live.queue.holds(one.ticket) for one in taken)
            assert other.queue.look()[:2] == (2, 2)

    def test_when_the_server_stands_still(self, key):
        with LocalRedis() as server, two_workers(server.url, key) as (live, other, taken):
            os.kill(server.pid, signal.SIGSTOP)
            until(lambda: not live.queue.sure, A_WHILE)
            time.sleep(pace.LEASE / 2)
            os.kill(server.pid, signal.SIGCONT)
            until(lambda: live.queue.sure and other.queue.sure)
            assert patiently(other.queue.requeue_dead) == 0
            assert all(live.queue.holds(one.ticket) for one in taken)
            assert patiently(other.queue.look)[:2] == (2, 2)

    def test_when_it_cannot_reach_the_server_for_a_while(self, server, key):
        with (
            Proxy(server.port) as proxy,
            two_workers(proxy.url, key, server.url) as (live, other, taken),
        ):
            with proxy.down():
                time.sleep(pace.LEASE / 4)
            time.sleep(pace.LEASE)
            assert other.queue.requeue_dead() == 0
            assert all(live.queue.holds(one.ticket) for one in taken)


def test_one_that_is_cut_off_for_longer_starts_nothing(server, key):
    """It cannot know whether others have put back what it has: it waits until it does."""
    with (
        Proxy(server.port) as proxy,
        two_workers(proxy.url, key, server.url) as (cut_off, other, taken),
    ):
        queue = other.queue
        with proxy.down():
            assert until(lambda: not cut_off.queue.sure or queue.requeue_dead(), A_WHILE) is True
            assert requeued(queue) == 2
            assert all(cut_off.queue.holds(one.ticket) for one in taken)  # as far as it knows
        until(lambda: cut_off.queue.sure)
        assert not any(cut_off.queue.holds(one.ticket) for one in taken)


def test_eight_workers_in_lockstep_are_granted_and_given_everything_once(server, key):
    granted, done = crawl_in_lockstep(server.url, key, workers=8, pages=2000)
    assert set(granted.values()) == {1}
    assert len(granted) == 2000
    assert done == granted


def test_eight_workers_in_lockstep_with_two_shards(server, key):
    granted, done = crawl_in_lockstep(server.url, key, workers=8, pages=1000, shards=2)
    assert set(granted.values()) == {1}
    assert len(granted) == 1000
    assert done == granted
