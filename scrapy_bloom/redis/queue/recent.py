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
    """The entries of the last seconds, within bounds for number and size.

    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: deque[tuple[float, Entry]] = deque()
        self._bytes = 0

    def add(self, entry: Entry) -> None:
        """Take down that an entry was put into the queue."""
        now = self._clock()
        self._entries.append((now, entry))
        self._bytes += len(entry.body)
        while (
            self._entries[0][0] < now - KEPT
            or len(self._entries) > _MOST
            or self._bytes > _MOST_BYTES
        ):
            self._bytes -= len(self._entries.popleft()[1].body)

    def drain(self) -> list[Entry]:
        """Return the entries, oldest first, and forget them."""
        since = self._clock() - KEPT
        entries = [entry for moment, entry in self._entries if moment >= since]
        self._entries.clear()
        self._bytes = 0
        return entries
