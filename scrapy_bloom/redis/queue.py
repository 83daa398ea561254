"""The requests of a crawl in Redis, shared by any number of workers, with the marks of their pages.

A request is in exactly one place: in the buffer of the worker that made it, in the queue, taken by
a worker, or done. One call marks it and queues it, so mark and request live and die together.

An exchange has three steps, so that the event loop never waits for the server: :meth:`prepare`
builds the calls, :meth:`carry_out` makes them in a thread, and :meth:`settle` applies the answers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from scrapy_bloom.errors import BackendError, BloomError, FilterLostError
from scrapy_bloom.redis import worker as pace
from scrapy_bloom.redis.plan import BATCH, Plan, place, shard_key
from scrapy_bloom.redis.shard import (
    MOST_BYTES,
    RISKY,
    Answer,
    Call,
    Entry,
    Kind,
    Shard,
    Surprise,
    Taken,
)
from scrapy_bloom.redis.worker import Worker

logger = logging.getLogger(__name__)

_ENTRY_BYTES: Final = 64  # besides fingerprint and body


@dataclass
class Exchange:
    """Prepared calls, and their outcome.

    Attributes:
        calls: for each shard the call to make, None if there is none.
        answers: of each shard that has answered.
        void: shards whose taken requests are no longer ours: others have them, or they are lost.
        begin_again: whether the server has lost something. Everything that this worker has taken
            and not begun must then be offered again, and ``start()`` must run again.
        error: why some of the calls have no answer. They are made again with the next exchange.
        verdicts: entries that were offered, each with whether its page was there.
        taken: requests that this worker has taken.
    """

    calls: list[Call | None]
    answers: dict[int, Answer] = field(default_factory=dict)
    void: list[int] = field(default_factory=list)
    begin_again: bool = False
    error: BloomError | None = None
    verdicts: list[tuple[Entry, bool]] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)


class _Desk:
    """What this worker has to send to one shard."""

    def __init__(self) -> None:
        self.buffer: deque[Entry] = deque()
        self.call: Call | None = None  # until it is answered
        self.forget()

    def forget(self) -> None:
        """Drop what was taken; entries of an unanswered call are offered again."""
        if self.call is not None:
            self.buffer.extendleft(reversed(self.call.entries))
        self.call = None
        self.taken: set[Taken] = set()
        self.done: list[bytes] = []
        self.back: list[bytes] = []
        self.unreadable: list[bytes] = []

    @property
    def burdened(self) -> bool:
        return bool(self.buffer or self.call or self.done or self.back or self.unreadable)

    def next_call(self, take: int) -> Call:
        """Return the unanswered call, or else the next one."""
        if self.call is None:
            entries: list[Entry] = []
            room = MOST_BYTES
            while self.buffer and len(entries) < BATCH:
                room -= _ENTRY_BYTES + len(self.buffer[0].body)
                if entries and room < 0:
                    break
                entries.append(self.buffer.popleft())
            risky = any(taken.tries >= RISKY for taken in self.taken)
            self.call = Call(entries, take, 0, risky, self.done, self.back, self.unreadable)
            self.done, self.back, self.unreadable = [], [], []
        return self.call


class SharedQueue:
    """One worker's access to the requests and marks of a crawl.

    :param worker: runs the scripts.
    :param key: of the filter.
    :param made_for: the plan of each shard, with project, spider and order.

    Attributes:
        key: as given.
        offering: how many entries wait here, or are being sent.
        waiting: how many requests are in the queue, as last reported.
        surprises: how often the server has lost something, or this worker its lease.
        shards: in the order of their numbers; none until the server was reached.
    """

    def __init__(self, worker: Worker, key: str, made_for: Sequence[Plan]) -> None:
        self.worker, self.key = worker, key
        self.offering = self.waiting = self.surprises = 0
        self.shards: Sequence[Shard] = ()
        self._opened: list[Shard] = []
        self._plans = made_for
        self._desks = [_Desk() for _ in made_for]
        self._lost: dict[int, bool] = {}  # shards to reopen; whether to give up their marks
        self._heard = [0] * len(made_for)  # the highest version of each shard that was reported
        self._empty: list[int] | None = None

    def open(self) -> None:
        """Open the shards, unless they are open. Exchanges retry this if it has failed.

        :raises BackendError: if the server cannot be used.
        :raises StateError: if something else is under the key, or another crawl.
        """
        if self.shards:
            return
        self.worker.connect()
        # A shard created here has lost its marks, so it stays listed if another cannot be opened.
        for plan in self._plans[len(self._opened) :]:
            self._opened.append(Shard(self.worker, shard_key(self.key, plan.shard), plan))
        self.shards = self._opened
        self.worker.live([shard.beat for shard in self.shards])
        gone = [one for one in self.shards if one.made]
        heard = [max(told) for told in zip(*(one.heard for one in self.shards), strict=True)]
        back = [one for one, told in zip(self.shards, heard, strict=True) if _is_older(one, told)]
        if (gone or back) and any(each.items for one in self.shards for each in one.slices):
            # The marks of the others may suppress what it had.
            kind = Kind.GONE if gone else Kind.LOST
            self._log_start_over((gone or back)[0], kind.value)
            self._lost = dict.fromkeys(range(len(self.shards)), True)
            self._open_lost()

    # What is sent

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether this worker knows, without asking, that a page was let through."""
        shards = self.shards
        return bool(shards) and shards[place(fingerprint, len(shards))].knows(fingerprint)

    def offer(self, entry: Entry) -> None:
        """Send an entry with one of the next exchanges."""
        number = place(entry.fingerprint or entry.body, len(self._desks))
        self._desks[number].buffer.append(entry)
        self.offering += 1

    def done(self, taken: Taken) -> None:
        """Delete a request that was taken: it is done."""
        if desk := self._release(taken):
            desk.done.append(taken.id)

    def give_back(self, taken: Taken) -> None:
        """Put a request that was taken back in its place."""
        if desk := self._release(taken):
            desk.back.append(taken.id)

    def cannot_read(self, taken: Taken) -> None:
        """Put a request that was taken behind all others, for another worker."""
        if desk := self._release(taken):
            desk.unreadable.append(taken.id)

    def still_ours(self, taken: Taken) -> bool:
        """Return whether this worker still has a request that it took, as far as is known."""
        return any(taken in desk.taken for desk in self._desks)

    @property
    def burdened(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._lost) or any(desk.burdened for desk in self._desks)

    @property
    def holds_leases(self) -> bool:
        """Whether, by its own clock, this worker cannot have been taken for dead."""
        if not self.shards:
            return False
        since = time.monotonic() - pace.LEASE
        return min(shard.renewed for shard in self.shards) > since

    # Exchanges

    def prepare(self, want: int, *, look: bool = False) -> Exchange:
        """Build the calls for what there is to send.

        :param want: how many requests to take: an equal share from each shard. If one has fewer,
            another makes up for it next time.
        :param look: whether to call each shard even if there is nothing to send.
        """
        share = min(BATCH, -(-want // len(self._desks)))
        return Exchange(
            [
                desk.next_call(share) if desk.burdened or share or look else None
                for desk in self._desks
            ]
        )

    def carry_out(self, exchange: Exchange) -> None:
        """Make the calls. This may run in a thread: it leaves the buffers alone."""
        try:
            self.open()
            self._open_lost()
            for number, call in enumerate(exchange.calls):
                if call is not None and not exchange.begin_again:
                    self._make(number, call, exchange)
        except BloomError as error:
            exchange.error = error
        except Surprise as deleted:
            exchange.error = FilterLostError(
                f"Redis at {self.worker.where}, key {self.key!r}: the crawl was deleted"
                f" while this worker was running ({deleted})."
            )

    def settle(self, exchange: Exchange) -> Exchange:
        """Apply the outcome of an exchange; return it with verdicts and taken requests."""
        for number, answer in exchange.answers.items():
            desk, shard, call = self._desks[number], self.shards[number], exchange.calls[number]
            assert call is not None  # noqa: S101 - it was answered
            desk.call = None
            desk.taken.update(answer.taken)
            self.offering -= len(call.entries)
            exchange.verdicts += zip(call.entries, answer.seen, strict=True)
            if not exchange.begin_again:
                exchange.taken += answer.taken
            # Only from here on do the verdicts reach their caller.
            forgotten = {entry.fingerprint for entry in call.entries if entry.letter == "x"}
            shard.known.update(
                entry.fingerprint
                for entry in call.entries
                if entry.fingerprint is not None
                and entry.letter == "f"
                and entry.max_age is None
                and entry.fingerprint not in forgotten
            )
        for number in exchange.void:
            self._desks[number].forget()
            self.shards[number].known.clear()
        self.surprises += bool(exchange.void)
        self.waiting = sum(shard.counts.waiting for shard in self.shards)
        return exchange

    def is_over(self) -> bool:
        """Return whether no worker has anything to do, after an exchange with each shard.

        With several shards, two successive looks must find them empty and unchanged: then there was
        a moment in between at which all were empty.
        """
        if self.burdened or self.waiting or any(shard.counts.taken for shard in self.shards):
            self._empty = None
            return False
        before, self._empty = self._empty, [shard.counts.version for shard in self.shards]
        return len(self.shards) == 1 or self._empty == before

    def close(self) -> None:
        """Put back what was taken and is not done, and release the lease."""
        try:
            for shard in self.shards:
                shard.leave()
        except BackendError as error:
            logger.info("The lease could not be released, and expires by itself: %s", error)
        self.worker.close()

    # Internals

    def _release(self, taken: Taken) -> _Desk | None:
        for desk in self._desks:
            if taken in desk.taken:
                desk.taken.remove(taken)
                return desk
        return None

    def _make(self, number: int, call: Call, exchange: Exchange) -> None:
        shard = self.shards[number]
        call.heard = self._heard if len(self.shards) > 1 else ()
        try:
            answer = exchange.answers[number] = shard.call(call)
            self._heard = [*map(max, self._heard, answer.heard or self._heard)]
            self._heard[number] = max(self._heard[number], answer.counts.version)
        except Surprise as surprise:
            self._heard = [0] * len(self.shards)
            if surprise.kind is Kind.DELETED:
                raise
            if surprise.kind is Kind.DEAD:
                exchange.void.append(number)
                self._lost[number] = False
            else:
                # This concerns the crawl, not just the shard: the marks of the others may suppress
                # what this one has lost.
                exchange.void = list(range(len(self.shards)))
                self._lost = dict.fromkeys(exchange.void, len(self.shards) > 1)
                exchange.begin_again = True
                self._log_start_over(shard, surprise)
            self._open_lost()

    def _log_start_over(self, shard: Shard, why: object) -> None:
        logger.warning(
            "Redis at %s, key %r: %s. This worker starts over: it runs start() again, and pages may"
            " be fetched again. None is lost that start() or another page leads to.",
            self.worker.where,
            shard.key,
            why,
        )

    def _open_lost(self) -> None:
        for number, give_up in list(self._lost.items()):
            self.shards[number].open(give_up=give_up)
            del self._lost[number]


def _is_older(shard: Shard, told: int) -> bool:
    """Return whether a shard is older than what other shards were told, or was recreated."""
    if shard.counts.version < told:  # unless they have gone on while the others were opened
        shard.open()
    return shard.counts.version < told
