"""A network on loopback that is slower than it: a proxy in a process of its own."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from contextlib import suppress
from queue import SimpleQueue

from typing_extensions import Self


class SlowNetwork:
    """Stands before a server, as a context manager, and adds to the time of a round trip.

    :param port: the server's, on loopback.
    :param delay: seconds.

    Attributes:
        port: where clients find it, on loopback.
    """

    def __init__(self, port: int, delay: float) -> None:
        self._upstream = port
        self._delay = delay

    @property
    def url(self) -> str:
        """The address of the server's first database, by this way."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(listener, self._upstream, self._delay), daemon=True
        )
        self._process.start()
        listener.close()
        return self

    def __exit__(self, *_: object) -> None:
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
        _copy_slowly(client, server, delay)


def _copy_slowly(client: socket.socket, server: socket.socket, delay: float) -> None:
    for source, sink, late in ((client, server, delay), (server, client, 0.0)):
        under_way: _UnderWay = SimpleQueue()
        threading.Thread(target=_take, args=(source, under_way, late), daemon=True).start()
        threading.Thread(target=_deliver, args=(under_way, sink), daemon=True).start()


_UnderWay = SimpleQueue[tuple[float, bytes]]
"""What is on its way, each piece with the moment at which it arrives; an empty one is the end."""


def _take(source: socket.socket, under_way: _UnderWay, delay: float) -> None:
    data = b"some"
    while data:
        try:
            data = source.recv(1 << 20)
        except OSError:
            data = b""
        under_way.put((time.perf_counter() + delay, data))


def _deliver(under_way: _UnderWay, sink: socket.socket) -> None:
    with suppress(OSError):
        while True:
            until, data = under_way.get()
            # Sleeping alone adds the system's timer slack, a tenth of what is to be added.
            if (left := until - time.perf_counter()) > _SLACK:
                time.sleep(left - _SLACK)
            while time.perf_counter() < until:
                pass
            if not data:
                break
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


_SLACK = 0.0001
