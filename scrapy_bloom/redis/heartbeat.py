"""The thread that keeps a worker registered, and looks for the end of an outage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

INTERVAL: Final = 1.0
"""Seconds between two renewals of a worker's lease."""

_INTERVAL_IN_OUTAGE: Final = 0.25


class Heartbeat(threading.Thread):
    """Renews the worker's leases, and looks for the end of outages, beside the crawl.

    :param beats: called about once a second; each renews one lease and returns whether all is well.
    :param alarm: makes the next beat come at once.
    """

    def __init__(self, beats: Iterable[Callable[[], bool]], alarm: threading.Event) -> None:
        super().__init__(name="scrapy-bloom heartbeat", daemon=True)
        self._beats = tuple(beats)
        self._alarm = alarm
        self._stopped = False

    def run(self) -> None:
        """Beat until told to stop."""
        pause = INTERVAL
        while True:
            self._alarm.wait(pause)
            self._alarm.clear()
            if self._stopped:
                return
            well = [beat() for beat in self._beats]
            pause = INTERVAL if all(well) else _INTERVAL_IN_OUTAGE

    def stop(self) -> None:
        """End the thread; returns when a beat that is under way is over."""
        self._stopped = True
        self._alarm.set()
        self.join()
