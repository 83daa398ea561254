"""The requests of a crawl in Redis, shared by any number of workers, with the marks of their pages.

A request is in exactly one place: the buffer of the worker that made it, the queue, what a worker
has taken, or done. One call marks it and puts it into the queue, so mark and request live and die
together.

Three steps, so that the server is never waited for where others wait: :meth:`Queue.prepare` makes
the calls, :meth:`Queue.carry_out` makes them in a thread, :meth:`Queue.settle` takes note of the
answers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from scrapy_bloom.errors import BackendError, BloomError, FilterLostError
from scrapy_bloom.options import Words, in_arguments
from scrapy_bloom.redis.plan import BATCH, Plan, place, shard_key
from scrapy_bloom.redis.shard import (
    MOST_BYTES,
    RISKY,
    Answer,
    Call,
    Entry,
    Kind,
    Report,
    Shard,
    Surprise,
    Taken,
)
from scrapy_bloom.redis.worker import Worker

logger = logging.getLogger(__name__)

_ENTRY_BYTES: Final = 64  # beside fingerprint and body


class Ticket(NamedTuple):
    """Names a request that this worker has taken.

    Attributes:
        shard: number of the shard it came from.
        generation: under which name this worker took it; with another one it is nothing any more.
        id: what the shard calls it.
    """

    shard: int
    generation: int
    id: bytes


@dataclass
class Exchange:
    """Calls that were prepared, and what came of them.

    Attributes:
        calls: for each shard the call to make, None if there is nothing to say.
        answers: of each shard that has answered.
        surprise: what surprised this worker, if anything did.
        dead: shards at which it had only been taken for dead.
        error: why some of the calls have no answer.
    """

    calls: list[Call | None]
    answers: dict[int, Answer] = field(default_factory=dict)
    surprise: Kind | None = None
    dead: list[int] = field(default_factory=list)
    error: BloomError | None = None


class Settled(NamedTuple):
    """What an exchange means for the crawl.

    Attributes:
        verdicts: entries that were offered, each with whether its page was there.
        taken: requests that this worker has taken.
        void: shards from which nothing counts that was taken earlier and not begun: others have it.
        begin_again: whether the server has lost something. All that this worker has taken and not
            begun is to be offered again, and ``start()`` is to run again.
        error: why some of the calls have no answer. They are made again with the next exchange.
    """

    verdicts: list[tuple[Entry, bool]]
    taken: list[tuple[Ticket, Taken]]
    void: list[int]
    begin_again: bool
    error: BloomError | None


class _Desk:
    """What this worker has to say to one shard."""

    def __init__(self) -> None:
        self.buffer: deque[Entry] = deque()
        self.call: Call | None = None  # until it is answered
        self.held: dict[bytes, int] = {}  # ids of what was taken and is not done; its tries
        self.done: list[bytes] = []
        self.back: list[bytes] = []
        self.unreadable: list[bytes] = []

    @property
    def burdened(self) -> bool:
        return bool(self.buffer or self.call or self.done or self.back or self.unreadable)

    def next_call(self, take: int) -> Call:
        """Return the call that was not answered, or the next one."""
        if self.call is None:
            entries: list[Entry] = []
            room = MOST_BYTES
            while self.buffer and len(entries) < BATCH:
                room -= _ENTRY_BYTES + len(self.buffer[0].body)
                if entries and room < 0:
                    break
                entries.append(self.buffer.popleft())
            risky = any(tries >= RISKY for tries in self.held.values())
            self.call = Call(
                *(entries, take, 0, risky),
                done=tuple(self.done),
                back=tuple(self.back),
                unreadable=tuple(self.unreadable),
            )
        return self.call

    def answered(self, call: Call, taken: Iterable[Taken]) -> None:
        """Take note that a call was answered."""
        self.call = None
        for ids, said in (
            (self.done, call.done),
            (self.back, call.back),
            (self.unreadable, call.unreadable),
        ):
            del ids[: len(said)]
            for id_ in said:
                self.held.pop(id_, None)
        self.held.update((one.id, one.tries) for one in taken)

    def forget(self) -> None:
        """Let nothing count that was taken; what was to be offered is offered again."""
        if self.call is not None:
            self.buffer.extendleft(reversed(self.call.entries))
        self.call = None
        self.held.clear()
        for ids in (self.done, self.back, self.unreadable):
            ids.clear()


class Queue:
    """One worker at the requests and marks of a crawl.

    :param worker: runs the scripts.
    :param key: of the filter.
    :param made_for: the plan of each shard, with project, spider and order.
    :param words: names an option in messages.

    Attributes:
        key: as given.
        surprises: how often the server has lost something, or this worker its lease.
    """

    def __init__(
        self, worker: Worker, key: str, made_for: Sequence[Plan], words: Words = in_arguments
    ) -> None:
        self.worker = worker
        self.surprises = 0
        self.key, self._plans, self._words = key, made_for, words
        self._shards: list[Shard] = []  # none until the server was there
        self._desks = [_Desk() for _ in made_for]
        self._generations = [0 for _ in made_for]
        self._first = 0
        self._lost: dict[int, bool] = {}  # shards to be opened anew; whether to give up their marks
        self._empty: tuple[int, ...] | None = None

    def open(self) -> None:
        """Open the shards, if that was not done before. Exchanges do it where it has failed.

        :raises BackendError: if the server cannot be used.
        :raises StateError: if something else is under the key, or another crawl.
        """
        if self._shards:
            return
        self.worker.connect()
        shards = [
            Shard(self.worker, shard_key(self.key, plan.shard), plan, self._words)
            for plan in self._plans
        ]
        self._shards, self._generations = shards, [shard.generation for shard in shards]
        self.worker.live([shard.beat for shard in shards])

    # What is said

    @property
    def shards(self) -> Sequence[Shard]:
        """Its shards, in the order of their numbers."""
        return self._shards

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether this worker knows by itself that a page was let through."""
        shards = self._shards
        return bool(shards) and shards[place(fingerprint, len(shards))].knows(fingerprint)

    def offer(self, entry: Entry) -> None:
        """Have something said with one of the next exchanges."""
        number = place(entry.fingerprint or entry.body, len(self._desks))
        self._desks[number].buffer.append(entry)

    def done(self, ticket: Ticket) -> None:
        """Have a request that was taken deleted: it is done."""
        if desk := self._desk(ticket):
            desk.done.append(ticket.id)

    def give_back(self, ticket: Ticket) -> None:
        """Have a request that was taken put back to its place."""
        if desk := self._desk(ticket):
            desk.back.append(ticket.id)

    def give_up(self, ticket: Ticket) -> None:
        """Have a request that this worker cannot read put behind all others, for another worker."""
        if desk := self._desk(ticket):
            desk.unreadable.append(ticket.id)

    def counts(self, ticket: Ticket) -> bool:
        """Return whether a request is this worker's still, as far as is known."""
        return self._desk(ticket) is not None

    @property
    def offering(self) -> int:
        """How many entries wait here, or are on their way."""
        return sum(
            len(desk.buffer) + (len(desk.call.entries) if desk.call else 0) for desk in self._desks
        )

    @property
    def burdened(self) -> bool:
        """Whether there is anything to say."""
        return bool(self._lost) or any(desk.burdened for desk in self._desks)

    @property
    def holds_leases(self) -> bool:
        """Whether nobody can have taken this worker for dead, as far as its own clock tells."""
        return bool(self._shards) and all(shard.holds_lease for shard in self._shards)

    # Exchanges

    def prepare(self, want: int, *, look: bool = False) -> Exchange:
        """Make the calls for what there is to say.

        :param want: how many requests to take. The shards are asked in turns.
        :param look: whether to call each shard, though there be nothing to say.
        """
        count = len(self._desks)
        calls: list[Call | None] = [None] * count
        self._first = (self._first + 1) % count
        for step in range(count):
            number = (self._first + step) % count
            desk = self._desks[number]
            # A share from each; what one shard has not, another one has the next time.
            share = -(-want // count) if want else 0
            if desk.burdened or share or look:
                calls[number] = desk.next_call(min(BATCH, share))
        return Exchange(calls)

    def carry_out(self, exchange: Exchange) -> None:
        """Make the calls. Nothing else is used meanwhile, so this may be done in a thread."""
        try:
            self.open()
            self._open_lost()
            for number, call in enumerate(exchange.calls):
                if call is not None and exchange.surprise is None:
                    self._make(number, call, exchange)
        except BloomError as error:
            exchange.error = error
        except Surprise as deleted:
            exchange.error = FilterLostError(
                f"Redis at {self.worker.where}, key {self.key!r}: the crawl was deleted"
                f" while this worker was part of it ({deleted})."
            )

    def settle(self, exchange: Exchange) -> Settled:
        """Take note of what came of an exchange."""
        verdicts: list[tuple[Entry, bool]] = []
        taken: list[tuple[Ticket, Taken]] = []
        # Those that were opened anew, perhaps after an outage, have taken under another name.
        self._generations = [shard.generation for shard in self._shards]
        for number, answer in exchange.answers.items():
            desk, shard = self._desks[number], self._shards[number]
            call = exchange.calls[number]
            assert call is not None  # noqa: S101 - it was answered
            desk.answered(call, answer.taken)
            verdicts += zip(call.entries, answer.seen, strict=True)
            if exchange.surprise is None:  # else they are offered again
                generation = self._generations[number]
                taken += [(Ticket(number, generation, one.id), one) for one in answer.taken]
            # From here on the verdicts reach their caller, and not before.
            shard.known.update(
                entry.fingerprint
                for entry in call.entries
                if entry.fingerprint is not None and entry.letter == "f" and entry.max_age is None
            )
        void = list(range(len(self._desks))) if exchange.surprise else exchange.dead
        for number in void:
            self._desks[number].forget()
            self._shards[number].known.clear()
        self.surprises += bool(void)
        return Settled(verdicts, taken, void, exchange.surprise is not None, exchange.error)

    def reports(self) -> list[Report]:
        """Return what was last heard of each shard."""
        return [shard.report for shard in self._shards]

    @property
    def waiting(self) -> int:
        """How many requests are in the queue, as last heard."""
        return sum(shard.report.waiting for shard in self._shards)

    def is_over(self) -> bool:
        """Return whether no worker has anything to do, after an exchange with each shard.

        With several shards two looks must find them empty and unchanged: there was a moment between
        the two at which all were empty.
        """
        some = self.burdened or self.waiting or any(one.taken for one in self.reports())
        if some or not self._shards:
            self._empty = None
            return False
        versions = tuple(report.version for report in self.reports())
        before, self._empty = self._empty, versions
        return len(self._shards) == 1 or versions == before

    def close(self) -> None:
        """Give back what was taken and is not done, and end the lease."""
        try:
            for shard in self._shards:
                shard.leave()
        except BackendError as error:
            logger.info("The lease was not given up, and ends by itself: %s", error)
        self.worker.close()

    # Within

    def _desk(self, ticket: Ticket) -> _Desk | None:
        desk = self._desks[ticket.shard]
        mine = ticket.generation == self._generations[ticket.shard] and ticket.id in desk.held
        return desk if mine else None

    def _make(self, number: int, call: Call, exchange: Exchange) -> None:
        shard = self._shards[number]
        try:
            exchange.answers[number] = shard.call(call)
        except Surprise as surprise:
            if surprise.kind is Kind.DELETED:
                raise
            if surprise.kind is Kind.DEAD:
                exchange.dead.append(number)
                self._lost[number] = False
            else:
                # It belongs to the crawl, not to the shard: what one shard has lost, the marks of
                # the others may hide.
                self._lost = dict.fromkeys(range(len(self._shards)), len(self._shards) > 1)
                exchange.surprise = surprise.kind
                self._warn(surprise, shard)
            self._open_lost()

    def _open_lost(self) -> None:
        for number, give_up in list(self._lost.items()):
            self._shards[number].open(give_up=give_up)
            del self._lost[number]

    def _warn(self, surprise: Surprise, shard: Shard) -> None:
        logger.warning(
            "Redis at %s, key %r: %s. This worker starts over: it runs start() again, and pages may"
            " be fetched again. None is lost that start() or another page leads to.",
            self.worker.where,
            shard.key,
            surprise,
        )
