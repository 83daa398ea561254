"""An end for what takes long: no wait for the network goes on after the deadline of its call.

A socket's time-out is for one step. A reply that comes in single bytes, a name that nobody resolves
and a host of many addresses take many steps, and resolving has no time-out at all.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDoneError
from functools import cache
from socket import socket
from typing import Any, Final

from redis import ConnectionPool
from redis.connection import Connection

_NEARLY: Final = 0.9


class _Deadline(threading.local):
    at = math.inf  # of the clock time.monotonic()


_deadline = _Deadline()


class Within:
    """Limits how long the code in a ``with`` statement waits for the network, in total.

    This holds for the current thread, and for clients whose connections are :func:`bounded`.
    """

    __slots__ = ("_outer", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._outer = _deadline.at
        _deadline.at = min(self._outer, time.monotonic() + self._seconds)

    def __exit__(self, *_: object) -> None:
        _deadline.at = self._outer


@cache
def bounded(kind: Any) -> type[Connection]:
    """Return a class of connections that keep the deadline of their call."""

    class Bounded(kind):  # type: ignore[misc]
        def _connect(self) -> Any:
            limit = min(self.socket_connect_timeout, _deadline.at - time.monotonic())
            return _BoundedSocket(_beside(super()._connect, limit))

    return Bounded


class BoundedPool(ConnectionPool):
    """A pool of such connections."""

    def __init__(self, connection_class: Any = Connection, **options: Any) -> None:
        super().__init__(connection_class=bounded(connection_class), **options)


class _BoundedSocket:
    """A socket whose reads end at the deadline; sending has one time-out for all its steps."""

    __slots__ = ("_shortened", "_socket", "_timeout")

    def __init__(self, connected: socket) -> None:
        self._socket = connected
        self._timeout = connected.gettimeout()
        self._shortened = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._shortened = False
        self._socket.settimeout(timeout)

    def recv(self, *arguments: Any) -> bytes:
        self._shorten()
        return self._socket.recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        self._shorten()
        return self._socket.recv_into(*arguments)

    def _shorten(self) -> None:
        timeout = self._timeout
        if not timeout:  # it does not wait
            return
        left = _deadline.at - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        # The first read of a call has nearly all of the time: it needs no change, which costs.
        shorten = left < _NEARLY * timeout
        if shorten or self._shortened:
            self._socket.settimeout(left if shorten else timeout)
            self._shortened = shorten


def _beside(connect: Callable[[], socket], limit: float) -> socket:
    """Connect in another thread, and leave it alone if it takes longer than the limit.

    :raises TimeoutError: if it does.
    """
    connected: Future[socket] = Future()

    def work() -> None:
        try:
            connected.set_result(connect())
        except BaseException as error:  # noqa: BLE001 - raised below
            connected.set_exception(error)

    if limit <= 0:
        raise TimeoutError("timed out")
    threading.Thread(target=work, name="scrapy-bloom connect", daemon=True).start()
    try:
        return connected.result(limit)
    except NotDoneError:
        connected.add_done_callback(_hang_up)
        raise TimeoutError("timed out") from None


def _hang_up(connected: Future[socket]) -> None:
    if connected.exception() is None:
        connected.result().close()
