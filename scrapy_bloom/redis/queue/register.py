"""A worker's place in the queue of one shard: it joins, keeps its lease, watches others, leaves."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from threading import Lock
from typing import Final, NamedTuple

from scrapy_bloom.errors import StateError
from scrapy_bloom.redis import pace, scripts
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.queue.report import Report, read_report
from scrapy_bloom.redis.shard import START_OVER
from scrapy_bloom.redis.watch import Watch

_EPOCH_BYTES: Final = 8
_HELD: Final = b"held 0"
_REST: Final = b"rest 0"
_END: Final = b"end"


@dataclass(frozen=True)
class Registration:
    """A worker's entry in the register of one queue. It never changes; a new one replaces it.

    Attributes:
        epoch: of the queue's state.
        worker: the worker's name there.
        generation: how many entries the worker had before.
    """

    epoch: str
    worker: str
    generation: int


def name_of(worker: bytes) -> str:
    """Return what a worker is called in all shards, and in all of its entries."""
    return worker.decode(errors="surrogateescape").rpartition(".")[0]


class VanishedError(Exception):
    """The server does not have the queue any more that this worker knows.

    Attributes:
        back: whether it has an older state of it.
    """

    def __init__(self, *, back: bool) -> None:
        super().__init__()
        self.back = back


class Requeued(NamedTuple):
    """What became of the requests of a worker.

    Attributes:
        back: how many were put back into the queue.
        failed: how many nobody takes any more.
        report: the state of the queue; None if there was nothing to do.
    """

    back: int = 0
    failed: int = 0
    report: Report | None = None


class Register:
    """The register of one shard's queue, as one worker uses it.

    :param link: to the server; its place has the key of the queue's state.
    :param beginning: what the names of the queue's keys begin with.
    :param order: order and codec of the queue.
    :param name: what the worker is called in all shards.
    :param spider: whose requests they are; empty if that does not matter.
    :param header: key of the filter's header.

    Attributes:
        now: the worker's entry.
        copied: the note of a copy; empty if there was none.
    """

    now: Registration
    copied: str

    def __init__(
        self, link: Link, beginning: str, order: str, name: str, spider: str, header: str
    ) -> None:
        self._link = link
        self._beginning = beginning
        self._order = order
        self._name = name
        self._spider = spider
        self._header = header
        self._generation = 0
        self._renewed = 0.0
        self._watch = Watch()
        self._lock = Lock()  # of the watch

    @property
    def sure(self) -> bool:
        """Whether nobody can have called this worker dead."""
        return time.monotonic() - self._renewed < pace.LEASE - pace.NOT_LATER

    def join(self) -> Report:
        """Find the queue or make it, and register; return its state.

        :raises StateError: if something else is in its place, or it has vanished.
        """
        return self._join(secrets.token_hex(_EPOCH_BYTES), "")

    def join_again(self, offered: int) -> Report:
        """Register under a new name, because others took this worker for dead.

        :param offered: number of its last offer that was answered.
        :raises VanishedError: if the queue is not there, or that is not why it is unknown.
        """
        return self._join(self.now.epoch, f"{offered} {self.now.worker}")

    def _join(self, epoch: str, before: str) -> Report:
        self._generation += 1
        worker = f"{self._name}.{self._generation}"
        began = time.monotonic()
        word, *told = self._link.retry_once(
            scripts.QUEUE_JOIN,
            self._beginning,
            epoch,
            worker,
            pace.LEASE,
            self._order,
            before,
            self._spider,
            self._header,
        )
        if word in (b"other", b"back"):
            raise VanishedError(back=word == b"back")
        if word != b"ok":
            raise self._refusal(word, [text.decode(errors="replace") for text in told])
        with self._link.reading(told):
            found_epoch, text, copied, *leases = told
            report = read_report(text)
            self.copied = copied.decode()
            self._watch = Watch()
            self._look(began, leases)
            self.now = Registration(found_epoch.decode(), worker, self._generation)
        self._renewed = began
        return report

    def renew(self, now: Registration) -> Report | None:
        """Renew the lease; return the state of the queue, or None if the worker is unknown."""
        began = time.monotonic()
        script = scripts.QUEUE_RENEW
        word, *told = self._link.run(script, self._beginning, now.epoch, now.worker, pace.LEASE)
        if word != b"ok":
            return None
        with self._link.reading(told):
            report = read_report(told[0])
            self._look(began, told[1:])
        self._renewed = began
        return report

    def note_copy(self, note: str) -> None:
        """Store the note of a copy."""
        place = self._link.place
        with place.explained(), Within(place.timeout):
            place.client.execute_command("HSET", place.key, "copied", note)

    def silent(self) -> dict[bytes, bytes]:
        """Return the dead workers, each with the lease that it was seen with for too long."""
        with self._lock:
            return self._watch.silent()

    def undo(self, dead: bytes | str, lease: bytes) -> Requeued:
        """Make new again what a dead worker held, or this one; nothing it says counts any more.

        :meth:`requeue` comes after that, when all shards are as far.
        """
        return self._put_back(dead, lease, 0, _HELD, _REST)

    def requeue(self, dead: bytes | str, lease: bytes, max_deliveries: int) -> Requeued:
        """Put back what a dead worker has taken, or what this one has if it is called dead."""
        return self._put_back(dead, lease, max_deliveries, _REST, _END)

    def _put_back(
        self, dead: bytes | str, lease: bytes, max_deliveries: int, begin: bytes, end: bytes
    ) -> Requeued:
        now = self.now
        done, cursor = Requeued(), begin
        while True:
            word, *told = self._link.retry_once(
                scripts.QUEUE_REQUEUE,
                self._beginning,
                now.epoch,
                now.worker,
                dead,
                lease,
                max_deliveries,
                cursor,
            )
            if word != b"ok":
                return done
            with self._link.reading(told):
                report, cursor, back, failed = told
                done = Requeued(
                    done.back + int(back), done.failed + int(failed), read_report(report)
                )
            if cursor == end:
                return done

    def others(self) -> set[bytes]:
        """Return the other workers in the register."""
        with self._lock:
            return self._watch.others()

    def _look(self, began: float, told: list[bytes]) -> None:
        server, *pairs = told
        records = dict(zip(pairs[::2], pairs[1::2], strict=True))
        with self._lock:
            self._watch.look(began, time.monotonic(), float(server), records)

    def _refusal(self, word: bytes, told: list[str]) -> StateError:
        place = self._link.place
        if word == b"vanished":
            return StateError(
                f"{place.name}: found the marks of a crawl and not its request queue, expected"
                f" both: requests may have vanished, and their pages would count as seen."
                f" {START_OVER}"
            )
        if word == b"type":
            key, kind = told
            return StateError(
                f"{place.name}: found a {kind} under {key!r}, expected the request queue of a crawl"
                f" or nothing. {place.other_key}"
            )
        program, found_format, order, spider = told
        if program != "scrapy-bloom":
            return StateError(
                f"{place.name}: found a hash that scrapy-bloom did not write, expected the request"
                f" queue of a crawl or nothing. {place.other_key}"
            )
        if found_format != "1":
            return StateError(
                f"{place.name}: found a request queue of format {found_format!r}, expected '1'. It"
                f" was written by another version of scrapy-bloom. Use that version, or"
                f" {place.or_other_key}"
            )
        if self._spider and spider not in ("", self._spider):
            return StateError(
                f"{place.name}: found the requests of spider {spider!r}, expected those of spider"
                f" {self._spider!r}: another spider has other callbacks, so their pages would be"
                f" lost. Start {spider!r}, or {place.or_other_key}"
            )
        return StateError(
            f"{place.name}: found a request queue of the order and serializer {order!r}, expected"
            f" {self._order!r}. All workers of a queue must agree. Change SCHEDULER_DISK_QUEUE of"
            f" this worker, or {place.or_other_key}"
        )
