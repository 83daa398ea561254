"""Connections of redis-py on which no call takes longer than it may. What they override is private.

The timeout of a socket bounds each read, but not a reply that arrives byte by byte; and nothing
bounds a name lookup while connecting. So a thread sets a deadline for all its reads and writes; and
until then it uses only connections that exist: somebody else has to connect, in a thread that may
be abandoned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")

_thread = threading.local()  # its `deadline`: by monotonic(), if it has one


class NotConnectedError(Exception):
    """The call needs a connection, and nothing was sent."""


def by(deadline: float, act: Callable[[], T]) -> T:
    """Return the result of a function that calls a server, on connections that exist.

    :param deadline: by ``time.monotonic()``.
    :raises NotConnectedError: if there is none.
    """
    _thread.deadline = deadline
    try:
        return act()
    finally:
        _thread.deadline = None


def in_time(client: Any) -> Any:
    """Return a client whose connections, all of which are still to be made, heed deadlines."""
    pool = client.connection_pool
    pool.connection_class = _with_deadlines(pool.connection_class)
    return client


@cache
def _with_deadlines(base: type[Any]) -> type[Any]:

    class WithDeadlines(base):  # type: ignore[misc]
        def _connect(self) -> _Socket:
            if getattr(_thread, "deadline", None) is not None:
                raise NotConnectedError
            return _Socket(super()._connect())

    return WithDeadlines


class _Socket:
    """A socket that waits no longer than until its thread's deadline."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._timeout = self._set = socket.gettimeout()

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def recv(self, *arguments: Any) -> bytes:
        self._limit()
        received: bytes = self._socket.recv(*arguments)
        return received

    def recv_into(self, *arguments: Any) -> int:
        self._limit()
        received: int = self._socket.recv_into(*arguments)
        return received

    def sendall(self, data: bytes) -> None:
        self._limit()
        self._socket.sendall(data)

    def _limit(self) -> None:
        """Set the timeout of the next operation.

        :raises TimeoutError: if it is too late for that.
        """
        timeout, deadline = self._timeout, getattr(_thread, "deadline", None)
        if timeout and deadline is not None:
            left = deadline - monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            timeout = min(timeout, left)
        if timeout != self._set:  # which costs a system call
            self._socket.settimeout(timeout)
            self._set = timeout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
