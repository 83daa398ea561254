"""The queue and the filter against a model, on a real server, whatever workers and network do.

What the model says: every request is in one place; a page is granted once; what is taken comes in
order; a request is done once, and once more for each time that others took its worker for dead
while it was doing it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.flaky import FAULTS, Flaky
from support.internals import leave, registered_as, take_for_dead
from support.localredis import LocalRedis
from support.queues import entry, failed, keys_of

from scrapy_bloom import BackendError, RedisFilter, RedisOptions
from scrapy_bloom.redis.connection import Target
from scrapy_bloom.redis.queue import member
from scrapy_bloom.redis.queue.counters import QueueCounters
from scrapy_bloom.redis.queue.shard import QueueShard
from scrapy_bloom.registry import LAYOUTS

keys = (f"model:{number}" for number in itertools.count())
names = (f"worker{number}" for number in itertools.count())
MAX_DELIVERIES = 3
WORKERS = 3
trouble = st.lists(st.sampled_from(FAULTS), max_size=4)


class Worker:
    """One worker: what it has, and the entries whose offer has raised."""

    def __init__(self, url, key, order, layout):
        self.filter = RedisFilter(
            Target(url),
            capacity=50,  # so that the filter grows
            error_rate=1e-9,
            options=RedisOptions(key=key, shared_queue=True, cache=0, layout=layout),
        )
        (shard,) = self.filter.shards
        self.client = Flaky(shard.place.client)
        shard.place = replace(shard.place, client=self.client)
        self.breaker = shard.breaker
        self.counters = QueueCounters()
        self.queue = QueueShard(
            shard,
            0,
            order=f"{order} none",
            max_deliveries=MAX_DELIVERIES,
            name=next(names),
            spider="",
            traffic=self.filter.counters,
            counters=self.counters,
        )
        self.has = {}  # ticket -> name
        self.unanswered = []
        self.buried = ""  # the name under which others took it for dead, until it knows

    def call(self, act):
        """Do something; return None if the server could not be used."""
        try:
            return act()
        except BackendError:
            self.breaker.reset()
            self.breaker.allow_try()
            return None

    def until_done(self, act):
        """Do something again and again, as long as faults are left."""
        for _ in range(10):
            answer = self.call(act)
            if answer is not None:
                return answer
        raise AssertionError("faults without end")


class Model(RuleBasedStateMachine):
    server = None  # of the module

    @initialize(order=st.sampled_from(["fifo", "lifo"]), layout=st.sampled_from([*LAYOUTS]))
    def begin(self, order, layout):
        self.key, self.order, self.layout = next(keys), order, layout
        self.redis = self.server.client()
        self.workers = [self.come() for _ in range(WORKERS)]
        self.numbers = itertools.count()
        self.offered = {}  # name -> entry, of all that were offered
        self.new = Counter()  # name -> how often it was called new
        self.undone = Counter()  # name -> how often its mark was undone
        self.done = Counter()  # name -> how often it was acknowledged by the worker that had it
        self.over = Counter()  # name -> how often it was acknowledged by one that had it no more
        self.died = Counter()  # name -> how many workers have died with it
        self.untold = set()  # names that killed workers have offered and were not told of

    def come(self):
        """Return a worker that has just begun."""
        return Worker(self.server.url, self.key, self.order, self.layout)

    def teardown(self):
        try:
            if hasattr(self, "workers"):
                self.finish()
        finally:
            for worker in getattr(self, "workers", []):
                worker.filter.close()

    # Looking behind the scenes

    def stored(self):
        """Return what the server has: places by name."""
        found = {}
        known = keys_of(self.key)
        for value, score in self.redis.zrange(known["queue"], 0, -1, withscores=True):
            stored = member.read(b"%d " % score + value)
            found.setdefault(stored.fingerprint or stored.body, []).append("queue")
        for field, value in self.redis.hgetall(known["taken"]).items():
            stored = member.read(value)
            owner = field[:-8].decode()
            found.setdefault(stored.fingerprint or stored.body, []).append(owner)
        for value in self.redis.hgetall(known["failed"]).values():
            stored = member.read(value)
            found.setdefault(stored.fingerprint or stored.body, []).append("failed")
        for fingerprint in self.redis.smembers(known["again"]):
            found.setdefault(fingerprint, []).append("again")
        return found

    def check(self):
        """Everything that was granted is done or in one place."""
        places = self.stored()
        for name, entry_ in self.offered.items():
            found = places.get(entry_.fingerprint or entry_.body, [])
            if self.may_come_twice(name):
                continue
            assert len(found) <= 1, f"{name} is in {found}"
            if self.new[name] and not self.done[name]:
                assert found, f"{name} is lost"
            if self.done[name]:
                assert not found, f"{name} is done, and in {found}"
        for worker in self.workers:  # nothing stays with a worker that does not know of it
            there = sum(p.count(registered_as(worker.queue)) for p in places.values())
            assert there == worker.queue.own == len(worker.has) + worker.queue.ready
        state = self.redis.hgetall(keys_of(self.key)["state"])
        assert int(state[b"gone"]) == 0
        assert int(state[b"waiting"]) == sum(p.count("queue") for p in places.values())

    def may_come_twice(self, name):
        """Whether a request is not filtered, and its worker was killed while it offered it."""
        return self.offered[name].fingerprint is None and name in self.untold

    # What workers do

    def batch(self, old, kinds):
        made = []
        for kind in kinds:
            name = f"{next(self.numbers)}"
            self.offered[name] = entry(
                name, priority=len(made) % 3, filtered=kind != "plain", held=kind == "held"
            )
            made.append(name)
        known = [name for name in self.offered if self.offered[name].fingerprint is not None]
        again = known[-old:] if old else []
        return list(dict.fromkeys([*made, *again]))

    @rule(
        who=st.integers(0, WORKERS - 1),
        old=st.integers(0, 5),
        kinds=st.lists(st.sampled_from(["filtered", "filtered", "plain", "held"]), max_size=30),
        faults=trouble,
    )
    def offer(self, who, old, kinds, faults):
        worker = self.workers[who]
        self.resume(who)
        worker.unanswered = self.batch(old, kinds)
        worker.client.faults = list(faults)
        self.try_offer(worker)

    @rule(who=st.integers(0, WORKERS - 1))
    def resume(self, who):
        """Offer again what has raised, without more faults."""
        worker = self.workers[who]
        worker.client.faults = []
        while worker.unanswered:
            self.try_offer(worker)

    def try_offer(self, worker):
        some = worker.unanswered
        if not some:
            return
        verdicts = worker.call(lambda: worker.queue.offer([self.offered[name] for name in some]))
        self.notice(worker)
        if verdicts is None:
            return
        worker.unanswered = []
        for name, verdict in zip(some, verdicts, strict=True):
            if verdict.seen:
                assert self.new[name] or self.queued_in_silence(name)
                continue
            self.new[name] += 1
            if verdict.ticket is not None:
                worker.has[verdict.ticket] = name

    def queued_in_silence(self, name):
        """Whether a worker has queued it that was not told yet, or was killed before it was."""
        return name in self.untold or any(name in worker.unanswered for worker in self.workers)

    @rule(who=st.integers(0, WORKERS - 1), most=st.integers(0, 8), faults=trouble)
    def take(self, who, most, faults):
        worker = self.workers[who]
        calm = not faults and not worker.buried and worker.call(lambda: worker.queue.look() or True)
        first = self.first_in_queue(most) if calm and not worker.queue.ready else None
        risky = calm and any(
            self.deaths(name) >= MAX_DELIVERIES - 1 for name in worker.has.values()
        )
        worker.client.faults = list(faults)
        taken = worker.call(lambda: worker.queue.take(most))
        self.notice(worker)
        if taken is None:
            return
        for one in taken:
            name = self.name_of(one)
            assert self.offered[name].body == one.body
            assert one.deliveries == self.died[name] or self.may_come_twice(name)
            worker.has[one.ticket] = name
        if first is not None and not risky and sum(self.risky(one) for one in first) <= 1:
            assert [self.name_of(one) for one in taken] == [self.name_of(one) for one in first]
        assert sum(map(self.risky, taken)) <= 1

    def first_in_queue(self, most):
        found = self.redis.zrange(keys_of(self.key)["queue"], 0, max(0, most - 1), withscores=True)
        return [member.read(b"%d " % score + value) for value, score in found][:most]

    @staticmethod
    def name_of(one):
        return one.body.removeprefix(b"body of ").decode()

    @staticmethod
    def risky(one):
        return one.deliveries >= MAX_DELIVERIES - 1

    def deaths(self, name):
        return self.over[name]

    def notice(self, worker):
        """Forget what a worker that was taken for dead has no more, once it knows."""
        if worker.buried and worker.buried != registered_as(worker.queue):
            assert not any(worker.queue.holds(ticket.id) for ticket in worker.has)
            worker.has = {}
            worker.buried = ""

    @rule(who=st.integers(0, WORKERS - 1), which=st.integers(0, 9), faults=trouble, how=st.data())
    def say(self, who, which, faults, how):
        """Acknowledge some requests, give them back or put them aside."""
        worker = self.workers[who]
        some = list(worker.has)[: which + 1]
        stored = [one for one in some if self.offered[worker.has[one]].body]
        act = how.draw(st.sampled_from(["acknowledge", "acknowledge", "give_back", "fail"]))
        if act == "fail":
            some = stored[:1]
        getattr(worker.queue, act)([ticket.id for ticket in some])
        said = {ticket: worker.has.pop(ticket) for ticket in some}
        worker.client.faults = list(faults)
        worker.call(lambda: worker.queue.look() or True)
        worker.client.faults = []
        worker.until_done(lambda: worker.queue.look() or True)
        if worker.buried:
            for name in said.values():
                self.over[name] += 1
        else:
            for name in said.values():
                if act == "acknowledge":
                    self.done[name] += 1
                elif act == "give_back":
                    self.undone[name] += not self.offered[name].body
        self.notice(worker)

    @rule(who=st.integers(0, WORKERS - 1))
    def deliver(self, who):
        """Calls that were held back arrive at last."""
        self.workers[who].client.deliver()

    # Ends

    @rule(who=st.integers(0, WORKERS - 1))
    def killed(self, who):
        worker = self.workers[who]
        new = self.come()
        self.workers[who] = new
        # What it had offered last is offered by another one: its parents were not acknowledged.
        new.unanswered = worker.unanswered
        self.untold.update(worker.unanswered)
        self.bury(new, worker)
        worker.client.faults = []
        worker.client.deliver()
        worker.filter.close()

    @rule(who=st.integers(0, WORKERS - 1), other=st.integers(1, WORKERS - 1))
    def taken_for_dead(self, who, other):
        """A worker stands still for too long, and wakes."""
        worker = self.workers[who]
        if worker.buried:
            return
        watcher = self.workers[(who + other) % WORKERS]
        if watcher.buried:
            return
        self.bury(watcher, worker)
        worker.buried = registered_as(worker.queue)

    def bury(self, watcher, worker):
        watcher.client.faults = []
        owner = registered_as(worker.queue).encode()
        taken = self.redis.hgetall(keys_of(self.key)["taken"]).items()
        mine = [member.read(value) for field, value in taken if field[:-8] == owner]
        held = [one.fingerprint.decode() for one in mine if not one.body]
        self.died.update(self.name_of(one) for one in mine if one.body)
        done = watcher.until_done(lambda: take_for_dead(watcher.queue, worker.queue) or {0: (0, 0)})
        assert sum(map(sum, done.values())) == len(mine)
        for name in held:
            self.undone[name] += 1
        for name in worker.has.values():
            self.over[name] += 1

    @rule(who=st.integers(0, WORKERS - 1))
    def leaves(self, who):
        self.resume(who)
        worker = self.workers[who]
        held = [name for name in worker.has.values() if not self.offered[name].body]
        assert worker.until_done(partial(leave, worker.queue))
        if not worker.buried:
            for name in held:
                self.undone[name] += 1
        worker.client.deliver()
        worker.filter.close()
        self.workers[who] = self.come()

    @precondition(lambda self: not any(worker.unanswered for worker in self.workers))
    @rule()
    def nothing_is_lost(self):
        for who in range(WORKERS):
            self.say_nothing(who)
        self.check()

    def say_nothing(self, who):
        worker = self.workers[who]
        worker.client.faults = []
        worker.until_done(lambda: worker.queue.look() or True)
        self.notice(worker)

    def finish(self):
        for who in range(WORKERS):
            self.resume(who)
        self.nothing_is_lost()
        for name, count in self.new.items():
            assert count <= 1 + self.undone[name], f"{name} was granted {count} times"
        for worker in self.workers:
            worker.client.deliver()
            assert worker.until_done(partial(leave, worker.queue))
        last = self.come()
        self.workers.append(last)
        while taken := last.until_done(lambda: last.queue.take(7) or [None]):
            if taken == [None]:
                break
            for one in taken:
                self.done[self.name_of(one)] += 1
            last.queue.acknowledge([one.ticket.id for one in taken])
        aside = {one.body for one in failed(last)}
        marked = {name for name in self.offered if self.new[name]}
        for name in marked:
            entry_ = self.offered[name]
            if not entry_.body or entry_.body in aside:
                continue
            times = (1, 2) if self.may_come_twice(name) else (1,)
            assert self.done[name] in times, f"{name} was done {self.done[name]} times"


@pytest.fixture(scope="module", autouse=True)
def server():
    with LocalRedis() as server:
        Model.server = server
        yield server


def test_a_registration_that_comes_late_does_not_make_a_dead_worker_live():
    key = next(keys)
    late, watcher = (Worker(Model.server.url, key, "fifo", "bitmap") for _ in range(2))
    for faults in [], [None, "late"]:  # the offer, and the registration after it
        take_for_dead(watcher.queue, late.queue)
        late.client.faults = faults
        late.queue.offer([entry("one")])
    take_for_dead(watcher.queue, late.queue)
    late.client.faults = ["late"]
    late.queue.offer([entry("two", filtered=False)])
    late.client.deliver()
    assert [one.body for one in watcher.queue.take(9)] == [b"body of one", b"body of two"]
    for worker in (late, watcher):
        assert leave(worker.queue)
        worker.filter.close()


TestModel = Model.TestCase
TestModel.settings = settings(
    deadline=None,
    max_examples=40,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
)
