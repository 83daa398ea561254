"""The threads that keep a worker registered, and look for the end of an outage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Final, Protocol

from scrapy_bloom.redis import pace

logger = logging.getLogger(__name__)

_SLOW: Final = 0.5  # seconds; if a beat takes longer, the node is assumed to hang


class Beating(Protocol):
    """What a heartbeat calls: a shard."""

    def beat(self) -> bool:
        """Renew the lease; return whether the server is usable."""

    def node(self) -> str:
        """Return the name of the node that has the shard now."""


class Heartbeat(threading.Thread):
    """Renews the worker's leases, and looks for the end of outages, beside the crawl.

    The shards of each node have their own thread: a node that hangs must not delay the leases on
    the other nodes.

    :param shards: each is called about once a second.
    :param alarm: makes the next beat come at once.
    """

    def __init__(self, shards: Sequence[Beating], alarm: threading.Event) -> None:
        super().__init__(name="scrapy-bloom heartbeat", daemon=True)
        self._shards = shards
        self._alarm = alarm
        self._lanes: dict[str, _Lane] = {}
        self._stopped = False

    def run(self) -> None:
        """Beat until told to stop."""
        pause = pace.BEAT
        while True:
            alarmed = self._alarm.wait(pause)
            self._alarm.clear()
            if self._stopped:
                break
            by_node: dict[str, list[Beating]] = {}
            for shard in self._shards:
                by_node.setdefault(shard.node(), []).append(shard)
            for node, shards in by_node.items():
                lane = self._lanes.setdefault(node, _Lane())
                if alarmed or lane.due <= time.monotonic():
                    lane.beat(shards, here=len(by_node) == 1)
            well = all(self._lanes[node].well for node in by_node)
            pause = pace.BEAT if well else pace.BEAT_IN_OUTAGE
        for lane in self._lanes.values():
            lane.stop()

    def stop(self) -> None:
        """End the threads, and wait for the beats that are under way."""
        self._stopped = True
        self._alarm.set()
        self.join()


def _beat(shard: Beating) -> bool:
    try:
        return shard.beat()
    except Exception:
        # Without a heartbeat the lease would end, and no outage would.
        logger.exception("A lease could not be renewed; the next heartbeat tries again.")
        return False


class _Lane:
    """Beats the shards of one node, one after the other.

    Attributes:
        due: when the next round is due, on the monotonic clock.
        well: whether all was well in the last round.
    """

    def __init__(self) -> None:
        self.due = 0.0
        self.well = True
        self._busy = False
        self._first = 0
        self._rounds: SimpleQueue[Sequence[Beating] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def beat(self, shards: Sequence[Beating], *, here: bool) -> None:
        """Begin a round unless the last one is still under way.

        :param here: whether to beat in the caller's thread.
        """
        if self._busy:
            return
        if here:
            self._round(shards)
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="scrapy-bloom heartbeat", daemon=True
            )
            self._thread.start()
        self._busy = True
        self.well = False  # until the round has shown that all is well
        self._rounds.put(shards)

    def stop(self) -> None:
        """End the thread, if there is one."""
        if self._thread is not None:
            self._rounds.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (shards := self._rounds.get()) is not None:
            self._round(shards)
            self._busy = False

    def _round(self, shards: Sequence[Beating]) -> None:
        well = True
        first, count = self._first, len(shards)
        for i in range(first, first + count):
            began = time.monotonic()
            well = _beat(shards[i % count]) and well
            if time.monotonic() - began > _SLOW:  # the node hangs: ask it for another one next time
                self._first = (i + 1) % count
                break
        self.well = well
        self.due = time.monotonic() + (pace.BEAT - pace.BEAT_IN_OUTAGE if well else 0)
