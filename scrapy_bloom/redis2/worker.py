"""One worker: its lease, and what it does while the server cannot be used."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis

from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis2.client import FAULTS, Target, beginning, script

logger = logging.getLogger(__name__)

LEASE: float = 30.0
"""Seconds without a sign of life after which a worker counts as dead.

A callback that holds the GIL for 10 seconds must not look dead. Read when it is used, like BEAT: tests
make both shorter.
"""

BEAT: float = 1.0
"""Seconds between two signs of life."""

_BEAT_IN_OUTAGE: Final = 0.25

MOST_TRIES: Final = 10
"""A request is put aside when so many workers have died with it or could not read it."""


@dataclass
class Counters:
    """What went over the wire so far.

    Attributes:
        round_trips: calls to Redis.
        outages: how often it could not be used.
        requeued: requests of dead workers that this one put back.
        failed: requests that it put aside for :data:`MOST_TRIES`.
    """

    round_trips: int = 0
    outages: int = 0
    requeued: int = 0
    failed: int = 0


def new_name() -> str:
    """Return a name for a worker, never the same."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(6)}"


class Worker:
    """Runs scripts on a server, and keeps this worker's leases there.

    :param target: the server.
    :param timeout: most seconds that one call may take, its second try included.
    :raises BackendError: if there is no way in.

    Attributes:
        client: of redis-py; safe in any number of threads.
        usable: set while the server can be used, as far as is known.
        counters: what went over the wire.
    """

    def __init__(self, target: Target, timeout: float) -> None:
        self.where = target.where()
        self.timeout = timeout
        self.counters = Counters()
        self.client = target.connect(timeout)
        self.usable = threading.Event()
        self.usable.set()
        self._target = target
        self._scripts: dict[tuple[str, str], Any] = {}
        self._error = BackendError("")
        self._beats: list[Callable[[], object]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def run(
        self, name: str, layout: str, key: str, *arguments: object, probe: bool = False
    ) -> list[Any]:
        """Run a script of ``lua/`` on the shard under a key; return its answer.

        :param probe: whether to try although the server could not be used just now.
        :raises BackendError: if no answer came. The script may have run.
        """
        if not (probe or self.usable.is_set()):
            raise self._error
        run = self._scripts.get((name, layout))
        if run is None:
            run = self._scripts[name, layout] = self.client.register_script(script(name, layout))
        self.counters.round_trips += 1
        try:
            answer = run([key, beginning(key)], arguments)
            if not isinstance(answer, list) or not answer or not isinstance(answer[0], bytes):
                raise redis.InvalidResponse(f"cannot understand its answer {answer!r:.80}")
        except FAULTS as error:
            self._error = self._target.error(error, layout)
            if self.usable.is_set() and self._error.temporary:
                self.counters.outages += 1
                self.usable.clear()
            raise self._error from None
        self.usable.set()
        return answer

    def live(self, beats: Sequence[Callable[[], object]]) -> None:
        """Call these once a second in a thread of their own, and more often during an outage."""
        self._beats = list(beats)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._live, args=(self._stop,), name="scrapy-bloom lease", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the signs of life and the connection."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self.timeout)
        self.client.close()

    def _live(self, stop: threading.Event) -> None:
        while not stop.wait(BEAT if self.usable.is_set() else _BEAT_IN_OUTAGE):
            for number, beat in enumerate(self._beats):
                try:
                    beat()
                except BackendError:
                    # The others first the next time: a node that hangs must not end their leases.
                    self._beats = self._beats[number + 1 :] + self._beats[: number + 1]
                    break
                except Exception:
                    logger.exception("Unexpected error while renewing the lease; retrying")
                    break


def age(since: float) -> float:
    """Return how many seconds ago a moment of ``time.monotonic()`` was."""
    return time.monotonic() - since
