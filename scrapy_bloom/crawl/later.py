"""What must not be sent yet: requests that wait for a time, and hosts that are paused.

Times are by ``time.monotonic()``: nobody waits longer because a clock was set back.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from scrapy_bloom.errors import SettingError
from scrapy_bloom.values import LONGEST, counted, read_age

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.crawl.report import Report

T = TypeVar("T")

DELAY: Final = "bloom_delay"
"""The key in a request's meta: how long it waits before it may be sent."""


IDLE_AFTER: Final = 5.0
"""A crawl is idle while nothing may be sent for so many seconds."""


def pop_due(request: Request, report: Report) -> float:
    """Return before when a request must not be sent, 0 if it need not wait.

    The wish leaves the meta, so neither copies of the request nor its children inherit it.
    """
    wish = request.meta.pop(DELAY, None)
    if wish is None:
        return 0.0
    try:
        seconds = read_age(f"meta[{DELAY!r}]", wish)
    except SettingError as error:
        report.once(
            logging.ERROR, "%s does not wait: %s More such requests are not shown.", request, error
        )
        return 0.0
    return time.monotonic() + seconds if seconds else 0.0


def report_idle(report: Report, count: int, due: float) -> None:
    """Log that nothing can be fetched for a time.

    :param count: how many requests wait.
    :param due: until when, by ``time.monotonic()``.
    """
    seconds = min(LONGEST, due - time.monotonic())
    until = datetime.now().astimezone() + timedelta(seconds=seconds)
    report.info(
        f"Nothing can be fetched before {until:%Y-%m-%d %H:%M:%S}: {counted(count, 'request')}"
        f" waiting until then or longer."
    )


class Waiting(Generic[T]):
    """Things that wait until their time comes, of which those that wait equally long stay in order.

    A thing takes about 150 bytes beside itself.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, due: float, thing: T) -> None:
        """Add a thing that waits until `due`."""
        heapq.heappush(self._heap, (due, next(self._numbers), thing))

    def pop_due(self, most: int) -> Iterator[T]:
        """Remove and yield things whose time has come, at most so many."""
        now = time.monotonic()
        while most and self._heap and self._heap[0][0] <= now:
            most -= 1
            yield heapq.heappop(self._heap)[-1]

    @property
    def next_due(self) -> float:
        """When the next one's time comes; infinite if none waits."""
        return self._heap[0][0] if self._heap else inf


class Pauses(dict[T, float]):
    """Download slots that are paused, each until when, here until :meth:`drop_over`."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, T]] = []  # some were replaced by later ones

    def pause(self, slot: T, until: float) -> None:
        """Pause a slot, unless it is for longer already."""
        if until > self.get(slot, 0.0):
            self[slot] = until
            heapq.heappush(self._heap, (until, slot))

    def until(self, slot: T) -> float:
        """Return until when a slot is paused, 0 if it is not."""
        until = self.get(slot, 0.0)
        return until if until > time.monotonic() else 0.0

    def drop_over(self) -> None:
        """Remove the slots that are paused no more."""
        while self.next_over <= time.monotonic():
            del self[heapq.heappop(self._heap)[1]]

    @property
    def next_over(self) -> float:
        """When the next slot is paused no more; infinite if none is."""
        while self._heap and self.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else inf
