"""Looks through the requests of a crawl in Redis, in portions, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.member import SECOND, Taken
from scrapy_bloom.redis.reader import Listed, Reader
from scrapy_bloom.redis.worker import Worker

_PORTION: Final = 100  # requests: some are large


class Finder:
    """Looks through requests.

    Its methods raise BackendError if the server cannot be used.

    :param worker: connects to the server.
    :param key: of the filter.
    """

    def __init__(self, worker: Worker, key: str) -> None:
        self._worker, self._base = worker, beginning(key)
        self._reader = Reader(worker, key)

    def in_flight(self) -> Iterator[tuple[Taken, str, float]]:
        """Yield the requests that were taken, by which worker, and since how many seconds."""
        clock, _ = self._reader.clock()
        for field, value in self._reader.scan("hscan", "taken", _PORTION):
            taken = Taken.read(value, clock)
            yield taken, field[:-8].decode(errors="replace"), time.monotonic() - taken.start

    def failed(self) -> Iterator[Listed]:
        """Yield the requests on the failed list."""
        return self._reader.failed()

    def waiting(self) -> Iterator[tuple[Taken, float]]:
        """Yield the requests that wait, each with when it may be sent, in seconds since 1970.

        Those of a slot come in their order; those that wait for a time come last.
        """
        last = b"-"
        while True:
            with self._worker.explained():
                range_ = self._worker.client.zrangebylex
                members = range_(self._base + "queue", last, "+", 0, _PORTION)
            yield from ((Taken.read_member(member), 0.0) for member in members)
            if len(members) < _PORTION:
                break
            last = b"(" + members[-1]
        _, skew = self._reader.clock()
        for member, due in self._reader.scan("zscan", "later", _PORTION):
            yield Taken.read_member(member), due / SECOND - skew
        for entry, _ in self._reader.scan("zscan", "unread", _PORTION):
            yield Taken.read_member(entry.partition(b" ")[2]), 0.0

    def holds(self) -> dict[str, float]:
        """Return the slots that are left alone, each until when, in seconds since 1970."""
        clock, skew = self._reader.clock()
        return {
            slot.decode(errors="replace"): until / SECOND - skew
            for slot, until in self._reader.scan("zscan", "holds", _PORTION)
            if until > clock
        }
