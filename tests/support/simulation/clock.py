"""Time in a simulation: it passes in steps, and each process reads it from a clock of its own."""

import time

from scrapy.core import downloader

EPOCH = 1_700_000_000.0
"""When a history begins, in seconds since 1970."""

real_monotonic = time.monotonic


class Clock:
    """The clocks of one process.

    Args:
        started: what the monotonic one says at the beginning of the history.

    Attributes:
        wall: by how much the other one is ahead.
    """

    def __init__(self, started=0.0):
        self._zero = self._started = started
        self._speed = 1.0
        self.wall = 0.0

    def monotonic(self):
        return self._zero + TIME.now * self._speed

    def time(self):
        return EPOCH + self.monotonic() - self._started + self.wall

    def moment(self, monotonic):
        """Return when this clock says so."""
        return (monotonic - self._zero) / self._speed

    def moment_in(self, seconds):
        """Return when it says that so many seconds have passed."""
        return TIME.now + seconds / self._speed

    def run_at(self, speed):
        """Go faster or slower from now on."""
        self._zero, self._speed = self.monotonic() - TIME.now * speed, speed


class Time:
    """What time it is.

    Attributes:
        now: seconds since the beginning of the history.
        clock: that of the process whose code runs.
    """

    def __init__(self):
        self.now, self.clock = 0.0, Clock()


TIME = Time()


def install():
    """Let all code in this process read the clock of the simulation."""

    def monotonic():
        return TIME.clock.monotonic()

    def wall():
        return TIME.clock.time()

    time.monotonic, time.time = monotonic, wall
    downloader.monotonic = monotonic  # it has imported the name
