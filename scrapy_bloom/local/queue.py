"""Scrapy's priority queues over the rows of a store.

Scrapy's class decides the order; it is given our :class:`Bucket` in place of its disk queues. Only
the numbers of the first rows of each bucket are in memory. A request is read when its turn comes:
some have megabytes in their meta.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy.utils.misc import build_from_crawler

from scrapy_bloom.crawl.scrapy.downloads import has_queues_by_slot, put_slot, take_slot
from scrapy_bloom.crawl.serialize import QueueKind, read_request
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.file import DamageError
from scrapy_bloom.local.store import Store

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.scrapy.engine import Engine

LATER: Final = "later"
"""Name of the queue of requests that wait for a time. Scrapy's begin with a slot, or a priority."""


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

    Attributes:
        taken: what a bucket has returned last, or got: Scrapy's classes pass on only the request.
        size: how many requests the buckets have: Scrapy's classes add up those of all slots.
        unreadable: why stored requests could not be read; the caller empties it.
        by_slot: whether each download slot has queues of its own.
    """

    def __init__(
        self, crawler: Crawler, spider: Spider, engine: Engine, store: Store, classes: QueueClasses
    ) -> None:
        self.unreadable: list[Exception] = []
        self.store = store
        self.spider = spider
        self.slot_of = engine.slot_of
        self._dumps = classes.plain.dumps
        self.by_slot = bool(has_queues_by_slot(classes.priority))
        self.taken, self.size = Taken(0, b""), 0
        self._resting: dict[str, Any] = {}  # by slot, its queue, if it has any
        self._size_resting = 0
        self._queue = build_from_crawler(
            classes.priority,
            crawler,
            downstream_queue_cls=_bucket_class(self, classes.plain),
            key="",
            startprios=_start_priorities(store, classes.priority),
            start_queue_cls=classes.start and _bucket_class(self, classes.start),
        )
        later = store.find(LATER)
        waiting = 0 if later is None else store.waiting(later)
        if len(self._queue) + waiting != len(store):
            raise _other_queues(store)

    def __len__(self) -> int:
        """Return how many requests are waiting."""
        return self.size

    @property
    def ready(self) -> int:
        """How many requests are waiting in slots that are not left alone."""
        return self.size - self._size_resting

    def push(self, request: Request) -> Exception | None:
        """Add a request; return None, or why it cannot be stored, with nothing changed."""
        try:
            slot = self.slot_of(request) if self._resting else ""
            if slot not in self._resting:
                self._queue.push(request)
                return None
            self.serve(slot)
            try:
                self._queue.push(request)
            finally:
                self.leave_alone(slot)
        except Exception as error:  # its parts may raise anything
            return error
        return None

    def dumps(self, request: Request) -> bytes:
        """Serialize a request. Raises whatever its contents raise."""
        return self._dumps(request.to_dict(spider=self.spider))

    def pop(self) -> tuple[Request, Taken] | None:
        """Take the next readable request.

        None means for now: a subclass of Scrapy's class may want to wait although some are here.

        :raises sqlite3.Error: if the rows cannot be read, or some are missing.
        """
        unreadable = -1
        request = None
        while request is None and len(self.unreadable) > unreadable:
            unreadable = len(self.unreadable)
            request = self._queue.pop()
        return None if request is None else (request, self.taken)

    # Slots that are left alone. Scrapy's class takes from the slot that does least: from these.

    def leave_alone(self, slot: str) -> None:
        """Return no requests of a download slot before :meth:`serve`, if it has its own queues."""
        if self.by_slot and slot not in self._resting:
            self._resting[slot] = queue = take_slot(self._queue, slot)
            self._size_resting += len(queue)

    def serve(self, slot: str) -> None:
        """Return requests of a download slot again."""
        queue = self._resting.pop(slot, ())
        self._size_resting -= len(queue)
        put_slot(self._queue, slot, queue)


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
