"""Whatever the network does to whichever call: no request is lost, none is granted twice."""

import itertools
from collections import Counter

import pytest
from support.internals import call_dead
from support.localredis import LocalRedis
from support.proxy import MORE_FAULTS, Proxy
from support.queues import Worker, Workers, drain, entry, keys_of, names, patiently
from support.waiting import until

from scrapy_bloom import BackendError, FilterLostError
from scrapy_bloom.core.growth import filter_hashes
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.layout import layout_of

keys = (f"faults:{number}" for number in itertools.count())

OFFER = scripts.offer(layout_of("bitmap"), filter_hashes(1e-9))
CALLS = {
    "offer": OFFER,
    "exchange": scripts.QUEUE_EXCHANGE,
    "look": scripts.QUEUE_LOOK,
    "join": scripts.QUEUE_JOIN,
    "leave": scripts.QUEUE_REQUEUE,
    "renew": scripts.QUEUE_RENEW,
}


def time_out(fault):
    """Return how long a call may take: not longer than a test can wait for what never comes."""
    return 1.0 if "stall" in fault or fault == "twice" else 6.0


@pytest.fixture(scope="module")
def server():
    with LocalRedis() as server:
        # A script that the server does not have yet is sent twice, as another command.
        with Worker(server.url, "faults") as worker:
            worker.queue.offer([entry("a")])
            worker.queue.look()
            worker.queue.take(1)
        yield server


class Crawl:
    """Two workers that offer and take, one of them over a bad network; and what came of it."""

    def __init__(self, faulty, sound):
        self.faulty, self.sound = faulty, sound
        self.new = Counter()
        self.done = []
        self.has = {"faulty": [], "sound": []}
        self.numbers = itertools.count()

    def step(self):
        """Let each worker offer some new pages and some of the other's, and take some."""
        for name, queue in (("sound", self.sound), ("faulty", self.faulty)):
            batch = [entry(next(self.numbers)) for _ in range(3)]
            batch += [entry(name) for name in [name for name in self.new if name.isdigit()][-4:]]
            batch.append(entry(f"plain {next(self.numbers)}", filtered=False))
            batch.append(entry(f"held {next(self.numbers)}", held=True))
            offered = patiently(queue.offer, batch)
            for one, seen in zip(batch, offered.seen, strict=True):
                self.new[(one.fingerprint or one.body).decode()] += not seen
            tickets = [*self.has[name], *offered.tickets.values()]
            taken = patiently(queue.take, 4, tickets)
            self.done += names(taken[1:])
            self.has[name] = [one.ticket for one in taken[1:]]
            patiently(queue.give_back, [one.ticket for one in taken[:1]])
            patiently(queue.look)

    def finish(self):
        """Check that everything was granted once and done once."""
        for name, queue in (("sound", self.sound), ("faulty", self.faulty)):
            patiently(queue.acknowledge, self.has[name])
        self.done += drain(self.sound)
        assert self.sound.look()[:2] == (0, 0)
        assert set(self.new.values()) == {1}
        queued = [name.removeprefix("body of ") for name in self.new if "held" not in name]
        assert sorted(self.done) == sorted(queued)


@pytest.mark.parametrize("fault", MORE_FAULTS)
@pytest.mark.parametrize("call", ["offer", "exchange", "look"])
@pytest.mark.parametrize("in_a_row", [1, 3])
def test_each_call_in_turn(server, call, fault, in_a_row):
    """Three in a row are more than the two tries of one call: its caller is told of an error."""
    for number in (1, 2, 4):
        key = next(keys)
        with (
            Proxy(server.port, counted=CALLS[call].sha.encode()) as proxy,
            Worker(proxy.url, key, timeout=time_out(fault), capacity=10) as faulty,
            Worker(server.url, key, capacity=10) as sound,
        ):
            proxy.faults = dict.fromkeys(range(number, number + in_a_row), fault)
            crawl = Crawl(faulty.queue, sound.queue)
            for _ in range(2):
                crawl.step()
            proxy.deliver()
            for _ in range(2):
                crawl.step()
            assert proxy.requests >= number
            crawl.finish()


@pytest.mark.parametrize("fault", MORE_FAULTS)
@pytest.mark.parametrize("in_a_row", [0, 1, 2])
def test_coming_back_after_others_took_the_worker_for_dead(server, fault, in_a_row):
    key = next(keys)
    with (
        Proxy(server.port, counted=CALLS["join"].sha.encode()) as proxy,
        Worker(proxy.url, key, timeout=time_out(fault)) as faulty,
        Worker(server.url, key) as sound,
    ):
        patiently(faulty.queue.offer, [entry(number) for number in range(10)])
        tickets = [one.ticket for one in patiently(faulty.queue.take, 4)]
        call_dead(sound.queue, faulty.queue, [0])
        assert sound.queue.requeue_dead() == 4
        proxy.faults = dict.fromkeys(range(2, 2 + in_a_row), fault)
        patiently(faulty.queue.look)
        assert not any(map(faulty.queue.holds, tickets))
        proxy.deliver()
        assert sorted(map(int, drain(faulty.queue))) == list(range(10))


def test_a_server_that_has_forgotten_the_worker_ends_the_crawl(server):
    """Others took it for dead only where they have left a note that they did."""
    key = next(keys)
    with Worker(server.url, key) as forgotten, Worker(server.url, key) as other:
        forgotten.queue.offer([entry(number) for number in range(10)])
        _forget(server, key)
        for queue in (forgotten.queue, other.queue):
            with pytest.raises(FilterLostError, match="older state"):
                patiently(queue.look)


def _forget(server, key):
    """Take all workers off the register, as a server does that goes back to an older state."""
    client = server.client()
    state = keys_of(key)["state"]
    for field in client.hkeys(state):
        if field[:2] in (b"n:", b"o:"):
            client.hdel(state, field)


@pytest.mark.parametrize("fault", MORE_FAULTS)
@pytest.mark.parametrize("in_a_row", [1, 2])
def test_leaving(server, fault, in_a_row):
    key = next(keys)
    with (
        Proxy(server.port, counted=CALLS["leave"].sha.encode()) as proxy,
        Worker(server.url, key) as sound,
    ):
        with Worker(proxy.url, key, timeout=time_out(fault)) as faulty:
            patiently(faulty.queue.offer, [entry(number) for number in range(10)])
            taken = patiently(faulty.queue.take, 4)
            patiently(faulty.queue.acknowledge, [taken[0].ticket])
            proxy.faults = dict.fromkeys(range(1, 1 + in_a_row), fault)
        proxy.deliver()
        until(lambda: sound.queue.requeue_dead() or not sound.queue.look().elsewhere)
        assert sorted(map(int, drain(sound.queue))) == list(range(1, 10))


@pytest.mark.parametrize("fault", ["reset", "drop reply", "stall reply", "half reply"])
def test_joining(server, fault):
    key = next(keys)
    for number in (1, 2):
        with (
            Proxy(server.port, counted=CALLS["join"].sha.encode()) as proxy,
            Workers() as workers,
        ):
            proxy.faults = {number: fault}
            queue = workers.open(proxy.url, key, timeout=time_out(fault))
            patiently(queue.offer, [entry(number)])
            assert queue.look()[:2] == (number, 0)
    state = server.client().hkeys(keys_of(key)["state"])
    assert not [field for field in state if field[:2] == b"n:"]


@pytest.mark.parametrize("fault", MORE_FAULTS)
def test_the_lease_is_renewed_after_any_reply(server, fault):
    key = next(keys)
    with (
        Proxy(server.port, counted=CALLS["renew"].sha.encode()) as proxy,
        Worker(proxy.url, key, timeout=time_out(fault)) as faulty,
    ):
        proxy.faults = {1: fault}
        until(lambda: proxy.requests > 1)
        before = _leases(server, key)
        until(lambda: _leases(server, key) != before)
        assert faulty.queue.sure


def _leases(server, key):
    fields = server.client().hgetall(keys_of(key)["state"])
    return {name: end for name, end in fields.items() if name[:2] == b"l:"}


def test_scripts_that_the_server_forgot_are_sent_again(server):
    with Worker(server.url, next(keys)) as worker:
        for number in range(3):
            server.client().script_flush()
            assert worker.queue.offer([entry(number)]).seen == [False]
            server.client().script_flush()
            assert names(worker.queue.take(1)) == [str(number)]
        assert worker.filter.counters.outages == 0


@pytest.mark.parametrize("shards", [1, 2])
def test_what_was_answered_before_an_error_is_told_later(server, shards):
    """A part of the entries went out in calls that were answered: their verdicts are kept."""
    key = next(keys)
    entries = [entry(number, held=number % 100 == 0) for number in range(1300)]
    entries += [entry("plain", filtered=False)] * 3
    for number in (1, 2, 3):
        with (
            Proxy(server.port, counted=OFFER.sha.encode()) as proxy,
            Worker(proxy.url, f"{key}:{number}", timeout=6.0, shards=shards) as worker,
        ):
            proxy.faults = {number: "drop reply", number + 1: "reset"}
            with pytest.raises(BackendError):
                worker.queue.offer(entries)
            offered = patiently(worker.queue.offer, entries)
            assert offered.seen == [False] * 1303
            assert list(offered.tickets) == list(range(0, 1300, 100))
            assert patiently(worker.queue.look)[:2] == (1290, 0)
            patiently(worker.queue.acknowledge, list(offered.tickets.values()))
            assert len(drain(worker.queue)) == 1290
