"""The Redis server that all candidates share: a private one."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from bench.part import Column, Row, Table

if TYPE_CHECKING:
    from testbed.localredis import LocalRedis

TABLE: Final = Table(
    "server",
    "The server",
    (
        Column("server", "server"),
        Column("allocator", "allocator"),
        Column("pair", "µs for a send and a receive", ".1f", 1e-6),
    ),
)
"""Shows what :func:`described` returns."""

PACKAGES: Final = ("redis", "scrapy-redis")
"""Distributions whose versions belong to every result with Redis."""


@contextmanager
def local_server() -> Iterator[LocalRedis]:
    """Start a server."""
    from testbed.localredis import LocalRedis

    # Faults that we make ourselves are counted, not read.
    logging.getLogger("scrapy_bloom").addHandler(logging.NullHandler())
    with LocalRedis() as server:
        yield server


def described(server: LocalRedis) -> list[Row]:
    """Return the rows of :data:`TABLE`."""
    client: Any = server.client()
    return [
        {
            "server": f"Redis {client.info('server')['redis_version']}",
            "allocator": client.info("memory")["mem_allocator"],
            "pair": send_and_receive(),
        }
    ]


def send_and_receive(times: int = 20_000, rounds: int = 5) -> float:
    """Return the seconds of a send and a receive on a socket pair: what a system call costs here.

    Where they take longer, a round trip that is saved saves more.
    """
    one, other = socket.socketpair()
    took = []
    with one, other:
        for _ in range(rounds):
            start = time.perf_counter()
            for _ in range(times):
                one.send(b"x")
                other.recv(1)
            took.append((time.perf_counter() - start) / times)
    return min(took)


def busy(client: Any) -> float:
    """Return the seconds of processor time that the server has used."""
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])
