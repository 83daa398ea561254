"""Looks at the request queue beside a filter in Redis, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from scrapy_bloom.errors import StateError
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.link import ScriptRunner
from scrapy_bloom.redis.place import Place
from scrapy_bloom.redis.queue import member
from scrapy_bloom.redis.queue.member import Stored

_AT_ONCE: Final = 500  # requests in one call
_CALLS: Final = 10  # whose time one look may take


@dataclass(frozen=True)
class QueueLook:
    """What one shard's queue holds.

    Attributes:
        order: the order of its requests and how they are written, such as ``lifo pickle``.
        waiting: requests that nobody has taken.
        taken: requests that workers have taken, or hold.
        failed: requests that nobody takes any more.
        again: marks that are new once more.
        missing: requests that have vanished.
        alive: workers whose leases are not over.
        dead: workers whose leases are over.
        left: how many requests dead workers have taken: the next worker puts them back.
    """

    order: str
    waiting: int
    taken: int
    failed: int
    again: int
    missing: int
    alive: Sequence[str]
    dead: Sequence[str]
    left: int


class QueueReader:
    """Reads the queue of one shard.

    :param place: where the filter's shard is.

    Attributes:
        place: that place.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._base = place.beginning

    @property
    def keys(self) -> list[str]:
        """The names of all keys of the queue."""
        return [
            f"{self._base}{end}" for end in ("queue", "taken", "failed", "again", "queue:state")
        ]

    def look(self) -> QueueLook | None:
        """Return what the queue holds; None if there is none.

        :raises BackendError: if the server cannot be used.
        :raises StateError: if something else is there.
        """
        key = f"{self._base}queue:state"
        runner = ScriptRunner(replace(self.place, key=key))
        with self.place.explained():
            _, server, *told = runner.retry_once(scripts.QUEUE_SURVEY, self._base, "")
        state = dict(zip(told[4::2], told[5::2], strict=True))
        if not state:
            return None
        if state.get(b"program") != b"scrapy-bloom" or state.get(b"format") != b"1":
            raise StateError(
                f"{self.place.name}: found a request queue of format"
                f" {state.get(b'format', b'?').decode(errors='replace')!r}, expected '1'. It was"
                f" written by another version of scrapy-bloom, or by another program."
            )
        now = float(server)
        leases = {name[2:]: float(end) for name, end in state.items() if name.startswith(b"l:")}
        dead = sorted(name for name, end in leases.items() if end < now)
        names = (b"waiting", b"taken", b"failed", b"again")
        counts = dict(zip(names, map(int, told[:4]), strict=True))
        return QueueLook(
            _text(state.get(b"order", b"")),
            counts[b"waiting"],
            counts[b"taken"],
            counts[b"failed"],
            counts[b"again"],
            missing=int(state.get(b"gone", 0))
            + sum(max(0, int(state.get(name, 0)) - count) for name, count in counts.items()),
            alive=[_text(name) for name in sorted(leases) if name not in dead],
            dead=[_text(name) for name in dead],
            left=self._taken_by(dead) if dead else 0,
        )

    def exists(self) -> bool:
        """Return whether the state of a queue is there."""
        return bool(self._call("EXISTS", f"{self._base}queue:state"))

    def held(self) -> int:
        """Return how many requests wait, or were taken by workers; 0 if there is no queue of ours.

        Only needs commands that a filter without a queue needs as well.
        """
        state = f"{self._base}queue:state"
        if self._call("TYPE", state) != b"hash":
            return 0
        program, *counts = self._call("HMGET", state, "program", "waiting", "taken")
        if program != b"scrapy-bloom":
            return 0
        there = [self._call("EXISTS", f"{self._base}{end}") for end in ("queue", "taken")]
        return sum(max(1, int(n or 0)) for n, found in zip(counts, there, strict=True) if found)

    def first(self, count: int) -> list[Stored]:
        """Return the first requests, in the order in which they will be taken."""
        found = self._call("ZRANGE", f"{self._base}queue", 0, count - 1, "WITHSCORES")
        return [read_ranked(value, score) for value, score in pairs(found)]

    def waiting(self) -> Iterator[Stored]:
        """Yield what waits, in no order; what comes or goes meanwhile may be among it or not."""
        cursor: Any = 0
        while True:
            cursor, found = self._call("ZSCAN", f"{self._base}queue", cursor, "COUNT", _AT_ONCE)
            for value, score in pairs(found):
                yield read_ranked(value, score)
            if not int(cursor):
                return

    def failed(self, count: int) -> list[Stored]:
        """Return requests that nobody takes any more, at most so many."""
        return [member.read(value) for _, value in islice(self._hash("failed"), count)]

    def fingerprints_again(self) -> set[bytes]:
        """Return the fingerprints that are new once more."""
        found: set[bytes] = set()
        cursor: Any = 0
        while True:
            cursor, some = self._call("SSCAN", f"{self._base}again", cursor, "COUNT", _AT_ONCE)
            found.update(some)
            if not int(cursor):
                return found

    def _taken_by(self, workers: Sequence[bytes]) -> int:
        names = set(workers)
        return sum(name[: -member.ID_BYTES] in names for name, _ in self._hash("taken"))

    def _hash(self, end: str) -> Iterator[tuple[bytes, bytes]]:
        cursor: Any = 0
        while True:
            cursor, found = self._call("HSCAN", f"{self._base}{end}", cursor, "COUNT", _AT_ONCE)
            yield from found.items() if isinstance(found, dict) else pairs(found)
            if not int(cursor):
                return

    def _call(self, *command: Any) -> Any:
        with self.place.explained(), Within(_CALLS * self.place.timeout):
            return self.place.client.execute_command(*command)


def pairs(found: Sequence[Any]) -> Iterator[tuple[bytes, Any]]:
    """Yield the pairs of an answer, in whichever form the client gives it."""
    if found and isinstance(found[0], tuple):
        yield from found
    else:
        yield from zip(found[::2], found[1::2], strict=True)


def read_ranked(value: bytes, score: Any) -> Stored:
    """Return a request of the queue, from its member and score."""
    return member.read(b"%d %s" % (int(float(score)), value))


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
