"""Two Redis servers in a simulation, and how a worker calls one.

They are two databases of a real server. Scripts ask two keys for the time, which are set with each
call. A worker is the package's own, but for what would wait in real time.
"""

from contextlib import nullcontext, suppress
from functools import partial
from types import SimpleNamespace

import redis
from redis import retry

from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis import client as clients
from scrapy_bloom.redis import project, upkeep
from scrapy_bloom.redis.client import Server, beginning
from scrapy_bloom.redis.link import Link
from support.simulation.clock import EPOCH, TIME

KEY = "crawl"
BASE = beginning(KEY)
_CLOCK = "clock:seconds", "clock:micros"
_SMALL = 1_000_000_000


class Servers:
    """The servers of one history.

    Args:
        url: of a Redis server that nobody else uses.
        world: in which they are.
        without: what is replaced in scripts, and by what.

    Attributes:
        home: the side that is right; the other one is there while the network is split.
        skew: how much the clock of each is ahead.
        is_full: whether they refuse to write, for want of memory.
    """

    def __init__(self, url, world, without):
        self._world, self._without = world, without
        scripts = "".join(map(clients.script, ("open", "call")))
        assert all(guard in scripts for guard in self._without)
        self.databases = [
            redis.Redis.from_url(url.rsplit("/", 1)[0] + f"/{number}", protocol=2)
            for number in (0, 1)
        ]
        for database in self.databases:
            database.flushdb()
        for kind in ("hash", "zset"):  # else order depends on a seed of the server
            self.databases[0].config_set(f"{kind}-max-ziplist-entries", _SMALL)
            self.databases[0].config_set(f"{kind}-max-ziplist-value", _SMALL)
        self.home, self.skew, self.is_full = 0, [0.0, 0.0], False
        self._scripts, self._late = {}, []

    @property
    def now(self):
        return self.databases[self.home]

    def load(self, text):
        if text not in self._scripts:
            source = text.replace("call('TIME')", "call('MGET', '{}', '{}')".format(*_CLOCK))
            assert source != text
            for guard, instead in self._without.items():
                source = source.replace(guard, instead)
            self._scripts[text] = self.databases[0].script_load(source)
        return self._scripts[text]

    def call(self, side, script, keys, arguments):
        now = EPOCH + TIME.now + self.skew[side]
        pipeline = self.databases[side].pipeline(transaction=False)
        pipeline.mset(dict(zip(_CLOCK, (int(now), int(now % 1 * 1e6)), strict=True)))
        pipeline.evalsha(script, len(keys), *keys, *arguments)
        answer = pipeline.execute(raise_on_error=False)[1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call_from(self, process, script, keys, arguments):
        """Run a script for a process, unless the call or its reply gets lost."""
        world, call = self._world, (process.side, script, keys, arguments)
        if process.side is None:
            process.lose_time(2.0)
            raise redis.ConnectionError("down")
        if self.is_full:
            raise redis.OutOfMemoryError("OOM command not allowed")
        self._lose(process)
        world.maybe_fault(world.loss / 6)
        opens = script == self.load(clients.script("open"))
        if opens:
            world.lose_if_due("before")
        answer = self.call(*call)
        if opens:
            world.lose_if_due("after")
        if world.faulty and world.chance.random() < 0.05:
            self._late = [*self._late[-29:], call]
        world.maybe_fault(world.loss / 6)
        self._lose(process)
        world.changed()
        return answer

    def _lose(self, process):
        if self._world.faulty and self._world.chance.random() < self._world.loss:
            process.lose_time(1.0)
            raise redis.TimeoutError("lost")

    def repeat_late(self):
        """Let a call come once more that came before."""
        if self._late:
            with suppress(redis.RedisError):
                self.call(*self._world.chance.choice(self._late))

    # States

    def shot(self, side):
        database = self.databases[side]
        names = sorted(database.keys(f"{KEY}*"))
        pipeline = database.pipeline(transaction=False)
        for name in names:
            pipeline.dump(name)
        return dict(zip(names, pipeline.execute(), strict=True))

    def put_back(self, side, shot):
        """Let a server have what it had at another time."""
        database = self.databases[side]
        pipeline = database.pipeline(transaction=False)
        for name in database.keys(f"{KEY}*"):
            pipeline.delete(name)
        for name, value in shot.items():
            pipeline.restore(name, 0, value)
        pipeline.execute()

    def delete(self, share=None):
        """Delete one key, or each with some probability."""
        chance, names = self._world.chance, sorted(self.now.keys(f"{KEY}*"))
        if share is not None:
            names = [name for name in names if chance.random() < share]
        elif names:
            names = [chance.choice(names)]
        self._world.note("deleted", names)
        if names:
            self.now.delete(*names)

    def left(self):
        """Return how many requests the right one has of each kind."""
        counts = {name: self.now.zcard(BASE + name) for name in ("queue", "later")}
        return counts | {name: self.now.hlen(BASE + name) for name in ("taken", "failed")}


class Observer:
    """What reads a server, and is no worker of the crawl."""

    address, explained = "simulated", nullcontext

    def __init__(self, servers, side):
        self._servers, self._side = servers, side
        self.client = servers.databases[side]

    def run(self, name, key, *arguments):
        script = self._servers.load(clients.script(name))
        return self._servers.call(self._side, script, [key, beginning(key)], arguments)


class Client:
    """What a worker has of redis-py."""

    def __init__(self, servers, process):
        self._servers, self._process = servers, process

    def register_script(self, text):
        return SimpleNamespace(sha=self._servers.load(text), script=text)

    def evalsha(self, script, count, *arguments):
        keys, arguments = [*arguments[:count]], arguments[count:]
        return self._servers.call_from(self._process, script, keys, arguments)

    def execute_command(self, *arguments):
        return self._servers.now.execute_command(*arguments)

    def __getattr__(self, name):
        """Return a command that only reads."""
        if self._process.side is None:
            raise redis.ConnectionError("down")
        return getattr(self._servers.databases[self._process.side], name)

    def close(self):
        """There is no connection."""


class SimulatedLink(Link):
    """The worker of a process, whose heartbeats are events."""

    world = None

    def __init__(self, server, *timeouts):
        self._process = self.world.running
        super().__init__(server, *timeouts)

    def start_heartbeats(self, beat):
        self._thread = thread = object()
        self._after_a_while(partial(self._beat, beat, thread))

    def _beat(self, beat, thread):
        if self._stop.is_set() or thread is not self._thread:
            return
        with suppress(BackendError):
            beat()
        self._after_a_while(partial(self._beat, beat, thread))

    def _after_a_while(self, do):
        usable = self.usable.is_set()
        pause = upkeep.LEASE / upkeep.BEATS if usable else upkeep.RETRY
        process = self._process
        process.world.at(process.clock.moment_in(pause), partial(process.in_thread, do))

    def close(self):
        self._stop.set()


def install(world):
    """Let all workers reach the servers of a world, and be of this kind."""
    SimulatedLink.world = world
    project.Link = SimulatedLink
    Server.connect = lambda *_: Client(world.servers, world.running)

    def sleep(seconds):
        world.running.lose_time(seconds)

    retry.sleep = sleep
