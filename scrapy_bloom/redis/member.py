"""A request as Redis stores it, and as a worker takes it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

_SLOT: Final = struct.Struct(">H")  # length of the slot
_ORDER: Final = struct.Struct(">BQ")  # 0, or 1 if it counts as failed; priority
_HEAD: Final = struct.Struct(">BQ8sIB")  # the same, id, size of the body, deaths
_MARK: Final = struct.Struct(">I")  # 1 + length of the fingerprint, 0 without one

NO_BODY: Final = _MARK.pack(0)
"""An empty body, of a request without a fingerprint."""

SECOND: Final = 1_000_000
"""The server counts the times of turns in microseconds."""

_MOST_PRIORITY: Final = 2**53
"""Beyond this, doubles cannot tell priorities apart."""

_WORDS: Final = 5  # before the head of a request that was taken


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
        instead: what this worker has taken and the request stands for, as a retry does: if that is
            queued, this is taken no more.
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
    instead: Taken | None = None

    @property
    def queued(self) -> tuple[bytes, bytes]:
        """The head of the request, up to its priority, and its body, as the server stores it."""
        head = with_length(self.slot) + _ORDER.pack(0, _reversed(self.priority))
        return head, _with_mark(self.fingerprint, self.body)


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
        listed: whether a worker has sent this pace; else it is the default one.
        slack: seconds that its turn lasts.
        reached: whether it has reached the downloader in its turn.
        void: whether others have it, since this worker has missed its lease.
        strayed: whether it has failed once more than its body says: where it was redirected has.
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
    slack: float = 0.0
    reached: bool = False
    void: bool = False
    strayed: bool = False

    @classmethod
    def read(cls, row: bytes, body: bytes, ahead: float, slack: float = 0.0) -> Taken:
        """Parse what the server stores of a request that was taken.

        :param ahead: seconds that ``time.monotonic()`` is ahead of the server's time.
        :param slack: seconds that its turn lasts.
        """
        start, _, delay, jitter, listed, head = row.split(b" ", _WORDS)
        taken = cls.read_parts(head, body)
        taken.start = int(start) / SECOND + ahead
        taken.delay, taken.jitter, taken.listed = float(delay), float(jitter), listed == b"1"
        taken.slack = slack
        return taken

    @classmethod
    def read_parts(cls, head: bytes, body: bytes) -> Taken:
        """Parse the head of a request, and its body, as the server stores them."""
        (length,) = _SLOT.unpack_from(head)
        at = _SLOT.size + length
        strayed, reversed_, id_, _, deaths = _HEAD.unpack_from(head, at)
        (length,) = _MARK.unpack_from(body)
        end = _MARK.size + max(0, length - 1)
        mark = body[_MARK.size : end] if length else None
        slot = head[_SLOT.size : at]
        priority = _MOST_PRIORITY - reversed_
        return cls(id_, slot, priority, deaths, mark, body[end:], strayed=bool(strayed))

    @property
    def parts(self) -> tuple[bytes, bytes]:
        """Its head, as if no worker had died with it, and its body, as the server stores them."""
        body = _with_mark(self.fingerprint, self.body)
        head = _HEAD.pack(0, _reversed(self.priority), self.id, len(body), 0)
        return with_length(self.slot) + head, body


def id_in(head: bytes) -> bytes:
    """Return the id in a head, or in what ends with one: rows of ``taken`` and of ``failed``."""
    return head[-13:-5]


def _with_mark(mark: bytes | None, body: bytes) -> bytes:
    return _MARK.pack(0 if mark is None else len(mark) + 1) + (mark or b"") + body


def _reversed(priority: int) -> int:
    """Return a priority as the queue sorts it."""
    return _MOST_PRIORITY - max(-_MOST_PRIORITY, min(_MOST_PRIORITY, priority))


def with_length(slot: bytes) -> bytes:
    """Return a slot with its length, as heads begin."""
    return _SLOT.pack(len(slot)) + slot
