"""For how long an event loop does not come to its turn."""

import time


class Gap:
    """Measures it, by being called again and again.

    Attributes:
        longest: the longest time between two turns, in seconds.
    """

    def __init__(self, call_later):
        self.longest = 0.0
        self._call_later = call_later
        self._last = time.monotonic()
        self._on = True

    def tick(self):
        now = time.monotonic()
        self.longest = max(self.longest, now - self._last)
        self._last = now
        if self._on:
            self._call_later(0.005, self.tick)

    def stop(self):
        self._on = False
