"""The shared queue as the rest of the package knows it: it only spreads work over shards."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final, Literal, TypeVar
from zlib import crc32

from scrapy_bloom.errors import BackendError, BloomError, FilterLostError
from scrapy_bloom.redis import pace
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.heartbeat import Heartbeat
from scrapy_bloom.redis.queue.base import Entry, Offered, State, Taken, Ticket
from scrapy_bloom.redis.queue.batch import Verdict
from scrapy_bloom.redis.queue.counters import QueueCounters
from scrapy_bloom.redis.queue.shard import QueueShard

logger = logging.getLogger(__name__)

MAX_DELIVERIES: Final = 10
"""After so many workers were killed with a request, it is put aside: it may be what kills them."""

_T = TypeVar("_T")


class SharedQueue:
    """The requests of a crawl beside its filter in Redis; :class:`base.Queue` says what it does.

    A thread of its own keeps the worker registered, and watches the other workers.

    :param filter: the filter. It outlives the queue, and must have been opened for a shared queue.
    :param order: which of the requests of one priority comes first: the oldest, or the newest.
    :param codec: what the bodies are made with. All workers of a queue need the same, and the same
        order.
    :param spider: whose requests they are; empty if that does not matter.
    :raises BackendError: if the server cannot be used.
    :raises StateError: if something else is in the queue's place, or a queue of another order or
        another spider. It is left untouched.

    Attributes:
        counters: what this worker has put in and taken.
    """

    def __init__(
        self,
        filter: RedisFilter,  # noqa: A002 - that is what it is
        *,
        order: Literal["fifo", "lifo"] = "fifo",
        codec: str = "pickle",
        spider: str = "",
    ) -> None:
        self.counters = QueueCounters()
        self._pid = os.getpid()
        self._closed = False
        self._next = 0  # the shard that is asked first
        self._shards: list[QueueShard] = []
        self._filter = filter
        name = filter.new_queue_worker()
        try:
            for number, shard in enumerate(filter.shards):
                self._shards.append(
                    QueueShard(
                        shard,
                        number,
                        order=f"{order} {codec}",
                        max_deliveries=MAX_DELIVERIES,
                        name=name,
                        spider=spider,
                        traffic=filter.counters,
                        counters=self.counters,
                    )
                )
                self._shards[number].ask_again = self._ask_again
        except BaseException:
            self._leave()
            raise
        self._traffic = filter.counters
        self._knows = [shard.knows for shard in filter.shards]
        self._heartbeat = Heartbeat(self._shards, threading.Event())
        self._heartbeat.start()

    @property
    def sure(self) -> bool:
        """Whether nobody else can have taken over what this worker has taken."""
        return all(shard.sure for shard in self._shards)

    @property
    def copied(self) -> frozenset[str]:
        """The notes of a copy that were there when the queue was opened."""
        return frozenset(shard.copied for shard in self._shards if shard.copied)

    def holds(self, ticket: Ticket) -> bool:
        """Return whether a taken request is still this worker's."""
        return self._shards[ticket.shard].holds(ticket.id)

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether this worker knows by itself that a fingerprint is marked."""
        known = self._knows[self._place(fingerprint)](fingerprint)
        self._traffic.local += known
        return known

    def offer(self, entries: Sequence[Entry]) -> Offered:
        """Mark the entries, and push those that were new.

        :raises BackendError: if the server cannot be used; offer the same entries again first.
        :raises FilterLostError: if filter or queue have vanished.
        :raises ValueError: for an entry with neither body nor fingerprint.
        """
        parts: dict[int, list[int]] = {}
        for at, entry in enumerate(entries):
            if entry.fingerprint is None and not entry.body:
                raise ValueError("a request that is held needs a fingerprint")
            what = entry.body if entry.fingerprint is None else entry.fingerprint
            parts.setdefault(self._place(what), []).append(at)
        done: list[tuple[QueueShard, list[Entry], list[Verdict]]] = []
        verdicts: dict[int, Verdict] = {}

        def offer_to(number: int) -> None:
            shard, some = self._shards[number], [entries[at] for at in parts[number]]
            answers = shard.offer(some)
            done.append((shard, some, answers))
            verdicts.update(zip(parts[number], answers, strict=True))

        try:
            self._each(parts, offer_to)
        except BaseException:
            for shard, some, answers in done:
                shard.keep(some, answers)
            raise
        ordered = [verdicts[at] for at in range(len(entries))]
        tickets = {at: one.ticket for at, one in enumerate(ordered) if one.ticket is not None}
        return Offered([verdict.seen for verdict in ordered], tickets)

    def take(self, count: int, done: Sequence[Ticket] = ()) -> list[Taken]:
        """Take at most so many requests, from each shard in turn; acknowledge those that are done.

        :raises BackendError: if a server cannot be used, and the others have nothing to give.
        :raises FilterLostError: if filter or queue have vanished.
        """
        self._remember(done, QueueShard.acknowledge)
        taken: list[Taken] = []
        first, every = self._next, len(self._shards)
        self._next = (first + 1) % every

        def take_from(number: int) -> None:
            if len(taken) < count:
                taken.extend(self._shards[number].take(count - len(taken)))

        try:
            self._each([(first + step) % every for step in range(every)], take_from)
        except BackendError:
            if not taken:
                raise
        except FilterLostError:
            for one in reversed(taken):
                self._shards[one.ticket.shard].keep_ready(one)
            raise
        return taken

    def acknowledge(self, tickets: Sequence[Ticket]) -> None:
        """Note that requests are done: nobody needs to do them again.

        :raises BackendError: if the server cannot be used; the tickets are remembered.
        :raises FilterLostError: if filter or queue have vanished.
        """
        self._tell(tickets, QueueShard.acknowledge)

    def give_back(self, tickets: Sequence[Ticket]) -> None:
        """Put requests back that were taken and not started.

        :raises BackendError: as :meth:`acknowledge`.
        :raises FilterLostError: as :meth:`acknowledge`.
        """
        self._tell(tickets, QueueShard.give_back)

    def fail(self, tickets: Sequence[Ticket]) -> None:
        """Put requests aside, where nobody takes them.

        :raises BackendError: as :meth:`acknowledge`.
        :raises FilterLostError: as :meth:`acknowledge`.
        """
        self._tell(tickets, QueueShard.fail)

    def look(self) -> State:
        """Ask all shards now.

        :raises BackendError: if the server cannot be used.
        :raises FilterLostError: if filter or queue have vanished.
        """
        self._each(range(len(self._shards)), lambda number: self._shards[number].look())
        return self.state()

    def state(self) -> State:
        """Return what the last answers said."""
        reports = [(shard, shard.report) for shard in self._shards]
        return State(
            waiting=sum(report.waiting + shard.ready for shard, report in reports),
            elsewhere=sum(max(0, report.taken - shard.own) for shard, report in reports),
            version=tuple(shard.version for shard in self._shards),
        )

    def requeue_dead(self) -> int:
        """Put the requests of dead workers back, if there are any; return how many.

        :raises BackendError: if the server cannot be used.
        """
        totals: dict[str, tuple[int, int]] = {}
        shards = self._shards

        def requeue_of(number: int) -> None:
            others = [*shards[:number], *shards[number + 1 :]]
            for name, back, failed in shards[number].requeue_dead(others):
                before = totals.get(name, (0, 0))
                totals[name] = (before[0] + back, before[1] + failed)

        steps = [shard.undo_dead for shard in shards]
        steps += [partial(requeue_of, number) for number in range(len(shards))]
        try:
            self._each(steps, lambda step: step())
        finally:
            for name, (back, failed) in totals.items():
                _tell_of_dead(name, back, failed)
        return sum(back for back, _ in totals.values())

    def note_copy(self, note: str) -> None:
        """Store the note of a copy in all shards.

        :raises BackendError: if a server cannot be used.
        """
        for shard in self._shards:
            shard.note_copy(note)

    def numbers(self) -> Mapping[str, float]:
        """Return what this worker counted, by the names in :class:`QueueCounters`."""
        return asdict(self.counters)

    def close(self) -> None:
        """Leave the queue, which puts back what this worker has taken. The filter stays open."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        left = self._leave()
        self._heartbeat.stop()
        if not left:
            logger.warning(
                "This worker could not leave the request queue. Others put back the %(count)s"
                " requests that it had taken when its lease is over, in about %(lease)d s.",
                {"count": f"{sum(shard.own for shard in self._shards):,}", "lease": pace.LEASE},
            )

    def _leave(self) -> bool:
        """Leave all shards, or none: others must not be given what led to a mark that still is.

        Returns whether that worked.
        """
        left = [shard.leave() for shard in self._shards]
        if not all(left):
            return False
        parted = [shard.part() for shard in self._shards]
        return all(parted)

    def _ask_again(self) -> None:
        """Ask the servers again for what this worker knows."""
        for shard in self._filter.shards:
            shard.forget_cache()

    def _place(self, what: bytes) -> int:
        return crc32(what) * len(self._shards) >> 32

    def _each(self, parts: Iterable[_T], act: Callable[[_T], object]) -> None:
        """Do something with each part, also with those that come after one that fails.

        :raises BloomError: the worst of what they raised.
        """
        errors: list[BloomError] = []
        for part in parts:
            try:
                act(part)
            except (BackendError, FilterLostError) as error:  # noqa: PERF203 - not with each entry
                errors.append(error)
        if errors:
            raise min(errors, key=lambda error: isinstance(error, BackendError))

    def _remember(
        self, tickets: Iterable[Ticket], how: Callable[[QueueShard, Iterable[bytes]], None]
    ) -> set[int]:
        """Let the shards remember what became of requests; return their numbers."""
        by_shard: dict[int, list[bytes]] = {}
        for ticket in tickets:
            by_shard.setdefault(ticket.shard, []).append(ticket.id)
        for number, names in by_shard.items():
            how(self._shards[number], names)
        return set(by_shard)

    def _tell(
        self, tickets: Iterable[Ticket], how: Callable[[QueueShard, Iterable[bytes]], None]
    ) -> None:
        self._each(self._remember(tickets, how), lambda number: self._shards[number].look())


def _tell_of_dead(name: str, back: int, failed: int) -> None:
    if not (back or failed):
        return
    logger.warning(
        "Worker %(name)s gave no sign of life for %(lease)d s: the %(back)s requests that it had"
        " taken are in the queue again%(failed)s.",
        {
            "name": name,
            "lease": pace.LEASE,
            "back": f"{back:,}",
            "failed": f", {failed:,} were put aside, because too many workers have died with them"
            if failed
            else "",
        },
    )
