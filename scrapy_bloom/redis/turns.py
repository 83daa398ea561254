"""The requests that this worker has taken: which may be sent now, and what became of their turns.

A *turn* is when a request may be sent. The server sets it when it hands the request out, so all
workers keep one pace for each download slot. A turn is used or given back, or its request requeued:

- A request that reaches the downloader in its slot has used its turn. The downloader sends it at
  once: its own delay would be a second one. But while the slot has as many requests as it may, it
  would be sent when one of them ends, so it goes back to the queue.
- One that never gets there (it came from a cache, or ``robots.txt`` forbids it) or reaches another
  slot (a middleware chose a proxy) has not, and the server serves the slot again at once. If that
  happens time and again, the slot is *unpaced*: its turns say nothing about what is sent.
- One whose slot is paused for a time goes back to the queue.
- One whose turn has passed, because a callback has blocked the process, goes back to the queue.
  Sent late, it would come too close to the turn of another worker. The next turns last longer, or
  a process that is always late would send nothing.
- One whose slot has just sent something else (``robots.txt``, say) goes back, too, as do those of a
  slot that was unpaced and has sent one: all workers may have some, and each would keep its own
  pace.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from scrapy_bloom.crawl.later import Pauses
from scrapy_bloom.crawl.scrapy.downloads import UNPACED, Pace
from scrapy_bloom.redis.member import Taken
from scrapy_bloom.values import LONGEST

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.scrapy.downloads import Downloads
    from scrapy_bloom.crawl.scrapy.engine import Engine

_EARLY: Final = 0.001
"""Seconds before its turn that a request may be sent: timers are no more exact."""

_SHORT: Final = 0.05
"""Share of a delay by which a request may be late. The gap after it is that much shorter."""

_EXACT: Final = 0.025
"""Seconds that it may be late in any case: an event loop is no more exact."""

_LONGER: Final = 0.02
"""Seconds by which a turn may last longer than twice that of a late request.

One callback that blocks for long is no reason to keep a host waiting as long.
"""

_SHORTER: Final = 0.9
"""Factor by which turns get shorter with each request that is sent in time."""

_UNUSED: Final = 8
"""After so many unused turns in a row a slot is unpaced."""

_TAKES_EFFECT: Final = 1.0
"""After so many seconds all requests that are begun were taken at the pace that was sent."""

_MOST_SLOT: Final = 1_000  # bytes of a slot's name

_MOST_SLOTS: Final = 10_000
"""How many slots are remembered that this worker has no request of."""


class _Use(Enum):
    """Whether the turns of a slot are used, as far as this worker knows."""

    UNKNOWN = auto()  # no request of it was sent to it yet
    PACED = auto()  # some were, here or elsewhere
    UNPACED = auto()  # the server knows that none is


@dataclass(eq=False, slots=True)
class _Slot:
    """What this worker knows of a download slot.

    Attributes:
        use: of its turns.
        unused: how many of them in a row were not used.
        agreed: its delay as this worker has last sent or received it; None for neither.
        sent_at: when this worker sent it, by ``time.monotonic()``.
    """

    use: _Use = _Use.UNKNOWN
    unused: int = 0
    agreed: float | None = None
    sent_at: float = 0.0


class Turns:
    """The requests that this worker has taken, by turn, until the engine is finished with them.

    :param engine: knows which requests it still has.
    :param downloads: the downloader's slots.
    :param report: writes to the log.

    Attributes:
        pauses: slots that are paused, as far as this worker knows.
        slack: seconds that turns should last from now on: about as late as requests were.
    """

    def __init__(self, engine: Engine, downloads: Downloads, report: Report) -> None:
        self._engine, self._downloads, self._report = engine, downloads, report
        self._numbers = itertools.count()
        self._ready: list[tuple[float, int, Taken]] = []
        self._slots: dict[bytes, _Slot] = {}
        self._begun: dict[Request, Taken] = {}  # those that have a slot
        self._announced: set[bytes] = set()  # slots of which the server knows the configured pace
        self._paces: dict[bytes, Pace] = {}  # what the server is sent next
        self._unused: list[Taken] = []
        self._to_requeue: list[Taken] = []
        self._stuck: set[str] = set()  # slots in which requests wait without a turn
        self.pauses: Pauses[bytes] = Pauses()
        self.slack = 0.0

    def __len__(self) -> int:
        """Return how many requests have not begun."""
        return len(self._ready)

    def slot_for(self, request: Request) -> bytes:
        """Return the slot under which the queue files a request; empty if that is unknown."""
        try:
            key = self._engine.slot_of(request)
            slot = _name(key)
            if slot not in self._announced and self._downloads.is_configured(key):
                self._announced.add(slot)
                self._paces[slot] = self._downloads.pace_of(key)
        except Exception as error:  # it reads the meta; raising would lose the page
            self._report.once(
                logging.ERROR,
                "The download slot of %s is unknown, so it is not paced (%r). More such errors are"
                " not shown.",
                request,
                error,
            )
            slot = b""
            self._paces[slot] = UNPACED
        return slot

    # Requests that have not begun

    def add(self, taken: Iterable[Taken]) -> None:
        """Add requests that were taken, in the order in which they came."""
        for each in taken:
            if self._is_paused(each):
                self._to_requeue.append(each)
                continue
            heapq.heappush(self._ready, (each.start, next(self._numbers), each))
            if each.listed and self._downloads.adjusts:
                self._adopt(each)

    def _adopt(self, taken: Taken) -> None:
        """Adopt the delay of a slot if another worker has sent it."""
        slot = self._slots.setdefault(taken.slot, _Slot())
        if taken.delay and taken.delay != slot.agreed:
            slot.agreed = taken.delay
            self._downloads.set_delay(_key(taken.slot), taken.delay)

    def pop(self) -> Taken | None:
        """Return the next request that may be sent now; None if there is none."""
        now = time.monotonic()
        while self._ready and self._ready[0][0] <= now + _EARLY:
            taken = heapq.heappop(self._ready)[-1]
            if not self._is_late(taken, now):
                return taken
            self._to_requeue.append(taken)
        return None

    def _is_late(self, taken: Taken, now: float) -> bool:
        """Return whether the turn of a request has passed; then the next turns last longer."""
        late = now - taken.start - _tolerance_of(taken)
        if not taken.delay or late <= taken.slack:
            return False
        self.slack = max(self.slack, min(late, 2 * taken.slack + _LONGER))
        return True

    @property
    def next_start(self) -> float:
        """When the next request may be sent, by ``time.monotonic()``; infinite if there is none."""
        return self._ready[0][0] if self._ready else inf

    def pop_all(self) -> list[Taken]:
        """Return all requests that have not begun, once, by turn."""
        ready, self._ready = self._ready, []
        return [each for _, _, each in sorted(ready)]

    # Slots that are paused

    def pause_host(self, request: Request, seconds: float) -> Mapping[bytes, float]:
        """Pause the slot of a request; return its name, and until when."""
        slot = _name(self._engine.slot_of(request))
        self.heed({slot: time.monotonic() + min(seconds, LONGEST)})
        return {slot: self.pauses.get(slot, 0.0)}

    def heed(self, pauses: Mapping[bytes, float]) -> None:
        """Pause slots, each until its time. What was taken too early of them goes back."""
        self.pauses.drop_over()
        for slot, until in pauses.items():
            self.pauses.pause(slot, until)
        if any(self._is_paused(each) for _, _, each in self._ready):
            self._to_requeue += [each for _, _, each in self._ready if self._is_paused(each)]
            self._ready = [entry for entry in self._ready if not self._is_paused(entry[-1])]
            heapq.heapify(self._ready)

    def paused_until(self, request: Request) -> float:
        """Return until when the slot of a request is paused, 0 if it is not."""
        if not self.pauses:
            return 0.0
        return self.pauses.until(_name(self._engine.slot_of(request)))

    def _is_paused(self, taken: Taken) -> bool:
        return bool(self.pauses) and self.pauses.until(taken.slot) > taken.start + _EARLY

    # Requests that the engine has

    def begin(self, request: Request, taken: Taken) -> None:
        """Record that the engine has a request."""
        if taken.slot:
            slot = self._slots.setdefault(taken.slot, _Slot())
            sent_again = taken.delay and taken.start > slot.sent_at + _TAKES_EFFECT
            if slot.use is _Use.UNPACED and sent_again:  # by a worker that sends requests to it
                slot.use = _Use.PACED
            self._begun[request] = taken

    def reach(self, request: Request) -> None:
        """Let a request that has reached the downloader be sent at once if this is its turn."""
        taken = self._begun.get(request)
        if taken is None:
            return
        taken.reached = True
        key = self._engine.slot_of(request)
        if _name(key) != taken.slot:
            self._waste(taken, is_elsewhere=True)
            return
        self._slots[taken.slot].unused, self._slots[taken.slot].use = 0, _Use.PACED
        if taken.delay:
            if taken.listed and self._downloads.adjusts:
                self._downloads.set_delay(key, taken.delay, is_first=True)
            is_stuck = key in self._stuck or self._downloads.is_full(key)
            if self._is_late(taken, time.monotonic()) or is_stuck:
                taken.reached = False  # so its turn is given back
                self._requeue_waiting(key)
            elif self._downloads.skip_wait(key, taken.delay - _tolerance_of(taken)):
                self.slack = min(self.slack, _SHORTER * taken.slack)
            else:
                self._requeue_waiting(key)
        elif taken.listed and (pace := self._downloads.pace_of(key)).delay:
            self._paces[taken.slot] = pace
            self._stuck.add(key)

    def _requeue_waiting(self, key: str) -> None:
        """Let the downloader send nothing of a slot until what waits there has gone back."""
        self._downloads.wait_longer(key)
        self._stuck.add(key)

    def collect_finished(self) -> None:
        """Record which requests the engine is finished with.

        Requests that wait in the downloader without a turn go back to the queue.
        """
        waiting, self._stuck = self._stuck, set()
        for key in waiting:
            self._engine.requeue_slot(key)
            self._downloads.wait_no_longer(key)
        ended = [request for request in self._begun if not self._engine.has(request)]
        for request in ended:
            taken = self._begun.pop(request)
            if not taken.reached:
                self._waste(taken)
            elif not self._slots[taken.slot].unused:
                self._send_pace(taken)
        if len(self._slots) > _MOST_SLOTS:
            self._slots = {taken.slot: self._slots[taken.slot] for taken in self._begun.values()}

    def _send_pace(self, taken: Taken) -> None:
        """Tell the server the delay of a slot if it is not the one by which it was served."""
        pace = self._downloads.pace_of(_key(taken.slot))
        is_default = pace.delay == self._downloads.default.delay
        if is_default and (self._downloads.adjusts or not taken.listed):
            return
        # What is paced by the default may have had a pace of its own, which is kept only while the
        # slot has requests.
        if (taken.delay or not taken.listed) and round(pace.delay, 3) != taken.delay:
            self._paces[taken.slot] = pace

    def _waste(self, taken: Taken, *, is_elsewhere: bool = False) -> None:
        """Give back a turn that was not used; if that happens often, pace the slot no more.

        A host that gets some requests is paced, however many others ``robots.txt`` forbids.

        :param is_elsewhere: whether the request was sent in another slot.
        """
        if not taken.delay:
            return
        self._unused.append(taken)
        slot = self._slots[taken.slot]
        slot.unused += 1
        if slot.unused >= _UNUSED and (is_elsewhere or slot.use is not _Use.PACED):
            self._paces[taken.slot] = UNPACED
            self._report.once(
                logging.INFO,
                "No request for %s reaches it: a cache or a middleware answers them, or sets"
                " another download_slot. Until one does, they are not delayed. More such hosts are"
                " not shown.",
                _key(taken.slot),
            )

    # What the next call says

    @property
    def is_urgent(self) -> bool:
        """Whether there is something to tell without which turns are wasted."""
        return bool(self._unused or self._to_requeue or self._stuck)

    def pop_paces(self) -> Mapping[bytes, Pace]:
        """Return what the server is sent about the pace of slots, once."""
        paces, self._paces = self._paces, {}
        for name, pace in paces.items():
            if name in self._slots:
                slot = self._slots[name]
                slot.agreed, slot.sent_at = round(pace.delay, 3), time.monotonic()
                if not pace.delay:
                    slot.use = _Use.UNPACED
        return paces

    def pop_unused(self) -> list[Taken]:
        """Return the requests whose turns were not used, once, the latest first."""
        unused, self._unused = self._unused, []
        return sorted(unused, key=attrgetter("start"), reverse=True)

    def pop_requeued(self) -> list[Taken]:
        """Return the requests that go back, as their turn has passed or was moved, once."""
        requeued, self._to_requeue = self._to_requeue, []
        return requeued

    @property
    def busy(self) -> Sequence[bytes]:
        """Slots of which the engine has enough requests."""
        sent = Counter(taken.slot for taken in self._begun.values())
        has_enough = self._downloads.has_enough
        return [slot for slot, count in sent.items() if has_enough(_key(slot), count)]

    def start_over(self) -> None:
        """Tell the configured paces again: the server has lost something."""
        self._announced.clear()


def _tolerance_of(taken: Taken) -> float:
    """Return the seconds that a request may be late, besides those that its turn lasts."""
    return max(_EXACT, _SHORT * taken.delay)


def _name(key: str) -> bytes:
    return key.encode("utf-8", "replace")[:_MOST_SLOT]


def _key(slot: bytes) -> str:
    return slot.decode("utf-8", "replace")
