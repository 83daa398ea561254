"""Networks on loopback that are worse than it: proxies, each in a process of its own.

One adds a round-trip time, one loses replies.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from types import TracebackType

from typing_extensions import Self

Relay = Callable[[socket.socket, socket.socket], object]
"""Takes a client's connection and one to the server, and begins to copy between them."""


class _Network:
    """Stands before a server, as a context manager.

    Attributes:
        port: where clients find it, on loopback.
    """

    def __init__(self, port: int, relay: Relay) -> None:
        self._upstream = port
        self._relay = relay

    @property
    def url(self) -> str:
        """The address of the server's first database, by this way."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(listener, self._upstream, self._relay), daemon=True
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


class SlowNetwork(_Network):
    """Adds to the time of a round trip.

    :param port: the server's, on loopback.
    :param delay: seconds.
    """

    def __init__(self, port: int, delay: float) -> None:
        super().__init__(port, partial(_copy_slowly, delay=delay))


class LossyNetwork(_Network):
    """Resets the connection instead of a reply: the server has carried out what was asked.

    :param port: the server's, on loopback.
    :param counted: only requests that have one of these bytes in them count.
    :param every: of so many counted requests the last one gets no reply.
    """

    def __init__(self, port: int, counted: tuple[bytes, ...], every: int) -> None:
        self._lost = multiprocessing.Value("L")
        asked = count(1)

        def is_lost(request: bytes) -> bool:
            """Count a request; return whether its reply gets lost."""
            if not any(word in request for word in counted) or next(asked) % every:
                return False
            with self._lost:
                self._lost.value += 1
            return True

        super().__init__(port, partial(_lose_replies, is_lost=is_lost))

    @property
    def lost(self) -> int:
        """How many replies got lost so far."""
        return int(self._lost.value)


def _serve(listener: socket.socket, upstream: int, relay: Relay) -> None:
    while True:
        client, _ = listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", upstream))
        except OSError:
            client.close()
            continue
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        relay(client, server)


def _copy_slowly(client: socket.socket, server: socket.socket, *, delay: float) -> None:
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


def _lose_replies(
    client: socket.socket, server: socket.socket, *, is_lost: Callable[[bytes], bool]
) -> None:
    losing = threading.Event()

    def requests() -> None:
        with suppress(OSError):
            while request := client.recv(1 << 20):
                if is_lost(request):
                    losing.set()
                server.sendall(request)
            server.shutdown(socket.SHUT_RDWR)

    def replies() -> None:
        with suppress(OSError):
            while reply := server.recv(1 << 20):
                if losing.is_set():
                    # With this option, closing resets the connection.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.shutdown(socket.SHUT_RD)
                    break
                client.sendall(reply)
        client.close()
        server.close()

    for work in (requests, replies):
        threading.Thread(target=work, daemon=True).start()
