"""When a crawl of many workers is over: no request waits, and none is under way anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from scrapy_bloom.redis.queue.base import State

_FRESH: Final = 1.0  # seconds for which a finding holds; another worker may push at any moment


class Ending:
    """Finds out whether the crawl is over, from looks at the queue while this worker is idle.

    The shards of a queue are looked at one after the other, and a request may pass from one that is
    looked at later to one that was looked at before. So two looks in a row must find nothing, and
    no change between them: then there was a moment at which no shard had anything.

    :param clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle = False
        self._last: State | None = None
        self._since: float | None = None

    @property
    def wants_look(self) -> bool:
        """Whether another look may show that the crawl is over."""
        return self._idle and not self.over

    @property
    def over(self) -> bool:
        """Whether the crawl was over a moment ago."""
        return self._since is not None and self._clock() - self._since < _FRESH

    def idle(self) -> None:
        """Note that this worker has nothing to do."""
        if not self.over:
            self._since = None
            self._idle = True

    def busy(self) -> None:
        """Note that this worker has something to do: what was seen before says nothing."""
        self._idle = False
        self._last = self._since = None

    def saw(self, state: State) -> bool:
        """Learn of a look; return whether it has shown that the crawl is over."""
        if not self._idle:
            return False
        empty = not state.waiting and not state.elsewhere
        if empty and self._last == state:
            self._since = self._clock()
            return True
        self._last = state if empty else None
        return False
