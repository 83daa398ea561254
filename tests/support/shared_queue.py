"""A filter and queue that workers share, in the memory of this process, with faults on demand."""

from __future__ import annotations

import time
from bisect import insort
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from threading import Lock

from scrapy_bloom.backends.base import Opened
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.redis.queue.base import Offered, Queue, State, Taken, Ticket
from scrapy_bloom.redis.queue.counters import QueueCounters


@dataclass(order=True)
class Waiting:
    place: tuple
    entry: object = field(compare=False)
    deliveries: int = field(compare=False, default=0)


class Server:
    """What the workers share.

    Attributes:
        latency: seconds that each call takes.
        fault: called with the name of each call and what makes it; may raise before or after that.
        calls: the names of all calls.
        workers: all that have joined.
    """

    def __init__(self):
        self.latency = 0.0
        self.fault = lambda _, make: make()
        self.calls = []
        self.workers = []
        self.marks = set()
        self.waiting = []
        self.failed = []
        self.version = 0
        self.number = 0
        self.lock = Lock()

    def join(self, order):
        self.workers.append(Worker(self, order))
        return self.workers[-1]

    def put_back(self, worker, identity, *, died=False):
        """Put what a worker has taken back; the mark of a held request is undone.

        What it does not have any more, since a call is repeated or it was taken for dead, stays.
        """
        waiting = worker.taken.pop(identity, None)
        if waiting is None:
            return
        self.version += 1
        if waiting.entry.body:
            deliveries = waiting.deliveries + died
            insort(self.waiting, replace(waiting, deliveries=deliveries))
        else:
            self.marks.discard(waiting.entry.fingerprint)

    def kill(self, worker):
        """Let a worker be taken for dead."""
        with self.lock:
            for identity in list(worker.taken):
                self.put_back(worker, identity, died=True)
            worker.gone = True


class Worker(Queue):
    """What one worker has of it."""

    sure = True
    copied = frozenset()

    def __init__(self, server, order):
        self.server = server
        self.order = order
        self.taken = {}
        self.known = set()
        self.counters = QueueCounters()
        self.last = State(0, 0, -1)
        self.answered = 0
        self.gone = False
        self.owed = []
        self.unanswered = None
        self.unreturned = []

    @contextmanager
    def _call(self):
        with self.server.lock:
            yield
            others = (len(each.taken) for each in self.server.workers if each is not self)
            self.last = State(len(self.server.waiting), sum(others), self.server.version)
            self.answered += 1

    def _make(self, name, make):
        def call():
            time.sleep(self.server.latency)
            with self._call():
                return make()

        self.server.calls.append(name)
        return self.server.fault(name, call)

    def offer(self, entries):
        def offer():
            if self.unanswered and self.unanswered[0] == entries:
                return self.unanswered[1]
            self.unanswered = entries, self._offer(entries)
            return self.unanswered[1]

        answer = self._make("offer", offer)
        self.unanswered = None
        return answer

    def _offer(self, entries):
        server, seen, tickets = self.server, [], {}
        for index, entry in enumerate(entries):
            repeated = entry.fingerprint in server.marks and entry.fingerprint is not None
            seen.append(repeated)
            self.known.add(entry.fingerprint)
            if repeated:
                continue
            server.marks.add(entry.fingerprint)
            server.number += 1
            server.version += 1
            number = -server.number if self.order == "lifo" else server.number
            waiting = Waiting((-entry.priority, number), entry)
            if entry.body:
                insort(server.waiting, waiting)
            else:
                tickets[index] = self._note(waiting)
        return Offered(seen, tickets)

    def _note(self, waiting):
        self.server.number += 1
        self.taken[self.server.number] = waiting
        return Ticket(0, self.server.number)

    def take(self, count, done=()):
        self.owed += done
        self._make("take", lambda: self._take(count))
        got, self.unreturned = self.unreturned, []
        return got

    def _take(self, count):
        self._settle()
        server, got = self.server, self.unreturned
        count -= len(got)
        for waiting in server.waiting[: max(0, count)]:
            entry = waiting.entry
            server.version += 1
            got.append(
                Taken(
                    self._note(waiting),
                    entry.body,
                    entry.priority,
                    entry.fingerprint,
                    waiting.deliveries,
                )
            )
        del server.waiting[: max(0, count)]

    def _settle(self):
        for ticket in self.owed:
            self.server.version += 1
            self.taken.pop(ticket.id, None)
        self.owed.clear()

    def acknowledge(self, tickets):
        self.owed += tickets
        self._make("acknowledge", self._settle)

    def give_back(self, tickets):
        self._make("give_back", lambda: [self.server.put_back(self, each.id) for each in tickets])

    def fail(self, tickets):
        def fail():
            for ticket in tickets:
                waiting = self.taken.pop(ticket.id, None)
                if waiting is not None:
                    entry = waiting.entry
                    self.server.failed.append(entry)

        self._make("fail", fail)

    def look(self):
        self._make("look", self._settle)
        return self.last

    def requeue_dead(self):
        return 0

    def close(self):
        def leave():
            self._settle()
            for identity in list(self.taken):
                self.server.put_back(self, identity)

        self._make("close", leave)

    def state(self):
        return self.last

    def numbers(self):
        return asdict(self.counters)

    def knows(self, fingerprint):
        return fingerprint in self.known

    def holds(self, ticket):
        return not self.gone or ticket.id in self.taken


class SharedBackend:
    """Opens it for the crawls of this process; a test sets `server`."""

    server = None

    def open(self, _settings, crawl):
        queue = self.server.join(crawl.queue.order)
        return Opened(LocalFilter(capacity=1000), lambda: None, "in memory", queue=queue)
