"""A network on loopback that is slower than it: a proxy in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from contextlib import suppress
from selectors import SelectSelector

from typing_extensions import Self


class SlowNetwork:
    """Stands before a server, as a context manager, and adds to the time of a round trip.

    :param port: the server's, on loopback.
    :param delay: seconds.
    """

    def __init__(self, port: int, delay: float) -> None:
        self._upstream, self._delay = port, delay

    def __enter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = listener.getsockname()[1]
        self._process = multiprocessing.get_context("fork").Process(
            target=_run, args=(listener, self._upstream, self._delay), daemon=True
        )
        self._process.start()
        listener.close()
        return self

    @property
    def url(self) -> str:
        """The address of the server's first database, by this way."""
        return f"redis://127.0.0.1:{self._port}/0"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def _run(listener: socket.socket, upstream: int, delay: float) -> None:
    # Other selectors wait for whole milliseconds.
    loop = asyncio.SelectorEventLoop(SelectSelector())
    loop.run_until_complete(_serve(listener, upstream, delay))


async def _serve(listener: socket.socket, upstream: int, delay: float) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            answers, requests = await asyncio.open_connection("127.0.0.1", upstream)
            await asyncio.gather(_carry(reader, requests, delay), _carry(answers, writer, 0.0))

    server = await asyncio.start_server(connect, sock=listener)
    await server.serve_forever()


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: float) -> None:
    """Deliver each piece so much later, however many are under way."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await source.read(1 << 20):
            loop.call_later(delay, sink.write, data)
    loop.call_later(delay, sink.close)
