"""What one call sends, and what the server answers: here it becomes bytes, or is read from them.

A call sends one map in MessagePack, which Redis reads with ``cmsgpack``; ``lua/call.lua`` explains
its names. The answer is Redis's own kind of list, with a report of names and numbers.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.outcomes import MOST_UNPARSED, Ended
from scrapy_bloom.crawl.scrapy.downloads import UNPACED, Pace
from scrapy_bloom.redis.header import Counts
from scrapy_bloom.redis.member import SECOND, Entry, Taken
from scrapy_bloom.redis.plan import BATCH
from scrapy_bloom.values import encodable

_Item = TypeVar("_Item")

MOST_BYTES: Final = 1_000_000
"""Most bytes of requests in one call, to and fro, so that it completes in time over a slow link.

A single request may be larger.
"""

MOST_PUSHED: Final = 64_000
"""The same where the event loop, or a user, waits for the call."""

LARGEST: Final = 8_000_000
"""Bytes of the largest request: in :data:`upkeep.CALL` it comes over a link of 140 KB/s."""

_YES: Final = ord("1")
_NONE: Final = b"", b""
_MOST_KIND: Final = 1000  # bytes of a reason

_LONG: Final = struct.Struct(">BI")
_DOUBLE: Final = struct.Struct(">Bd")


def pack(value: Any) -> bytes:
    """Return a value in MessagePack, as far as Redis and Lua need it.

    All numbers are doubles, as Lua's are. Redis reads no binary strings, so bytes are plain ones.
    """
    if isinstance(value, bytes):
        return _LONG.pack(0xDB, len(value)) + value
    if isinstance(value, str):
        return pack(encodable(value).encode())
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, (int, float)):
        return _DOUBLE.pack(0xCB, value)
    if isinstance(value, dict):
        pairs = chain.from_iterable(value.items())
        return _LONG.pack(0xDF, len(value)) + b"".join(map(pack, pairs))
    return _LONG.pack(0xDD, len(value)) + b"".join(map(pack, value))


class Ending(NamedTuple):
    """How pages have ended that a callback had, or something else stands for.

    Attributes:
        ended: as what they count.
        start: identifies the start request that it stands for, if one that is not filtered.
    """

    ended: Ended = Ended.DONE
    start: bytes = b""


DONE: Final = Ending()


class NewFailedRow(NamedTuple):
    """A request that no callback got.

    Attributes:
        id: of what was taken.
        start: identifies the start request that it stands for, if one that is not filtered.
        failed: why it has failed, or is unparsed.
        original: the request to put back.
        way: marks of where redirects led, to be forgotten at once.
    """

    id: bytes
    start: bytes
    failed: FailedPage
    original: Taken
    way: tuple[bytes, ...] = ()


@dataclass(eq=False)
class Call:
    """One call, which is repeated until it is answered.

    Attributes:
        entries: at most :data:`plan.BATCH`.
        take: most requests to take.
        room: most bytes of them, after the first one.
        through: whether ``start()`` is through: what it might yield may be put back, too.
        idle: whether ``start()`` is through and nothing is in flight here.
        risky: whether this worker has a request that is given up with its next death.
        alone: whether it has none at all.
        lead: seconds that its answer may take: until then it takes no turn.
        slack: seconds that the turns it takes last.
        ended: ids of requests that have ended, by how; empty ones for those that were in memory.
        not_kept: how many pages are unparsed that were only in memory.
        failures: requests that no callback got.
        restored: some of these to put back, by their keys on the lists; None for those that count
            as done.
        ways: marks of where redirects of these have led, to be forgotten.
        back: ids of those that this worker has not begun.
        unreadable: ids of those that it could not read.
        unused: ids of those whose turns were not used, the latest first.
        default: the pace of slots that have no other.
        paces: of other slots, if they have changed.
        busy: slots of which this worker has enough.
        pauses: slots to be paused, each until when, by ``time.monotonic()``.
        seen: how many links were dropped since the last call, because they led to seen pages.
        queue: another scheduler's queue for the requests of its entries, and its type, if any.
    """

    entries: list[Entry] = field(default_factory=list)
    take: int = 0
    room: int = MOST_BYTES
    through: bool = False
    idle: bool = False
    lead: float = 0.0
    slack: float = 0.0
    risky: bool = False
    alone: bool = False
    ended: dict[Ending, list[bytes]] = field(default_factory=dict)
    not_kept: int = 0
    failures: list[NewFailedRow] = field(default_factory=list)
    restored: dict[bytes, Taken | None] = field(default_factory=dict)
    ways: list[bytes] = field(default_factory=list)
    back: list[bytes] = field(default_factory=list)
    unreadable: list[bytes] = field(default_factory=list)
    unused: list[bytes] = field(default_factory=list)
    default: Pace = UNPACED
    paces: dict[bytes, Pace] = field(default_factory=dict)
    busy: Sequence[bytes] = ()
    pauses: dict[bytes, float] = field(default_factory=dict)
    seen: int = 0
    queue: tuple[str, ...] = ()

    @property
    def settled_ids(self) -> bytes:
        """The ids of requests that the server no longer has as taken, after it."""
        ended = *self.ended.values(), [each.id for each in self.failures]
        return b"".join(chain(*ended, self.back, self.unreadable))

    def marks(self, probe: Callable[[bytes], bytes]) -> dict[str, Any]:
        """Return what it sends about marks."""
        marked = [
            (entry.fingerprint, entry.max_age)
            for entry in self.entries
            if entry.fingerprint is not None
        ]
        message = {
            "ops": "".join([entry.op for entry in self.entries]),
            "probes": b"".join([probe(fingerprint) for fingerprint, _ in marked]),
            "ages": {item: age for item, (_, age) in enumerate(marked, 1) if age is not None},
        }
        if self.queue:
            message["type"] = self.queue[1]
            message["scored"] = [
                part for each in self.entries for part in (-float(each.priority), each.body)
            ]
        return message

    def requests(self, probe: Callable[[bytes], bytes]) -> dict[str, Any]:
        """Return what it sends about requests."""
        now, numbered = time.monotonic(), [*enumerate(self.entries, 1)]
        return {
            "seen": self.seen,
            "take": self.take,
            "room": self.room,
            "slack": self.slack,
            "through": self.through,
            "idle": self.idle,
            "risky": self.risky,
            "alone": self.alone,
            "pushed": [part for entry in self.entries if entry.op in "fp" for part in entry.queued],
            "starts": {number: entry.start for number, entry in numbered if entry.start},
            "instead": {number: each.instead.id for number, each in numbered if each.instead},
            "not_before": {
                number: entry.due - now for number, entry in numbered if entry.due > now
            },
            "ended": [_group(ending, ids) for ending, ids in self.ended.items()],
            "not_kept": self.not_kept,
            "failures": [failure(each, probe) for each in self.failures],
            "most_unparsed": MOST_UNPARSED,
            "ways": b"".join(map(probe, self.ways)),
            "restored": [
                (key, *(each.parts if each else _NONE)) for key, each in self.restored.items()
            ],
            "back": b"".join(self.back),
            "unreadable": b"".join(self.unreadable),
            "unused": b"".join(self.unused),
            "delay": self.default.delay,
            "jitter": self.default.jitter,
            "paces": [(slot, *pace) for slot, pace in self.paces.items()],
            "busy": self.busy,
            "paused": [(slot, max(0.0, until - now)) for slot, until in self.pauses.items()],
        }


def _group(ending: Ending, ids: list[bytes]) -> tuple[Any, ...]:
    """Return pages that have ended in one way, and how many of them have no id."""
    kind = "d" if ending.ended is Ended.DONE else "n"
    return kind, ending.start, ids.count(b""), b"".join(ids)


def failure(each: NewFailedRow, probe: Callable[[bytes], bytes]) -> tuple[Any, ...]:
    """Return a request that no callback got, as call.lua expects it."""
    failed, (head, body) = each.failed, each.original.parts
    kind, why = encodable(failed.kind).encode(), failed._replace(body=head).pack()
    led = failed.way if failed.leads_to_seen else each.way
    return each.id, each.start, failed.unparsed, kind[:_MOST_KIND], why, body, [*map(probe, led)]


class Answer(NamedTuple):
    """The answer to a call.

    Attributes:
        verdicts: for each entry whether its page was there; False for those without a fingerprint.
        taken: the requests that this worker has taken.
        next_turn: seconds until more can be taken; infinite if nothing waits.
        pauses: slots that are paused, each until when, by ``time.monotonic()``, if that has
            changed: for requests that are only in memory nothing else says so.
        pauses_version: identifies what `pauses` says; empty if that has not changed.
        fetched_again: how many failed requests of earlier runs this run has put back, with the
            last of them.
        void: whether there was a surprise instead: what was taken before is no longer ours.
        start_over: whether the server has lost something, too. What this worker has taken and not
            begun must be offered again, and ``start()`` must run again.
        counts: how many requests there are.
        slices: of the filter, as they are stored.
        expires: seconds until the next marks expire.
        requeued: how many requests of dead workers this call has put back.
        given_up: how many it has given up.
        ahead: seconds that ``time.monotonic()`` is ahead of the server's time.
    """

    verdicts: Sequence[tuple[Entry, bool]] = ()
    taken: Sequence[Taken] = ()
    next_turn: float = inf
    pauses: Mapping[bytes, float] = MappingProxyType({})
    pauses_version: bytes = b""
    fetched_again: int = 0
    void: bool = False
    start_over: bool = False
    counts: Counts = Counts()
    slices: bytes = b""
    expires: float = inf
    requeued: int = 0
    given_up: int = 0
    ahead: float = inf

    @classmethod
    def read(
        cls, call: Call, parts: Sequence[Any], sent_at: float = -inf, ahead: float = inf
    ) -> Answer:
        """Parse what the server answers to a call.

        Turns are by the server's clock. How far ours is ahead of it, each answer says within the
        time that it took, so the fastest ones count: a late one must not move turns.

        :param sent_at: when the call was sent, by ``time.monotonic()``.
        :param ahead: what the answer before had.
        """
        report, digits, pauses, slices, *values = parts
        words = report.decode().split()
        numbers = dict(zip(words[::2], map(float, words[1::2]), strict=True))
        seen, now, count = iter(digits), time.monotonic(), len(values) // 2
        next_turn, clock = numbers.get("next", -1.0), numbers.get("now", 0.0) / SECOND
        # The server has looked at its clock between the call and now.
        ahead = min(max(ahead, sent_at - clock), now - clock)
        return cls(
            [(each, each.fingerprint is not None and next(seen) == _YES) for each in call.entries],
            [
                Taken.read(row, body, ahead, call.slack)
                for row, body in zip(values[:count], values[count:], strict=True)
                if body is not None  # it has vanished, which the next call finds out
            ],
            next_turn / SECOND if next_turn >= 0 else inf,
            {
                slot: now + float(wait)
                for slot, wait in zip(pauses[1::2], pauses[2::2], strict=True)
            },
            pauses[0] if pauses else b"",
            int(numbers.get("fetched_again", 0)),
            counts=Counts(*(int(numbers.get(name, 0)) for name in Counts._fields)),
            slices=slices,
            expires=numbers["expires"],
            requeued=int(numbers.get("requeued", 0)),
            given_up=int(numbers.get("given_up", 0)),
            ahead=ahead,
        )


def in_calls(items: Iterable[_Item], size: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Yield items in batches, each as large as one call may be that somebody waits for.

    :param size: returns how many bytes one of them has.
    """
    batch: list[_Item] = []
    total = 0
    for item in items:
        total += size(item)
        if batch and (total > MOST_PUSHED or len(batch) == BATCH):
            yield batch
            batch, total = [], size(item)
        batch.append(item)
    if batch:
        yield batch
