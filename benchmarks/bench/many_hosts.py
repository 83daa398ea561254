"""A site of many hosts that notes when each of them is asked; as a program, it serves it.

The hosts are the addresses 127.0.0.1, 127.0.0.2 and so on, of which only Linux has more than the
first. Each page links to further pages of its own host.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import IO, NamedTuple

from typing_extensions import Self

LINKS = 10  # of a page
ROBOTS = "/robots.txt"


@dataclass(frozen=True)
class Hosts:
    """What the hosts are like.

    Attributes:
        count: how many there are.
        pages: of each; None for no end.
        wait: seconds until an answer.
        slow: address -> the same for this host.
    """

    count: int
    pages: int | None = None
    wait: float = 0.0
    slow: Mapping[str, float] = field(default_factory=dict)


class Request(NamedTuple):
    """One request to the site.

    Attributes:
        moment: by ``time.monotonic()``, which all processes of a Linux machine share.
        address: to which it was sent: the host, or the proxy that it was to go through.
    """

    moment: float
    address: str


class ManyHosts:
    """The site, in a process of its own: a context manager.

    Attributes:
        port: the same for all hosts.
    """

    port: int

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory()
        self._log = Path(self._folder.name, "requests")
        command = [sys.executable, "-m", "bench.many_hosts", str(self._log)]
        self._process = subprocess.Popen(
            [*command, json.dumps(asdict(self._hosts))], stdout=subprocess.PIPE, text=True
        )
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
            moment, address, path = line.split(" ", 2)
            if path != ROBOTS:
                found.append(Request(float(moment), address))
        return found

    @property
    def last_request(self) -> float:
        """When the last request for a page came."""
        return max(request.moment for request in self.requests)


class _Connection(asyncio.Protocol):
    """Answers the requests of one connection.

    :param log: of all requests.
    """

    def __init__(self, hosts: Hosts, log: IO[str]) -> None:
        self._hosts, self._log = hosts, log
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember to which address."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address, self._port = transport.get_extra_info("sockname")

    def data_received(self, data: bytes) -> None:
        """Answer what is complete."""
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, self._received = self._received.split(b"\r\n\r\n", 1)
            target = head.split(b" ", 2)[1].decode()
            path = re.sub("^http://[^/]*", "", target)  # a proxy is sent the whole URL
            self._log.write(f"{monotonic():.6f} {self._address} {path}\n")
            wait = self._hosts.slow.get(self._address, self._hosts.wait)
            asyncio.get_running_loop().call_later(wait, self._write, self._answer(path))

    def _answer(self, path: str) -> bytes:
        body = "User-agent: *\nDisallow: /nothing\n"
        if path != ROBOTS:
            body = "".join(f'<a href="/{page}">{page}</a>\n' for page in self._links(path))
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
        return (head + body).encode()

    def _links(self, path: str) -> range:
        first = int(path[1:] or 0) * LINKS + 1
        end = first + LINKS
        return range(first, end if self._hosts.pages is None else min(end, self._hosts.pages))

    def _write(self, answer: bytes) -> None:
        with suppress(ConnectionError):
            self._transport.write(answer)


async def serve(hosts: Hosts, log: IO[str]) -> None:
    """Serve the site, and print its port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(hosts, log), "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    others = [f"127.0.0.{number}" for number in range(2, hosts.count + 1)]
    if others:
        await loop.create_server(lambda: _Connection(hosts, log), others, port, backlog=512)
    print(port, flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve the site that the command line describes."""
    with Path(sys.argv[1]).open("w", buffering=1) as log:
        asyncio.run(serve(Hosts(**json.loads(sys.argv[2])), log))


if __name__ == "__main__":
    main()
