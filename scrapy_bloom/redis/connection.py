"""From a URL or scrapy-redis's settings to a client, and from its errors to the user's words.

No password leaves this room: a server is named by what :meth:`Target.where` says of it.
"""

from __future__ import annotations

import inspect
import logging
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import NoPermissionError, RedisClusterException
from redis.retry import Retry

from scrapy_bloom.core.buckets import MOST_NUMBERS
from scrapy_bloom.errors import BackendError, SettingError
from scrapy_bloom.options import (
    ON_BACKEND_ERROR,
    REDIS_KEY,
    REDIS_LAYOUT,
    REDIS_TIMEOUT,
    REDIS_URL,
    Words,
    in_arguments,
    in_settings,
)
from scrapy_bloom.redis.deadline import BoundedPool, Within, bounded

logger = logging.getLogger(__name__)

Client = Any
"""A client for one server or for a cluster: redis-py's two classes share no base."""

FAULTS: Final = (redis.RedisError, RedisClusterException, OSError)
"""What a client raises when a call has come to nothing."""

COMMANDS: Final = (
    *("info", "select", "eval", "evalsha", "time", "type", "exists", "unlink"),
    *("hget", "hgetall", "hkeys", "hmget", "hexists", "hset", "hsetnx", "hdel"),
)
"""The commands that a user's ACL must allow, beside those of the filter's layout."""

TOO_FEW_NUMBERS: Final = "set-max-intset-entries is too low"
"""What a script fails with where the server would not keep sets of numbers as arrays."""

QUEUE_COMMANDS: Final = (*("zadd", "zcard", "zpopmin", "hlen", "hscan", "sadd", "scard", "srem"),)
"""Those that it must allow, too, if the requests wait beside the filter."""

CLUSTER_COMMANDS: Final = ("cluster|slots", "command")
"""Those that it must allow, too, in a cluster: what redis-py asks to find its nodes."""

BROKEN: Final = (
    redis.ConnectionError,
    redis.InvalidResponse,
    redis.TimeoutError,
    OSError,
    RedisClusterException,
)
"""What a client raises when no reply came: the call may have been carried out, or not."""

_WRONG: Final = (
    redis.AuthenticationError,
    redis.InvalidResponse,
    socket.gaierror,
    ssl.SSLError,
)
"""What a client raises where the settings are wrong, most probably."""

DEFAULT_URL: Final = "redis://localhost:6379/0"
# What we decide ourselves, or what is no argument of redis-py.
_OURS: Final = {
    "decode_responses",
    "encoding",
    "protocol",
    "redis_cls",
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    "socket_connect_timeout",
    "socket_timeout",
}
_SCHEMES: Final = ("redis", "rediss", "unix")


@dataclass(frozen=True)
class Target:
    """Where a server is and how to get in.

    Attributes:
        url: as redis-py reads it; empty if `options` tell all.
        options: arguments for redis-py's client.
        words: names an option in messages.
    """

    url: str = field(default=DEFAULT_URL, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    words: Words = field(default=in_arguments, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.url:
            return
        try:
            parts = urlsplit(self.url)
            fits = parts.scheme in _SCHEMES and (parts.port or 1) > 0  # port may raise
        except ValueError:  # its text has parts of the URL, among them perhaps the password
            fits = False
        if not fits:
            or_theirs = ", or scrapy-redis's REDIS_URL," * (self.words is in_settings)
            raise SettingError(
                f"{self.words(REDIS_URL)}{or_theirs} cannot be read; it is not shown because of its"
                " password. Expected redis://[user:password@]host[:port][/database], rediss:// for"
                " TLS or unix:///path. Characters such as / @ # : in a password are written %2F"
                " %40 %23 %3A."
            )

    @classmethod
    def of(cls, url: str, params: Mapping[str, Any]) -> Target:
        """Return the target that settings name: a URL or, without one, scrapy-redis's arguments."""
        options = {name: value for name, value in params.items() if name not in _OURS}
        if url:
            return cls(url, words=in_settings)
        if "url" in options:
            return cls(str(options.pop("url")), options, in_settings)
        return cls("", options, in_settings) if options else cls(words=in_settings)

    def where(self) -> str:
        """Name the server without user and password."""
        if not self.url:
            path = self.options.get("unix_socket_path")
            host = self.options.get("host", "localhost")
            database = self.options.get("db") or 0
            return f"unix:{path}" if path else f"{host}:{self.options.get('port', 6379)}/{database}"
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return f"unix:{parts.path}"
        return f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path or '/0'}"

    def explained(self) -> AbstractContextManager[None]:
        """Turn what a client of this server raises into a :class:`BackendError`."""
        return explained(self.where(), self.words)

    def connect(self, timeout: float) -> Client:
        """Return a client whose every step lasts at most `timeout` seconds and is not repeated.

        A call that the client repeated by itself would find the marks of its first try.

        :raises BackendError: if there is no way in.
        """
        options = {
            **self.options,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        with explained(self.where(), self.words):
            client: Client = _server(self.url, options)
            pool = client.connection_pool
            pool.connection_class = bounded(pool.connection_class)
            with Within(2 * timeout):
                if not _asks_for_cluster(client):
                    return client
                # The cluster client hides it if this is refused.
                client.execute_command("CLUSTER", "SLOTS")
                client.close()
            # Cluster clients of redis-py 5 repeat calls by a count of their own.
            if _takes(RedisCluster, "cluster_error_retry_attempts") and _is_old():
                options["cluster_error_retry_attempts"] = 0
            options.pop("db", None)
            with Within(2 * timeout):
                return _cluster(self.url, options)


@contextmanager
def explained(where: str, words: Words, commands: Sequence[str] = ()) -> Iterator[None]:
    """Turn what a client raises into a :class:`BackendError` with its meaning.

    :param commands: what is needed beside :data:`COMMANDS`.
    """
    try:
        yield
    except FAULTS as error:
        told = f"Redis at {where} {explain(error, words, commands)}"
        refused = isinstance(error, (redis.AuthenticationError, NoPermissionError))
        refused = refused or TOO_FEW_NUMBERS in str(error)
        raise BackendError(told, temporary=_may_pass(error), refused=refused) from None
    except (TypeError, ValueError) as error:
        # Of arguments that redis-py cannot use; its text may repeat them.
        raise SettingError(
            f"The connection to Redis at {where} cannot be set up ({type(error).__name__}). Check"
            f" {words(REDIS_URL)}{', or REDIS_URL and REDIS_PARAMS' * (words is in_settings)}."
        ) from None


def explain(error: Exception, words: Words, commands: Sequence[str] = ()) -> str:
    """Say what an error of a client means and what to do: goes after the server's name.

    :param commands: what is needed beside :data:`COMMANDS`.
    """
    if isinstance(error, redis.AuthenticationError):
        return f"refuses user or password ({error}). Check both in its URL or settings."
    text = f"{type(error).__name__} {error}"
    for sign, meaning in _MEANINGS.items():
        if sign in text:
            return meaning.format(
                error=error,
                key=words(REDIS_KEY),
                on_error=words(ON_BACKEND_ERROR),
                timeout=words(REDIS_TIMEOUT),
                layout=words(REDIS_LAYOUT),
                commands=" +".join((*COMMANDS, *commands)),
            )
    if isinstance(error, (redis.ConnectionError, RedisClusterException, OSError)):
        return f"cannot be reached ({error}). Is it running, and is this its address?"
    return f"answered with an error: {error}"


def _may_pass(error: BaseException) -> bool:
    """Return whether an error may pass by itself; else the settings are wrong, or the server's."""
    if isinstance(error, (*_WRONG, redis.ResponseError)):
        return False
    causes = (error.__cause__, error.__context__)
    return isinstance(error, BROKEN) and not any(isinstance(cause, _WRONG) for cause in causes)


def is_cluster(client: Client) -> bool:
    """Return whether a client is one for a cluster."""
    return isinstance(client, RedisCluster)


def hang_up(client: Client) -> None:
    """Close the connections of a client that nobody uses now; it makes new ones."""
    clients = [node.redis_connection for node in client.get_nodes()] if is_cluster(client) else []
    for one in clients or [client]:
        if one is not None:
            one.connection_pool.disconnect(inuse_connections=False)


def warn_of_eviction(client: Client, where: str) -> None:
    """Say so if the server may throw away keys that do not expire."""
    try:
        memory = client.execute_command("INFO", "memory")
    except FAULTS:  # it answers other calls; this one was a courtesy
        return
    policy = str(memory.get("maxmemory_policy", ""))
    if policy.startswith("allkeys") and memory.get("maxmemory"):
        logger.warning(
            "Redis at %(where)s may evict the filter when its memory is full (maxmemory-policy is"
            " %(policy)s): pages would be fetched twice. Set it to noeviction, or use a server of"
            " its own.",
            {"where": where, "policy": policy},
        )


_LOADING: Final = "is still loading its data. Start again when it has, or set {on_error} to 'wait'."
_NOT_ALLOWED: Final = (
    "does not let this user do what is needed ({error}). On all keys that begin with the {key} its"
    f" ACL must allow: +{{commands}}; in a cluster also +{' +'.join(CLUSTER_COMMANDS)};"
    f" with scrapy_bloom.Scheduler also +{' +'.join(QUEUE_COMMANDS)}."
)
_HIDDEN_CLUSTER: Final = (
    "does not let this user learn that it is a node of a cluster ({error}). Its ACL must allow"
    " +info."
)
_REPLICA: Final = "is a replica and takes no writes. Give the address of its primary."
_FULL: Final = (
    "is out of memory (maxmemory) and takes no new marks. Give it more, or delete what is not"
    " needed."
)

# Found in the class or the text of an error: clients and servers tell the same in different ways.
_MEANINGS: Final = {
    "InvalidResponse": "sent a reply that cannot be understood ({error}). Is it a Redis server, and"
    " does nothing in between change what passes?",
    "BusyLoading": _LOADING,
    "LOADING": _LOADING,
    "NoPermission": _NOT_ALLOWED,
    "NOPERM": _NOT_ALLOWED,
    "can't run this command": _NOT_ALLOWED,
    "ACL failure": _NOT_ALLOWED,
    "MOVED": _HIDDEN_CLUSTER,
    "MovedError": _HIDDEN_CLUSTER,
    "ReadOnly": _REPLICA,
    "READONLY": _REPLICA,
    "read only replica": _REPLICA,
    "OOM": _FULL,
    "'maxmemory'": _FULL,
    "MISCONF": "takes no writes because it cannot save to its disk. Repair that first.",
    TOO_FEW_NUMBERS: "would not keep sets of"
    f" {MOST_NUMBERS} numbers as arrays, which {{layout}} = 'sets' needs. Raise its setting with"
    f" CONFIG SET set-max-intset-entries {MOST_NUMBERS}, or set {{layout}} to 'bitmap'.",
    "BUSY": "is busy with somebody's script that does not end.",
    "CLUSTERDOWN": "is a cluster that is down: see CLUSTER INFO.",
    "ClusterDown": "is a cluster that is down: see CLUSTER INFO.",
    "MASTERDOWN": "is a replica that has lost its primary.",
    "NOREPLICAS": "takes no writes because it has too few replicas (min-replicas-to-write).",
    "WRONGTYPE": "has something else than our bits under one of the filter's keys. Another program"
    " writes there: give this filter another {key}.",
    "Timeout": "did not answer in time. If it is far or busy, raise {timeout}.",
}


def _server(url: str, options: Mapping[str, Any]) -> Client:
    return redis.Redis.from_url(url, **options) if url else redis.Redis(**options)


def _cluster(url: str, options: dict[str, Any]) -> Client:
    if not url:  # only with one does the client use another class of connections
        host = options.pop("host", "localhost")
        host = f"[{host}]" if ":" in host else host
        scheme = "rediss" if options.pop("ssl", False) else "redis"
        url = f"{scheme}://{host}:{options.pop('port', 6379)}"
    return RedisCluster.from_url(url, connection_pool_class=BoundedPool, **options)


def _asks_for_cluster(client: Client) -> bool:
    try:
        try:
            told = client.execute_command("INFO", "cluster")
        except BROKEN:  # once may be chance
            told = client.execute_command("INFO", "cluster")
    except NoPermissionError:
        return False  # where that is wrong, the first call tells
    return bool(told.get("cluster_enabled"))


def _takes(kind: Any, name: str) -> bool:
    return name in inspect.signature(kind.__init__).parameters


def _is_old() -> bool:
    return int(redis.__version__.split(".")[0]) < 6  # noqa: PLR2004 - the version that changed it
