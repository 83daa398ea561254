"""From a URL to a client of redis-py, and from its errors to the user's words.

Every script of ours may be sent twice: a call has a number, and the others change nothing when they
are repeated. So the client retries by itself, as redis-py does best.

No password leaves this module: a server is named by what :meth:`Target.where` says of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    ClusterDownError,
    NoPermissionError,
    RedisClusterException,
    TryAgainError,
)
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from scrapy_bloom.errors import BackendError, SettingError

COMMANDS: Final = (
    *("info", "select", "evalsha", "script|load", "time", "type", "exists", "unlink"),
    *("expire", "persist", "hget", "hmget", "hkeys", "hlen", "hset", "hincrby", "hdel"),
    *("sadd", "scard", "sismember", "srem", "zadd", "zcard", "zpopmin"),
)
"""What a user's ACL must allow, beside the commands of the layout."""

LAYOUT_COMMANDS: Final = {
    "bitmap": ("getbit", "setbit", "bitfield", "bitfield_ro"),
    "sets": ("object|encoding",),
}
"""What each layout needs, too."""

CLUSTER_COMMANDS: Final = ("cluster|slots", "command")
"""What redis-py asks a cluster to find its nodes."""

TRIES: Final = 2
"""How often a call is sent before the server counts as out."""

FAULTS: Final = (redis.RedisError, RedisClusterException, OSError, ValueError)
"""What a client raises when a call has come to nothing. ValueError: of a reply it cannot read."""

_PASSING: Final = (
    redis.ConnectionError,
    redis.TimeoutError,
    OSError,
    redis.InvalidResponse,
    ValueError,
)
_LATER: Final = (
    *(*_PASSING, RedisClusterException, MasterNotFoundError, redis.OutOfMemoryError),
    *(redis.ReadOnlyError, ClusterDownError, TryAgainError),
)
_TAKES_NO_WRITES: Final = re.compile(
    r"\b(OOM|READONLY|NOREPLICAS|MISCONF|BUSY|CLUSTERDOWN|TRYAGAIN)\b"
)
"""What a server that is full, a replica by now, or still starting says, to a script, too."""

_SCHEMES: Final = ("redis", "rediss", "unix", "sentinel")
_FIRST: Final = "--!df flags=allow-undeclared-keys\n"
"""Without this line Dragonfly refuses scripts that make names of keys. Others see a comment."""

# What we decide ourselves, or what is no argument of redis-py's clients.
_OURS: Final = {
    *("decode_responses", "encoding", "protocol", "redis_cls", "retry", "retry_on_error"),
    *("retry_on_timeout", "socket_connect_timeout", "socket_timeout"),
}


@cache
def script(name: str, layout: str) -> str:
    """Return the text of a script: what all share, the layout, then the file itself."""
    folder = files(__package__) / "lua"
    parts = (f"{part}.lua" for part in ("_common", layout, name))
    return _FIRST + "\n".join((folder / part).read_text("utf-8") for part in parts)


def beginning(key: str) -> str:
    """Return what the names of all other keys of a shard begin with. It keeps the key's slot."""
    tag = key.partition("{")[2]
    return f"{key}:" if tag.find("}") > 0 else f"{key}:{{{key}}}:"


@dataclass(frozen=True)
class Target:
    """Where a server is and how to get in.

    Attributes:
        url: as redis-py reads it, or
            ``sentinel://[user:password@]host[:port][,host...]/service[/db]``.
        options: more arguments for redis-py's client.

    :raises SettingError: if the URL cannot be read.
    """

    url: str = field(default="redis://localhost:6379/0", repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            fits = parts.scheme in _SCHEMES
            fits = fits and ("," in parts.netloc or (parts.port or 1) > 0)  # port may raise
        except ValueError:  # its text has parts of the URL, among them perhaps the password
            fits = False
        if not fits:
            raise SettingError(
                "The Redis URL cannot be read; it is not shown because of its password."
                " Expected redis://[user:password@]host[:port][/database], rediss:// for TLS,"
                " sentinel://host,host/service or unix:///path. Characters such as / @ # : in a"
                " password are written %2F %40 %23 %3A."
            )

    @classmethod
    def of(cls, url: str, params: Mapping[str, Any]) -> Target:
        """Return the target that settings name: a URL or, without one, scrapy-redis's arguments."""
        options = {name: value for name, value in params.items() if name not in _OURS}
        url = url or str(options.pop("url", ""))
        options.pop("url", None)
        if not url:
            host, port = options.pop("host", "localhost"), options.pop("port", 6379)
            path, database = options.pop("unix_socket_path", None), options.pop("db", None)
            scheme = "rediss" if options.pop("ssl", False) else "redis"
            url = f"unix://{path}" if path else f"{scheme}://{host}:{port}"
            if database:
                url += f"?db={database}" if path else f"/{database}"
        return cls(url, options)

    def where(self) -> str:
        """Name the server without user and password."""
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return f"unix:{parts.path}"
        return f"{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path or '/0'}"

    def connect(self, timeout: float) -> Any:
        """Return a client of a server, of a cluster, or of what Sentinels call the master.

        :param timeout: most seconds that a call may take, with its second try.
        :raises BackendError: if there is no way in.
        :raises SettingError: if redis-py takes no such arguments.
        """
        options: dict[str, Any] = {
            **self.options,
            "socket_timeout": timeout / TRIES,
            "socket_connect_timeout": timeout / TRIES,
            "decode_responses": False,
            "protocol": 2,
            "retry": Retry(ExponentialBackoff(cap=0.2, base=0.02), TRIES - 1, _PASSING),
            "retry_on_error": list(_PASSING),
        }
        with self.explained():
            if self.url.startswith("sentinel:"):
                return self._master(options)
            client: Any = redis.Redis.from_url(self.url, **options)
            if not _is_clustered(client):
                return client
            client.close()
            return RedisCluster.from_url(self.url, **options)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what a client of this server raises into a :class:`BackendError`."""
        try:
            yield
        except FAULTS as error:
            raise self.error(error) from None
        except TypeError as error:  # of arguments that redis-py does not know
            raise SettingError(
                f"The connection to Redis at {self.where()} cannot be set up: {error}. Check"
                f" its URL, and REDIS_PARAMS."
            ) from None

    def error(self, error: Exception, layout: str = "bitmap") -> BackendError:
        """Return what an error of redis-py means, and what to do where that is not plain."""
        text = f"Redis at {self.where()}: {error}"
        refused = isinstance(error, (redis.AuthenticationError, NoPermissionError)) or any(
            sign in str(error) for sign in ("NOPERM", "can't run this command", "ACL failure")
        )
        if refused and not isinstance(error, redis.AuthenticationError):
            text += (
                f". On all keys that begin with the filter's key the ACL must allow"
                f" +{' +'.join((*COMMANDS, *LAYOUT_COMMANDS[layout]))}; in a cluster also"
                f" +{' +'.join(CLUSTER_COMMANDS)}."
            )
        elif isinstance(error, (redis.TimeoutError, TimeoutError)):
            text += ". If it is far or busy, raise the timeout (BLOOM_REDIS_TIMEOUT)."
        passing = isinstance(error, _LATER) or _TAKES_NO_WRITES.search(str(error)) is not None
        return BackendError(text, temporary=passing and not refused, refused=refused)

    def _master(self, options: dict[str, Any]) -> Any:
        parts = urlsplit(self.url)
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        service, _, database = parts.path.strip("/").partition("/")
        if not service:
            raise SettingError(
                "A sentinel:// URL must name the service after the hosts:"
                " sentinel://host:26379,other:26379/service."
            )
        if login:
            options |= {"username": unquote(user) or None, "password": unquote(password)}
        named = [host.partition(":") for host in hosts.split(",")]
        sentinels: Any = Sentinel(  # type: ignore[no-untyped-call]
            [(host or "localhost", int(port or 26379)) for host, _, port in named],
            sentinel_kwargs={
                name: options[name] for name in ("socket_timeout", "socket_connect_timeout")
            },
        )
        return sentinels.master_for(service, **options, db=int(database or 0))


def _is_clustered(client: Any) -> bool:
    try:
        return bool(client.execute_command("INFO", "cluster").get("cluster_enabled"))
    except NoPermissionError:  # where that is wrong, the first call says MOVED
        return False
