"""A Redis server for oneself: on a free port, in a temporary folder, gone afterwards."""

from __future__ import annotations

import itertools
import secrets
import socket
import subprocess
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from testbed.servers import program

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE = 600
"""Seconds for what takes a few, on any machine."""

keys = (f"test:{number}" for number in itertools.count())
"""Keys for filters, each given once in a process."""


def free_port() -> int:
    """Return a port that nobody listens on, with room for a cluster's bus 10,000 above it.

    Systems hand out ports from 32,768 on: one of those may be somebody's before the server has it.
    Nor does anybody else get it here: a socket that is bound and does not listen keeps it for this
    process. It is in the way of none that reuses addresses, as servers do.
    """
    while True:
        port = 10_000 + secrets.randbelow(10_000)
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", port))
                two.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.dup().detach()
            return port


class LocalRedis:
    """A server as a context manager; `kill`, `start` and `pause` are for tests of faults.

    Args:
        *arguments: more of the server's command line.
        persist: keep a log of every write, so that a killed server comes back with its data.
    """

    HOST = "127.0.0.1"

    def __init__(self, *arguments: str, persist: bool = False) -> None:
        self.port = free_port()
        self._executable = program()
        self._first: tuple[str, ...] = ()
        self._arguments = arguments
        self._persist = persist
        self._folder = TemporaryDirectory(prefix="scrapy-bloom-redis-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of its first database."""
        return f"redis://{self.HOST}:{self.port}/0"

    def client(self, **options: object) -> redis.Redis:
        """Return a client that tries everything once, and waits for the answer."""
        options = {"socket_timeout": PATIENCE, **options}
        return redis.Redis(self.HOST, self.port, retry=Retry(NoBackoff(), 0), **options)  # type: ignore[arg-type]

    def start(self) -> None:
        """Start the server, also after `kill`, and wait until it listens."""
        command = [self._executable, *self._first, "--port", str(self.port), "--bind", self.HOST]
        command += ["--dir", self._folder.name, "--save", ""]
        # A replica waits 5 s for others otherwise.
        command += ["--repl-diskless-sync-delay", "0"]
        if self._persist:
            command += ["--appendonly", "yes", "--appendfsync", "always"]
        command += self._arguments
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection((self.HOST, self.port)).close()
                break
            except ConnectionError:
                if self._process.poll() is not None or monotonic() > deadline:
                    raise

    def kill(self) -> None:
        """End the server as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The process of the server."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        self._folder.cleanup()
