"""A link to a server: it runs scripts there, and outlives outages."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import Any, Final

import redis
from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError

from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.client import FAULTS, RETRY, Server, beginning, is_elsewhere, script

logger = logging.getLogger(__name__)

_PASSWORDS: Final = 600.0
"""For so many seconds a server that has known a worker may refuse its password: it is changed."""


class Link:
    """Runs scripts on a server, and calls what renews a lease there.

    :param server: to which it connects.
    :param timeout: most seconds to wait for the server in a call, including its retry.
    :param calls: seconds to wait in each try of a call that is `large`; as others by default.
    :raises BackendError: if the server cannot be reached.

    Attributes:
        client: of redis-py; safe to use from any thread.
        error: of the last failed call.
        usable: set while the server is available, as far as is known.
        round_trips: calls to Redis.
        outages: how often Redis became unavailable.
    """

    def __init__(self, server: Server, timeout: float, calls: float | None = None) -> None:
        self.address, self._timeout = server.address(), timeout
        self.round_trips = self.outages = 0
        self.usable = threading.Event()
        self.usable.set()
        self.error = BackendError("")
        self._server, self._works = server, False
        self._denied_since = inf  # when it began to refuse the password
        self._scripts: dict[str, Any] = {}
        self._outage_lock = threading.Lock()  # heartbeats fail in a thread of their own
        self._reported, self._warned = ("", float("-inf")), False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.client: Any = server.connect(timeout)
        self._patient: Any = server.connect(timeout, calls) if calls else self.client
        self._is_cluster = isinstance(self.client, RedisCluster)

    def wait_for_large_calls(self, seconds: float) -> None:
        """Wait so long in each try of a call that is `large`, or as for others if that is longer.

        :raises BackendError: if the server cannot be reached.
        """
        self._patient = self._server.connect(self._timeout, max(seconds, self._timeout))

    def explained(self) -> AbstractContextManager[None]:
        """Turn what the client raises into a :class:`BackendError`."""
        return self._server.explained()

    def run(
        self,
        name: str,
        key: str,
        *arguments: object,
        probe: bool = False,
        large: bool = False,
        queue: Collection[str] = (),
    ) -> list[Any]:
        """Run a script of ``lua/`` on a key; return its answer.

        :param probe: whether to try even if the last call failed.
        :param large: whether it may carry requests.
        :param queue: another scheduler's key, if it uses one.
        :raises BackendError: if there was no answer. The script may have run.
        """
        if not (probe or self.usable.is_set()):
            raise self.error
        self.round_trips += 1
        client = self._patient if large else self.client
        act = partial(self._evaluate, client, name, (key, beginning(key), *queue), arguments)
        try:
            # The client of a cluster repeats by itself, at another node.
            again = RETRY.call_with_retry
            answer = act() if self._is_cluster else again(act, lambda _: None)
            if not isinstance(answer, list) or not answer or not isinstance(answer[0], bytes):
                client.close()  # the next reply on it would not be ours either
                raise redis.InvalidResponse(f"cannot understand its answer {answer!r:.80}")
        except FAULTS as error:
            self._fail(error)
            raise self.error from None
        self._works, self._denied_since = True, inf
        if not self.usable.is_set():
            self.usable.set()
            if self._warned:
                self._warned = False
                logger.info("Redis at %s is available again.", self.address)
        return answer

    def _evaluate(
        self, client: Any, name: str, keys: tuple[str, ...], arguments: tuple[object, ...]
    ) -> Any:
        run = self._scripts.get(name)
        if run is None:
            run = self._scripts[name] = client.register_script(script(name))
        evaluate = partial(client.evalsha, run.sha, len(keys), *keys, *arguments)
        try:
            return evaluate()
        except NoScriptError:
            here: dict[str, Any] = {}
            if self._is_cluster:  # another node may be down
                here = {"target_nodes": client.get_node_from_key(keys[0])}
            client.execute_command("SCRIPT LOAD", run.script, **here)
            return evaluate()

    def _fail(self, cause: Exception) -> None:
        """Record that the server is unavailable, and log that once a minute."""
        if is_elsewhere(cause) and not self._is_cluster:
            # A name, a balancer or the Sentinels may lead to another server by now.
            for client in (self.client, self._patient):
                client.connection_pool.disconnect(inuse_connections=False)
        with self._outage_lock:
            now, begins = time.monotonic(), self.usable.is_set()
            if isinstance(cause, redis.AuthenticationError):
                self._denied_since = min(now, self._denied_since)
            worked = self._works and now - self._denied_since < _PASSWORDS
            self.error = error = self._server.error(cause, worked=worked)
            self.outages += begins
            self.usable.clear()
            text, since = self._reported
            if self._thread is None:
                return  # nobody tries again: its caller reports it
            if now - since > upkeep.WARN or (begins and text != str(error)):
                self._reported, self._warned = (str(error), now), True
                logger.warning("%s Retrying.", error)

    def start_heartbeats(self, beat: Callable[[], object]) -> None:
        """Call this some times a lease in a thread of its own, and more often during an outage.

        It takes the place of what was called before.
        """
        self._stop.set()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._live, args=(beat, self._stop), name="scrapy-bloom lease", daemon=True
        )
        self._thread.start()

    def pause(self, seconds: float) -> bool:
        """Let a heartbeat wait; return whether it is to go on."""
        return not self._stop.wait(seconds)

    def close(self) -> None:
        """Stop the heartbeats, and close the connections."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._timeout)
        for client in (self.client, self._patient):
            if self._is_cluster:
                client.disconnect_connection_pools()  # its close() leaves them open
            client.close()

    def _live(self, beat: Callable[[], object], stop: threading.Event) -> None:
        while not stop.wait(upkeep.LEASE / upkeep.BEATS if self.usable.is_set() else upkeep.RETRY):
            try:
                beat()
            except BackendError:  # after a call over the network
                continue  # already logged
            except Exception:
                logger.exception("Unexpected error while renewing the lease; retrying")
