"""What a worker has put into the queue in the last seconds.

A server that was killed may have lost the last second or two, and then it has no mark of these
requests either. Whoever put them there can put them there again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from scrapy_bloom.redis.queue.base import Entry

KEPT: Final = 10.0
"""Seconds."""

_MOST: Final = 20_000  # entries
_MOST_BYTES: Final = 32 << 20


class Recent:
    """The entries of the last seconds that others may have, within bounds for number and size.

    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[int, tuple[float, Entry]] = {}  # oldest first
        self._numbers: dict[Entry, int] = {}  # of equal ones, the last
        self._next = 0
        self._bytes = 0
        self._others: deque[float] = deque(maxlen=_MOST)

    def add(self, entry: Entry) -> None:
        """Take down that an entry was put into the queue."""
        now = self._clock()
        self._entries[self._next] = (now, entry)
        self._numbers[entry] = self._next
        self._next += 1
        self._bytes += len(entry.body)
        while True:
            oldest, (moment, _) = next(iter(self._entries.items()))
            crowded = len(self._entries) > _MOST or self._bytes > _MOST_BYTES
            if moment >= now - KEPT and not crowded:
                return
            self._forget(oldest)
            if not self._entries:
                return

    def discard(self, entry: Entry, age: float) -> None:
        """Take down that this worker has taken an entry off the queue.

        :param age: how many seconds ago it was put there.
        """
        number = self._numbers.get(entry)
        if number is not None:
            self._forget(number)
        elif age <= KEPT:
            self._others.append(self._clock() - age)

    def taken_from_others(self) -> int:
        """Return how many entries this worker has taken that another one still keeps."""
        since = self._clock() - KEPT
        return sum(moment >= since for moment in self._others)

    def drain(self) -> list[Entry]:
        """Return the entries, oldest first, and forget them."""
        since = self._clock() - KEPT
        entries = [entry for moment, entry in self._entries.values() if moment >= since]
        self._entries.clear()
        self._numbers.clear()
        self._others.clear()
        self._bytes = 0
        return entries

    def _forget(self, number: int) -> None:
        _, entry = self._entries.pop(number)
        self._bytes -= len(entry.body)
        if self._numbers.get(entry) == number:
            del self._numbers[entry]
