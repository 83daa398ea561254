"""Marks that a run remembers beside those that are stored."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from math import inf


class Recent(dict[bytes, float]):
    """Marks that this run remembers itself, each with when it was added, by ``time.time()``.

    :param window: for how many seconds; None for no limit.
    """

    def __init__(self, window: float | None) -> None:
        super().__init__()
        self._window = inf if window is None else window

    def has(self, mark: bytes, max_age: float | None = None) -> bool:
        """Return whether a mark was added less than `max_age`, or the window, seconds ago."""
        since = self.get(mark)
        if since is None:
            return False
        return time.time() - since < (self._window if max_age is None else max_age)

    def add(self, marks: Collection[bytes]) -> None:
        """Add marks."""
        self.discard(marks)  # so that the oldest stay first
        now = time.time()
        self.update(dict.fromkeys(marks, now))
        while self and now - next(iter(self.values())) >= self._window:
            del self[next(iter(self))]

    def discard(self, marks: Iterable[bytes]) -> None:
        """Remove marks, if present."""
        for mark in marks:
            self.pop(mark, None)
