"""Workers of a shared queue that a test leads step by step, their plans and their leases."""

import sqlite3
import time
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha1
from types import SimpleNamespace
from unittest.mock import patch

from redis import Redis

from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.outcomes import MOST_RUNS
from scrapy_bloom.crawl.scrapy.downloads import UNPACED
from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis import link
from scrapy_bloom.redis import plan as plans
from scrapy_bloom.redis.client import Server, beginning, script
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.plan import Plan
from scrapy_bloom.redis.queue import SharedQueue
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.wire import Answer, NewFailedRow
from scrapy_bloom.values import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE
from support.contract import fingerprints
from support.internals import stop_beating


class Crawler:
    """A worker whose requests are numbers. As a context manager it leaves at the end.

    Attributes:
        queue: what it uses.
        have: requests that it has taken, by their names.
        default: its pace for slots that have no other.
    """

    def __init__(self, target, key, *, default=UNPACED, timeout=10.0, calls=None, **options):
        self.default = default
        self.plan = plan_of(**({"order": "fifo", "project": "p", "spider": "s"} | options))
        target = Server(target) if isinstance(target, str) else target
        self.queue = SharedQueue(Link(target, timeout, calls), key, self.plan)
        self.have = {}

    def offer(self, *names, priority=0, filtered=True, slot="", wait=0.0):
        """Say these with the next exchange; their fingerprints can be told from their names."""
        for name in names:
            letter, mark = ("f", mark_of(name)) if filtered else ("p", None)
            entry = Entry(letter, mark, str(name).encode(), priority, source=name)
            entry.slot = slot.encode()
            entry.due = time.monotonic() + wait if wait else 0.0
            self.queue.offer(entry)

    def exchange(self, want=0, **said):
        """Make one exchange; return the answer."""
        said.setdefault("idle", said.get("through", True))
        answer = exchange(self.queue, want, look=True, default=self.default, **said)
        self.have = {name: taken for name, taken in self.have.items() if taken in self.queue.taken}
        for taken in answer.taken:
            name = taken.body.decode()
            if name in self.have:  # a second request for the page, after a loss
                self.queue.end(self.have[name])
            self.have[name] = taken
        return answer

    def say(self, want=0):
        """Make exchanges until one succeeds and all is said; return the names that were new."""
        new = []
        while True:
            try:
                verdicts = self.exchange(want).verdicts
            except BackendError:
                time.sleep(0.01)
                continue
            new += [entry.source for entry, seen in verdicts if not seen]
            if not self.queue.offering:
                return new

    def add(self, *names, **options):
        """Offer these, and say so; return the names that were new."""
        self.offer(*names, **options)
        return self.say()

    def take(self, count):
        before = set(self.have)
        self.say(count)
        return [name for name in self.have if name not in before]

    def done(self):
        for taken in self.have.values():
            self.queue.end(taken)
        self.have = {}

    def fail(self, *names, kind="503", tries=1, way=(), start=b"", unparsed=False):
        """Say that these have failed, or are unparsed."""
        unparsed = unparsed or tries >= MOST_RUNS
        for name in names:
            taken = self.have.pop(name)
            why = kind, "", time.time(), tries, self.queue.worker.name
            failed = FailedPage(*why, unparsed, way if unparsed else (), taken.body)
            self.queue.fail(
                taken, NewFailedRow(taken.id, start, failed, taken, () if unparsed else way)
            )

    def beat(self):
        """Renew the lease, and look whether others have."""
        self.queue.worker.beat()

    def drain(self):
        """Take and finish everything; return the names, in order."""
        names = self.take(100)
        self.done()
        while some := self.take(100) or self.take(100):  # a risky one is taken alone
            names += some
            self.done()
        self.say()
        return names

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.queue.close()


class Shared(ExitStack):
    """A crawl in Redis and its workers, which leave when the test is over.

    Attributes:
        client: of its server.
        base: what names of its keys begin with.
    """

    def __init__(self, server, key):
        super().__init__()
        self.server, self.key = server, key
        self.client, self.base = server.client(), beginning(key)

    def join(self, default=UNPACED, **options):
        """Open one more worker."""
        return self.enter_context(Crawler(self.server.url, self.key, default=default, **options))

    def sweep(self, by):
        """Let a worker look for dead ones; all that have not died have renewed their leases."""
        all_are_well(self.server, self.key)
        by.beat()

    def bury(self, dead, by):
        """Let a worker die without a word, and another one find that out."""
        let_die(self.server, self.key, dead.queue)
        by.beat()

    @property
    def account(self):
        return account(self.server, self.key)

    @property
    def parts(self):
        return parts_of(self.account)

    @property
    def left(self):
        return left(self.server, self.key)


def exchange(queue, want, **said):
    """Make a call of a queue; return the answer."""
    call = queue.prepare(want, **said)
    if call is None:
        return Answer()
    answer = queue.carry_out(call)
    queue.settle(call, answer)
    return answer


def mark_of(name):
    """Return the fingerprint of a request."""
    return fingerprints(1, str(name))[0]


def account(server, key):
    """Return what has become of the pages of a crawl, as the server says; check what it counts."""
    with closing(Link(Server(server.url), 10.0)) as worker:
        reader = Reader(worker, key)
        found = reader.account(reader.existing().counts)
        listed = Counter(each.failed.kind for each in reader.failed())
    assert Counter(found.failures) + Counter(found.decisions) == listed
    return found


def parts_of(told):
    """Return how many pages are done, unparsed, have failed, wait, and are in flight."""
    return told.done, told.unparsed, told.failed, told.waiting, told.in_flight


def left(server, key):
    client, base = server.client(), beginning(key)
    waiting = sum(client.zcard(base + name) for name in ("queue", "later"))
    return waiting, client.hlen(base + "taken"), client.hlen(base + "failed")


def undone(settings):
    """Return how many requests of a crawl are neither done nor on the failed list."""
    if "JOBDIR" in settings:
        with closing(sqlite3.connect(f"{settings['JOBDIR']}/bloom.sqlite")) as database:
            return database.execute("SELECT count(*) FROM requests").fetchone()[0]
    with Redis.from_url(settings["BLOOM_REDIS_URL"]) as client:
        server = SimpleNamespace(client=lambda: client)
        return sum(left(server, settings["BLOOM_REDIS_KEY"])[:2])


# Plans and scripts


def plan_of(*, capacity=DEFAULT_CAPACITY, error_rate=DEFAULT_ERROR_RATE, window=None, **options):
    return Plan(capacity, error_rate, window=float(window or 0), **options)


def name_of(name):
    """Return what a request has in it if and only if it runs this script."""
    return sha1(script(name).encode()).hexdigest().encode()


@contextmanager
def small_keys():
    """Let keys have one block of 8 KB instead of 511, so that small filters have many of them."""
    read = link.script
    assert "KEY_BLOCKS = 32, 511" in read("upkeep")

    def read_small(name):
        return read(name).replace("KEY_BLOCKS = 32, 511", "KEY_BLOCKS = 32, 1")

    with patch.object(link, "script", read_small), patch.object(plans, "KEY_BLOCKS", 1):
        yield


# Leases, moved in time


_SHIFT = """
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local number, lease, rest = fields[i + 1]:match('^(%d+) ([%d.]+)(.*)$')
  if fields[i]:sub(1, 2 + #ARGV[2]) == 'w:' .. ARGV[2] and lease then
    lease = string.format('%s %.6f%s', number, lease + ARGV[1], rest)
    redis.call('HSET', KEYS[1], fields[i], lease)
  end
end
"""


def shift_leases(server, key, seconds, name=""):
    """Make leases what they are for a server whose clock was moved the other way.

    Leases that are shifted back are also what a server has that was frozen for so long.

    :param name: of the only worker whose lease it is; by default it is done to all.
    """
    server.client().eval(_SHIFT, 1, key, seconds, name)


def all_are_well(server, key):
    """Let the server be one at which everybody else has renewed a lease a moment ago."""
    client = server.client()
    moment = client.time()[0] - 2
    client.hset(key, mapping={"contact_since": 1, "last_contact": moment, "swept": moment})


def let_die(server, key, queue):
    """Let a worker die without a word, and its lease run out; everybody else is well."""
    stop_beating(queue.link)
    shift_leases(server, key, -3600, queue.worker.name)
    all_are_well(server, key)
