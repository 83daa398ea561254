"""When a worker calls the server, and how many requests it asks for."""

from __future__ import annotations

import time
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

from scrapy_bloom.crawl.later import IDLE_AFTER
from scrapy_bloom.redis.header import Counts
from scrapy_bloom.redis.upkeep import ACTIVE_POLL, GATHER, PATIENT, POLL, SLOWEST_POLL

if TYPE_CHECKING:
    from scrapy_bloom.crawl.in_flight import InFlight
    from scrapy_bloom.redis.turns import Turns
    from scrapy_bloom.redis.wire import Answer, Call

_RECENT: Final = 1.0
"""Besides what it can begin, a worker takes half of what it has ended in so many seconds."""


class Pacing:
    """Decides when the next call is due, and how many requests it takes.

    :param turns: what was taken and has not begun.
    :param in_flight: what has begun and is not done.
    :param most: most requests in flight.

    Attributes:
        next_turn: when more can be taken, by ``time.monotonic()``; infinite if nothing waits.
    """

    def __init__(self, turns: Turns, in_flight: InFlight, most: int) -> None:
        self._turns, self._in_flight, self._most = turns, in_flight, most
        self._ended: deque[float] = deque(maxlen=2 * most)
        self._called = self._look_at = self.next_turn = 0.0
        self._poll, self._counts = POLL, Counts()
        # Slots of which this worker had enough: they may be served earlier than that.
        self._passed_over = False

    def record_finished(self, count: int) -> None:
        """Record that pages have ended: see :meth:`Backend.record_finished`."""
        self._ended.extend([time.monotonic()] * min(count, 2 * self._most))
        if count and self._passed_over:  # what was passed over may perhaps be taken now
            self._look_at = 0.0

    def record_pushed(self) -> None:
        """Record that this worker has put a request into the queue: there is one to take."""
        self._look_at = 0.0

    def record_call(self, call: Call, answer: Answer) -> None:
        """Record the answer to a call."""
        self._called = now = time.monotonic()
        if not call.take:
            return
        taken, next_turn = len(answer.taken), answer.next_turn
        slowest = SLOWEST_POLL if answer.counts == self._counts else ACTIVE_POLL
        self._counts = answer.counts
        self.next_turn = now + next_turn if next_turn else 0.0
        self._passed_over = bool(call.busy)
        if taken:
            self._poll = POLL
        if taken == call.take or (answer.counts.waiting and not next_turn):
            self._look_at = 0.0
        elif 0 < next_turn < inf:
            self._poll = min(slowest, max(PATIENT, 2 * self._poll))
            soon = self._called + (PATIENT if taken else self._poll)
            self._look_at = min(max(soon, self.next_turn), now + slowest)
        else:
            self._look_at = now + self._poll
            self._poll = min(slowest, 2 * self._poll)

    # What is due

    def _reserve(self) -> int:
        """Return how many requests should be here that have not begun.

        While the engine is full, a slow worker would take what others could fetch at once.
        """
        since, recent = time.monotonic() - _RECENT, self._ended
        while recent and recent[0] < since:
            recent.popleft()
        return min(self._most, max(0, self._most - len(self._in_flight)) + len(recent) // 2)

    @property
    def is_low(self) -> bool:
        """Whether more requests should be taken."""
        reserve = self._reserve()
        return reserve > 0 and 2 * len(self._turns) <= reserve

    def want(self) -> int:
        """Return how many requests the next call should take."""
        if not self.is_low or time.monotonic() < self._look_at:
            return 0
        return self._reserve() - len(self._turns)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of what waits can be taken soon."""
        return not self._passed_over and IDLE_AFTER < self.next_turn - time.monotonic() < inf

    @property
    def _is_patient(self) -> bool:
        """Whether all that waits has to wait for its turn, or enough of it that is here."""
        if len(self._turns) and not self.is_low:
            return self._turns.next_start > time.monotonic()
        return 0 < self.next_turn < inf

    def until_call(self) -> float:
        """Return the seconds until new requests and verdicts should be sent."""
        patient = self._is_patient
        if not patient and not len(self._turns) and len(self._in_flight) <= self._most // 2:
            return 0.0  # there is little to fetch
        return max(0.0, self._called + (PATIENT if patient else GATHER) - time.monotonic())

    def until_urgent(self) -> float:
        """Return the seconds until something should be sent that cannot wait for long."""
        return max(0.0, self._called + GATHER - time.monotonic())

    def until_look(self) -> float:
        """Return the seconds until the queue should be asked for requests."""
        wait = self._look_at - time.monotonic()
        return wait if wait > 0 else self.until_call()
