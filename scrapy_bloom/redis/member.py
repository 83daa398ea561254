"""A request as Redis stores it, and as a worker takes it."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Any, Final

_SLOT: Final = struct.Struct(">H")  # length of the slot
_ORDER: Final = struct.Struct(">BQ")  # 0, priority
_HEAD: Final = struct.Struct(">BQ8sBI")  # the same, id, deaths, 1 + length of the fingerprint
_LENGTH: Final = struct.Struct(">I")

SECOND: Final = 1_000_000
"""The server counts the times of turns in microseconds."""

_MOST_PRIORITY: Final = 2**53
"""Beyond this, doubles cannot tell priorities apart."""

_WORDS: Final = 5  # before the member of a request that was taken


@dataclass(eq=False, slots=True)
class Entry:
    """What a worker sends about one page.

    Attributes:
        op: ``m`` to mark it; ``f`` to mark it and queue a request if it is new; ``p`` to queue
            a request without a fingerprint; ``x`` to forget it.
        fingerprint: of the page; None with ``p``.
        body: of the request.
        priority: of the request; higher ones are taken first.
        max_age: seconds after which the page is new again; None for never.
        source: anything that the caller wants back with the verdict.
        slot: the download slot of the request, at most 65,535 bytes.
        due: before when the request must not be sent, by ``time.monotonic()``; 0 for no such time.
        start: 16 bytes that identify a start request, which each run and worker may send; else
            empty.
    """

    op: str
    fingerprint: bytes | None
    body: bytes = b""
    priority: int = 0
    max_age: float | None = None
    source: Any = None
    slot: bytes = b""
    due: float = 0.0
    start: bytes = b""

    @property
    def queued(self) -> tuple[bytes, bytes]:
        """The member of the request, before and after what the server puts into it."""
        mark = self.fingerprint
        head = _LENGTH.pack(0 if mark is None else len(mark) + 1)
        return with_length(self.slot) + _ORDER.pack(0, _reversed(self.priority)), (
            head + (mark or b"") + self.body
        )


@dataclass(eq=False, slots=True)
class Taken:
    """A request that this worker has taken.

    Attributes:
        id: 8 bytes, its name.
        slot: as offered.
        priority: as offered.
        deaths: how many workers have died with it.
        fingerprint: None if it was queued without one.
        body: as offered.
        start: when it may be sent, by ``time.monotonic()``.
        delay: seconds until the next request of its slot, before jitter; 0 if it is not paced.
        jitter: by how much the delay varies, as a share of it.
        listed: whether a worker has told this pace; else it is the default one.
    """

    id: bytes
    slot: bytes
    priority: int
    deaths: int
    fingerprint: bytes | None
    body: bytes
    start: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0
    listed: bool = False

    @classmethod
    def read(cls, value: bytes, now: int) -> Taken:
        """Parse what the server stores of a request that was taken.

        :param now: the server's time, in microseconds.
        """
        start, _, delay, jitter, listed, member = value.split(b" ", _WORDS)
        taken = cls.read_member(member)
        taken.start = time.monotonic() + (int(start) - now) / SECOND
        taken.delay, taken.jitter, taken.listed = float(delay), float(jitter), listed == b"1"
        return taken

    @classmethod
    def read_member(cls, member: bytes) -> Taken:
        """Parse a member of the queue."""
        (length,) = _SLOT.unpack_from(member)
        at = _SLOT.size + length
        slot = member[_SLOT.size : at]
        _, reversed_, name, deaths, length = _HEAD.unpack_from(member, at)
        at += _HEAD.size
        end = at + max(0, length - 1)
        mark = member[at:end] if length else None
        return cls(name, slot, _MOST_PRIORITY - reversed_, deaths, mark, member[end:])

    @property
    def member(self) -> bytes:
        """The member of the queue that it would be if nobody had tried it."""
        mark = self.fingerprint
        length = 0 if mark is None else len(mark) + 1
        head = _HEAD.pack(0, _reversed(self.priority), self.id, 0, length)
        return with_length(self.slot) + head + (mark or b"") + self.body


def _reversed(priority: int) -> int:
    """Return a priority as the queue sorts it."""
    return _MOST_PRIORITY - max(-_MOST_PRIORITY, min(_MOST_PRIORITY, priority))


def with_length(slot: bytes) -> bytes:
    """Return a slot with its length, as members begin."""
    return _SLOT.pack(len(slot)) + slot
