"""Marks of requests that are only in memory: the next run must fetch what is not done."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from scrapy_bloom.crawl.outcomes import APART

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy_bloom.crawl.backend import Backend
    from scrapy_bloom.crawl.in_flight import InFlight, Visit


class Withheld:
    """Keeps marks from the next run until their requests are done, or an hour after they failed.

    What has failed in memory is stored nowhere, so the pages that led to it must be able to yield
    it again. Until then it stays seen: links between such pages would fetch them without an end.

    :param in_flight: knows which visits have marks that are withheld.
    :param backend: has the marks.
    """

    def __init__(self, in_flight: InFlight, backend: Backend) -> None:
        self._in_flight, self._backend = in_flight, backend
        self._failed: deque[tuple[float, Visit]] = deque()

    def add(self, marks: Collection[bytes]) -> None:
        """Withhold the marks of a request."""
        self._backend.withhold(marks)

    def end(self, visit: Visit) -> None:
        """Withhold the marks of a visit no longer: it is done."""
        self._in_flight.release(visit)
        if visit.marks:
            self._backend.withhold(visit.marks, is_over=True)

    def fail(self, visit: Visit) -> None:
        """Record that a visit has failed."""
        if visit.marks:
            self._failed.append((time.monotonic() + APART, visit))

    def free_failed(self) -> None:
        """Make pages eligible again that failed an hour ago."""
        while self._failed and self._failed[0][0] <= time.monotonic():
            _, visit = self._failed.popleft()
            self._backend.forget_many(visit.marks)
            self.end(visit)
