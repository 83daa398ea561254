"""One call to a server after the other, beside the crawl, each as soon as it is due."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from scrapy_bloom.errors import BackendError, BloomError, FilterLostError
from scrapy_bloom.frontier.clock import call_later
from scrapy_bloom.frontier.lane import Lane

logger = logging.getLogger(__name__)

_RETRY, _SLOWEST_RETRY = 0.1, 1.0  # seconds between two tries while the server cannot be used


class Call(NamedTuple):
    """A call to the server.

    Attributes:
        make: makes it, in the lane.
        succeeded: gets the answer, in the event loop.
    """

    make: Callable[[], Any]
    succeeded: Callable[[Any], object]


class Caller:
    """Makes calls, tries again what fails, and gives up when that lasts too long.

    :param choose: returns the next call, or for how many seconds there is none.
    :param patience: seconds for which calls may fail; 0 if the first failure is one too many.
    :param give_up: called once, with the error.
    """

    def __init__(
        self,
        choose: Callable[[float], Call | float],
        *,
        patience: float,
        give_up: Callable[[BloomError], object],
    ) -> None:
        self._choose = choose
        self._patience = patience
        self._give_up = give_up
        self._lane = Lane()
        self._calling = False
        self._stopped = False
        self._retry = _RETRY
        self._retry_at = 0.0
        self._out_since: float | None = None
        self._timer: Any = None
        self._timer_at = 0.0
        self.given_up = False
        self.failing = False

    def soon(self, seconds: float = 0) -> None:
        """Have the next call chosen in the next turn of the event loop, or a little later."""
        if not self._calling and not self._stopped:
            self._arm(seconds)

    def stop(self, last: Callable[[], object], then: Callable[[object], object]) -> None:
        """Make one more call, which never raises, and none after that."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._lane.call(last, then, then)
        self._lane.stop()

    def _arm(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._turn()

    def _turn(self) -> None:
        if self._calling or self._stopped:
            return
        now = time.monotonic()
        call = self._choose(now) if now >= self._retry_at else self._retry_at - now
        if isinstance(call, Call):
            self._calling = True
            self._lane.call(call.make, partial(self._succeeded, call.succeeded), self._failed)
        elif not self._stopped:  # which may be what it has chosen
            self._arm(call)

    def _succeeded(self, use: Callable[[Any], object], answer: Any) -> None:
        self._calling = self.failing = False
        self._out_since = None
        self._retry = _RETRY
        try:
            use(answer)
        finally:
            self._turn()

    def _failed(self, error: Exception) -> None:
        self._calling = False
        self.failing = True
        now = time.monotonic()
        if self._out_since is None:
            self._out_since = now
        if not isinstance(error, BloomError):
            logger.error("A call to Redis failed unforeseen; it is tried again", exc_info=error)
            error = BackendError(f"Calls to Redis fail: {error!r}")
        may_pass = isinstance(error, BackendError) and not isinstance(error, FilterLostError)
        if not self.given_up and not (may_pass and now - self._out_since < self._patience):
            self.given_up = True
            self._give_up(error)
        self._retry_at = now + self._retry
        self._retry = min(_SLOWEST_RETRY, 2 * self._retry)
        self._turn()
