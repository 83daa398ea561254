"""Scrapy's priority queues over the rows of a store.

Scrapy's class decides the order; it is given our :class:`Bucket` in place of its disk queues. Only
the numbers of the first rows of each bucket are in memory. A request is read when its turn comes:
some have megabytes in their meta.

A request that waits for a time is a row in a queue of its own. When its time comes it moves to
Scrapy's queue: the new row comes and the old one goes with the same commit, or the new one first.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy.utils.misc import build_from_crawler

from scrapy_bloom.crawl.history import START
from scrapy_bloom.crawl.later import Pauses, Waiting
from scrapy_bloom.crawl.scrapy.downloads import has_queues_by_slot, order_slots
from scrapy_bloom.crawl.serialize import QueueKind, read_request
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.file import DamageError
from scrapy_bloom.local.later import (
    LATER,
    read_waiting,
    record_pause,
    stored_pauses,
    stored_requests,
    waiting_body,
)
from scrapy_bloom.local.store import NUMBER_BITS, Store

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.scrapy.engine import Engine

_MOVED: Final = 50  # most requests that move at once, as their time has come
_POSTPONED: Final = 100  # most that are postponed at once


class Taken(NamedTuple):
    """A request that was taken.

    Attributes:
        row: its row, which stays until the request is done.
        body: as it is stored.
    """

    row: int
    body: bytes


_MOST: Final = 512
"""Rows of one queue that are read at once; of pushed rows, up to twice as many are remembered."""

_IN_ALL: Final = 65_536
"""Rows that all queues together may read ahead: with many hosts, each gets fewer."""

_LEAST: Final = 8


@dataclass(frozen=True)
class QueueClasses:
    """Scrapy's queues, as chosen by the settings of a crawl.

    Attributes:
        priority: class of the priority queue.
        plain: kind of the disk queues.
        start: kind of the queues for start requests; None if these share the others.
    """

    priority: type[Any]
    plain: QueueKind
    start: QueueKind | None


class Queues:
    """The priority queue of a crawl over the rows of a store.

    :param classes: Scrapy's, as chosen by the settings.
    :raises SettingError: if the priority queue cannot be used.
    :raises StateError: if the store has requests in queues that these classes would not read.

    Call :meth:`read_waiting` before anything else.

    Attributes:
        taken: what a bucket has returned last, or got: Scrapy's classes pass on only the request.
        size: how many requests the buckets have: Scrapy's classes add up those of all slots.
        unreadable: why stored requests could not be read; the caller empties it.
    """

    def __init__(
        self, crawler: Crawler, spider: Spider, engine: Engine, store: Store, classes: QueueClasses
    ) -> None:
        self.unreadable: list[Exception] = []
        self.store = store
        self.spider = spider
        self.slot_of = engine.slot_of
        self._dumps = classes.plain.dumps
        self.taken, self.size = Taken(0, b""), 0
        self._waiting: Waiting[int] = Waiting()
        self._pauses: Pauses[str] = Pauses()
        self._queue = build_from_crawler(
            classes.priority,
            crawler,
            downstream_queue_cls=_bucket_class(self, classes.plain),
            key="",
            startprios=_start_priorities(store, classes.priority),
            start_queue_cls=classes.start and _bucket_class(self, classes.start),
        )
        self._hides = order_slots(self._queue, self._pauses)
        later = store.find(LATER)
        waiting = 0 if later is None else store.waiting(later)
        if len(self._queue) + waiting != len(store):
            raise _other_queues(store)

    def read_waiting(self) -> None:
        """Read what waits for a time, and which slots are paused."""
        since = time.monotonic() - time.time()
        for each in stored_requests(self.store):
            self._waiting.push(since + each.date, each.row)
        for slot, date in stored_pauses(self.store.meta).items():
            self._pauses.pause(slot, since + date)

    def __len__(self) -> int:
        """Return how many requests are waiting."""
        return self.size + self.later

    @property
    def ready(self) -> bool:
        """Whether requests are waiting in slots that are not paused, and for no time."""
        if not self._hides:
            return self.size > 0
        return any(slot not in self._pauses for slot in self._queue.pqueues)

    @property
    def later(self) -> int:
        """How many requests wait for a time."""
        return len(self._waiting)

    def push(self, request: Request, due: float = 0.0) -> int:
        """Add a request; return its row.

        :param due: before when it must not be sent, by ``time.monotonic()``; 0 for none.
        :raises Exception: any, if it cannot be serialized. Nothing has changed then.
        """
        if not due:
            return self._push(request)
        date = time.time() + max(0.0, due - time.monotonic())
        body = self._dumps(request.to_dict(spider=self.spider))
        body = waiting_body(date, request.priority, body)
        row = self.store.push(self.store.queue(LATER, None), body)
        self._waiting.push(due, row)
        return self._record_start(request, row)

    def _record_start(self, request: Request, row: int) -> int:
        """Record where a start request is now, or what a retry has made of one; return its row."""
        if start := request.meta.get(START):
            self.store.starts[start] = row
        return row

    def has(self, row: int) -> bool:
        """Return whether a request is not done, and can be read."""
        if not self.store.has(row):
            return False
        later = self.store.find(LATER)
        read = read_waiting if later == row >> NUMBER_BITS else read_request
        try:
            read(self.store.get(row) or b"", self.spider)
        except Exception:  # its parts may raise anything
            return False
        return True

    def _push(self, request: Request) -> int:
        self._queue.push(request)
        return self._record_start(request, self.taken.row)

    def pop(self) -> tuple[Request, Taken] | None:
        """Take the next readable request.

        None means for now: many had to be postponed, or a subclass of Scrapy's class wants to wait.

        :raises sqlite3.Error: if the rows cannot be read, or some are missing.
        """
        self.move_due()
        for _ in range(_POSTPONED):
            taken = self._pop()
            if taken is None or not (until := self.paused_until(taken[0])):
                return taken
            try:
                self.push(taken[0], until)
            except Exception:  # it cannot wait where it would be stored
                return taken
            self.store.delete(taken[1].row)
        return None

    def _pop(self) -> tuple[Request, Taken] | None:
        unreadable = -1
        request = None
        while request is None and len(self.unreadable) > unreadable:
            unreadable = len(self.unreadable)
            request = self._queue.pop()
        return None if request is None else (request, self.taken)

    def move_due(self) -> None:
        """Move some requests whose time has come to Scrapy's queue, and hide slots no more.

        Those that cannot be read stay stored.
        """
        self._pauses.drop_over()
        for row in self._waiting.pop_due(_MOVED):
            body = self.store.get(row)
            try:
                if body is None:
                    raise ValueError("its bytes do not match their checksum")
                self._push(read_waiting(body, self.spider))
            except Exception as error:
                self.unreadable.append(error)
            else:
                self.store.delete(row)

    # Slots that are paused

    @property
    def next_due(self) -> float:
        """When the next request or slot is due, by ``time.monotonic()``; infinite if none is."""
        return min(self._waiting.next_due, self._pauses.next_over)

    @property
    def paused(self) -> list[str]:
        """The slots that are paused now."""
        return [slot for slot in self._pauses if self._pauses.until(slot)]

    def pause(self, slot: str, seconds: float) -> None:
        """Pause a slot for so long."""
        self._pauses.pause(slot, time.monotonic() + seconds)
        record_pause(self.store, slot, time.time() + self._pauses[slot] - time.monotonic())

    def paused_until(self, request: Request) -> float:
        """Return until when the slot of a request is paused, 0 if it is not."""
        return self._pauses.until(self.slot_of(request)) if self._pauses else 0.0


class Bucket:
    """The requests of one priority, perhaps of one download slot, in order.

    The rows whose numbers are in memory come before all other waiting ones, in the order of the
    bucket. When they are used up, the first rows of the store follow.

    :param queues: the queues it belongs to.
    :param path: its key: the priority, perhaps after the download slot.
    :param kind: its order and serialization.
    """

    def __init__(self, queues: Queues, path: str, kind: QueueKind) -> None:
        self._queues, self._store = queues, queues.store
        self._path, self._newest, self._dumps = path, kind.newest_first, kind.dumps
        number = self._store.find(path)
        self._size = 0 if number is None else self._store.waiting(number)
        self._queues.size += self._size
        self._ahead: deque[int] = deque()

    def __len__(self) -> int:
        """Return how many requests are waiting."""
        return self._size

    def push(self, request: Request) -> None:
        """Add a request. If serializing it raises an error, nothing has changed."""
        body = self._dumps(request.to_dict(spider=self._queues.spider))
        number = self._store.find(self._path)
        if number is None:
            # Only the queues of a downloader-aware priority queue have a folder of their own.
            slot = self._queues.slot_of(request) if "/" in self._path else None
            number = self._store.queue(self._path, slot)
        row = self._store.push(number, body)
        ahead, most = self._ahead, 2 * self._most
        if self._newest:
            ahead.append(row)
            if len(ahead) > most:  # the store has the rest
                while len(ahead) > most // 2:
                    ahead.popleft()
        elif self._size == len(ahead) < most:
            ahead.append(row)
        self._size += 1
        self._queues.size += 1
        self._queues.taken = Taken(row, body)

    def pop(self) -> Request | None:
        """Take the next readable request; its row stays in the store until it is done."""
        found = self._next()
        if found is None:
            return None
        request, body = found
        self._queues.taken = Taken(self._take(), body)
        return request

    def peek(self) -> Request | None:
        """Return the next readable request, and leave it here."""
        found = self._next()
        return None if found is None else found[0]

    def _next(self) -> tuple[Request, bytes] | None:
        while self._size:
            if not self._ahead:
                self._read()
            body = self._store.get(self._ahead[-1 if self._newest else 0])
            try:
                if body is None:
                    raise ValueError("its bytes do not match their checksum")
                return read_request(body, self._queues.spider), body
            except Exception as error:  # its parts may raise anything
                self._take()
                self._store.unreadable += 1
                self._queues.unreadable.append(error)
        return None

    def _take(self) -> int:
        row = self._ahead.pop() if self._newest else self._ahead.popleft()
        self._size -= 1
        self._queues.size -= 1
        self._store.take(row)
        return row

    def close(self) -> None:
        """Do nothing: the requests are in the store."""

    @property
    def _most(self) -> int:
        """How many rows this bucket may read ahead."""
        return max(_LEAST, min(_MOST, _IN_ALL // max(1, len(self._store.queues))))

    def _read(self) -> None:
        number = self._store.find(self._path)
        assert number is not None  # it has requests
        waiting = self._store.rows(number, newest=self._newest)
        rows = [*islice(waiting, self._most)]
        if not rows:
            raise DamageError(f"{self._size} requests of queue {self._path!r} are missing")
        self._ahead.extend(reversed(rows) if self._newest else rows)


def _bucket_class(queues: Queues, kind: QueueKind) -> Any:
    """Return what stands for the class of the queues, which priority queues build for each key."""
    return SimpleNamespace(from_crawler=lambda _, key: Bucket(queues, key.lstrip("/"), kind))


def _start_priorities(store: Store, queue_class: type[Any]) -> Any:
    """Return the state with which Scrapy's priority queue reopens the queues of a store."""
    by_slot = has_queues_by_slot(queue_class)
    if by_slot is None:
        raise SettingError(
            f"SCHEDULER_PRIORITY_QUEUE = '{queue_class.__module__}.{queue_class.__qualname__}':"
            f" scrapy_bloom.Scheduler supports Scrapy's two priority queues and their subclasses."
            f" Use one of these."
        )
    slots: dict[str | None, set[int]] = {}
    for queue in store.queues.values():
        if queue.size and queue.path != LATER:
            if (queue.slot is not None) != by_slot:
                raise _other_queues(store)
            priority = int(queue.path.rpartition("/")[2].rstrip("s"))
            slots.setdefault(queue.slot, set()).add(priority)
    if by_slot:
        return {slot: sorted(priorities) for slot, priorities in slots.items()}
    return sorted(slots.get(None, ()))


def _other_queues(store: Store) -> StateError:
    return StateError(
        f"{store.path} holds requests from a run with another SCHEDULER_PRIORITY_QUEUE or"
        f" SCHEDULER_START_DISK_QUEUE. It was left as it is. Restore those settings."
    )
