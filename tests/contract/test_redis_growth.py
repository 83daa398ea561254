"""Slices come and go a key at a time, and whatever happens between two keys, nothing is left.

Keys are small here, so that a filter of some thousand pages has many.
"""

import random
from contextlib import ExitStack, suppress
from itertools import count

import pytest
from support.contract import fingerprints
from support.queues import plan_of, small_keys
from support.windows import START
from testbed.localredis import LocalRedis

from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.client import Server, beginning
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.plan import BATCH, geometry, read_slices
from scrapy_bloom.redis.wire import Call
from scrapy_bloom.redis.worker import Surprise, Worker, delete

pytestmark = [pytest.mark.redis, pytest.mark.server]

CAPACITY = 10_000
WEEK = 7 * 86_400


class WatchedLink(Link):
    """Counts the keys with bits before and after each script; some scripts fail if asked to.

    Attributes:
        changes: by how many keys each script changed what is there, with its name.
        dies_after: how many scripts it lives for.
    """

    def __init__(self, server, key):
        super().__init__(Server(server.url), 10.0)
        self.key, self.changes, self.dies_after = key, [], 1e9

    def run(self, name, key, *arguments, **options):
        self.dies_after -= 1
        if self.dies_after < 0:
            raise BackendError("killed", temporary=True)
        before = len(bits(self.client, key))
        answer = super().run(name, key, *arguments, **options)
        self.changes.append((name, len(bits(self.client, key)) - before))
        return answer


def bits(client, key):
    """Return the names of all keys with bits, without what is the same in all names."""
    base = beginning(key).encode()
    names = (name.removeprefix(base) for name in client.keys(base + b"*.*.*"))
    return {name.decode() for name in names if name.rpartition(b".")[2].isdigit()}


def named(client, key):
    """Return the keys with bits that the header knows of, those of live slices apart."""
    header = {name.decode(): value for name, value in client.hgetall(key).items()}
    epoch, coming = (header.get(name, b"").decode() for name in ("epoch", "coming"))
    live = [(f"{epoch}.{row.number}", row.keys) for row in read_slices(header.get("slices", b""))]
    others = [row.rsplit(".", 1) for row in header.get("going", b"").decode().split()]
    if coming:
        others.append((f"{epoch}.{coming.split(':')[4]}", header["coming_keys"]))
    return [
        {f"{start}.{number}" for start, keys in some for number in range(int(keys))}
        for some in (live, others)
    ]


@pytest.fixture
def join(server, key, monkeypatch):
    """Become one more worker of a filter with small keys, which looks with each heartbeat."""
    monkeypatch.setattr(upkeep, "UNCHANGED", 0.0)  # also if no call has told of what there is to do
    with small_keys(), ExitStack() as links:

        def join(window=None):
            link = WatchedLink(server, key)
            links.callback(link.close)
            plan = plan_of(capacity=CAPACITY, error_rate=1e-6, window=window, order="fifo")
            shared = Worker(link, key, plan)
            shared.link = link
            return shared

        yield join


fresh = count()


def mark(shared, many):
    """Mark new pages in calls of 500."""
    pages = fingerprints(many, f"page {next(fresh)}")
    for at in range(0, many, BATCH):
        shared.call(Call([Entry("f", page, b"") for page in pages[at : at + BATCH]]))


def tend(shared):
    """Have a worker make and free keys until none is left to do: each beat has a limited time."""
    shared.keep_alive()
    while shared.link.changes[-1] != ("upkeep", 0):
        shared.keep_alive()


@pytest.mark.parametrize("window", [None, WEEK])
def test_keys_are_made_before_a_slice_is_full_or_the_date_of_the_next(set_clock, join, window):
    shared = join(window=window)
    shared.prepare()
    mark(shared, CAPACITY - BATCH if window is None else BATCH)
    set_clock(START + WEEK / 8 * 0.97)
    shared.keep_alive()
    assert shared.link.changes[-1] == ("upkeep", 0)
    mark(shared, BATCH if window is None else 0)
    set_clock(START + WEEK / 8 * 0.99)
    tend(shared)
    assert len(shared.slices) == 1
    set_clock(START + WEEK / 8 + 1)
    shared.link.changes.clear()
    mark(shared, 2 * BATCH)
    assert {name for name, _ in shared.link.changes} == {"call"}
    assert [row.items > 0 for row in shared.slices] == [True, True]


def test_a_slice_that_is_needed_sooner_than_its_kind_was_foreseen_is_used(set_clock, join):
    """Both ways: one for the next date, then a burst; one for a burst, then the date."""
    shared = join(window=WEEK)
    mark(shared, CAPACITY - BATCH // 2)
    tend(shared)
    set_clock(START + WEEK / 8 + 1)
    mark(shared, BATCH)
    assert [row.since > START for row in shared.slices] == [False, True]
    set_clock(START + WEEK / 8 * 1.99 + 1)
    tend(shared)
    mark(shared, 3 * CAPACITY)
    assert len({row.since for row in shared.slices}) == 2
    assert shared.info().estimated_fp_rate < 1e-6


def test_the_keys_of_another_programs_hash_are_not_ours_to_delete(server, key, join):
    shared, client = join(), server.client()
    client.delete(*client.keys(f"{key}*"))
    client.hset(key, mapping={"going": "a.1.5", "their": "hash"})
    shared.keep_alive()
    assert client.hgetall(key) == {b"going": b"a.1.5", b"their": b"hash"}


KINDS = {"mark": 12, "tend": 6, "kill": 4, "lose": 1, "flush": 1, "delete": 1}
KINDS |= {"save": 1, "back": 1}


class Growing:
    """Two workers of one filter; they and the server may fail between any two scripts."""

    def __init__(self, server, key, join, seed):
        self.client, self.key, self.chance = server.client(), key, random.Random(seed)
        self.new, self.links, self.saved = join, [], {}
        self.workers = [self.join(), self.join()]

    def join(self):
        shared = self.new()
        self.links.append(shared.link)
        return shared

    def run(self, steps):
        for _ in range(steps):
            (name,) = self.chance.choices([*KINDS], KINDS.values())
            getattr(self, name)()
            live, others = named(self.client, self.key)
            assert bits(self.client, self.key) <= live | others, name
            # At 1e8 pages a script that made all held the server for a second.
            changes = {each for link in self.links for each in link.changes}
            assert {script for script, change in changes if change} <= {"upkeep"}, name
            assert {change for _, change in changes} <= {-3, -2, -1, 0, 1}, name
            for row in read_slices(self.client.hget(self.key, "slices") or b""):
                assert row.items <= row.capacity + BATCH
        self.mark()
        for shared in self.workers:
            shared.keep_alive()
        live, others = named(self.client, self.key)
        assert live <= bits(self.client, self.key) <= live | others

    def mark(self):
        shared = self.chance.choice(self.workers)
        try:
            mark(shared, self.chance.choice((BATCH, 3000)))
        except Surprise as surprise:
            shared.reopen(surprise)
            self.mark()
        else:
            assert shared.info().estimated_fp_rate < 1e-6

    def tend(self):
        self.chance.choice(self.workers).keep_alive()

    def kill(self):
        """One dies in the middle of what it does, and another one comes."""
        number = self.chance.randrange(2)
        worker = self.workers[number].link
        worker.dies_after = self.chance.randrange(1, 12)
        with suppress(BackendError):
            self.chance.choice((self.mark, self.tend))()
        worker.dies_after = 0
        self.workers[number] = self.join()

    def lose(self):
        """Requests vanish, so a new epoch begins."""
        self.client.delete(f"{beginning(self.key)}queue")

    def flush(self):
        self.client.delete("nothing", *self.client.keys(f"{self.key}*"))

    def delete(self):
        """A user deletes it, and may give up before that is done."""
        worker, names = self.join().link, self.client.hkeys(self.key)
        worker.dies_after = self.chance.choice([1, 3, 9, 1e9])
        with suppress(BackendError):
            delete(worker, self.key, [name.decode()[2:] for name in names], block=False)
            assert not bits(self.client, self.key)

    def save(self):
        names = self.client.keys(f"{self.key}*")
        self.saved = {name: self.client.dump(name) for name in names}

    def back(self):
        """The server goes back to an earlier state."""
        self.flush()
        for name, value in self.saved.items():
            self.client.restore(name, 0, value)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_left_that_nobody_frees_and_no_slice_gets_too_full(server, key, join, seed):
    Growing(server, key, join, seed).run(80)


def test_a_full_server_refuses_to_grow_and_can_be_emptied(key):
    with LocalRedis() as server:
        worker, client = Link(Server(server.url), 10.0), server.client()
        shared = Worker(worker, key, plan_of(capacity=3_000_000))
        shared.prepare()
        client.config_set("maxmemory", client.info("memory")["used_memory"] + (3 << 20))
        shared.call(Call([Entry("m", page) for page in fingerprints(9)]))
        (row,) = shared.slices
        client.hset(key, "slices", f"{geometry(row)}:{row.number}:{row.since:.6f}:{row.capacity}:0")
        for _ in range(3):
            worker.usable.set()
            with pytest.raises(BackendError, match="out of memory"):
                shared.call(shared.unanswered or Call([Entry("m", b"page")]))
        worker.usable.set()
        shared.leave()
        assert delete(worker, key, block=False) == {}
        assert not client.keys("*")
        worker.close()
