"""How the scripts store a request; `lua/_queue.lua` says where."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from scrapy_bloom.redis.queue.base import Entry

ID_BYTES: Final = 8

_HEAD: Final = struct.Struct(">8sBI")  # name, how many workers have died with it, length
_LENGTH: Final = struct.Struct(">I")
_MAX_PRIORITY: Final = 1 << 53  # the server computes with doubles


class Stored(NamedTuple):
    """A request as it is stored.

    Attributes:
        id: its name in its shard.
        priority: as in :class:`Entry`.
        deliveries: how many workers have died with it.
        fingerprint: as in :class:`Entry`.
        body: as in :class:`Entry`.
    """

    id: bytes
    priority: int
    deliveries: int
    fingerprint: bytes | None
    body: bytes


def score(priority: int) -> bytes:
    """Return the score of a priority: the lowest score is taken first."""
    return b"%d" % -max(-_MAX_PRIORITY, min(_MAX_PRIORITY, priority))


def tail(entry: Entry) -> bytes:
    """Return what follows name and count of deaths."""
    if entry.fingerprint is None:
        return _LENGTH.pack(0) + entry.body
    return _LENGTH.pack(len(entry.fingerprint) + 1) + entry.fingerprint + entry.body


def held(name: bytes, entry: Entry) -> bytes:
    """Return a request that its worker holds, as it is stored."""
    return score(entry.priority) + b" " + name + b"\0" + tail(entry)


def read(value: bytes) -> Stored:
    """Return the request that is stored as `value`.

    :raises ValueError: if none can be.
    """
    number, space, member = value.partition(b" ")
    if not space or len(member) < _HEAD.size:
        raise ValueError("too short")
    name, deliveries, length = _HEAD.unpack_from(member)
    start = _HEAD.size
    end = start + max(0, length - 1)
    if len(member) < end:
        raise ValueError("cut off")
    fingerprint = member[start:end] if length else None
    return Stored(name, -int(float(number)), deliveries, fingerprint, member[end:])
