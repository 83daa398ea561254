"""A worker: its calls to one key, and what surprises it there.

A worker has a name and numbers its calls. An unanswered call is repeated with its number, and the
server returns the stored answer. If the server does not know what this worker knows (it was
flushed, lost a key, went back in time, or took the worker for dead), that is a :class:`Surprise`:
the worker forgets all it knows there and takes a new name; its caller decides what starts over.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import Any, Final

from scrapy_bloom.crawl.outcomes import MOST_UNPARSED
from scrapy_bloom.errors import BackendError, FilterLostError
from scrapy_bloom.filter.hashing import new_secret
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.redis import growth, upkeep
from scrapy_bloom.redis.header import FIELDS, FORMAT, PROGRAM, State, check_format, refusal
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import Taken
from scrapy_bloom.redis.plan import BATCH, Plan, SliceRow, geometry, read_slices
from scrapy_bloom.redis.wire import MOST_PUSHED, Answer, Call, NewFailedRow, failure, pack
from scrapy_bloom.values import counted

logger = logging.getLogger(__name__)

MOST_DEATHS: Final = 10
"""A request is unparsed after this many workers have died with it."""

KNOWN: Final = 250_000
"""Most fingerprints that a worker remembers for each filter: 25 MB when it is full."""

_NO_REQUESTS: Final = ". It may be the filter of a crawl with scrapy-redis"
_HAS_REQUESTS: Final = (
    ". It is a crawl by another SCHEDULER, 'scrapy_bloom.Scheduler', with its requests"
)
_ANOTHERS: Final = (
    ". Requests wait there, with callbacks of that spider. To fetch each page once for several"
    " spiders, write one spider with arguments; or set Scrapy's own SCHEDULER in all of them, and"
    " run them at the same time"
)

AHEAD: float = 0.4
"""Seconds before its turn that a request may be taken, so that few calls are needed."""

_YES: Final = ord("1")

_LOSSES: Final = {
    "dead": "it missed its lease, and what it had is back in the queue",
    "gone": "its marks or requests have vanished there",
    "lost": "the server went back to an older state, as after a restart without appendonly, or a"
    " failover without min-replicas-to-write 1",
    "deleted": "it was deleted",
}


class Surprise(Exception):  # noqa: N818 - nothing failed
    """The server does not know what this worker knows. The call was not carried out.

    An earlier try of it may have been, before the surprise.
    """

    def __init__(self, answer: bytes) -> None:
        super().__init__(_LOSSES[answer.decode()])
        self.only_dead = answer == b"dead"


class Worker:
    """A worker at one key.

    One thread at a time calls or opens; :meth:`beat` and :meth:`knows` may run beside it.

    :param link: runs the scripts.
    :param key: of the header.
    :param plan: what must be there; if nothing is, it is created so.
    :param known: how many fingerprints to remember, at most.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if something else is under the key. It is left untouched.

    Attributes:
        plan: as given.
        place: what people call the server and the key.
        state: of what was there when it was opened.
        epoch: identifies the filter that is there now.
        probe: makes the probe of a fingerprint.
        made: whether this worker created it.
        known: fingerprints that are there, see :meth:`learn`.
        most_known: how many it remembers, at most.
        counts: of the last answer, or from when it was opened.
        unanswered: the call that must be repeated before any other.
        requeued: requests of dead workers that this one has put back.
        comes: whether it begins to crawl with its next call: a run may begin.
        renewed: when this worker last renewed its lease, by ``time.monotonic()``; infinitely long
            ago if it has none.
    """

    def __init__(self, link: Link, key: str, plan: Plan, *, known: int = KNOWN) -> None:
        self.plan, self.place = plan, f"Redis at {link.address}, key {key}"
        self.known, self.most_known = set[bytes](), known
        self.epoch, self.comes, self.requeued = "", False, 0
        self._link, self._key = link, key
        self._lives = ("", "")
        self._answered = -1
        self._ahead = inf  # by so many seconds is our clock ahead of the server's
        self.open()

    # Opening

    def open(self) -> bool:
        """Find what is there or create it, take a new name, and forget everything known.

        :returns: whether the server still has all that it has sent this worker; False at first.
        :raises FilterLostError: if a user has deleted what this worker used. Nothing is created.
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
        name = _new_name()
        word, *parts = self._link.run(
            "open",
            self._key,
            *(self.epoch, self.name, self._answered, name, upkeep.LEASE),
            *(part for pair in fields.items() for part in pair),
            probe=True,
        )
        if word == b"deleted":
            raise FilterLostError(f"{self.place}: it was deleted while this worker used it.")
        if word == b"format":
            check_format(parts[0], parts[1], self.place)
        if word == b"type":
            kind, name = parts[1].decode(), parts[0].decode()
            raise refusal(self.place, f"found a {kind} under {name!r} that is not ours")
        made, whole, now, *values = parts
        self.made = made == b"1"
        header = dict(zip(FIELDS, values, strict=True))
        self._take_over(State.read(header, float(now), self.place))
        is_whole = bool(whole == b"1")
        self.rename(name, answered=0 if is_whole else -1)
        return is_whole

    def reopen(self, surprise: Surprise) -> str:
        """Open it again after a surprise.

        :returns: what the server has lost; empty if it has only taken this worker for dead.
        :raises FilterLostError: as :meth:`open`.
        """
        whole = self.open()
        if not surprise.only_dead:
            return str(surprise)
        # It may have lost something since then.
        return "" if whole else _LOSSES["lost"]

    def _take_over(self, state: State) -> None:
        if differences := self.plan.differences(state.plan):
            more, theirs = "", state.plan
            if bool(self.plan.order) is not bool(theirs.order):
                more = _NO_REQUESTS if self.plan.order else _HAS_REQUESTS
            elif (self.plan.spider, self.plan.project) != (theirs.spider, theirs.project):
                more = _ANOTHERS
            reason = f"what is there has {differences}{more}"
            raise refusal(self.place, reason, may_delete=more is not _ANOTHERS)
        self.state, self.epoch, self.counts = state, state.epoch, state.counts
        self.probe = state.plan.hash(state.secret)
        self._slices: Sequence[SliceRow] | bytes = state.slices
        self._received_slices = b""  # the same, as an answer says it
        self._tended: bytes | None = None  # what that was when nothing was left to do for them
        self._tended_at = 0.0
        self.known.clear()
        self._forgotten = 0
        self._known_until = inf

    def rename(self, name: str = "", *, answered: int = -1) -> None:
        """Take a new name, under which nothing has been sent yet.

        :param answered: 0 if the server has a record of this name.
        """
        name = name or _new_name()
        self._lives = (self.epoch, name)  # one tuple, which beat() reads in its thread
        self._number, self._answered = 0, answered
        self._pauses_version = b"0"  # what came with the last pauses that it received
        self.unanswered: Call | None = None
        self.renewed = time.monotonic()

    @property
    def slices(self) -> Sequence[SliceRow]:
        """The slices, as last reported."""
        if isinstance(self._slices, bytes):
            self._slices = read_slices(self._slices)
        return self._slices

    def info(self) -> FilterInfo:
        """Return the state of the filter, as last reported."""
        return self.plan.info(self.slices)

    # Calls

    def call(self, call: Call) -> Answer:
        """Make a call; if it was not answered, pass the same object again.

        :raises BackendError: if there was no answer. Make this very call again before any other.
        :raises Surprise: as described there; then call :meth:`reopen`.
        """
        if call is not self.unanswered:
            assert self.unanswered is None  # its number would be skipped
            self._number, self.unanswered = self._number + 1, call
        before = time.monotonic()
        answer = Answer.read(call, self._send(call), before, self._ahead)
        self._ahead = answer.ahead
        self._slices = self._received_slices = answer.slices
        self._pauses_version = answer.pauses_version or self._pauses_version
        self._record_swept(answer.requeued, answer.given_up)
        self._answered, self.unanswered, self.comes = self._number, None, False
        self.renewed = max(self.renewed, before)  # a heartbeat may have overtaken it
        if answer.counts.forgotten != self.counts.forgotten or before >= self._known_until:
            self.known.clear()
        self._known_until = before + answer.expires
        self.counts = answer.counts
        return answer

    def _send(self, call: Call) -> list[Any]:
        """Run the script for a call, once its marks have a slice with all its keys.

        :returns: what it answers.
        """
        plain = not self.plan.order
        script, queue = "mark" if plain else "call", call.queue[:1]
        while True:
            message = self._message(call, plain=plain)
            large = not plain or len(message) > 2 * MOST_PUSHED
            word, *parts = self._link.run(script, self._key, message, large=large, queue=queue)
            if word != b"slices":
                break
            following = growth.following(self.plan, read_slices(parts[0]), parts[1].decode())
            growth.make_keys(self._link, self._key, self.epoch, following)
        if word == b"broken":
            raise BackendError(
                f"{self.place}: a call failed half-way"
                f" ({parts[0].decode(errors='replace')}). All marks were dropped. Start the"
                f" crawl again: it fetches its pages again. Does another program write to keys"
                f" that begin with this one?"
            )
        if word == b"queue":
            raise BackendError(f"{self.place}: {parts[0].decode(errors='replace')}.")
        if word != b"ok":
            raise Surprise(word)
        return parts

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether this worker knows, without asking, that a page was let through."""
        if self._forgotten > self.counts.forgotten or time.monotonic() >= self._known_until:
            self.known.clear()
        return fingerprint in self.known

    def drop_unanswered(self) -> None:
        """Repeat the unanswered call no more; what it asked has no answer."""
        self.unanswered = None

    def begin_anew(self) -> None:
        """Open the key after this worker has deleted or left what was there."""
        self.epoch = ""
        self.open()
        self.prepare()

    def learn(self, fingerprints: Iterable[bytes]) -> None:
        """Remember fingerprints whose verdicts have reached their callers, and no others."""
        self.known.update(fingerprints)
        while len(self.known) > self.most_known:
            self.known.pop()  # any of them: that costs a question

    def prepare(self) -> None:
        """Make the keys of the slice that the next marks go to, lest the first call waits for them.

        :raises BackendError: if there was no answer, or if the server is full.
        """
        growth.make_keys(self._link, self._key, self.epoch)

    def keep_alive(self) -> None:
        """Make a heartbeat, unless a call has just been one: each call renews the lease, too.

        Then do what nobody should have to wait for, see :mod:`growth`, if slices have changed, and
        else now and then: dates come.

        :raises BackendError: if there was no answer.
        """
        now, received = time.monotonic(), self._received_slices
        silent, as_before = now - self.renewed, received == self._tended
        if silent > upkeep.SILENT * upkeep.LEASE / upkeep.BEATS or not self._link.usable.is_set():
            self.beat()
        if as_before and now < self._tended_at + upkeep.UNCHANGED:
            return
        if growth.tend(self._link, self._key, self._lives[0], self.plan):
            self._tended, self._tended_at = received, now

    def beat(self) -> None:
        """Renew the lease, put back what dead workers had, and learn whether pages were forgotten.

        A surprise ends the lease, so there will be a call: it has a caller who can act on that.

        :raises BackendError: if there was no answer.
        """
        before = time.monotonic()
        lives = self._lives
        word, *answer = self._link.run(
            *("beat", self._key, *lives, upkeep.LEASE, MOST_DEATHS), probe=True
        )
        if lives != self._lives:
            return
        if word != b"ok":
            self.renewed = -inf
            return
        self.renewed = max(self.renewed, before)
        back, failed, self._forgotten = map(int, answer)
        self._record_swept(back, failed)

    def resign(self, row: NewFailedRow | None) -> None:
        """Give up the lease: others are to fetch what this worker has.

        :param row: what has failed of that, and is the reason; None if any may be.
        :raises BackendError: if there was no answer.
        """
        epoch, worker = lives = self._lives
        rows = [] if row is None else [row]
        failures = [failure(each, self.probe) for each in rows]
        message = {"failures": failures, "most_unparsed": MOST_UNPARSED}
        message |= {"epoch": epoch, "worker": worker}
        self._link.run("resign", self._key, pack(message), probe=True, large=True)
        if lives == self._lives:
            self.renewed = -inf

    def _record_swept(self, back: int, failed: int) -> None:
        """Count and log what has come back from dead workers."""
        self.requeued += back
        if back or failed:
            moved = f", and gave up {failed:,}" if failed else ""
            logger.log(
                logging.WARNING if failed else logging.INFO,
                "%s: requeued %s from workers whose lease expired%s.",
                *(self.place, counted(back, "request"), moved),
            )

    @property
    def name(self) -> str:
        """The worker's name at this key."""
        return self._lives[1]

    def leave(
        self, taken: Iterable[Taken] = (), unacknowledged: bytes = b"", *, through: bool = False
    ) -> bool:
        """Put back what this worker has taken, and deregister it.

        :param unacknowledged: ids of what it has taken and the server may not know to have ended.
        :param through: whether all that ``start()`` yields is stored, or was.
        :returns: whether the server still has all that it has sent this worker.
        :raises BackendError: if there was no answer. The lease then expires by itself.
        """
        latest_first = sorted(taken, key=attrgetter("start"), reverse=True)
        ids = b"".join(each.id for each in latest_first) + unacknowledged
        unused = b"".join(each.id for each in latest_first if not each.reached)
        message = ids, unused, int(through)
        word, *_ = self._link.run("leave", self._key, *self._lives, *message)
        return bool(word == b"ok")

    def close(
        self, taken: Iterable[Taken] = (), unacknowledged: bytes = b"", *, through: bool = False
    ) -> bool:
        """Leave, at the end; return as :meth:`leave` does, False if there was no answer."""
        try:
            return self.leave(taken, unacknowledged, through=through)
        except BackendError as error:
            logger.info("The lease could not be released, and expires by itself: %s", error)
            return False

    def _message(self, call: Call, *, plain: bool) -> bytes:
        epoch, worker = self._lives
        message: dict[str, Any] = {
            "epoch": epoch,
            "worker": worker,
            "number": self._number,
            "answered": self._answered,
            "lease": upkeep.LEASE,
            **call.marks(self.probe),
        }
        if not plain:
            message |= {
                "comes": self.comes,
                "pauses_version": self._pauses_version,
                "most": MOST_DEATHS,
                "ahead": AHEAD,
                "lead": min(AHEAD, call.lead),
                **call.requests(self.probe),
            }
        return pack(message)


def _new_name() -> str:
    """Return a unique name for a worker."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(6)}"


def contains_many(
    link: Link,
    key: str,
    epoch: str,
    probe: Callable[[bytes], bytes],
    fingerprints: Sequence[bytes],
) -> list[bool]:
    """Return for each fingerprint whether it is there. Changes nothing.

    :param epoch: of the filter.
    :param probe: makes the probe of a fingerprint.
    :raises BackendError: if there was no answer.
    :raises Surprise: as :meth:`Worker.call`.
    """
    seen: list[bool] = []
    for start in range(0, len(fingerprints), BATCH):
        probes = b"".join(map(probe, fingerprints[start : start + BATCH]))
        word, *answer = link.run("contains", key, epoch, probes)
        if word != b"ok":
            raise Surprise(word)
        seen += [digit == _YES for digit in answer[0]]
    return seen


def delete(
    link: Link,
    key: str,
    dead: Iterable[str] = (),
    *,
    block: bool = True,
) -> dict[str, float]:
    """Delete what is under a key, unless workers have a lease; return once it is gone.

    Return these workers, with the seconds that each has left.

    :param dead: workers whose leases do not count.
    :param block: whether workers that still use it must end, and create nothing.
    :raises BackendError: if there was no answer. The next one who opens or deletes it goes on.
    """
    ignored = f" {' '.join(dead)} "
    _, *used = link.run("drop", key, ignored, upkeep.LEASE, int(block), probe=True)
    if not used:
        for _ in growth.free_keys(link, key):
            pass
    names = (name.decode() for name in used[::2])
    return dict(zip(names, map(float, used[1::2]), strict=True))
