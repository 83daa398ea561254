"""Time in a simulation: it passes in steps, and each process reads it from a clock of its own."""

import time
from types import SimpleNamespace

from scrapy.core import downloader

EPOCH = 1_700_000_000.0
"""When a history begins, in seconds since 1970."""


class Clock:
    """The clocks of one process.

    Args:
        started: what the monotonic one says at the beginning of the history.
    """

    def __init__(self, started=0.0):
        self._zero = self._started = started
        self._speed = 1.0

    def monotonic(self):
        return self._zero + TIME.now * self._speed

    def time(self):
        return EPOCH + self.monotonic() - self._started

    def moment(self, monotonic):
        """Return when this clock says so."""
        return (monotonic - self._zero) / self._speed

    def moment_in(self, seconds):
        """Return when it says that so many seconds have passed."""
        return TIME.now + seconds / self._speed

    def run_at(self, speed):
        """Go faster or slower from now on."""
        self._zero, self._speed = self.monotonic() - TIME.now * speed, speed


TIME = SimpleNamespace(now=0.0, clock=Clock())
"""Seconds since the beginning of the history, and the clock of the process whose code runs."""


def install():
    """Let all code in this process read the clock of the simulation."""

    def monotonic():
        return TIME.clock.monotonic()

    def wall():
        return TIME.clock.time()

    time.monotonic, time.time = monotonic, wall
    downloader.monotonic = monotonic  # it has imported the name
