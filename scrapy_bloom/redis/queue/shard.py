"""The queue of one shard as one worker sees it.

If the server has lost something or has gone back to an older state, every call raises from then on,
and the crawl ends. The next one goes on with what the server has; it is refused where requests have
vanished and their marks have not.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from threading import Lock
from typing import Final, NamedTuple

from scrapy_bloom.errors import BackendError, FilterLostError, StateError
from scrapy_bloom.redis import pace
from scrapy_bloom.redis.calls import Gone as FilterGone
from scrapy_bloom.redis.calls import Growth, Reply
from scrapy_bloom.redis.connection import FAULTS
from scrapy_bloom.redis.counters import Counters
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.membership import Registration as FilterRegistration
from scrapy_bloom.redis.queue import member
from scrapy_bloom.redis.queue.base import Entry, Taken, Ticket
from scrapy_bloom.redis.queue.batch import Batch, LateVerdicts, Verdict
from scrapy_bloom.redis.queue.calls import Exchanged, Gone, QueueCalls
from scrapy_bloom.redis.queue.counters import QueueCounters
from scrapy_bloom.redis.queue.holdings import Holdings
from scrapy_bloom.redis.queue.register import Register, VanishedError, name_of
from scrapy_bloom.redis.queue.report import Report
from scrapy_bloom.redis.scripts import BATCH
from scrapy_bloom.redis.shard import RESUMES, START_OVER, Shard, lost, went_back

logger = logging.getLogger(__name__)

_PASSES: Final = 10  # calls in which a server may not know us before it counts as out
_names = count()


class QueueShard:
    """One worker at the queue of one shard.

    :param shard: the shard of the filter.
    :param number: its number.
    :param order: order and codec of the queue.
    :param max_deliveries: how many workers may die with one request.
    :param name: what the worker is called in all shards.
    :param spider: whose requests they are; empty if that does not matter.
    :param traffic: where round trips are counted.
    :param counters: where requests are counted.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if something else is in the queue's place.

    Attributes:
        ask_again: makes this worker ask for all marks again, because some may be undone.
    """

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        shard: Shard,
        number: int,
        *,
        order: str,
        max_deliveries: int,
        name: str,
        spider: str,
        traffic: Counters,
        counters: QueueCounters,
    ) -> None:
        self._shard = shard
        self._number = number
        self._max_deliveries = max_deliveries
        self._traffic = traffic
        self._counters = counters
        self._beginning = shard.place.beginning
        self.place = replace(shard.place, key=f"{self._beginning}queue:state")
        self._link = Link(self.place, shard.breaker)
        self._header = Link(shard.place, shard.breaker)
        self._register = Register(self._link, self._beginning, order, name, spider, shard.place.key)
        self.ask_again = shard.forget_cache
        self._lock = Lock()
        self._own = Holdings()
        self._ready: deque[Taken] = deque()  # taken by a call whose caller was told of an error
        self._batch: Batch | None = None  # is being offered
        self._late = LateVerdicts()
        self._loss: FilterLostError | None = None  # raised by every call, once there is one
        self._recovering = False  # registered again, but still has what others have put back
        self._left = False
        self._dead: dict[bytes, _Dead] = {}  # whose held requests are new once more
        self._returned = 0  # as the last exchange told
        shard.queue_apart = True
        with self.place.explained():
            report = self._register.join()
        self._begin(report)
        if report.missing:
            if self.leave():
                self.part()
            raise StateError(
                f"{self.place.name}: {report.missing:,} requests of this crawl have vanished, and"
                f" their pages would count as seen. {START_OVER}"
            )

    # What needs no call

    @property
    def sure(self) -> bool:
        """Whether nobody can have called this worker dead."""
        return self._register.sure and not self._recovering

    @property
    def copied(self) -> str:
        """The note of a copy; empty if there was none."""
        return self._register.copied

    @property
    def report(self) -> Report:
        """What the server told last."""
        return self._report

    @property
    def ready(self) -> int:
        """How many requests were taken that the caller does not know of."""
        return len(self._ready)

    @property
    def own(self) -> int:
        """How many requests this worker has taken or holds, as the server knows."""
        return len(self._own)

    @property
    def usable(self) -> bool:
        """Whether the server can be asked now."""
        return self._shard.breaker.usable

    @property
    def version(self) -> bytes:
        """What changes with each change of the queue."""
        return f"{self._register.now.epoch} {self._report.version}".encode()

    def holds(self, name: bytes) -> bool:
        """Return whether a request is still this worker's."""
        return name in self._own

    # What the worker asks for

    def offer(self, entries: Sequence[Entry]) -> list[Verdict]:
        """Mark and queue entries; return what became of each.

        :raises BackendError: if the server cannot be used.
        :raises FilterLostError: after a loss.
        """
        with self._lock:
            self._make_good()
            verdicts: list[Verdict | None] = [self._late.pop(entry) for entry in entries]
            todo = [at for at, verdict in enumerate(verdicts) if verdict is None]
            try:
                for start in range(0, len(todo), BATCH):
                    some = todo[start : start + BATCH]
                    answers = self._offer([entries[at] for at in some])
                    for at, verdict in zip(some, answers, strict=True):
                        verdicts[at] = verdict
            except BaseException:
                self._late.keep(entries, verdicts)
                raise
            return [verdict for verdict in verdicts if verdict is not None]

    def keep(self, entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> None:
        """Remember what became of entries, because they will be offered again."""
        with self._lock:
            self._late.keep(entries, verdicts)

    def take(self, most: int) -> list[Taken]:
        """Take requests, at most so many and :data:`BATCH`, and tell what is remembered.

        :raises BackendError: if the server cannot be used.
        :raises FilterLostError: after a loss.
        """
        with self._lock:
            self._make_good()
            if most > len(self._ready) or self._burdened:
                self._exchange(most)
                self._raise_loss()
            return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def keep_ready(self, taken: Taken) -> None:
        """Let the next call take this one first: its taker was told of an error."""
        with self._lock:
            self._ready.appendleft(taken)

    def look(self) -> None:
        """Ask for the state; it is in :attr:`report` then.

        :raises BackendError: if the server cannot be used.
        :raises FilterLostError: after a loss.
        """
        with self._lock:
            self._make_good()
            if self._burdened:
                self._exchange(0)
                self._raise_loss()
                return
            for _ in range(_PASSES):
                answer = self._calls.look()
                if isinstance(answer, Report):
                    self._shard.breaker.reset()
                    self._note(answer)
                    self._raise_loss()
                    return
                self._recover()
            raise self._unknown()

    def acknowledge(self, names: Iterable[bytes]) -> None:
        """Note that requests are done; the next call tells the server."""
        with self._lock:
            self._own.acknowledge(names)

    def give_back(self, names: Iterable[bytes]) -> None:
        """Note that requests go back; the next call tells the server."""
        with self._lock:
            self._own.give_back(names)

    def fail(self, names: Iterable[bytes]) -> None:
        """Note that requests are to be put aside; the next call tells the server."""
        with self._lock:
            self._counters.failed += self._own.put_aside(names)

    def note_copy(self, note: str) -> None:
        """Store the note of a copy.

        :raises BackendError: if the server cannot be used.
        """
        self._register.note_copy(note)

    def undo_dead(self) -> None:
        """Make new again what dead workers held: before anything else of theirs goes back.

        Else another worker fetches the page that led to it, and is told that it is seen.

        :raises BackendError: if the server cannot be used.
        """
        silent = self._register.silent()
        if not (silent or self._dead):
            return
        with self._lock:
            self._dead = {name: one for name, one in self._dead.items() if name in silent}
            self._check()
            for worker, lease in silent.items():
                if worker not in self._dead:
                    with self._link.tripping():
                        undone = self._register.undo(worker, lease)
                    if undone.report is not None:
                        self._note(undone.report)
                        self._counters.requeued += undone.back
                        self._dead[worker] = _Dead(lease, undone.back, time.monotonic())

    def may_hold(self, name: str) -> bool:
        """Return whether a worker of that name may hold something here still."""
        return any(name == name_of(one) for one in self._register.others() - self._dead.keys())

    def requeue_dead(self, others: Sequence[QueueShard]) -> list[tuple[str, int, int]]:
        """Put back what dead workers had; return their names, how many went back, and failed.

        :param others: the other shards, in which :meth:`undo_dead` was tried before.
        :raises BackendError: if the server cannot be used.
        """
        done: list[tuple[str, int, int]] = []
        if not self._dead:
            return done
        with self._lock:
            self._check()
            for worker, dead in [*self._dead.items()]:
                name = name_of(worker)
                if dead.gone or _must_wait(name, dead, others):
                    continue
                with self._link.tripping():
                    result = self._register.requeue(worker, dead.lease, self._max_deliveries)
                del self._dead[worker]
                if result.report is not None:
                    self._dead[worker] = dead._replace(gone=True)
                    self._note(result.report)
                    done.append((name, dead.undone + result.back, result.failed))
                    self._counters.requeued += result.back
                    self._counters.failed += result.failed
        return done

    def beat(self) -> bool:
        """Renew the lease, and notice beside the crawl what was lost.

        Called by the heartbeat's thread; returns whether all is well.
        """
        now = self._register.now
        if self._left:
            return True
        try:
            report = self._register.renew(now)
        except FAULTS:
            return False
        if not self._lock.acquire(blocking=False):
            return True
        try:
            if self._register.now is now and not self._left:
                if report is None:
                    self._recover()
                else:
                    # It was asked for without the lock: the last one may be newer.
                    self._note(max(report, self._report))
        except FilterLostError:  # the next call raises it
            return True
        except BackendError:
            return False
        finally:
            self._lock.release()
        return True

    def node(self) -> str:
        """Name the node of a cluster that has the shard now."""
        return self.place.node

    def leave(self) -> bool:
        """Tell all that is to be told, and make new again what this worker holds.

        Returns whether that worked. Then :meth:`part` follows, when the other shards are as far.
        """
        with self._lock:
            self._left = True
            try:
                with suppress(FilterLostError):
                    self._make_good()
                    if self._burdened:
                        self._exchange(0)
                if report := self._register.undo(self._register.now.worker, b"").report:
                    self._note(report)
            except (BackendError, *FAULTS):
                return False
            return True

    def part(self) -> bool:
        """Take the worker off the register, and put back what it has; return whether it worked."""
        with self._lock:
            try:
                result = self._register.requeue(self._register.now.worker, b"", 0)
            except (BackendError, *FAULTS):
                return False
            if result.report:
                self._note(result.report)
                self._own, self._ready = Holdings(), deque()
            return True

    # Calls

    def _offer(self, entries: Sequence[Entry]) -> list[Verdict]:
        names = {
            at: b"\xff" + next(_names).to_bytes(member.ID_BYTES - 1, "big")
            for at, entry in enumerate(entries)
            if not entry.body
        }
        self._batch = Batch(entries, names)
        return self._finish_batch(self._batch)

    def _finish_batch(self, batch: Batch) -> list[Verdict]:
        """Offer the entries of a batch until each one has its verdict."""

        def ask(
            filter_: FilterRegistration, _: Sequence[bytes], growth: Growth | None
        ) -> Reply | FilterGone:
            return self._ask(batch, filter_, growth)

        try:
            self._shard.add_through(ask, batch.fingerprints)
        except FilterLostError as error:
            self._loss = error
            raise
        self._batch = None
        self._raise_loss()
        return [
            Verdict(seen, self._ticket_of(batch, at) if not seen else None)
            for at, seen in enumerate(batch.seen)
        ]

    def _ask(
        self, batch: Batch, filter_: FilterRegistration, growth: Growth | None
    ) -> Reply | FilterGone:
        """Offer what has no verdict yet, in one call."""
        for _ in range(_PASSES):
            try:
                answer = self._calls.offer(filter_, batch.offering(self._shard.doubted), growth)
            finally:
                batch.note(self._calls.faults)
            if not isinstance(answer, Gone):
                report, reply = answer
                batch.answered(reply.verdicts)
                self._note(report)
                if reply.error:
                    batch.force()
                return reply
            if answer.word == b"other":
                return FilterGone(filter=True)
            batch.refused(answer.word)
            self._recover()
        raise self._unknown()

    def _ticket_of(self, batch: Batch, at: int) -> Ticket | None:
        """Return the ticket of an entry that was new, if it is held."""
        name = batch.names.get(at)
        return None if name is None else self._ticket(name, member.held(name, batch.entries[at]))

    def _exchange(self, most: int) -> None:
        """Take requests until so many are ready, one batch at most, and bring others home."""
        self._check()
        for _ in range(_PASSES):
            repeated = self._calls.unanswered
            answer = self._calls.exchange(
                self._own.request(
                    min(BATCH, max(0, most - len(self._ready))), max(1, self._max_deliveries - 1)
                )
            )
            if isinstance(answer, Gone):
                self._recover()
                continue
            self._shard.breaker.reset()
            self._settle(answer)
            if not repeated:
                return
        raise self._unknown()

    def _settle(self, answer: Exchanged) -> None:
        """Note what an exchange has changed."""
        self._own.told(answer.request)
        self._note(answer.report)
        self._doubt_what_is_known(answer.report)
        for value, stored in answer.taken:
            name, priority, deliveries, fingerprint, body = stored
            ticket = self._ticket(name, value, risky=deliveries >= answer.request.risk)
            self._ready.append(Taken(ticket, body, priority, fingerprint, deliveries))

    def _ticket(self, name: bytes, value: bytes, *, risky: bool = False) -> Ticket:
        """Return the ticket of a request that this worker has from now on."""
        generation = self._register.now.generation
        return Ticket(self._number, self._own.keep(generation, name, value, risky=risky))

    @property
    def _burdened(self) -> bool:
        """Whether there is something that only an exchange can tell the server."""
        return self._own.said or self._calls.unanswered

    def _check(self) -> None:
        if not self._shard.breaker.usable:
            raise self._shard.breaker.error()

    def _unknown(self) -> BackendError:
        """Return the error for a server that forgets this worker again and again."""
        self._shard.breaker.trip("does not keep what it is told. Is somebody deleting its keys?")
        return self._shard.breaker.error()

    # Recovery

    def _begin(self, report: Report) -> None:
        """Start to count the calls of a new registration."""
        self._note(report)
        self._doubt_what_is_known(report)
        self._calls = QueueCalls(
            self._link, self._header, self._beginning, self._register.now, self._traffic
        )

    def _note(self, report: Report) -> None:
        self._report = report
        if report.missing and self._loss is None:
            what = f"has lost {report.missing:,} requests, and not their marks"
            self._loss = lost(self.place, what, START_OVER)

    def _doubt_what_is_known(self, report: Report) -> None:
        """Ask the server again for all marks, if some may be undone that this worker knows.

        A request that was put back leads to others whose marks were undone before. The number comes
        in the answer with the request.
        """
        if report.returned != self._returned:
            self._returned = report.returned
            self.ask_again()

    def _make_good(self) -> None:
        """Finish what was begun.

        :raises BackendError: if the server cannot be used.
        :raises FilterLostError: after a loss.
        """
        self._raise_loss()
        self._check()
        if self._batch is not None:
            batch = self._batch
            self._late.keep(batch.entries, self._finish_batch(batch))

    def _raise_loss(self) -> None:
        if self._loss is not None:
            raise self._loss

    def _recover(self) -> None:
        """Register again after the server did not know the queue or the worker.

        :raises BackendError: if the server cannot be used.
        :raises FilterLostError: unless others took this worker for dead, and that is all.
        """
        if self._batch is not None and self._batch.in_doubt:
            self._learn(self._batch)
        self._recovering = True
        try:
            with self._link.tripping():
                report = self._register.join_again(self._calls.offered)
        except VanishedError as error:
            plan = self._shard.plan
            self._loss = went_back(self.place, plan) if error.back else lost(self.place, *_GONE)
            raise self._loss from None
        self._begin(report)
        self._taken_over()
        self._recovering = False
        self._raise_loss()

    def _learn(self, batch: Batch) -> None:
        """Learn what came of a call that had no answer, as long as its number is ours."""
        registered = self._shard.registration
        if registered is None:
            batch.refused(b"other")
            return
        answer = self._calls.offer(registered, batch.offering(self._shard.doubted), None)
        if isinstance(answer, Gone):
            batch.refused(answer.word)
        else:
            batch.answered(answer[1].verdicts)

    def _taken_over(self) -> None:
        """Note that others have put back all that this worker had."""
        logger.log(
            logging.WARNING if self._own else logging.INFO,
            "%(where)s: other workers took this one for dead, because it gave no sign of life for"
            " %(lease)d s. They have put back the %(count)s requests that it had taken: those under"
            " way are fetched twice.",
            {"where": self.place.name, "lease": pace.LEASE, "count": f"{len(self._own):,}"},
        )
        self._own.clear()
        self._ready.clear()


class _Dead(NamedTuple):
    """A dead worker whose held requests are new once more, and whose others are not put back yet.

    Attributes:
        lease: the end of its lease, as it was seen for too long.
        undone: how many requests it held.
        since: when that was, on the monotonic clock.
        gone: whether the others are put back, too, and the register need only be looked at again.
    """

    lease: bytes
    undone: int
    since: float
    gone: bool = False


def _must_wait(name: str, dead: _Dead, others: Sequence[QueueShard]) -> bool:
    """Return whether other shards may have marks still that a dead worker held.

    One in which it seems to live is waited for as long as its lease there lasts, twice over, or
    until that shard can be asked.
    """
    waiting = [other for other in others if other.may_hold(name)]
    in_time = time.monotonic() - dead.since <= 2 * pace.LEASE
    return any(in_time or not other.usable for other in waiting)


_GONE: Final = "has lost the request queue", RESUMES
