"""How a job stores what must not be sent yet: requests that wait, and paused hosts.

A waiting request is a row like any other, in a queue of its own. Pauses are metadata.

Dates are stored with how long the wait was, so that a clock that was set back while no crawl ran
makes nobody wait longer than that again.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from scrapy_bloom.crawl.serialize import read_request
from scrapy_bloom.local.metadata import PAUSES

if TYPE_CHECKING:
    from scrapy import Request, Spider

    from scrapy_bloom.local.store import Store

LATER: Final = "later"
"""Name of the queue of requests that wait for a time. Scrapy's begin with a slot, or a priority."""

_SPREAD: Final = 256
"""The pauses are spread over so many entries.

A further one among 10,000 writes only some 40 again.
"""

_HEAD: Final = struct.Struct(">ddq")  # date, seconds of the wait, priority; then the request
_MOST_PRIORITY: Final = 2**63 - 1


class Stored(NamedTuple):
    """A waiting request as it is stored.

    Attributes:
        row: its row.
        date: when it may be sent, in seconds since 1970.
        priority: Scrapy's.
        body: the request; None if it does not match its checksum.
    """

    row: int
    date: float
    priority: int
    body: bytes | None


def stored_requests(store: Store) -> Iterator[Stored]:
    """Yield the waiting requests of a job."""
    number = store.find(LATER)
    if number is None:
        return
    now = time.time()
    for row, body in store.read(number, newest=False):
        if body is None:
            yield Stored(row, now, 0, None)
            continue
        date, seconds, priority = _HEAD.unpack_from(body)
        yield Stored(row, min(date, now + seconds), priority, body[_HEAD.size :])


def stored_pauses(meta: Mapping[str, Any]) -> dict[str, float]:
    """Return the slots of a job that are paused, each until when, in seconds since 1970.

    :param meta: the metadata of its store.
    """
    now = time.time()
    return {
        slot: min(date, now + seconds)
        for key, packed in meta.items()
        if key.startswith(PAUSES)
        for slot, (date, seconds) in json.loads(packed).items()
        if date > now
    }


def read_waiting(body: bytes, spider: Spider) -> Request:
    """Return a request from how it is stored. Raises whatever its parts raise."""
    return read_request(body[_HEAD.size :], spider)


def waiting_body(date: float, priority: int, body: bytes) -> bytes:
    """Return how a request is stored that must not be sent before a date."""
    priority = max(-_MOST_PRIORITY, min(_MOST_PRIORITY, priority))
    return _HEAD.pack(date, max(0.0, date - time.time()), priority) + body


def record_pause(store: Store, slot: str, date: float) -> None:
    """Record until when a slot is paused, in seconds since 1970."""
    now, key = time.time(), f"{PAUSES}{crc32(slot.encode(errors='replace')) % _SPREAD}"
    pauses = json.loads(store.meta.get(key) or "{}")
    standing = {name: each for name, each in pauses.items() if each[0] > now}
    store.meta[key] = json.dumps(standing | {slot: (date, date - now)})
