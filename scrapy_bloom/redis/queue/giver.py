"""Takes requests out of a queue that no worker uses, some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scrapy_bloom.redis.queue import member
from scrapy_bloom.redis.queue.base import Entry
from scrapy_bloom.redis.queue.member import Stored
from scrapy_bloom.redis.queue.reader import QueueReader, pairs, read_ranked

AT_ONCE: Final = 500
"""Most requests in one call."""


class QueueGiver(QueueReader):
    """Reads the queue of one shard, and takes out what somebody else has.

    An interruption leaves a queue that workers may go on with.
    """

    def begin(self) -> None:
        """Forget the workers, and how much there was: what goes from now on is not lost."""
        self._call("HDEL", self.place.key, "queued")  # first: else the state would be missed
        self._call("DEL", f"{self._base}queue:state")

    def count(self) -> int:
        """Return how many requests wait, or were left behind by workers."""
        waiting = self._call("ZCARD", f"{self._base}queue")
        return int(waiting) + int(self._call("HLEN", f"{self._base}taken"))

    def left(self) -> tuple[int, int]:
        """Return how many requests have failed, and how many marks are new once more."""
        failed = self._call("HLEN", f"{self._base}failed")
        return int(failed), int(self._call("SCARD", f"{self._base}again"))

    def some_waiting(self, *, from_the_end: bool) -> list[tuple[bytes, Stored]]:
        """Return the requests that come first, or last; each as the queue has it, and as read."""
        start, end = (-AT_ONCE, -1) if from_the_end else (0, AT_ONCE - 1)
        found = self._call("ZRANGE", f"{self._base}queue", start, end, "WITHSCORES")
        requests = [(value, read_ranked(value, score)) for value, score in pairs(found)]
        return requests[::-1] if from_the_end else requests

    def taken(self) -> list[tuple[bytes, Stored]]:
        """Return the requests that workers have left behind, each with its name."""
        return [(name, member.read(value)) for name, value in self._hash("taken")]

    def remove_waiting(self, values: Sequence[bytes]) -> None:
        """Take requests out that wait."""
        if values:
            self._call("ZREM", f"{self._base}queue", *values)

    def remove_taken(self, names: Sequence[bytes]) -> None:
        """Take requests out that workers have left behind."""
        for start in range(0, len(names), AT_ONCE):
            self._call("HDEL", f"{self._base}taken", *names[start : start + AT_ONCE])

    def let_through(self, fingerprints: Sequence[bytes]) -> None:
        """List fingerprints to be new once more."""
        if fingerprints:
            self._call("SADD", f"{self._base}again", *fingerprints)

    def put_aside(self, request: Stored) -> None:
        """List a request as failed."""
        value = member.held(request.id, Entry(request.body, request.priority, request.fingerprint))
        self._call("HSET", f"{self._base}failed", request.id, value)
