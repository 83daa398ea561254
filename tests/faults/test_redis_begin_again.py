"""Begin again: whatever the server loses, no page is lost; with one rule less, some are.

Several workers crawl a tree: the real scripts on a real server, with faults between. A worker is a
`Queue` and what it does with it; all take turns in one process, so that each seed is one history.
Calls and replies get lost, calls come late and twice; workers are killed and frozen; the server
goes back in time, is flushed, loses a key. In the end every page must have been fetched.

The server's clock is a key that the test sets: leases end in turns, not in seconds.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import suppress

import pytest
from support.queues import exchange
from support.redis_plan import plan_of

from scrapy_bloom.crawl.failed import Failed
from scrapy_bloom.crawl.scrapy.downloads import UNPACED, Pace
from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis import client as clients
from scrapy_bloom.redis.client import Server, beginning
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.queue import SharedQueue
from scrapy_bloom.redis.wire import Failing

pytestmark = pytest.mark.usefixtures("server")

SEEDS = int(os.environ.get("SEEDS", "1"))
"""Histories of each set; `make kills` asks for many."""

KEY = "crawl"
CLOCK = ("clock:seconds", "clock:micros")
_PAGES = 150
_TURNS = 900  # with faults
_START = 1_700_000_000
_PACES = UNPACED, Pace(0.5, 0.5), Pace(2.0, 0.0)


class NeverEndsError(Exception):
    """A crawl has requests that no worker knows of."""


class World:
    """One crawl.

    Args:
        server: a Redis server that nobody else uses.
        seed: of everything that is left to chance.
        faults: how often each kind comes, relative to the others.
        again: whether start() runs again after a surprise; without it pages must get lost.
        without: what is replaced in the scripts, and by what: for controls that must lose.
        retries: share of fetches that end in a retry with dont_filter.
        hosts: how many hosts the pages have, each with a delay; without, all share one slot.
        waits: share of requests that wait for a time, or after which a host is left alone.
        failures: share of fetches that fail, as long as there are faults. Further runs follow.
    """

    def __init__(
        self,
        server,
        seed,
        faults,
        *,
        again=True,
        without=(),
        retries=0.0,
        hosts=0,
        waits=0.0,
        failures=0.0,
    ):
        self.hosts, self.waits, self.failures = hosts, waits, failures
        self.chance = random.Random(seed)
        self.faults, self.again, self.retries = faults, again, retries
        self.without = dict(without)
        self.url, self.client = server.url, server.client()
        self.client.flushall()
        self.now = float(_START)
        self.plan = plan_of(capacity=1000, order="fifo")
        self.links = {page: [] for page in range(_PAGES)}  # a tree: one way to each page
        for page in range(1, _PAGES):
            self.links[self.chance.randrange(max(0, page - 30), page)].append(page)
        self.fetched, self.tried = Counter(), Counter()
        self.late, self.shots = [], []
        names = ("open", "upkeep", "call", "ask", "beat", "leave")
        assert all(any(guard in clients.script(name) for name in names) for guard in self.without)
        self.scripts = {name: self.load(name) for name in names}
        self.workers = [Crawler(self) for _ in range(3)]
        self.first = self.shot()

    def run(self):
        """Crawl; return the pages that were lost."""
        # Hosts that are left alone for an hour take longer to come to an end.
        for turn in range(_TURNS + (40_000 if self.waits else 8_000)):
            self.now += self.chance.choice((0.06, 0.3, 0.9))
            worker = self.chance.choice(self.workers)
            with suppress(BackendError):
                worker.step()
            if turn < _TURNS:
                if turn % 9 == 0:
                    self.shots = [*self.shots[-39:], self.shot()]
                if self.chance.random() < 0.025:
                    self.fault()
            elif turn % 40 == 0 and self.over():
                if not self.client.exists(beginning(KEY) + "failed"):
                    break
                self.failures = 0.0
                self.next_run()
        else:
            raise NeverEndsError
        return set(self.links) - set(self.fetched)

    def over(self):
        busy = any(worker.busy for worker in self.workers)
        kept = [beginning(KEY) + name for name in ("queue", "later", "taken")]
        return not busy and not self.client.exists(*kept)

    def next_run(self):
        """Kill all workers; others come when their leases are over."""
        listed = self.client.hlen(beginning(KEY) + "failed")
        if "key" not in self.faults:
            assert sum(map(int, self.client.hvals(beginning(KEY) + "reasons"))) == listed
        self.now += 100
        self.workers = [Crawler(self) for _ in range(2)]

    def shot(self):
        names = list(self.client.keys("crawl*"))
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.dump(name)
        return dict(zip(names, pipeline.execute(), strict=True))

    def put_back(self, shot):
        pipeline = self.client.pipeline()
        for name in self.client.keys("crawl*"):
            pipeline.delete(name)
        for name, value in shot.items():
            pipeline.restore(name, 0, value)
        pipeline.execute()

    def fault(self):
        kinds = [*self.faults]
        kind = self.chance.choices(kinds, [self.faults[name] for name in kinds])[0]
        getattr(self, f"fault_{kind}")()

    def fault_kill(self):
        self.workers[self.chance.randrange(len(self.workers))] = Crawler(self)

    def fault_freeze(self):
        """Rather one that waits for an answer."""
        waiting = [each for each in self.workers if each.queue.worker.unanswered is not None]
        worker = self.chance.choice(waiting or self.workers)
        worker.frozen = self.now + self.chance.choice((10, 45, 90))

    def fault_back(self):
        if self.shots:
            self.put_back(self.chance.choice(self.shots))
            self.shots = []

    def fault_first(self):
        """The server has its first snapshot only, from before the first request."""
        self.put_back(self.first)
        self.shots = []

    def fault_flush(self):
        self.put_back({})
        self.shots = []

    def fault_late(self):
        if self.late:
            name, keys, arguments = self.chance.choice(self.late)
            self.script(name, keys, arguments)

    def fault_key(self):
        """One key is gone, whichever."""
        if names := sorted(self.client.keys("crawl*")):
            self.client.delete(self.chance.choice(names))

    def fault_clock(self):
        """The server's clock goes back."""
        back = self.chance.choice((3, 100, 4000))
        self.now -= back
        for worker in self.workers:
            worker.frozen -= back

    def fault_queue(self):
        self.client.delete(beginning(KEY) + "queue")

    def fault_failed(self):
        self.client.delete(beginning(KEY) + "failed")

    def fault_later(self):
        self.client.delete(beginning(KEY) + "later")

    def fault_bodies(self):
        self.client.delete(beginning(KEY) + "bodies")

    def fault_dead_before(self, loss="before"):
        """One is taken for dead, the others die, and the server loses something.

        That happens just before it gets its new name.
        """
        worker = self.chance.choice(self.workers)
        other = Crawler(self)
        for _ in range(12):
            self.now += 6
            with suppress(BackendError):
                other.queue.worker.beat()
        self.workers = [worker]
        worker.worker.loss = loss

    def fault_dead_after(self):
        """The same between its new name and its first call."""
        self.fault_dead_before("after")

    def lose_if_due(self, worker, moment):
        if worker.loss == moment:
            worker.loss = None
            self.chance.choice((self.fault_first, self.fault_flush, self.fault_queue))()

    def script(self, name, keys, arguments):
        self.client.mset(dict(zip(CLOCK, (int(self.now), int(self.now % 1 * 1e6)), strict=True)))
        return self.scripts[name](keys, arguments)

    def load(self, name):
        text = clients.script(name)
        assert "call('TIME')" in text
        text = text.replace("call('TIME')", f"call('MGET', '{CLOCK[0]}', '{CLOCK[1]}')")
        for guard, instead in self.without.items():
            text = text.replace(guard, instead)
        return self.client.register_script(text)


class FlakyLink(Link):
    """Some of its calls, and some of the replies, get lost; some calls come once more, later."""

    def __init__(self, world):
        super().__init__(Server(world.url), 10.0)
        self.world, self.client = world, world.client
        self.calm = True  # nothing happens until it is a worker
        self.loss = None  # when the server loses something: before or after the next open

    def start_heartbeats(self, beat):
        """The world says when one is due."""

    def run(self, name, key, *arguments, probe=False, large=False):  # noqa: ARG002
        world = self.world
        call = name, [key, beginning(key)], arguments
        if not self.calm and world.chance.random() < 0.04:
            raise BackendError("lost", temporary=True)
        if name == "open":
            world.lose_if_due(self, "before")
        answer = world.script(*call)
        if name == "open":
            world.lose_if_due(self, "after")
        if name == "call" and world.chance.random() < 0.05:
            world.late = [*world.late[-29:], call]
        if not self.calm and world.chance.random() < 0.06:
            raise BackendError("lost", temporary=True)
        return answer

    def close(self):
        pass


class Crawler:
    """A worker of a crawl whose requests wait in Redis."""

    def __init__(self, world):
        self.world = world
        self.worker = FlakyLink(world)
        self.queue = SharedQueue(self.worker, KEY, world.plan)
        self.worker.calm = False
        self.ready, self.flight, self.children = [], {}, Counter()
        self.frozen = self.beaten = 0.0
        self.start()

    @property
    def busy(self):
        return bool(self.ready or self.flight or self.queue.has_work)

    def start(self):
        self.offer(0, None)

    def offer(self, page, parent, letter="f"):
        mark, body = (b"%d" % page).rjust(20, b"."), b"%d" % page
        entry = Entry(letter, None if letter == "p" else mark, body, source=parent)
        if self.world.hosts:
            entry.slot = b"host %d" % (page % self.world.hosts)
            if self.world.chance.random() < 0.1:
                self.queue.next_call.paces[entry.slot] = self.world.chance.choice(_PACES)
        if self.world.chance.random() < self.world.waits:
            entry.due = time.monotonic() + self.world.chance.choice((1, 10, 300))
        self.queue.offer(entry)

    def step(self):
        world, chance = self.world, self.world.chance
        if self.frozen > world.now:
            return
        if not 0 <= world.now - self.beaten <= 6:
            self.beaten = world.now
            self.queue.worker.beat()
        able = [key for key in self.flight if key not in self.children]
        if able and chance.random() < 0.6:
            self.fetch(chance.choice(able))
        elif self.ready and chance.random() < 0.6:
            self.begin(self.ready.pop(0))
        else:
            self.exchange(max(0, 3 - len(self.ready)))

    def begin(self, taken):
        """Begin with a request, whose turn may pass or not be used; or put it back."""
        chance = self.world.chance.random()
        if chance < self.world.waits / 2:
            until = time.monotonic() + self.world.chance.choice((1, 10, 300))
            self.queue.next_call.holds[taken.slot] = until
            if chance < self.world.waits / 4:
                self.queue.put_back(taken)
                return
        if taken.delay and chance < 0.1:
            self.queue.put_back(taken)
            return
        if taken.delay and chance < 0.2:
            self.queue.give_back_turn(taken)
        self.flight[object()] = taken

    def fetch(self, key):
        world = self.world
        page = int(self.flight[key].body)
        if world.chance.random() < world.retries and world.tried[page] < 6:
            world.tried[page] += 1
            self.children[key] = 1
            self.offer(page, key, "p")
            return
        if world.chance.random() < world.failures:
            self.fail(key)
            return
        world.fetched[page] += 1
        for other in world.links[page]:
            if not self.queue.worker.knows((b"%d" % other).rjust(20, b".")):
                self.children[key] += 1
                self.offer(other, key)
        if not self.children[key]:
            self.finish(key)

    def exchange(self, want):
        slots = [taken.slot for taken in self.flight.values()]
        default = Pace(0.5, 0.5) if self.world.hosts else UNPACED
        answer = exchange(self.queue, want, default=default, busy=slots[:1])
        for entry, _ in answer.verdicts:
            self.child_done(entry.source)
        void = [taken for taken in self.ready if taken not in self.queue.taken]
        self.ready = [taken for taken in self.ready if taken not in void]
        if answer.start_over:
            for taken in void:
                self.offer(int(taken.body), None)
            if self.world.again:
                self.start()
        self.ready += answer.taken

    def fail(self, key):
        taken = self.flight.pop(key)
        failed = Failed("503", "", self.world.now, 1, "", taken.body)
        self.queue.fail(taken, Failing(taken.id, b"", failed, taken))

    def child_done(self, parent):
        if parent in self.children:
            self.children[parent] -= 1
            if self.children[parent] <= 0:
                self.finish(parent)

    def finish(self, key):
        self.children.pop(key, None)
        self.queue.end(self.flight.pop(key))


ALL = {"kill": 1, "back": 1, "flush": 0.3, "key": 1, "late": 2, "freeze": 1}
BACK = {"back": 2, "late": 2}
SETS = {
    "freezes": {"faults": {"freeze": 2, "kill": 1, "late": 2}},
    "roll-backs": {"faults": {"back": 2, "kill": 1, "late": 2}},
    "flushes": {"faults": {"flush": 1, "kill": 1, "late": 2}},
    "all, retries": {"faults": ALL, "retries": 0.2},
    "all": {"faults": ALL},
    "all, failures": {"faults": ALL, "failures": 0.3},
    "roll-backs and flushes, failures": {
        "faults": {"back": 2, "flush": 1, "kill": 1, "late": 2},
        "failures": 0.3,
    },
    "freezes, failures": {"faults": {"freeze": 2, "kill": 1, "late": 2}, "failures": 0.3},
    "losses while one is taken for dead": {
        "faults": {"dead_before": 1, "dead_after": 1, "late": 1}
    },
    "bodies lost": {"faults": {"bodies": 1, "kill": 1, "late": 2}, "failures": 0.3},
    "any key lost": {"faults": {"key": 2, "late": 2, "freeze": 1}},
    "hosts": {"faults": ALL | {"clock": 1}, "hosts": 7},
    "hosts, retries": {"faults": ALL | {"clock": 1}, "hosts": 7, "retries": 0.2},
    "waits": {"faults": ALL | {"clock": 1}, "hosts": 7, "waits": 0.3, "retries": 0.2},
    "waits, one host": {"faults": ALL | {"clock": 1}, "waits": 0.3},
    "waits, any key lost": {"faults": {"key": 3, "late": 2, "kill": 1}, "hosts": 7, "waits": 0.3},
    "many hosts, any key lost": {"faults": {"key": 3, "late": 2, "kill": 1}, "hosts": 40},
}


@pytest.mark.parametrize("name", SETS)
def test_no_page_is_lost_in_any_order_of_faults(server, name):
    for seed in range(SEEDS):
        assert not World(server, seed, **SETS[name]).run(), f"seed {seed}"


LOST = "if last < answered or number < last or ends == 'dead' then return 'lost' end"
ANSWERED = """  digits, ids = call('HGET', header, 'a:' .. worker):match('^(%d*) (.*)$')
  write_worker(worker, number, now + lease, own_delay, changed)
  return answer()"""
VANISHED = """  if some then start_over() end
  walk()
  return some"""
NO_RECORD = {"last = last or -1": "last = last or 0"}
WHOLE = {"whole and '1' or '0'": "'1'"}
CONTROLS = {
    "roll-backs without numbers": {"faults": BACK, "without": {LOST: "", ANSWERED: ""}},
    "flushes without start()": {"faults": {"flush": 1, "late": 2}, "again": False},
    "requests that vanish unnoticed": {
        "faults": {"queue": 2, "late": 2},
        "without": {VANISHED: ""},
    },
    "waiting requests that vanish unnoticed": {
        "faults": {"later": 2, "late": 2},
        "hosts": 7,
        "waits": 0.3,
        "without": {"call('ZCARD', queue) + call('ZCARD', later) < tonumber(waiting)": "false"},
    },
    "failed pages without their rows": {
        "faults": {"late": 2},
        "failures": 0.3,
        "without": {"list(key == '' and id or key, given_up, kind, packed)": ""},
    },
    "bodies that vanish unnoticed": {
        "faults": {"bodies": 2, "late": 2},
        "without": {"call('HLEN', bodies) < tonumber(stored)": "false"},
    },
    "requests without bodies that are handed out": {
        "faults": {"bodies": 2, "late": 2},
        "without": {"    if body then\n": "    if true then\n"},
    },
    "failed requests that vanish unnoticed": {
        "faults": {"failed": 2, "late": 2},
        "failures": 0.3,
        "without": {"call('HLEN', failed) < tonumber(failures)": "false"},
    },
    "a loss before the new name of a worker that was taken for dead": {
        "faults": {"dead_before": 1},
        "without": {**WHOLE, **NO_RECORD},
    },
    "a loss between the new name and the first call": {
        "faults": {"dead_after": 1},
        "without": NO_RECORD,
    },
}


def loses(server, seed, **options):
    """Return whether pages were lost, or wait for ever."""
    try:
        return bool(World(server, seed, **options).run())
    except NeverEndsError:
        return True


@pytest.mark.parametrize("name", CONTROLS)
def test_pages_are_lost_without_each_guard(server, name):
    assert any(loses(server, seed, **CONTROLS[name]) for seed in range(17, 49))
