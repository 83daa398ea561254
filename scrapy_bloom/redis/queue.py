"""The requests of a crawl in Redis, shared by any number of workers, with the marks of their pages.

A request is in exactly one place: in the buffer of the worker that made it, in the queue, taken by
a worker, or done. One call marks it and queues it, so mark and request live and die together.

An exchange has three steps, so that the event loop never waits for the server: :meth:`prepare`
builds the call, :meth:`carry_out` makes it in a thread, and :meth:`settle` applies the answer.

If the key is not as this worker knows it, the call ends in a :class:`Surprise`. Then
:meth:`carry_out` opens the key again, under a new name. The exchange says whether what was taken is
void, and whether the caller must begin again: offer what was not begun, and run ``start()``.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from scrapy_bloom.crawl.pace import UNPACED, Pace
from scrapy_bloom.errors import BackendError, BloomError, FilterLostError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.key import (
    MOST_BYTES,
    RISKY,
    Answer,
    Call,
    Counts,
    Loss,
    SharedKey,
    Surprise,
)
from scrapy_bloom.redis.member import Entry, Taken
from scrapy_bloom.redis.plan import BATCH, Plan
from scrapy_bloom.redis.worker import Worker

logger = logging.getLogger(__name__)

FULL: Final = 5_000
"""When this many entries wait here, no more pages are fetched, and ``start()`` has to wait."""

_ENTRY_BYTES: Final = 64  # besides fingerprint and body


@dataclass
class Exchange:
    """A prepared call, and its outcome.

    Attributes:
        call: the call to make; None if there is none.
        answer: to the call.
        void: whether what was taken before is no longer ours: others have it, or it is lost.
        begin_again: whether the server has lost something. Everything that this worker has taken
            and not begun must then be offered again, and ``start()`` must run again.
        error: why there is no answer. The call is made again with the next exchange.
        verdicts: entries that were offered, each with whether its page was there.
        taken: requests that this worker has taken.
    """

    call: Call | None
    answer: Answer | None = None
    void: bool = False
    begin_again: bool = False
    error: BloomError | None = None
    verdicts: list[tuple[Entry, bool]] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)


class _Outbox:
    """What this worker has to send, and what it has taken."""

    def __init__(self, *, one_slot: bool) -> None:
        self.one_slot = one_slot
        self.buffer: deque[Entry] = deque()
        self.call: Call | None = None  # until it is answered
        self.paces: dict[bytes, Pace] = {}
        self.forget()

    def forget(self) -> None:
        """Drop what was taken; entries and paces of an unanswered call are sent again."""
        if self.call is not None:
            self.buffer.extendleft(reversed(self.call.entries))
            self.paces = {**self.call.paces, **self.paces}
        self.call = None
        self.taken: set[Taken] = set()
        self.done: list[bytes] = []
        self.back: list[bytes] = []
        self.unreadable: list[bytes] = []
        self.unused: list[bytes] = []
        self.holds: dict[bytes, float] = {}
        self.aside: list[tuple[bytes, float]] = []

    @property
    def has_work(self) -> bool:
        lists = self.buffer, self.done, self.back, self.unreadable, self.unused, self.aside
        return self.call is not None or any(lists) or bool(self.holds)

    def next_call(
        self, take: int, default: Pace, busy: Sequence[bytes], overdue: Sequence[Taken]
    ) -> Call:
        """Return the unanswered call, or else the next one."""
        if self.call is None:
            entries: list[Entry] = []
            room = MOST_BYTES
            while self.buffer and len(entries) < BATCH:
                room -= _ENTRY_BYTES + len(self.buffer[0].body)
                if entries and room < 0:
                    break
                entries.append(self.buffer.popleft())
            self.call = Call(
                entries,
                take,
                max(0, room),
                risky=any(taken.tries >= RISKY for taken in self.taken),
                done=self.done,
                back=self.back,
                unreadable=self.unreadable,
                unused=self.unused,
                default=default,
                paces=self.paces,
                busy=busy,
                overdue=overdue,
                holds=self.holds,
                aside=self.aside,
                one_slot=self.one_slot,
            )
            self.done, self.back, self.unreadable, self.unused = [], [], [], []
            self.paces, self.holds, self.aside = {}, {}, []
        return self.call


class SharedQueue:
    """One worker's access to the requests and marks of a crawl.

    :param worker: runs the scripts.
    :param key: of the filter.
    :param plan: with project, spider and order.
    :param one_slot: whether hosts without a delay share one slot.

    Attributes:
        key: as given.
        offering: how many entries wait here, or are being sent.
        surprises: how often the server has lost something, or this worker its lease.
        shared: the worker at the key; None until the server was reached.
    """

    def __init__(self, worker: Worker, key: str, plan: Plan, *, one_slot: bool = False) -> None:
        self.worker, self.key = worker, key
        self.offering = self.surprises = 0
        self.shared: SharedKey | None = None
        self._plan = plan
        self._outbox = _Outbox(one_slot=one_slot)
        self._surprise: Surprise | None = None  # until the key is open again

    def open(self) -> None:
        """Open the key, unless it is open. Exchanges retry this if it has failed.

        :raises BackendError: if the server cannot be used.
        :raises StateError: if something else is under the key, or another crawl.
        """
        if self.shared is None:
            self.worker.connect()
            self.shared = SharedKey(self.worker, self.key, self._plan)
            self.worker.start_heartbeats(self.shared.keep_alive)

    # What is sent

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether this worker knows, without asking, that a page was let through."""
        return self.shared is not None and self.shared.knows(fingerprint)

    def offer(self, entry: Entry) -> None:
        """Send an entry with one of the next exchanges."""
        self._outbox.buffer.append(entry)
        self.offering += 1

    def done(self, taken: Taken) -> None:
        """Delete a request that was taken: it is done."""
        if self._release(taken):
            self._outbox.done.append(taken.id)

    def give_back(self, taken: Taken) -> None:
        """Put a request that was taken back in its place."""
        if self._release(taken):
            self._outbox.back.append(taken.id)

    def cannot_read(self, taken: Taken) -> None:
        """Put a request that was taken behind all others, for another worker."""
        if self._release(taken):
            self._outbox.unreadable.append(taken.id)

    def put_aside(self, taken: Taken, due: float) -> None:
        """Let a request that was taken wait: its host is left alone.

        :param due: until when, by ``time.monotonic()``.
        """
        if self._release(taken):
            self._outbox.aside.append((taken.id, due))

    def hold(self, slot: bytes, until: float) -> None:
        """Let all workers leave a slot alone.

        :param until: by ``time.monotonic()``.
        """
        holds = self._outbox.holds
        holds[slot] = max(until, holds.get(slot, 0.0))

    def still_ours(self, taken: Taken) -> bool:
        """Return whether this worker still has a request that it took, as far as is known."""
        return taken in self._outbox.taken

    def give_back_turn(self, taken: Taken) -> None:
        """Give back the turn of a request that was not sent; say so before :meth:`done`.

        Of several requests of a slot, the latest goes first.
        """
        if self.still_ours(taken):
            self._outbox.unused.append(taken.id)

    def set_pace(self, slot: bytes, pace: Pace) -> None:
        """Set the pace of a slot for all workers."""
        self._outbox.paces[slot] = pace

    @property
    def is_full(self) -> bool:
        """Whether too many entries wait here."""
        return self.offering >= FULL

    @property
    def has_work(self) -> bool:
        """Whether there is anything to send."""
        return self._outbox.has_work

    @property
    def counts(self) -> Counts:
        """How many requests there are, as last reported."""
        return Counts() if self.shared is None else self.shared.counts

    @property
    def waiting(self) -> int:
        """How many requests no worker has, as last reported."""
        return self.counts.waiting

    @property
    def holds_lease(self) -> bool:
        """Whether, by its own clock, this worker cannot have been taken for dead."""
        return self.shared is not None and self.shared.renewed > time.monotonic() - upkeep.LEASE

    # Exchanges

    def prepare(
        self,
        want: int,
        *,
        look: bool = False,
        default: Pace = UNPACED,
        busy: Sequence[bytes] = (),
        overdue: Sequence[Taken] = (),
    ) -> Exchange:
        """Build the call for what there is to send.

        :param want: how many requests to take.
        :param look: whether to call even if there is nothing to send.
        :param default: the pace of slots that have no other, for this worker.
        :param busy: slots of which it has enough requests.
        :param overdue: requests in the downloader that need another turn.
        """
        take = min(BATCH, want)
        overdue = [*filter(self.still_ours, overdue)]
        if not (self._outbox.has_work or take or look or overdue):
            return Exchange(None)
        return Exchange(self._outbox.next_call(take, default, busy, overdue))

    def carry_out(self, exchange: Exchange) -> None:
        """Make the call. This may run in a thread: it leaves the buffers alone."""
        try:
            self.open()
            assert self.shared is not None  # noqa: S101 - it is open
            if exchange.call is not None and self._surprise is None:
                try:
                    exchange.answer = self.shared.call(exchange.call)
                except Surprise as surprise:
                    self._surprise = surprise
            if self._surprise is not None:
                self._begin_again(self.shared, self._surprise, exchange)
        except BloomError as error:
            exchange.error = error
        except Surprise as deleted:
            exchange.error = FilterLostError(
                f"Redis at {self.worker.address}, key {self.key!r}: the crawl was deleted"
                f" while this worker was running ({deleted})."
            )

    def settle(self, exchange: Exchange) -> Exchange:
        """Apply the outcome of an exchange; return it with verdicts and taken requests."""
        call, answer, shared = exchange.call, exchange.answer, self.shared
        if call is not None and answer is not None and shared is not None:
            self._outbox.call = None
            self._outbox.taken.update(answer.taken)
            self.offering -= len(call.entries)
            exchange.verdicts += zip(call.entries, answer.seen, strict=True)
            exchange.taken += answer.taken
            # Only from here on do the verdicts reach their caller.
            forgotten = {entry.fingerprint for entry in call.entries if entry.op == "x"}
            shared.known.update(
                entry.fingerprint
                for entry in call.entries
                if entry.fingerprint is not None
                and entry.op == "f"
                and entry.max_age is None
                and entry.fingerprint not in forgotten
            )
        if exchange.void and shared is not None:
            self._outbox.forget()
            shared.known.clear()
            self.surprises += 1
        return exchange

    def is_over(self) -> bool:
        """Return whether no worker has anything to do, after an exchange."""
        if self.shared is None or self.has_work:
            return False
        counts = self.shared.counts
        return not (counts.waiting or counts.taken)

    def close(self) -> None:
        """Put back what was taken and is not done, and release the lease."""
        try:
            if self.shared is not None:
                self.shared.leave(self._outbox.taken)
        except BackendError as error:
            logger.info("The lease could not be released, and expires by itself: %s", error)
        self.worker.close()

    # Internals

    def _release(self, taken: Taken) -> bool:
        """Return whether this worker had a request; it has it no longer."""
        ours = taken in self._outbox.taken
        self._outbox.taken.discard(taken)
        return ours

    def _begin_again(self, shared: SharedKey, surprise: Surprise, exchange: Exchange) -> None:
        """Open the key again. :meth:`settle` then lets the entries of the call be sent anew."""
        if surprise.kind is Loss.DELETED:
            raise surprise
        whole = shared.open()
        self._surprise = None
        exchange.void = True
        # Taken for dead, but the server may have lost something since then.
        exchange.begin_again = surprise.kind is not Loss.DEAD or not whole
        if exchange.begin_again:
            logger.warning(
                "Redis at %s, key %s: %s. This worker starts over: it runs start() again, and"
                " pages may be fetched again. Every page that start() or another page links to is"
                " still fetched.",
                self.worker.address,
                self.key,
                surprise if surprise.kind is not Loss.DEAD else Loss.LOST.value,
            )
