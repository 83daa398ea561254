"""A site of many hosts that notes when each of them is asked; as a program, it serves it.

The hosts are the addresses 127.0.0.1, 127.0.0.2 and so on, of which only Linux has more than the
first. They have no end: each page links to further pages of its own host.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import IO, NamedTuple

from typing_extensions import Self

ROBOTS = "/robots.txt"


class Request(NamedTuple):
    """One request to the site.

    Attributes:
        moment: by ``time.monotonic()``, which all processes of a Linux machine share.
        host: to which it was sent.
    """

    moment: float
    host: str


class ManyHosts:
    """The site, in a process of its own: a context manager.

    :param hosts: how many there are.
    :param links: of a page.
    :param new: how many of these lead to pages not shown before.

    Attributes:
        port: the same for all hosts.
    """

    port: int

    def __init__(self, hosts: int, links: int = 10, new: int = 10) -> None:
        self._arguments = [str(number) for number in (hosts, links, new)]

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory()
        self._log = Path(self._folder.name, "requests")
        command = [sys.executable, "-m", "bench.many_hosts", str(self._log), *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    @property
    def requests(self) -> list[Request]:
        """All requests for pages so far, without those for ``robots.txt``."""
        found = []
        for line in self._log.read_text().splitlines():
            moment, host, path = line.split(" ", 2)
            if path != ROBOTS:
                found.append(Request(float(moment), host))
        return found


class _Links:
    """What the pages of a host link to.

    It is decided when a page is visited first. So every crawl finds as much, in whatever order.
    """

    def __init__(self, links: int, new: int) -> None:
        self._links, self._new = links, new
        self._shown = 1
        self._of: dict[str, list[int]] = {}

    def of(self, path: str) -> list[int]:
        """Return the numbers of the pages that this one links to."""
        if path not in self._of:
            known = min(self._shown, self._links - self._new)
            found = random.Random(len(self._of)).sample(range(self._shown), known)
            self._of[path] = [*found, *range(self._shown, self._shown + self._new)]
            self._shown += self._new
        return self._of[path]


class _Connection(asyncio.Protocol):
    """Answers the requests of one connection.

    :param links: of each host.
    :param log: of all requests.
    """

    def __init__(self, links: defaultdict[str, _Links], log: IO[str]) -> None:
        self._links, self._log = links, log
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember to which host."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._host, _ = transport.get_extra_info("sockname")

    def data_received(self, data: bytes) -> None:
        """Answer what is complete."""
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, self._received = self._received.split(b"\r\n\r\n", 1)
            path = head.split(b" ", 2)[1].decode()
            self._log.write(f"{monotonic():.6f} {self._host} {path}\n")
            with suppress(ConnectionError):
                self._transport.write(self._answer(path))

    def _answer(self, path: str) -> bytes:
        body = "User-agent: *\nDisallow: /nothing\n"
        if path != ROBOTS:
            pages = self._links[self._host].of(path)
            body = "".join(f'<a href="/{page or ""}">{page}</a>\n' for page in pages)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
        return (head + body).encode()


async def serve(log: IO[str], hosts: int, links: int, new: int) -> None:
    """Serve the site, and print its port."""
    loop = asyncio.get_running_loop()
    protocol = partial(_Connection, defaultdict(partial(_Links, links, new)), log)
    server = await loop.create_server(protocol, "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    others = [f"127.0.0.{number}" for number in range(2, hosts + 1)]
    if others:
        await loop.create_server(protocol, others, port, backlog=512)
    print(port, flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve the site that the command line describes."""
    path, *numbers = sys.argv[1:]
    with Path(path).open("w", buffering=1) as log:
        asyncio.run(serve(log, *map(int, numbers)))


if __name__ == "__main__":
    main()
