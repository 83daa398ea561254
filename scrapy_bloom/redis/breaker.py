"""What a worker does while Redis cannot be used, and how it learns that it can be again.

A check that fails opens the circuit: until the heartbeat, a thread, has found the server usable, no
check tries again, and an outage costs the crawl the time of one check.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from scrapy_bloom.errors import BackendError
from scrapy_bloom.options import OnBackendError
from scrapy_bloom.redis.counters import Counters
from scrapy_bloom.redis.options import RedisOptions

logger = logging.getLogger(__name__)

FIRST_HOLD: Final = 0.25  # seconds
_STEP: Final = 0.1  # seconds; how often a wait looks whether the process was told to stop
_MAX_HOLD: Final = 10.0  # seconds; for a server that takes connections, but then does not answer


class CircuitBreaker:
    """The circuit breaker of one server.

    :param where: the server, for the log.
    :param options: the policy, and how long to wait.
    :param counters: where outages and waiting are counted.
    :param alarm: set when an outage begins.
    """

    def __init__(
        self,
        where: str,
        options: RedisOptions,
        counters: Counters,
        alarm: threading.Event,
    ) -> None:
        self.policy = options.on_error
        self._where = where
        self._patience = options.wait
        self._left = options.wait
        self._stopped = options.stopped
        self._counters = counters
        self._reason = ""
        self._said: set[str] = set()
        self.alarm = alarm
        self._began = 0.0
        self._hold = 0.0
        self._not_before = 0.0
        self._may_try = threading.Event()
        self._may_try.set()

    @property
    def tripped(self) -> bool:
        """Whether Redis could not be used when it was last tried."""
        return bool(self._reason)

    @property
    def usable(self) -> bool:
        """Whether the next check may try."""
        return self._may_try.is_set()

    def check(self) -> None:
        """Return if a call may be tried now, after waiting for that if the policy says so.

        :raises BackendError: if not.
        """
        if self._may_try.is_set() or self.wait():
            return
        raise self.error()

    def error(self) -> BackendError:
        """Return an error that says why Redis cannot be used."""
        return BackendError(f"Redis at {self._where} {self._reason}")

    def trip(self, reason: str) -> None:
        """Note that a call has failed.

        :param reason: why, as the rest of a sentence that begins with the server's name.
        """
        now = time.monotonic()
        self._may_try.clear()
        self.alarm.set()
        if self.tripped:
            self._hold = min(_MAX_HOLD, 2 * self._hold + FIRST_HOLD)
            self._not_before = now + self._hold
            return
        self._reason = reason
        self._began = now
        self._counters.outages += 1
        # Each reason is logged once. Under `close` an error is raised, and its catcher logs that.
        silent = reason in self._said or self.policy is OnBackendError.CLOSE
        level = logging.DEBUG if silent else logging.ERROR
        self._said.add(reason)
        consequence = _CONSEQUENCE[self.policy].format(wait=self._patience)
        logger.log(level, "Redis at %s %s %s", self._where, reason, consequence)

    def allow_try(self) -> None:
        """Note that the heartbeat has reached the server: the next check may try."""
        if time.monotonic() >= self._not_before:
            self._may_try.set()

    def reset(self) -> None:
        """Note that a call has succeeded."""
        if not self.tripped:
            return
        logger.info(
            "Redis at %(where)s can be used again, after %(seconds).1f s.",
            {"where": self._where, "seconds": time.monotonic() - self._began},
        )
        self._reason = ""
        self._hold = 0.0
        self._left = self._patience

    def wait(self) -> bool:
        """Wait for the server if the policy allows it; return whether the server is back."""
        if self.policy is not OnBackendError.WAIT or self._left <= 0:
            return False
        start = time.monotonic()
        back = False
        while not back and (left := start + self._left - time.monotonic()) > 0:
            back = self._may_try.wait(min(left, _STEP))
            if self._stopped():
                self._left = 0.0
        waited = time.monotonic() - start
        self._left -= waited
        self._counters.waited += waited
        if not back:
            told = _OUT_OF_PATIENCE.format(wait=self._patience)
            logger.error("Redis at %s is still out: %s", self._where, told)
        return back


_CONSEQUENCE: Final = {
    OnBackendError.CLOSE: "",
    OnBackendError.ALLOW: "Until it is back, pages that this worker does not know are fetched, and"
    " not marked: they may be fetched again.",
    OnBackendError.WAIT: "The crawl stands still until it is back, for up to {wait:g} s.",
}

_OUT_OF_PATIENCE: Final = (
    "{wait:g} s are over, and the crawl goes on without it. Pages that this worker does not know"
    " are fetched, and not marked: they may be fetched again."
)
