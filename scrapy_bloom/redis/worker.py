"""One worker: its lease, and how it deals with outages."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import redis
from redis.cluster import RedisCluster

from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.client import FAULTS, RETRY, Server, beginning, script
from scrapy_bloom.redis.connection import NotConnectedError, by

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_TRIES: Final = 10
"""A request goes to the failed list after this many workers have died with it."""


def new_name() -> str:
    """Return a unique name for a worker."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(6)}"


def _abandonable(act: Callable[[], T], deadline: float) -> T:
    """Return the result of a function that runs in a thread of its own.

    What takes too long is abandoned there. A late script does no more than a repeated one.

    :raises redis.TimeoutError: if it took too long.
    """
    late = redis.TimeoutError("no answer in time")
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise late
    came: Future[T] = Future()

    def run() -> None:
        try:
            came.set_result(act())
        except BaseException as error:  # noqa: BLE001 - re-raised in the waiting thread
            came.set_exception(error)

    threading.Thread(target=run, name="scrapy-bloom call", daemon=True).start()
    try:
        return came.result(seconds)
    except NotInTime:
        if came.done():  # just now
            return came.result()
        raise late from None


class Worker:
    """Runs scripts on a server, and renews this worker's lease there.

    :param server: to which it connects.
    :param timeout: most seconds that one call may take, including its retry.
    :raises BackendError: if the server cannot be reached.

    Attributes:
        client: of redis-py; safe to use from any thread.
        error: of the last failed call.
        usable: set while the server is available, as far as is known.
        round_trips: calls to Redis.
        outages: how often Redis became unavailable.
        requeued: requests of dead workers that this one put back.
    """

    def __init__(self, server: Server, timeout: float) -> None:
        self.address = server.address()
        self.timeout = timeout
        self.round_trips = self.outages = self.requeued = 0
        self.usable = threading.Event()
        self.usable.set()
        self.error = BackendError("")
        self._server = server
        self._scripts: dict[str, Any] = {}
        self._failing = threading.Lock()  # heartbeats fail in a thread of their own
        self._reported, self._warned = ("", float("-inf")), False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self.client: Any = _abandonable(
                lambda: server.connect(timeout), time.monotonic() + timeout
            )
        except redis.TimeoutError as error:
            raise server.error(error) from None

    def explained(self) -> AbstractContextManager[None]:
        """Turn what the client raises into a :class:`BackendError`."""
        return self._server.explained()

    def run(self, name: str, key: str, *arguments: object, probe: bool = False) -> list[Any]:
        """Run a script of ``lua/`` on a key; return its answer.

        :param probe: whether to try even if the last call failed.
        :raises BackendError: if there was no answer. The script may have run.
        """
        if not (probe or self.usable.is_set()):
            raise self.error
        run = self._scripts.get(name)
        if run is None:
            run = self._scripts[name] = self.client.register_script(script(name))
        self.round_trips += 1
        try:
            answer = self._with_deadline(lambda: run([key, beginning(key)], arguments))
            if not isinstance(answer, list) or not answer or not isinstance(answer[0], bytes):
                self.client.close()  # the next reply on it would not be ours either
                raise redis.InvalidResponse(f"cannot understand its answer {answer!r:.80}")
        except FAULTS as error:
            self._fail(self._server.error(error))
            raise self.error from None
        if not self.usable.is_set():
            self.usable.set()
            if self._warned:
                self._warned = False
                logger.info("Redis at %s is available again.", self.address)
        return answer

    def _with_deadline(self, act: Callable[[], T]) -> T:
        """Return the result of a function that calls the server, unless it takes too long.

        A thread of its own costs more than the call. So only what has to connect gets one, for
        nothing bounds a name lookup, and what calls a cluster.

        :raises redis.TimeoutError: if it took too long.
        """
        deadline = time.monotonic() + self.timeout
        nobody_waits = threading.current_thread() is self._thread

        def once() -> T:
            if nobody_waits:
                return act()
            try:
                return by(deadline, act)
            except NotConnectedError:
                return _abandonable(act, deadline)

        if isinstance(self.client, RedisCluster):
            return act() if nobody_waits else _abandonable(act, deadline)
        return RETRY.call_with_retry(once, lambda _: None)

    def _fail(self, error: BackendError) -> None:
        """Record that the server is unavailable, and log that once a minute."""
        with self._failing:
            now, begins = time.monotonic(), self.usable.is_set()
            self.error = error
            self.outages += begins
            self.usable.clear()
            text, since = self._reported
            if self._thread is None:
                return  # nobody tries again: its caller reports it
            if now - since > upkeep.WARN or (begins and text != str(error)):
                self._reported, self._warned = (str(error), now), True
                logger.warning("%s Retrying.", error)

    def start_heartbeats(self, beat: Callable[[], object]) -> None:
        """Call this some times a lease in a thread of its own, and more often during an outage."""
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._live, args=(beat, self._stop), name="scrapy-bloom lease", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the heartbeats, and close the connection."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self.timeout)
        if isinstance(self.client, RedisCluster):
            # Its close() leaves them open.
            self.client.disconnect_connection_pools()  # type: ignore[no-untyped-call]
        self.client.close()

    def _live(self, beat: Callable[[], object], stop: threading.Event) -> None:
        while not stop.wait(upkeep.LEASE / upkeep.BEATS if self.usable.is_set() else upkeep.RETRY):
            try:
                beat()
            except BackendError:  # noqa: PERF203 - after a call over the network
                continue  # already logged
            except Exception:
                logger.exception("Unexpected error while renewing the lease; retrying")
