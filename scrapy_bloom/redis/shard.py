"""One shard of a filter as one worker sees it: every fingerprint gets one verdict, or "new".

The protocol. A worker has an id, and its calls are numbered. The script keeps the number and the
answer of each worker's last call: the same number again gets the same answer and marks nothing, a
lower one gets none. So a call may be sent again whenever its answer did not come.

What was sent and never answered is granted here: the caller is told "new", or raised at, and told
"new" when it asks again. If such a call is carried out late, it marks what was granted to this
worker; if that happens after the worker's next call, it is refused for its number.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Event
from typing import Any, Final

import redis
from redis.exceptions import RedisClusterException

from scrapy_bloom.core.growth import SliceSpec, filter_hashes, next_slice, outgrown
from scrapy_bloom.core.hashing import make_hash
from scrapy_bloom.errors import BackendError, FilterLostError, StateError
from scrapy_bloom.options import OnBackendError
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.breaker import CircuitBreaker
from scrapy_bloom.redis.connection import FAULTS, Client, explain, explained
from scrapy_bloom.redis.counters import Counters
from scrapy_bloom.redis.header import (
    Header,
    Plan,
    new_fields,
    read_header,
    read_slices,
    write_slice,
)
from scrapy_bloom.redis.seen_cache import SeenCache

logger = logging.getLogger(__name__)

LEASE: Final = 10
"""Seconds after its last sign of life that a worker counts as dead."""

BATCH: Final = 500
"""Most fingerprints in one call: about 3 ms of the server's time."""

_AUDIT: Final = 1000
"""A look for lost segments in every so many calls finds those that no check needs."""

_LOOK: Final = 0.2  # seconds between two looks at the leases of others
_BROKEN: Final = (redis.ConnectionError, redis.TimeoutError, OSError, RedisClusterException)


class _UnknownVerdictError(Exception):
    """A call may have been carried out and cannot be repeated any more."""


@dataclass(frozen=True)
class Place:
    """Where a shard is.

    Attributes:
        client: of the server or cluster.
        server: its name for the user.
        key: key of the shard's header.
    """

    client: Client
    server: str
    key: str

    @property
    def words(self) -> str:
        """Server and key, for errors."""
        return f"Redis at {self.server}, key {self.key}"

    def prefix(self, epoch: str) -> str:
        """Return what the names of the segments of a filter begin with: in the header's slot.

        Epochs keep the bits of a lost filter apart from those of its successor.
        """
        tagged = self.key if _has_tag(self.key) else f"{self.key}:{{{self.key}}}"
        return f"{tagged}:{epoch}:"


class Shard:
    """One shard, found or made.

    :param place: where it is.
    :param plan: what it must be.
    :param memory: how many fingerprints to remember.
    :param outage: what to do while its server cannot be used.
    :param traffic: where round trips and the like are counted.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if something else is in its place.

    Attributes:
        place: where it is.
        header: what the shard is; None after :meth:`clear`.
        dead: how many workers had stopped without a word when this one came.
        alive: how many others seemed to live then.
    """

    header: Header | None
    dead: int
    alive: int

    def __init__(
        self, place: Place, plan: Plan, *, memory: int, outage: CircuitBreaker, traffic: Counters
    ) -> None:
        self.outage = outage
        self.memory = SeenCache(memory)
        self.place = place
        self._plan = plan
        self._traffic = traffic
        self._pending: dict[bytes, None] = {}  # granted here, still to be told to Redis
        self._doubtful: set[bytes] = set()  # granted to nobody, perhaps marked
        self._worker = ""
        self._prefix = ""
        self._number = self._answered = 0
        self._losses = 0
        self._resting = False  # no lease: the worker seems to be finishing
        self.header = None
        with explained(place.server):
            self._enter("")

    def first_slice(self) -> tuple[SliceSpec, int]:
        """Return the slice that a new filter of this plan begins with, and its k."""
        plan = self._plan
        hashes = filter_hashes(plan.error_rate)
        return next_slice([], plan.capacity, plan.error_rate, hashes), hashes

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether the worker can say by itself that the fingerprint was seen."""
        known = fingerprint in self.memory or fingerprint in self._pending
        return known and fingerprint not in self._doubtful

    def unknown(self, fingerprints: Iterable[bytes]) -> list[bytes]:
        """Return those that the worker does not know by itself, in order."""
        if self._pending or self._doubtful:
            return [fingerprint for fingerprint in fingerprints if not self.knows(fingerprint)]
        return self.memory.without(fingerprints)

    def add(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Add different fingerprints that the worker does not know; return which were there.

        :raises BackendError: under the policy ``close``, if the server cannot be used.
        :raises FilterLostError: under the policy ``close``, if the filter has vanished.
        """
        verdicts: list[bool] = []
        for start in range(0, len(fingerprints), BATCH):
            verdicts += self._add(fingerprints[start : start + BATCH])
        return verdicts

    def disown(self, fingerprints: Iterable[bytes]) -> None:
        """Learn that the caller was raised at: "seen" must not come of this add of them."""
        self._doubtful.update(fingerprints)

    def ask(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return which fingerprints are there; False where that cannot be known.

        :raises BackendError: under the policy ``close``, if the server cannot be used.
        :raises FilterLostError: under the policy ``close``, if the filter has vanished.
        """
        verdicts: list[bool] = []
        try:
            self.outage.check()
            for start in range(0, len(fingerprints), BATCH):
                verdicts += self._ask(fingerprints[start : start + BATCH])
        except (BackendError, FilterLostError):
            if self.outage.policy is OnBackendError.CLOSE:
                raise
            return [False] * len(fingerprints)
        self.outage.end()
        return verdicts

    def after_fork(self, alarm: Event) -> None:
        """Become a worker of its own: two with the same numbers would get each other's answers."""
        self.outage.alarm = alarm
        if self.header is None:
            return
        try:
            with self._failing():
                self._join(self.header, self._prefix)
        except BackendError:
            self._worker = _new_worker()  # a stranger to the server, who will say so

    def beat(self) -> bool:
        """Renew the lease; return whether all is well. Called by another thread."""
        header = self.header
        if header is None or (self._resting and not self.outage.on):
            return True
        try:
            self._evaluate(scripts.RENEW, header, self._worker, LEASE)
        except FAULTS:
            return False
        self.outage.usable()
        return not self.outage.on

    def others(self) -> bool:
        """Return whether other workers use the filter.

        Takes about a second if there are any, and up to :data:`LEASE` if one was
        killed that recently: a live one is known by the renewal of its lease.
        """
        return self.header is not None and self._watch(scripts.LIVE)

    def clear(self) -> bool:
        """Delete the filter unless other workers use it; return whether it is gone.

        Takes as long as :meth:`others`. The next add makes a new one. A worker that could not clear
        the filter is taken for one that finishes: it counts as using it when it adds again.

        :raises BackendError: if the server cannot be used.
        """
        if self.header is not None:
            self._resting = True
            if self._watch(scripts.CLEAR, _SEGMENT):
                return False
        self.header = None
        self._forget()
        return True

    def leave(self) -> None:
        """Tell Redis what it does not know yet, and take the worker off the register."""
        if self.header is None:
            return
        try:
            while self._pending:
                self.outage.check()
                self._replay()
            self._evaluate(scripts.LEAVE, self.header, self._worker)
        except (BackendError, FilterLostError, _UnknownVerdictError, *FAULTS):
            if self._pending:
                logger.warning(
                    "%(count)s fingerprints could not be reported to Redis at %(where)s: other"
                    " workers may fetch their pages again.",
                    {"count": f"{len(self._pending):,}", "where": self.place.server},
                )
        self.header = None

    # One call after the other: verdicts

    def _add(self, fingerprints: Sequence[bytes]) -> list[bool]:
        try:
            self.outage.check()
            if self._pending:
                self._replay()
            verdicts = self._exchange(fingerprints)
        except _UnknownVerdictError:
            return self._grant(fingerprints)
        except (BackendError, FilterLostError):
            if self.outage.policy is not OnBackendError.CLOSE:
                return self._grant(fingerprints)
            raise
        self.memory.update(fingerprints)
        if self._doubtful:
            return [self._undoubted(*pair) for pair in zip(fingerprints, verdicts, strict=True)]
        return verdicts

    def _grant(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Call all new, and remember to tell Redis."""
        self._traffic.unknown += len(fingerprints)
        self._pending.update(dict.fromkeys(fingerprints))
        return [False] * len(fingerprints)

    def _undoubted(self, fingerprint: bytes, seen: bool) -> bool:  # noqa: FBT001
        """Return the verdict, but "new" where the mark may be one that nobody was granted."""
        if fingerprint not in self._doubtful:
            return seen
        self._doubtful.remove(fingerprint)
        return False

    def _replay(self) -> None:
        """Tell Redis some of the fingerprints that were granted without it."""
        some = list(islice(self._pending, BATCH))
        self._exchange(some)
        for fingerprint in some:
            self._pending.pop(fingerprint, None)
            self.memory.add(fingerprint)
        self._traffic.replayed += len(some)

    def _exchange(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return the verdicts of Redis, in as many calls as it takes for the filter to grow."""
        verdicts: list[bool] = []
        growth: tuple[object, ...] = ("-",)
        while len(verdicts) < len(fingerprints):
            word, losses, rolled_back, digits, *slices = self._call(
                fingerprints[len(verdicts) :], *growth
            )
            verdicts += [digit == _SEEN for digit in digits]
            if word == b"full":
                growth = self._next_slice(read_slices(b" ".join(slices).decode()))
            if rolled_back != b"0" or losses != b"%d" % self._losses:
                self._notice(int(losses), rolled_back != b"0")
        self.outage.end()
        return verdicts

    def _call(self, fingerprints: Sequence[bytes], known: object, *growth: object) -> list[bytes]:
        """Make one numbered call, again if need be; return the words of the script's answer.

        :raises BackendError: if none came.
        :raises _UnknownVerdictError: if none came, and the call cannot be repeated.
        :raises FilterLostError: if the filter is gone and the policy is ``close``.
        """
        sent_in_vain = False
        while True:
            header = self._entered()
            self._number += 1
            look = int(self._number % _AUDIT == 0)
            script = scripts.add(header.hashes)
            call = (
                self._worker,
                f"{self._number} {self._answered} {look} {known}",
                b"".join(map(self._hash, fingerprints)),
                *growth,
            )
            while True:
                try:
                    self._traffic.round_trips += 1
                    answer: list[bytes] = self._evaluate(script, header, *call).split(b" ")
                    break
                except FAULTS as error:
                    self._traffic.ambiguous += 1
                    if not sent_in_vain and isinstance(error, _BROKEN):
                        sent_in_vain = True
                        continue
                    sent_in_vain = True
                    self.outage.begin(explain(error))
                    if not self.outage.wait():
                        raise self.outage.error() from None
            if answer[0] in (b"ok", b"full"):
                self._answered = self._number
                return answer
            self._return(answer[0])
            if sent_in_vain:
                raise _UnknownVerdictError

    def _ask(self, fingerprints: Sequence[bytes]) -> list[bool]:
        while True:
            header = self._entered()
            probes = b"".join(map(self._hash, fingerprints))
            self._traffic.round_trips += 1
            with self._failing():
                answer = self._twice(scripts.ask(header.hashes), header, probes)
            if answer[0] == b"ok":
                return [digit == _SEEN for digit in answer[1]]
            self._return(answer[0])

    # Coming, finding the filter gone, coming back

    def _entered(self) -> Header:
        with self._failing():
            if self._resting and self.header is not None:
                answer = self._twice(scripts.RENEW, self.header, self._worker, LEASE)
                if answer[0] != b"ok":  # cleared by the last one to finish
                    self.header = None
                    self._forget()
            self._resting = False
            if self.header is None:
                self._enter("")
        assert self.header is not None  # noqa: S101 - _enter has set it
        return self.header

    def _enter(self, rebuilt_of: str) -> bool:
        """Find the filter or make it, and register; return whether it was made."""
        place = self.place
        while True:
            fields = new_fields(self._plan, rebuilt_of)
            flat = [part for field in fields.items() for part in field]
            word, *answer = self._run(scripts.OPEN, (place.key, place.key), "", *flat)
            if word == b"type":
                raise StateError(
                    f"{place.words}: found a {answer[0].decode()}, expected a filter or nothing."
                    f" Give this filter another BLOOM_REDIS_KEY. Nothing was changed."
                )
            made, *pairs = answer
            found = dict(zip(pairs[::2], pairs[1::2], strict=True))
            header = read_header(place.words, found, self._plan)
            prefix = place.prefix(header.epoch)
            if self._join(header, prefix):
                break
        self._hash = make_hash(header.secret, digests=header.plan.digests)
        self._losses = header.losses
        self._prefix = prefix
        self.header = header
        return bool(made)

    def _join(self, header: Header, prefix: str) -> bool:
        """Register under a new id; return whether the filter was still there."""
        worker = _new_worker()
        keys = self.place.key, prefix
        answer = self._run(scripts.JOIN, keys, header.signature, worker, LEASE)
        if answer[0] != b"ok":
            return False
        self._worker = worker
        self._number = self._answered = 0
        self.dead, self.alive = answer[1:]
        return True

    def _return(self, word: bytes) -> None:
        """Go on after Redis has not known the filter or the worker.

        :raises BackendError: if that cannot be, because of the server or what is in its place.
        :raises FilterLostError: if the filter is gone and the policy is ``close``.
        """
        old = self._entered()
        with self._failing():
            if word != b"other" and self._join(old, self._prefix):
                # Forgotten for its silence, or by a server that went back to an older state.
                self._remember_again("has forgotten this worker")
                return
            made = self._enter(old.epoch)
            if made:
                self._free(old)
        if made or self._entered().rebuilt_of == old.epoch:
            self._lost("has lost the filter")
            return
        self._traffic.losses += 1
        self._forget()
        logger.warning(
            "%s: the filter that this worker used is gone, another one is in its place. It goes on"
            " with that one: pages may be fetched twice.",
            self.place.words,
        )

    def _notice(self, losses: int, rolled_back: bool) -> None:  # noqa: FBT001
        if rolled_back:
            self._lost("has gone back to an older state of the filter")
        if losses > self._losses:
            self._losses = losses
            self._lost("has lost a part of the filter")

    def _lost(self, what: str) -> None:
        """Say that marks have vanished, and report again what this worker remembers.

        :raises FilterLostError: if the policy is ``close``.
        """
        self._traffic.losses += 1
        self._remember_again(what)
        if self.outage.policy is OnBackendError.CLOSE:
            raise FilterLostError(
                f"{self.place.words}: the server {what}. {_WHY_LOST} The spider is closed"
                f" (BLOOM_ON_BACKEND_ERROR is 'close')."
            )

    def _remember_again(self, what: str) -> None:
        self._pending.update(dict.fromkeys(self.memory))
        self.memory.clear()
        logger.warning(
            "%(where)s: the server %(what)s. %(why)s This worker reports again the %(count)s"
            " fingerprints that it remembers; other pages may be fetched twice.",
            {
                "where": self.place.words,
                "what": what,
                "why": _WHY_LOST,
                "count": f"{len(self._pending):,}",
            },
        )

    def _forget(self) -> None:
        self.memory.clear()
        self._pending.clear()
        self._doubtful.clear()

    def _next_slice(self, slices: Sequence[SliceSpec]) -> tuple[object, ...]:
        header = self._entered()
        plan = header.plan
        spec = next_slice(slices, plan.capacity, plan.error_rate, header.hashes)
        if len(slices) == 1:
            told = outgrown(slices[0].capacity, plan.error_rate)
            logger.warning("%s: %s", self.place.words, told)
        return len(slices), write_slice(spec)

    # Single round trips

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Begin an outage where the server, or what is in the filter's place, cannot be used."""
        try:
            yield
        except FAULTS as error:
            self.outage.begin(explain(error))
            raise self.outage.error() from None
        except StateError as error:
            self.outage.begin(f"no longer has the filter. {error}")
            raise self.outage.error() from None

    def _watch(self, script: scripts.Script, *arguments: object) -> bool:
        """Run a script that tells leases of others until one was renewed or there are none."""
        assert self.header is not None  # noqa: S101 - callers have looked
        first: dict[bytes, bytes] | None = None
        with explained(self.place.server):
            while True:
                word, *pairs = self._twice(script, self.header, self._worker, *arguments)
                ends = dict(zip(pairs[::2], pairs[1::2], strict=True))
                first = ends if first is None else first
                if word == b"other" or not ends:
                    return False
                if any(first.get(name) != end for name, end in ends.items()):
                    return True
                time.sleep(_LOOK)

    def _free(self, old: Header) -> None:
        """Delete what is left of a filter whose header is gone."""
        prefix = self.place.prefix(old.epoch)
        for name in segments(old.slices):
            self.place.client.unlink(prefix + name)

    def _twice(self, script: scripts.Script, header: Header, *arguments: object) -> Any:
        """Run a script that may run twice, and do so if its answer got lost."""
        try:
            return self._evaluate(script, header, *arguments)
        except _BROKEN:
            return self._evaluate(script, header, *arguments)

    def _evaluate(self, script: scripts.Script, header: Header, *arguments: object) -> Any:
        return self._run(script, (self.place.key, self._prefix), header.signature, *arguments)

    def _run(self, script: scripts.Script, keys: tuple[str, str], *arguments: object) -> Any:
        execute = self.place.client.execute_command
        try:
            return execute("EVALSHA", script.sha, 2, *keys, *arguments)
        except redis.exceptions.NoScriptError:  # the server was restarted, or is new
            return execute("EVAL", script.source, 2, *keys, *arguments)


def segments(slices: Iterable[SliceSpec]) -> Iterable[str]:
    """Name all segments that slices can have, without the prefix."""
    for i, spec in enumerate(slices):
        for j in range(-(-spec.blocks // _SEGMENT)):
            yield f"{i}.{j}"


def _has_tag(key: str) -> bool:
    """Return whether Redis Cluster takes a part of the key, in braces, for its slot."""
    return bool(key.partition("{")[2].partition("}")[0]) and "}" in key.partition("{")[2]


def _new_worker() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"


_WHY_LOST: Final = (
    "Was it restarted without persistence, flushed, or short of memory (maxmemory-policy must be"
    " noeviction)?"
)
_SEGMENT: Final = scripts.SEGMENT_BLOCKS
_SEEN: Final = ord("1")
