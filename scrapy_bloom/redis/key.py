"""One worker at one key: its calls, and what surprises it there.

A worker has a name and numbers its calls. An unanswered call is repeated with its number, and the
server returns the stored answer. If the server does not know what this worker knows (it was
flushed, lost a key, went back in time, or took the worker for dead), that is a :class:`Surprise`:
the worker forgets all it knows there and takes a new name; its caller decides what starts over.
"""

from __future__ import annotations

import logging
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from scrapy_bloom.crawl.pace import UNPACED, Pace
from scrapy_bloom.errors import BackendError, StateError
from scrapy_bloom.filter.hashing import new_secret
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.member import SECOND, Entry, Taken, with_length
from scrapy_bloom.redis.plan import BATCH, Plan, geometry, read_slices
from scrapy_bloom.redis.worker import MOST_TRIES, Worker, new_name

logger = logging.getLogger(__name__)

KNOWN: Final = 100_000
"""Fingerprints that a worker remembers for each filter, about 120 bytes each."""

MOST_BYTES: Final = 1_000_000
"""Most bytes of requests in one call, to and fro, so that it completes in time over a slow link.

A single request may be larger.
"""

RISKY: Final = MOST_TRIES - 1
"""A worker holds only one request at a time with this many failed tries."""

PROGRAM: Final = b"scrapy-bloom"
FORMAT: Final = b"3"

_NO_REQUESTS: Final = (
    ". It may be the filter of a crawl with scrapy-redis: 'scrapy bloom copy' copies its requests,"
    " and resumes a copy that was interrupted"
)
_HAS_REQUESTS: Final = (
    ". It is a crawl by another SCHEDULER, 'scrapy_bloom.Scheduler', which keeps its requests there"
)
AHEAD: float = 0.4
"""Seconds before its turn that a request may be taken, so that few calls are needed."""

_PACE: Final = struct.Struct(">dd")  # delay, jitter
_SECONDS: Final = struct.Struct(">d")
_LENGTH: Final = struct.Struct(">H")  # of a slot
_YES: Final = ord("1")


class Loss(Enum):
    """What surprised a worker."""

    DEAD = "it missed its lease, and what it had is back in the queue"
    GONE = "its marks or requests have vanished there"
    LOST = "the server went back to an older state"
    DELETED = "it was deleted"


class Surprise(Exception):  # noqa: N818 - nothing failed
    """The server does not know what this worker knows. The call was not carried out.

    An earlier try of it may have been, before the surprise.
    """

    def __init__(self, kind: Loss) -> None:
        super().__init__(kind.value)
        self.kind = kind


@dataclass(eq=False)
class Call:
    """One call, which is repeated until it is answered.

    Attributes:
        ambiguous: whether a surprise has come between its tries.
        entries: at most :data:`plan.BATCH`.
        take: most requests to take.
        room: most bytes of them, after the first one.
        retry: most failed requests to put back into the queue.
        risky: whether this worker has a risky request.
        done: ids of requests that are done.
        back: ids of those that this worker has not begun.
        unreadable: ids of those that it could not read.
        unused: ids of those whose turns were not used, the latest first.
        overdue: requests in the downloader that need another turn.
        default: the pace of slots that have no other.
        paces: of other slots, if they have changed.
        busy: slots of which this worker has enough.
        holds: slots to be left alone, each until when, by ``time.monotonic()``.
        aside: ids of requests that are to wait, each until when; likewise.
        one_slot: whether hosts without a delay share one slot.
    """

    entries: Sequence[Entry] = ()
    take: int = 0
    room: int = MOST_BYTES
    retry: int = 0
    risky: bool = False
    done: Sequence[bytes] = ()
    back: Sequence[bytes] = ()
    unreadable: Sequence[bytes] = ()
    unused: Sequence[bytes] = ()
    overdue: Sequence[Taken] = ()
    default: Pace = UNPACED
    paces: Mapping[bytes, Pace] = field(default_factory=dict)
    busy: Sequence[bytes] = ()
    holds: Mapping[bytes, float] = field(default_factory=dict)
    aside: Sequence[tuple[bytes, float]] = ()
    one_slot: bool = False
    ambiguous: bool = False

    @property
    def has_requests(self) -> bool:
        """Whether it is about more than marks."""
        asked = self.take or self.retry or self.done or self.back or self.unreadable
        return bool(asked) or any(entry.op not in "mx" for entry in self.entries)


class Counts(NamedTuple):
    """The counts of a key, as in an answer.

    Attributes:
        waiting: requests that no worker has.
        taken: requests that workers have, this one included.
        failed: requests on the failed list.
        forgotten: how often pages were forgotten.
        later: how many of those that wait may not be sent yet.
    """

    waiting: int = 0
    taken: int = 0
    failed: int = 0
    forgotten: int = 0
    later: int = 0


class Crowd(NamedTuple):
    """How many share a crawl.

    Attributes:
        workers: that hold a lease.
        hosts: download slots with requests that need not wait for a time.
        held: download slots that are left alone.
    """

    workers: int = 0
    hosts: int = 0
    held: int = 0


_COUNTED: Final = ("waiting", "taken", "failed", "forgotten")
_NUMBERS: Final = (*_COUNTED, "seq")
_GEOMETRY: Final = ("first", "slices", "window")
_HEADER: Final = ("program", "format", "epoch", "plan", *_GEOMETRY, "order", *_NUMBERS)


class Answer(NamedTuple):
    """The answer to a call.

    Attributes:
        seen: for each entry whether its page was there; False for those without a fingerprint.
        taken: the requests that this worker has taken.
        counts: as they are now.
        next_turn: seconds until more can be taken; infinite if nothing waits.
        turns: requests that were overdue, each with when it may be sent.
        held: if hosts share one slot, those that are left alone, each until when, by
            ``time.monotonic()``.
    """

    seen: list[bool]
    taken: list[Taken]
    counts: Counts
    next_turn: float
    turns: list[tuple[Taken, float]]
    held: dict[bytes, float]


class Known(set[bytes]):
    """Fingerprints known to be there. When there are too many, it is emptied."""

    def __init__(self, most: int = KNOWN) -> None:
        super().__init__()
        self._most = most

    def update(self, *fingerprints: Iterable[bytes]) -> None:
        """Remember fingerprints, unless it has no room at all."""
        if self._most:
            super().update(*fingerprints)
            if len(self) > self._most:
                self.clear()


class SharedKey:
    """A worker at one key.

    One thread at a time calls or opens; :meth:`beat` and :meth:`knows` may run beside it.

    :param worker: runs the scripts.
    :param key: of the header.
    :param plan: what must be there; if nothing is, it is created so.
    :param known: how many fingerprints to remember.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if something else is under the key. It is left untouched.

    Attributes:
        key: as given.
        plan: as given.
        epoch: identifies the filter that is there now.
        secret: the key of its probes.
        slices: as last reported.
        made: whether this worker created it.
        known: fingerprints whose verdicts have reached their callers. Add no others: a mark made in
            the background is not known before that.
        counts: of the last answer, or from when it was opened.
        unanswered: the call that must be repeated before any other.
        renewed: when this worker last renewed its lease, by ``time.monotonic()``.
    """

    def __init__(self, worker: Worker, key: str, plan: Plan, *, known: int = KNOWN) -> None:
        self.key, self.plan = key, plan
        self.known = Known(known)
        self.epoch = ""
        self._worker = worker
        self._lives = ("", "")
        self._answered = -1
        self.open()

    # Opening

    def open(self) -> bool:
        """Find what is there or create it, take a new name, and forget everything known.

        :returns: whether the server still has all that it has told this worker; False at first.
        :raises Surprise: if the user has deleted what this worker used. Nothing is created then.
        """
        first = self.plan.next([])
        order = self.plan.order.partition(" ")[0]
        fields = {
            "program": PROGRAM,
            "format": FORMAT,
            "epoch": secrets.token_hex(8),
            "plan": self.plan.write(new_secret()),
            "first": geometry(first),
            "window": repr(self.plan.window),
            "order": order,
            "forgotten": 0,
            "seq": 0,
        }
        name = new_name()
        word, *parts = self._worker.run(
            "open",
            self.key,
            *(self.epoch, self.name, self._answered, name, upkeep.LEASE),
            *(part for pair in fields.items() for part in pair),
            probe=True,
        )
        if word == b"deleted":
            raise Surprise(Loss.DELETED)
        if word == b"type":
            self._refuse(
                f"found a {parts[1].decode()} under {parts[0].decode()!r} that is not ours"
            )
        self.made, whole = bool(parts[0] == b"1"), bool(parts[1] == b"1")
        self._take_over(dict(zip(_HEADER, parts[2:], strict=True)))
        self.rename(name, answered=0 if whole else -1)
        return whole

    def _take_over(self, header: dict[str, bytes]) -> None:
        if header["program"] != PROGRAM or header["format"] != FORMAT:
            kind = b" ".join((header["program"], header["format"])).decode(errors="replace")
            raise StateError(
                f"Redis at {self._worker.address}, key {self.key!r}: found {kind!r}, expected"
                f" '{PROGRAM.decode()} {FORMAT.decode()}'. Nothing was changed. Use the version of"
                f" scrapy-bloom that wrote it, or another key (BLOOM_REDIS_KEY)."
            )
        try:
            plan, secret = Plan.read(header["plan"])
            slices = read_slices(header["slices"])
            read_slices(header["first"] + b":0:0:0:0")
        except (StateError, ValueError) as error:
            self._refuse(str(error))
        for name in _NUMBERS:
            if not header[name].isdigit():
                self._refuse(f"found {name} {header[name]!r:.80}, expected a number")
        if not slices or header["window"] != repr(plan.window).encode():
            self._refuse(
                f"found slices {header['slices']!r:.80} and window {header['window']!r:.80},"
                f" expected at least one slice and {plan.window!r}"
            )
        if differences := self.plan.differences(plan):
            more = ""
            if bool(self.plan.order) is not bool(plan.order):
                more = _NO_REQUESTS if self.plan.order else _HAS_REQUESTS
            self._refuse(f"what is there has {differences}{more}")
        self.secret, self._hash = secret, plan.hash(secret)
        self.epoch = header["epoch"].decode()
        self.slices = slices
        self._overview: list[bytes] = []  # slices and crowd, if an answer had them
        self.known.clear()
        self.counts = Counts(*(int(header[name]) for name in _COUNTED))
        self._forgotten = 0
        self._known_until = float("inf")

    def rename(self, name: str = "", *, answered: int = -1) -> None:
        """Take a new name, under which nothing has been sent yet.

        :param answered: 0 if the server has a record of this name.
        """
        name = name or new_name()
        self._lives = (self.epoch, name)  # one tuple, which beat() reads in its thread
        self._number, self._answered = 0, answered
        self.unanswered: Call | None = None
        self.renewed = time.monotonic()

    def _refuse(self, reason: str) -> None:
        raise StateError(
            f"Redis at {self._worker.address}, key {self.key!r}: {reason}. Nothing was changed."
            f" Choose another key (BLOOM_REDIS_KEY). If it is a filter of ours, 'scrapy bloom"
            f" delete' deletes it."
        )

    @property
    def crowd(self) -> Crowd:
        """How many share the crawl, as last reported."""
        return Crowd(*map(int, self._overview[1].split())) if self._overview else Crowd()

    def info(self) -> FilterInfo:
        """Return the state of the filter, as last reported."""
        return self.plan.info(read_slices(self._overview[0]) if self._overview else self.slices)

    # Calls

    def call(self, call: Call) -> Answer:
        """Make a call; if it was not answered, pass the same object again.

        :raises BackendError: if there was no answer. Make this very call again before any other.
        :raises Surprise: as described there; then call :meth:`open`.
        """
        if call is not self.unanswered:
            assert self.unanswered is None  # noqa: S101 - its number would be skipped
            self._number, self.unanswered = self._number + 1, call
        before = time.monotonic()
        parts = self._send(call)
        numbers = parts[0].split()
        counts = Counts(*map(int, (*numbers[:4], numbers[9])))
        verdicts = iter(parts[1])
        seen = [entry.fingerprint is not None and next(verdicts) == _YES for entry in call.entries]
        now, next_turn = int(numbers[5]), int(numbers[6]) / SECOND
        taken = [Taken.read(value, now) for value in parts[6:]]
        self._overview = parts[4:6]
        starts = [time.monotonic() + (int(start) - now) / SECOND for start in parts[2].split()]
        turns = [*zip(call.overdue, starts, strict=True)]
        next_turn = next_turn if next_turn >= 0 else inf
        answer = Answer(seen, taken, counts, next_turn, turns, dict(_read_holds(parts[3])))
        self._note_swept(int(numbers[7]), int(numbers[8]))
        self._answered, self.unanswered = self._number, None
        self.renewed = before
        if counts.forgotten != self.counts.forgotten or before >= self._known_until:
            self.known.clear()
        self._known_until = before + float(numbers[4])
        self.counts = counts
        return answer

    def _send(self, call: Call) -> list[bytes]:
        """Run the script for a call; add a slice if there must be one. Return what it answers."""
        plain = not (self.plan.order or call.has_requests)
        next_slice = ""
        while True:
            word, *parts = self._worker.run(
                *("mark" if plain else "call", self.key),
                *self._arguments(call, next_slice, plain=plain),
            )
            if word != b"slices":
                break
            self.slices, kind = read_slices(parts[0]), parts[1].decode()
            spec = self.plan.next(self.slices, due=kind == "due")
            next_slice = f"{self.slices[-1].number + 1}:{kind}:{geometry(spec)}"
        if word == b"broken":
            raise BackendError(
                f"Redis at {self._worker.address}, key {self.key!r}: a call failed half-way"
                f" ({parts[0].decode(errors='replace')}). All marks were dropped, and pages are"
                f" fetched again. Does another program write to keys that begin with this"
                f" one?"
            )
        if word != b"ok":
            raise Surprise(Loss[word.decode().upper()])
        return parts

    def ask(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each fingerprint whether it is there. Changes nothing.

        :raises BackendError: if there was no answer.
        :raises Surprise: as :meth:`call`.
        """
        return ask(self._worker, self.key, self.epoch, self._hash, fingerprints)

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether this worker knows, without asking, that a page was let through."""
        if self._forgotten > self.counts.forgotten or time.monotonic() >= self._known_until:
            self.known.clear()
        return fingerprint in self.known

    def keep_alive(self) -> None:
        """Make a heartbeat, unless a call has just been one: each call renews the lease, too.

        :raises BackendError: if there was no answer.
        """
        silent = time.monotonic() - self.renewed
        if silent > 1.5 * upkeep.LEASE / upkeep.BEATS or not self._worker.usable.is_set():
            self.beat()

    def beat(self) -> None:
        """Renew the lease, put back what dead workers had, and learn whether pages were forgotten.

        Surprises are left to the next call: it has a caller who can act on them.

        :raises BackendError: if there was no answer.
        """
        before = time.monotonic()
        lives = self._lives
        word, *answer = self._worker.run(
            "beat", self.key, *lives, upkeep.LEASE, MOST_TRIES, probe=True
        )
        if word != b"ok" or lives != self._lives:
            return
        self.renewed = max(self.renewed, before)
        back, aside, self._forgotten = map(int, answer)
        self._note_swept(back, aside)

    def _note_swept(self, back: int, aside: int) -> None:
        """Count and log what has come back from dead workers."""
        self._worker.counters.requeued += back
        if back or aside:
            logger.log(
                logging.WARNING if aside else logging.INFO,
                "Redis at %s, key %s: %s requests of workers that missed their lease are back in"
                " the queue, %s were moved to the failed list",
                *(self._worker.address, self.key, f"{back:,}", f"{aside:,}"),
            )

    @property
    def name(self) -> str:
        """The worker's name at this key."""
        return self._lives[1]

    def leave(self, taken: Iterable[Taken] = ()) -> None:
        """Put back what this worker has taken, and deregister it.

        :raises BackendError: if there was no answer. The lease then expires by itself.
        """
        latest_first = sorted(taken, key=attrgetter("start"), reverse=True)
        ids = b"".join(each.id for each in latest_first)
        self._worker.run("leave", self.key, *self._lives, ids)

    def delete(self, dead: Iterable[str] = ()) -> dict[str, float]:
        """Delete everything, at the end of a crawl or to recreate it, as :func:`delete`.

        Workers that still use it continue with what is there then.

        :param dead: workers whose leases do not count.
        """
        return delete(self._worker, self.key, {self.name, *dead}, note=False)

    def _arguments(self, call: Call, next_slice: str, *, plain: bool) -> list[object]:
        marked = [
            (entry.fingerprint, entry.max_age)
            for entry in call.entries
            if entry.fingerprint is not None
        ]
        ops = "".join([entry.op for entry in call.entries])
        ages = [f"{item}:{age}" for item, (_, age) in enumerate(marked, 1) if age is not None]
        marks = (
            "" if ops == "m" * len(ops) else ops,
            b"".join([self._hash(fingerprint) for fingerprint, _ in marked]),
            " ".join(ages),
            next_slice,
        )
        numbers = f"{self._number} {self._answered} {upkeep.LEASE}"
        if plain:
            return [*self._lives, numbers, *marks]
        more = (
            *(call.take, call.room, call.retry),
            *(MOST_TRIES, RISKY, int(call.risky), *call.default, AHEAD, int(call.one_slot)),
        )
        now = time.monotonic()
        waits = [
            f"{number}:{entry.due - now:.6f}"
            for number, entry in enumerate(call.entries, 1)
            if entry.due > now
        ]
        queued = [entry.queued for entry in call.entries if entry.op in "fp"]
        return [
            *self._lives,
            " ".join([numbers, *map(str, more)]),
            *marks,
            *(b"".join(ids) for ids in (call.done, call.back, call.unreadable, call.unused)),
            b"".join(each.id for each in call.overdue),
            b"".join(with_length(slot) + _PACE.pack(*pace) for slot, pace in call.paces.items()),
            b"".join(map(with_length, call.busy)),
            " ".join(waits),
            b"".join(
                with_length(slot) + _SECONDS.pack(max(0.0, until - now))
                for slot, until in call.holds.items()
            ),
            b"".join(id_ + _SECONDS.pack(max(0.0, due - now)) for id_, due in call.aside),
            *(part for pair in queued for part in pair),
        ]


def _read_holds(text: bytes) -> Iterator[tuple[bytes, float]]:
    at, now = 0, time.monotonic()
    while at < len(text):
        (length,) = _LENGTH.unpack_from(text, at)
        end = at + _LENGTH.size + length
        yield text[at + _LENGTH.size : end], now + _SECONDS.unpack_from(text, end)[0]
        at = end + _SECONDS.size


def ask(
    worker: Worker,
    key: str,
    epoch: str,
    probe: Callable[[bytes], bytes],
    fingerprints: Sequence[bytes],
) -> list[bool]:
    """Return for each fingerprint whether it is there, as :meth:`SharedKey.ask`."""
    seen: list[bool] = []
    for start in range(0, len(fingerprints), BATCH):
        probes = b"".join(map(probe, fingerprints[start : start + BATCH]))
        word, *answer = worker.run("ask", key, epoch, probes)
        if word != b"ok":
            raise Surprise(Loss[word.decode().upper()])
        seen += [digit == _YES for digit in answer[0]]
    return seen


def delete(
    worker: Worker, key: str, dead: Iterable[str] = (), *, note: bool = True
) -> dict[str, float]:
    """Delete what is under a key, unless workers have a lease.

    Return these workers, with the seconds that each has left.

    :param dead: workers whose leases do not count.
    :param note: whether workers that still use it must end, and create nothing.
    :raises BackendError: if there was no answer.
    """
    ignored = f" {' '.join(dead)} "
    _, *used = worker.run("drop", key, ignored, upkeep.LEASE, int(note), probe=True)
    names = (name.decode() for name in used[::2])
    return dict(zip(names, map(float, used[1::2]), strict=True))
