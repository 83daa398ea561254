"""A network on loopback: a proxy, in a process of its own, that adds a round-trip time."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType

from typing_extensions import Self


class SlowNetwork:
    """Stands before a server, as a context manager.

    :param port: the server's, on loopback.
    :param delay: seconds added to a round trip.
    """

    def __init__(self, port: int, delay: float) -> None:
        self._upstream = port
        self._delay = delay

    def __enter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(listener, self._upstream, self._delay), daemon=True
        )
        self._process.start()
        listener.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.join()


def _serve(listener: socket.socket, upstream: int, delay: float) -> None:
    while True:
        client, _ = listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", upstream))
        except OSError:
            client.close()
            continue
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_copy, args=(client, server, delay), daemon=True).start()
        threading.Thread(target=_copy, args=(server, client, 0.0), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket, delay: float) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 20):
            until = time.perf_counter() + delay
            # Sleeping alone adds the system's timer slack, a tenth of what is to be added.
            if delay > _SLACK:
                time.sleep(delay - _SLACK)
            while time.perf_counter() < until:
                pass
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


_SLACK = 0.0001
