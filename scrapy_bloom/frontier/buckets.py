"""One queue of one priority, as Scrapy's priority queues take them, over the rows of a store.

Only its first rows are in memory. The others are read again when their turn comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Final

from scrapy_bloom.frontier.store import NUMBER_BITS, Store

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

Row = tuple[int, bytes]

_MOST: Final = 512
"""Rows of one queue that are read at once; up to twice as many that were pushed are kept."""

_IN_ALL: Final = 65_536
"""Rows that all queues together may read ahead: with many hosts each gets fewer."""

_LEAST: Final = 8


class Bodies(ABC):
    """Turns requests into the bytes of a row, and back."""

    @abstractmethod
    def encode(self, request: Request) -> bytes:
        """Return the request as bytes. Any error means that the request cannot be stored."""

    @abstractmethod
    def take(self, row: int, body: bytes) -> Request | None:
        """Return the request of a row that was taken; None if it cannot be read any more."""

    @abstractmethod
    def slot(self, request: Request) -> str:
        """Return the download slot of a request."""


class BucketMaker:
    """Stands for the class of the queues: a priority queue builds them ``from_crawler``.

    :param store: where the rows are.
    :param root: the path that all keys of the priority queue begin with.
    :param kind: the order in which a queue gives its requests out.
    :param bodies: how requests are written and read.
    """

    def __init__(self, store: Store, root: str, kind: type[Bucket], bodies: Bodies) -> None:
        self._store = store
        self._root = root
        self._kind = kind
        self._bodies = bodies

    def from_crawler(self, crawler: Crawler, key: str) -> Bucket:  # noqa: ARG002 - Scrapy's call
        """Return the queue for a key."""
        path = str(key).removeprefix(self._root).lstrip("/")
        return self._kind(self._store, path, self._bodies)


def rows_ahead(queues: int) -> int:
    """Return how many rows each of some queues may read ahead."""
    return max(_LEAST, min(_MOST, _IN_ALL // max(queues, 1)))


class Bucket(ABC):
    """The requests of one priority, one download slot perhaps, in order.

    Its number is taken with the first push, and given back when all of its requests are done.
    """

    def __init__(self, store: Store, path: str, bodies: Bodies) -> None:
        self._store = store
        self._path = path
        self._bodies = bodies
        self._hot: deque[Row] = deque()
        number = store.find(path)
        self._number = number
        self._size = 0 if number is None else store.waiting(number)
        self._cold = self._size  # how many of these are only in the store
        if number is not None:
            store.watch(number, self)
            self._begin(number)

    def __len__(self) -> int:
        return self._size

    def push(self, request: Request) -> None:
        """Add a request. If encoding it raises an error, nothing has changed."""
        body = self._bodies.encode(request)
        if self._number is None:
            # Only the queues of a downloader-aware priority queue have a folder of their own.
            slot = self._bodies.slot(request) if "/" in self._path else None
            self.open(slot)
        self.append(body)

    def open(self, slot: str | None) -> int:
        """Return the number of the bucket; take a new one if it has none."""
        if self._number is None:
            self._number = self._store.make(self._path, slot)
            self._store.watch(self._number, self)
            self._begin(self._number)
        return self._number

    def append(self, body: bytes) -> None:
        """Add a request that is encoded."""
        assert self._number is not None  # noqa: S101 - the caller has opened it
        row = self._store.add(self._number, body)
        self._size += 1
        self._add((row, body))

    def pop(self) -> Request | None:
        """Take the next request that can be read; it stays in the store until it is done."""
        while self._size:
            row, body = self._take()
            self._size -= 1
            self._store.busy.add(row)
            request = self._bodies.take(row, body)
            if request is not None:
                return request
        return None

    def close(self) -> None:
        """Stop using the store. The requests stay in it."""
        if self._number is not None:
            self._store.unwatch(self._number, self)

    def forgotten(self) -> None:
        """Note that the number of the bucket is given back."""
        self._number = None

    @abstractmethod
    def committed(self) -> None:
        """Note that all rows are on the disk, so that those far back need not be in memory."""

    @abstractmethod
    def _begin(self, number: int) -> None:
        """Start with nothing in memory."""

    @abstractmethod
    def _add(self, row: Row) -> None:
        """Add a row that is not on the disk yet."""

    @abstractmethod
    def _take(self) -> Row:
        """Take the next row from memory. If there is none, read more rows first."""

    def _read(self, low: int, high: int, *, newest_first: bool) -> list[Row]:
        limit = rows_ahead(self._store.queues)
        rows = self._store.read(low, high, limit, newest_first=newest_first)
        if not rows:
            raise LookupError(f"{self._cold} requests of queue {self._path!r} are missing")
        self._cold -= len(rows)
        return rows


class Lifo(Bucket):
    """Gives out the newest request first."""

    def _begin(self, number: int) -> None:
        self._floor = (number + 1) << NUMBER_BITS  # what is only in the store is below

    def _add(self, row: Row) -> None:
        if not self._hot and not self._cold:
            self._floor = row[0]
        self._hot.append(row)

    def _take(self) -> Row:
        if not self._hot:
            assert self._number is not None  # noqa: S101 - it has requests
            rows = self._read(self._number << NUMBER_BITS, self._floor, newest_first=True)
            self._floor = rows[-1][0]
            self._hot.extend(reversed(rows))
        return self._hot.pop()

    def committed(self) -> None:
        """Keep the newest rows in memory."""
        keep = rows_ahead(self._store.queues)
        if len(self._hot) > 2 * keep:
            while len(self._hot) > keep:
                self._hot.popleft()
                self._cold += 1
            self._floor = self._hot[0][0]


class Fifo(Bucket):
    """Gives out the oldest request first."""

    def __init__(self, store: Store, path: str, bodies: Bodies) -> None:
        self._recent: deque[Row] = deque()  # pushed since the last commit, behind the cold ones
        super().__init__(store, path, bodies)

    def _begin(self, number: int) -> None:
        self._ceiling = number << NUMBER_BITS  # what is only in the store is above

    def _add(self, row: Row) -> None:
        full = len(self._hot) >= 2 * rows_ahead(self._store.queues)
        if self._cold or self._recent or full:
            self._recent.append(row)
        else:
            self._hot.append(row)
            self._ceiling = row[0]

    def _take(self) -> Row:
        if self._hot:
            return self._hot.popleft()
        if not self._cold:
            self._ceiling = self._recent[0][0]
            return self._recent.popleft()
        assert self._number is not None  # noqa: S101 - it has requests
        end = self._recent[0][0] if self._recent else (self._number + 1) << NUMBER_BITS
        rows = self._read(self._ceiling, end, newest_first=False)
        self._ceiling = rows[-1][0]
        self._hot.extend(rows)
        return self._hot.popleft()

    def committed(self) -> None:
        """Keep the oldest rows in memory."""
        self._cold += len(self._recent)
        self._recent.clear()
        keep = rows_ahead(self._store.queues)
        if len(self._hot) > 2 * keep:
            while len(self._hot) > keep:
                self._hot.pop()
                self._cold += 1
            self._ceiling = self._hot[-1][0]
