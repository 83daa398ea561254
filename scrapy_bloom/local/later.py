"""What must not be sent yet in a crawl with a job directory: requests, and hosts left alone.

A waiting request is a row like any other, in a queue of its own. When its time comes it moves to
Scrapy's queue: the new row comes and the old one goes with the same commit. Holds are notes.

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

from scrapy_bloom.crawl.later import Holds, Waiting
from scrapy_bloom.crawl.serialize import read_request
from scrapy_bloom.local.queue import LATER, Queues, Taken

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.local.store import Store

_HOLDS: Final = "holds "
"""How the keys of the notes begin that have the holds: slot -> date, seconds. A number follows."""

_NOTES: Final = 256
"""Over so many notes the holds are spread: a further one among 10,000 writes only some 40 again."""

_HEAD: Final = struct.Struct(">ddq")  # date, seconds of the wait, priority; then the request
_MOST_PRIORITY: Final = 2**63 - 1
_MOVED: Final = 50  # most requests that move at once
_POSTPONED: Final = 100  # most that are postponed between two commits


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


def stored_holds(meta: Mapping[str, Any]) -> dict[str, float]:
    """Return the slots of a job that are left alone, each until when, in seconds since 1970.

    :param meta: the notes of its store.
    """
    now = time.time()
    return {
        slot: min(date, now + seconds)
        for key, note in meta.items()
        if key.startswith(_HOLDS)
        for slot, (date, seconds) in json.loads(note).items()
        if date > now
    }


def waiting_body(date: float, priority: int, body: bytes) -> bytes:
    """Return how a request is stored that must not be sent before a date."""
    priority = max(-_MOST_PRIORITY, min(_MOST_PRIORITY, priority))
    return _HEAD.pack(date, max(0.0, date - time.time()), priority) + body


def note_hold(store: Store, slot: str, date: float) -> None:
    """Note until when a slot is left alone, in seconds since 1970."""
    now, key = time.time(), f"{_HOLDS}{crc32(slot.encode(errors='replace')) % _NOTES}"
    note = json.loads(store.meta.get(key) or "{}")
    ends = {name: end for name, end in note.items() if end[0] > now}
    store.meta[key] = json.dumps(ends | {slot: (date, date - now)})


class Later:
    """The requests of a job that wait for a time, and the slots that are left alone.

    :param store: of the job.
    :param queues: where requests go when their time has come.
    """

    def __init__(self, store: Store, queues: Queues) -> None:
        self._store, self._queues = store, queues
        self._rows: Waiting[int] = Waiting()
        self._holds: Holds[str] = Holds()
        self._room = _POSTPONED
        since = time.monotonic() - time.time()
        for each in stored_requests(store):
            self._rows.push(since + each.date, each.row)
        for slot, date in stored_holds(store.meta).items():
            self._holds.hold(slot, since + date)
            queues.leave_alone(slot)

    def __len__(self) -> int:
        """Return how many requests wait for a time."""
        return len(self._rows)

    def push(self, request: Request, due: float) -> Exception | None:
        """Add a request that waits until `due`.

        :returns: None, or why it cannot be stored, with nothing changed.
        """
        date = time.time() + max(0.0, due - time.monotonic())
        try:
            body = waiting_body(date, request.priority, self._queues.dumps(request))
        except Exception as error:  # its parts may raise anything
            return error
        self._rows.push(due, self._store.push(self._store.queue(LATER, None), body))
        return None

    def move_due(self) -> None:
        """Move some requests whose time has come to Scrapy's queue, and serve slots again.

        Those that cannot be read are listed in its ``unreadable``, and stay stored.

        :raises sqlite3.Error: if a row is missing or cannot be read.
        """
        for slot in self._holds.pop_over():
            self._queues.serve(slot)
        for row in self._rows.pop_due(_MOVED):
            body = self._store.get(row)
            try:
                if body is None:
                    raise ValueError("its bytes do not match their checksum")
                request = read_request(body[_HEAD.size :], self._queues.spider)
                problem = self._queues.push(request)
            except Exception as error:  # its parts may raise anything
                problem = error
            if problem is None:
                self._store.done(row)
            else:
                self._queues.unreadable.append(problem)

    def hold(self, slot: str, seconds: float) -> None:
        """Leave a slot alone for so long."""
        self._holds.hold(slot, time.monotonic() + seconds)
        self._queues.leave_alone(slot)
        note_hold(self._store, slot, time.time() + self._holds[slot] - time.monotonic())

    @property
    def held(self) -> list[str]:
        """The slots that are left alone now."""
        return [slot for slot in self._holds if self._holds.until(slot)]

    def held_until(self, request: Request) -> float:
        """Return until when the slot of a request is left alone, 0 if it is not."""
        return self._holds.until(self._queues.slot_of(request)) if self._holds else 0.0

    @property
    def has_room(self) -> bool:
        """Whether requests may be postponed before the next commit."""
        return self._room > 0

    def postpone(self, request: Request, taken: Taken, until: float) -> bool:
        """Let a request wait that was taken from the one queue of all slots.

        Return False, with nothing changed, if it cannot be stored.
        """
        if self.push(request, until) is not None:
            return False
        self._store.done(taken.row)
        self._room -= 1
        return True

    def note_exchanged(self) -> None:
        """Record a commit: more requests may be postponed."""
        self._room = _POSTPONED

    @property
    def next_due(self) -> float:
        """When the next request or slot is due, by ``time.monotonic()``; infinite if none is."""
        return min(self._rows.next_due, self._holds.next_end)
