"""The numbered calls of one worker to the queue of one shard.

As in :mod:`scrapy_bloom.redis.calls`, the script keeps number and answer of the last call, and a
call is repeated under its number until it is answered. Offers and exchanges are numbered apart. The
same is sent again for as long as it takes: also when the caller was told in the meantime that the
server cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import redis

from scrapy_bloom.redis import calls, scripts
from scrapy_bloom.redis.calls import Growth, Reply
from scrapy_bloom.redis.connection import BROKEN, FAULTS
from scrapy_bloom.redis.counters import Counters
from scrapy_bloom.redis.header import write_slice
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.membership import Registration as FilterRegistration
from scrapy_bloom.redis.queue.member import ID_BYTES, Stored, read
from scrapy_bloom.redis.queue.register import Registration
from scrapy_bloom.redis.queue.report import Report, read_report
from scrapy_bloom.redis.scripts import Script

_LOOK: Final = 1000
"""A look for lost segments in every so many offers."""

_GONE: Final = (b"absent", b"back", b"buried", b"other", b"stale", b"stranger")

_UNTOUCHED: Final = ("OOM", "MISCONF", "READONLY", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "BUSY")
"""Errors by which a server refuses the first write of a script."""


class Gone(NamedTuple):
    """The server does not know what the call was about.

    Attributes:
        word: what the script answered: ``absent`` or ``other`` if the queue is not there, ``other``
            to an offer if the filter is not; ``stranger`` or ``stale`` if it does not know the
            worker; ``buried`` to an offer that was not carried out before others took the worker
            for dead; ``back`` if the server has gone back to an older state.
    """

    word: bytes


class Request(NamedTuple):
    """One exchange.

    Attributes:
        most: how many requests to take.
        risk: with how many dead workers a request is risky.
        risky: whether this worker has such a request.
        done: requests that are done, by names whose last 8 bytes the server knows.
        back: those to give back.
        failed: those to put aside.
    """

    most: int
    risk: int
    risky: bool
    done: Sequence[bytes] = ()
    back: Sequence[bytes] = ()
    failed: Sequence[bytes] = ()


class Exchanged(NamedTuple):
    """The answer to an exchange.

    Attributes:
        report: the state of the queue.
        request: what was asked for, maybe in an earlier call.
        taken: the requests that this worker has taken, each as it is stored and as it is read.
    """

    report: Report
    request: Request
    taken: list[tuple[bytes, Stored]]


class Offering(NamedTuple):
    """One offer.

    Attributes:
        fingerprints: of the requests that have one.
        letters: one for each request, as the script wants them.
        parts: score and rest of each request, one after the other.
        ages: the greatest ages in seconds, by the places of their fingerprints, counted from 1.
    """

    fingerprints: Sequence[bytes]
    letters: bytes
    parts: Sequence[bytes]
    ages: Mapping[int, float] = {}


class QueueCalls:
    """Makes the calls of one registration.

    :param queue: link to the queue's state.
    :param header: link to the filter's header.
    :param beginning: what the names of the queue's keys begin with.
    :param now: whose calls they are.
    :param counters: where round trips are counted.

    Attributes:
        exchanged: number of the last exchange that was answered.
        offered: number of the last offer that was answered.
        faults: the errors that the last call met.
    """

    def __init__(
        self, queue: Link, header: Link, beginning: str, now: Registration, counters: Counters
    ) -> None:
        self._queue = queue
        self._header = header
        self._beginning = beginning
        self._now = now
        self._counters = counters
        self.exchanged = self.offered = 0
        self._unanswered: Request | None = None
        self.faults: list[Exception] = []

    def exchange(self, request: Request) -> Exchanged | Gone:
        """Take requests, and put others where they belong; or repeat what was not answered.

        :raises BackendError: if no answer came.
        """
        request = self._unanswered = self._unanswered or request
        number = self.exchanged + 1
        answer: Exchanged | Gone = self._send(
            self._queue,
            scripts.QUEUE_EXCHANGE,
            (
                *(self._beginning, self._now.epoch, self._now.worker),
                f"{number} {self.exchanged} {self.offered} {request.most} {request.risk}",
                int(request.risky),
                *map(_names, (request.done, request.back, request.failed)),
            ),
            lambda answer: _read_exchanged(answer, request),
        )
        if isinstance(answer, Exchanged):
            self.exchanged = number
            self._unanswered = None
        return answer

    @property
    def unanswered(self) -> bool:
        """Whether an exchange must be repeated."""
        return self._unanswered is not None

    def look(self) -> Report | Gone:
        """Return the state of the queue.

        :raises BackendError: if no answer came.
        """
        answer: Report | Gone = self._send(
            self._queue,
            scripts.QUEUE_LOOK,
            (
                *(self._beginning, self._now.epoch, self._now.worker),
                f"{self.exchanged} {self.offered}",
            ),
            _read_look,
        )
        return answer

    def offer(
        self, filter_: FilterRegistration, offering: Offering, growth: Growth | None
    ) -> tuple[Report, Reply] | Gone:
        """Mark and queue requests. Until it is answered, offer the same requests again.

        :raises BackendError: if no answer came.
        """
        header = filter_.header
        number = self.offered + 1
        hash_ = header.layout.make_hash(header.secret, digests=header.plan.digests)
        known = growth.after if growth else "-"
        letters = offering.letters
        if offering.ages:
            letters += f" {calls.write_ages(offering.ages)}".encode()
        answer: tuple[Report, Reply] | Gone = self._send(
            self._header,
            scripts.offer(
                header.layout,
                header.hashes,
                dated=header.dated,
                aged=bool(offering.ages),
            ),
            (
                *(filter_.prefix, header.signature, self._now.worker),
                f"{number} {self.offered} {int(number % _LOOK == 0)} {known}",
                b"".join(map(hash_, offering.fingerprints)),
                write_slice(growth.spec) if growth else "",
                *(self._now.epoch, letters, *offering.parts),
            ),
            lambda answer: _read_offered(answer, len(offering.fingerprints)),
        )
        if not isinstance(answer, Gone):
            self.offered = number
        return answer

    def _send(
        self,
        link: Link,
        script: Script,
        arguments: tuple[Any, ...],
        read_answer: Callable[[Any], object],
    ) -> Any:
        """Run a script, and again if its answer got lost; return what is read from the answer."""
        self.faults = []
        for tries_left in (1, 0):
            try:
                self._counters.round_trips += 1
                answer = link.run(script, *arguments)
                with link.reading(answer):
                    found = read_answer(answer)
                if found is None:
                    raise link.garbled(answer)
            except FAULTS as error:  # noqa: PERF203 - twice at most
                self._counters.ambiguous += 1
                self.faults.append(error)
                if tries_left and isinstance(error, BROKEN):
                    continue
                link.breaker.trip(link.place.explain(error))
                raise link.breaker.error() from None
            else:
                return found
        raise AssertionError  # the second try returns or raises


def half_done(error: Exception) -> bool:
    """Return whether a script may have written something before this error."""
    if not isinstance(error, redis.ResponseError) or isinstance(error, redis.InvalidResponse):
        return False
    told = f"{type(error).__name__} {error}"
    return not any(word in told for word in (*_UNTOUCHED, "OutOfMemory", "ReadOnly", "TryAgain"))


def _names(names: Sequence[bytes]) -> bytes:
    return b"".join(name[-ID_BYTES:] for name in names)


def _read_exchanged(answer: list[bytes], request: Request) -> Exchanged | Gone | None:
    if answer[0] in _GONE:
        return Gone(answer[0])
    if answer[0] != b"ok":
        return None
    taken = [(value, read(value)) for value in answer[2:]]
    return Exchanged(read_report(answer[1]), request, taken)


def _read_look(answer: list[bytes]) -> Report | Gone | None:
    if answer[0] in _GONE:
        return Gone(answer[0])
    return read_report(answer[1]) if answer[0] == b"ok" else None


def _read_offered(answer: bytes, count: int) -> tuple[Report, Reply] | Gone | None:
    if answer in _GONE:
        return Gone(answer)
    report, _, line = answer.partition(b"\n")
    reply = calls.read_reply(line, count)
    return (read_report(report), reply) if isinstance(reply, Reply) else None
