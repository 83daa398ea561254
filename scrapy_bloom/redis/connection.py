"""Connections of redis-py on which no call takes longer than it may. What they override is private.

The timeout of a socket bounds each read, but not a reply that arrives byte by byte; and nothing
bounds a name lookup while connecting. So a thread sets a deadline for all its reads and writes; and
until then it uses only connections that exist: somebody else has to connect, in a thread that may
be abandoned.

A call cannot shrink when it is repeated. So that it comes through a slow link in the end, its
deadline moves with each byte that it carries, to and fro.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from functools import cache
from time import monotonic
from typing import Any, Final, TypeVar

import redis
from redis.connection import Connection, ConnectionPool

T = TypeVar("T")

_SLOWEST: Final = 100_000
"""Bytes a second of a link that carries every call in time."""

_MUCH: Final = 0.01
"""Seconds below which what was sent changes no timeout: to set one costs a system call."""

_thread = threading.local()  # its `deadline` and whether it `connects`, if it has a deadline


class NotConnectedError(Exception):
    """The call needs a connection, and nothing was sent."""


class HandshakeError(redis.RedisError):
    """Something listens there, and does not answer in TLS."""


class Deadline:
    """When a call must be over: the later, the more it carries.

    :param seconds: that a call may take which carries next to nothing.
    :param patience: how many times as long a byte may take as on the slowest link that is expected.

    Attributes:
        at: by ``time.monotonic()``.
    """

    def __init__(self, seconds: float, patience: float = 1.0) -> None:
        self.at = monotonic() + seconds
        self._per_byte = patience / _SLOWEST

    def carry(self, size: int) -> float:
        """Move it by the time that so many bytes may take; return that time."""
        seconds = size * self._per_byte
        self.at += seconds
        return seconds

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.at - monotonic()


def by(deadline: Deadline, act: Callable[[], T], *, connects: bool = False) -> T:
    """Return the result of a function that calls a server.

    :param connects: whether it may connect; else it uses connections that exist.
    :raises NotConnectedError: if it may not, and there is none.
    """
    _thread.deadline, _thread.connects = deadline, connects
    try:
        return act()
    finally:
        _thread.deadline = None


def in_time(client: Any) -> Any:
    """Return a client whose connections, all of which are still to be made, heed deadlines."""
    pool = client.connection_pool
    pool.connection_class = _with_deadlines(pool.connection_class)
    return client


class Pool(ConnectionPool):
    """A pool of connections that heed deadlines, for each node of a cluster."""

    def __init__(self, connection_class: type[Any] = Connection, **options: Any) -> None:
        with_deadlines: Any = _with_deadlines
        super().__init__(connection_class=with_deadlines(connection_class), **options)


@cache
def _with_deadlines(base: type[Any]) -> type[Any]:

    class WithDeadlines(base):  # type: ignore[misc]
        def _connect(self) -> _Socket:
            if _deadline() is not None and not _thread.connects:
                raise NotConnectedError
            try:
                return _Socket(super()._connect())
            except (ssl.SSLError, TimeoutError) as error:
                named = isinstance(error, ssl.SSLCertVerificationError)
                if named or not ("ssl" in str(error).lower() or "handshake" in str(error)):
                    raise
                raise HandshakeError(str(error)) from None

    return WithDeadlines


def _deadline() -> Deadline | None:
    return getattr(_thread, "deadline", None)


class _Socket:
    """A socket that waits no longer than until its thread's deadline."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._timeout = self._set = socket.gettimeout()
        self._carried = 0.0  # seconds that what was sent may take, until a reply begins

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def recv(self, *arguments: Any) -> bytes:
        self._limit()
        received: bytes = self._socket.recv(*arguments)
        self._receive(len(received))
        return received

    def recv_into(self, *arguments: Any) -> int:
        self._limit()
        received: int = self._socket.recv_into(*arguments)
        self._receive(received)
        return received

    def sendall(self, data: bytes) -> None:
        # Systems take what is sent long before it has left.
        self._carried += (_deadline() or Deadline(0.0)).carry(len(data))
        self._limit()
        self._socket.sendall(data)

    def _receive(self, size: int) -> None:
        self._carried = 0.0
        if (deadline := _deadline()) is not None:
            deadline.carry(size)

    def _limit(self) -> None:
        """Set the timeout of the next operation.

        :raises TimeoutError: if it is too late for that.
        """
        timeout, deadline = self._timeout, _deadline()
        if timeout:
            timeout += self._carried if self._carried > _MUCH else 0.0
            if deadline is not None:
                if deadline.left <= 0:
                    raise TimeoutError("timed out")
                timeout = min(timeout, deadline.left)
        if timeout != self._set:  # which costs a system call
            self._socket.settimeout(timeout)
            self._set = timeout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
