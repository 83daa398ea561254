"""From a URL to a redis-py client, and from its errors to messages for users.

Every script may be sent twice: calls are numbered, and repeating the others changes nothing.

No password leaves this module: messages name a server by :meth:`Server.address`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    RedisClusterException,
    TryAgainError,
)
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from scrapy_bloom.errors import BackendError, SettingError

COMMANDS: Final = (
    *("info", "select", "evalsha", "script|load", "time", "type", "exists", "unlink"),
    *("expire", "persist", "hget", "hmget", "hkeys", "hlen", "hset", "hdel"),
    *("hscan", "sadd", "scard", "sismember", "srem", "zadd", "zcard"),
    *("zrangebylex", "zrangebyscore", "zrem", "zscore"),
    *("bitfield", "bitfield_ro"),
)
"""Commands that a user's ACL must allow."""

READING_COMMANDS: Final = ("zcount", "zrange", "zscan")
"""Further ones that ``scrapy bloom`` needs to show what waits."""

CLUSTER_COMMANDS: Final = ("cluster|slots", "command")
"""Commands with which redis-py finds the nodes of a cluster."""

TRIES: Final = 2
"""How often a call is sent before the server counts as unavailable."""

FAULTS: Final = (redis.RedisError, RedisClusterException, OSError, ValueError)
"""What a client raises when a call fails. ValueError: for a reply it cannot read."""

_PASSING: Final = (
    redis.ConnectionError,
    redis.TimeoutError,
    OSError,
    redis.InvalidResponse,
    ValueError,
)
RETRY: Final = Retry(ExponentialBackoff(cap=0.2, base=0.02), TRIES - 1, _PASSING)
"""Calls a function once more after an error that may pass."""

_LATER: Final = (
    *(*_PASSING, RedisClusterException, MasterNotFoundError, redis.OutOfMemoryError),
    *(redis.ReadOnlyError, ClusterDownError, TryAgainError),
)
_TAKES_NO_WRITES: Final = re.compile(
    r"\b(OOM|READONLY|NOREPLICAS|MISCONF|BUSY|CLUSTERDOWN|TRYAGAIN)\b"
)
"""Errors, also from scripts, of a server that is full, has become a replica, or is starting."""

_FORBIDDEN: Final = re.compile(r"\bNOPERM\b|can't run this command|ACL failure")
_FINAL: Final = re.compile(
    rf"{_FORBIDDEN.pattern}|\bWRONGTYPE\b|[Uu]nknown (Redis |sub)?command"
    rf"|\bcompiling script\b|\bnonexistent global\b",
)
"""Errors that do not pass, even of a server that has worked before."""

_CERTIFICATE: Final = re.compile(r"\[SSL: \w*CERTIFICATE|EOF occurred in violation")
"""Errors of a connection by TLS whose certificate is refused, or that lacks one."""

_NO_TLS: Final = re.compile(r"\[SSL: |Timeout connecting")
"""Other errors of a connection by TLS, to what does not speak it."""

_ONLY_TLS: Final = re.compile(r"reset by peer|closed by server|Protocol Error")
"""Errors of a connection without TLS, also to what speaks nothing else."""

_ELSEWHERE: Final = re.compile(r"\b(READONLY|NOREPLICAS|MASTERDOWN)\b")
"""Errors of a server that is not the primary any more, or not for long."""

_TRUE: Final = ("1", "true", "yes", "on")
_SCHEMES: Final = ("redis", "rediss", "unix", "sentinel")
_REQUESTS: Final = ("_queue", "_failed", "_workers")
_PARTS: Final = {
    "contains": ("_bits",),
    "call": (*_REQUESTS, "_take", "_bits", "_marks"),
    "mark": ("_bits", "_marks"),
    "resign": (*_REQUESTS, "_bits", "_marks"),
    "upkeep": ("_bits",),
}
"""What is prepended to each script; to one that is not named here, `_REQUESTS`. A part that is not
needed takes the server time: each function in it is made anew for each call."""

_FIRST: Final = "--!df flags=allow-undeclared-keys\n"
"""Without this line Dragonfly refuses scripts that build key names. To others it is a comment."""

# What we set ourselves, or what redis-py's clients do not accept.
_OURS: Final = {
    *("decode_responses", "encoding", "protocol", "redis_cls", "retry", "retry_on_error"),
    *("retry_on_timeout", "socket_connect_timeout", "socket_timeout"),
}


@cache
def script(name: str) -> str:
    """Return the source of a script: the shared parts, then the script itself.

    Each part is a function in the one before it: to Lua it is less work to find a variable of the
    function around it than one of the same function.
    """
    folder = files(__package__) / "lua"
    parts = ("_common", "_growth", "_losses", *_PARTS.get(name, _REQUESTS), name)
    texts = [(folder / f"{part}.lua").read_text("utf-8") for part in parts]
    return _FIRST + "return (function()\n".join(texts) + "end)()\n" * (len(texts) - 1)


def beginning(key: str) -> str:
    """Return the prefix of all other keys of a crawl. They hash to the same slot as `key`."""
    tag = key.partition("{")[2]
    return f"{key}:" if tag.find("}") > 0 else f"{key}:{{{key}}}:"


@dataclass(frozen=True)
class Server:
    """Where a server is, and how to connect to it.

    Attributes:
        url: as for redis-py, or
            ``sentinel://[user:password@]host[:port][,host...]/service[/db][?option=value&...]``.
            User and password are the server's. Beside what redis-py's URLs know, an option is
            ``sentinel_username``, ``sentinel_password``, or ``ssl``, for TLS to the Sentinels, too.
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
            # An @ further right means that the password has a / or # and is read as something else.
            if parts.scheme != "unix":  # a path may have anything
                begin = parts.path + parts.query.partition("=")[0]
                fits = fits and "@" not in begin and not parts.fragment
            if parts.scheme in ("redis", "rediss"):
                fits = fits and re.fullmatch(r"/?[0-9]*/?", parts.path) is not None
        except ValueError:  # its text quotes parts of the URL, perhaps the password
            fits = False
        if not fits:
            raise SettingError(
                "The Redis URL cannot be read; it is not shown, as it may contain a password."
                " Expected redis://[user:password@]host[:port][/database], rediss:// for TLS,"
                " sentinel://host,host/service or unix:///path. Characters such as / @ # : in a"
                " password are written %2F %40 %23 %3A."
            )
        if parts.scheme == "sentinel" and not parts.path.strip("/").partition("/")[0]:
            raise SettingError(
                "A sentinel:// URL must name the service after the hosts:"
                " sentinel://host:26379,other:26379/service."
            )
        if ours := sorted(_OURS.intersection(parse_qs(parts.query, keep_blank_values=True))):
            raise SettingError(
                f"The Redis URL sets {', '.join(ours)}, which scrapy-bloom sets itself. Remove that"
                f" from the URL; BLOOM_REDIS_TIMEOUT is the setting for timeouts."
            )

    @classmethod
    def of(cls, url: str, params: Mapping[str, Any]) -> Server:
        """Return the server given by a URL or, without one, by scrapy-redis's arguments."""
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

    def address(self) -> str:
        """Return the server's address, without user and password."""
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return f"unix:{parts.path}"
        return f"{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path or '/0'}"

    def connect(self, timeout: float, calls: float | None = None) -> Any:
        """Return a client for a server, a cluster, or the master that the Sentinels name.

        :param timeout: most seconds to wait for the server in a call, including its retry.
        :param calls: seconds to wait in each try instead, once connected.
        :raises BackendError: if the server cannot be reached.
        :raises SettingError: if redis-py does not accept the arguments.
        """
        options: dict[str, Any] = {
            **self.options,
            "socket_timeout": calls or timeout / TRIES,
            "socket_connect_timeout": timeout / TRIES,
            "decode_responses": False,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        with self.explained():
            if self.url.startswith("sentinel:"):
                return self._master(options)
            client = redis.Redis.from_url(self.url, **options)
            if not _is_clustered(client):
                return client
            client.close()
            # It finds another node in its own way.
            options |= {"retry": RETRY, "retry_on_error": list(_PASSING)}
            return RedisCluster.from_url(self.url, **options)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what a client of this server raises into a :class:`BackendError`."""
        try:
            yield
        except FAULTS as error:
            raise self.error(error) from None
        except TypeError as error:  # from arguments that redis-py does not know
            raise SettingError(
                f"The connection to Redis at {self.address()} cannot be set up: {error}. Check"
                f" its URL, and REDIS_PARAMS."
            ) from None

    def error(self, error: Exception, *, worked: bool = False) -> BackendError:
        """Return an error of redis-py as ours, with advice where the remedy is not obvious.

        :param worked: whether this server has worked before: then all errors may pass but some.
        """
        cause = str(error)
        if isinstance(error, MasterNotFoundError):  # then it shows the insides of its connections
            cause = cause.partition(" : ")[0]
        text = f"Redis at {self.address()}: {cause.rstrip('. ')}."
        denied = isinstance(error, redis.AuthenticationError) or "AuthenticationError" in str(error)
        forbidden = isinstance(error, NoPermissionError) or _FORBIDDEN.search(str(error))
        if denied and isinstance(error, MasterNotFoundError):
            text += " The Sentinels require a password: add ?sentinel_password=... to their URL."
        elif denied:
            text += " Check user and password in its URL (BLOOM_REDIS_URL)."
        elif forbidden:
            text += (
                f" On all keys that begin with the filter's key the ACL must allow"
                f" +{' +'.join(COMMANDS)}; for 'scrapy bloom' also +{' +'.join(READING_COMMANDS)};"
                f" in a cluster also +{' +'.join(CLUSTER_COMMANDS)};"
                f" under scrapy-redis's scheduler also +lpush, and its queue's key."
            )
        elif advice := self._advice_on_tls(cause, worked=worked):
            text += advice
        elif isinstance(error, (redis.TimeoutError, TimeoutError)):
            text += " If it is far or busy, raise the timeout (BLOOM_REDIS_TIMEOUT)."
        elif isinstance(error, redis.OutOfMemoryError) or "OOM" in str(error):
            text += " The server is out of memory: raise its maxmemory, or delete other data."
        if worked:
            temporary = not (forbidden or _FINAL.search(str(error)))
        else:
            passing = isinstance(error, _LATER) or _TAKES_NO_WRITES.search(str(error))
            temporary = bool(passing) and not (denied or forbidden)
            temporary = temporary and "CERTIFICATE_VERIFY_FAILED" not in cause
        return BackendError(text, temporary=temporary, answered=_is_reply(error))

    def _advice_on_tls(self, cause: str, *, worked: bool) -> str:
        if worked and "CERTIFICATE" not in cause:
            return ""
        if _CERTIFICATE.search(cause):
            return (
                " Add ?ssl_ca_certs=/path to its URL, or ?ssl_cert_reqs=none, which trusts anybody;"
                " if it asks for a certificate, ?ssl_certfile=/path&ssl_keyfile=/path."
            )
        if self.url.startswith("rediss:") and _NO_TLS.search(cause):
            return " Does it speak TLS at this port? Without TLS its URL begins with redis://."
        if self.url.startswith("redis:") and _ONLY_TLS.search(cause):
            return " If it requires TLS, its URL begins with rediss://."
        return ""

    def _master(self, options: dict[str, Any]) -> Any:
        parts = urlsplit(self.url)
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        service, _, database = parts.path.strip("/").partition("/")
        query = parse_url(f"redis://?{parts.query}")  # type: ignore[no-untyped-call]
        options |= {"db": int(database or 0), **query}
        if login:
            options |= {"username": unquote(user) or None, "password": unquote(password)}
        if "ssl" in options:
            options["ssl"] = str(options["ssl"]).lower() in _TRUE
        named = [host.partition(":") for host in hosts.split(",")]
        # Those that hang leave time for others.
        timeout = options["socket_connect_timeout"] / len(named)
        asking = {name: value for name, value in options.items() if name.startswith("ssl")}
        for name in ("username", "password"):
            if (value := options.pop(f"sentinel_{name}", None)) is not None:
                asking[name] = value
        sentinels: Any = Sentinel(  # type: ignore[no-untyped-call]
            [(host or "localhost", int(port or 26379)) for host, _, port in named],
            sentinel_kwargs={
                "retry": Retry(NoBackoff(), 0),  # there are others to ask
                "socket_timeout": timeout,
                "socket_connect_timeout": timeout,
                "protocol": 2,
                **asking,
            },
        )
        sentinels.discover_master(service)
        client = sentinels.master_for(service, **options)
        client.connection_pool.make_connection()  # refuses unknown options
        return client


def _is_clustered(client: Any) -> bool:
    try:
        info = RETRY.call_with_retry(
            lambda: client.execute_command("INFO", "cluster"), lambda _: None
        )
        return bool(info.get("cluster_enabled"))
    except NoPermissionError:  # if that is wrong, the first call fails with MOVED
        return False


def is_elsewhere(error: Exception) -> bool:
    """Return whether the primary is, or soon will be, another server than the one that answered."""
    named = isinstance(error, (redis.ReadOnlyError, MasterDownError))
    return named or _ELSEWHERE.search(str(error)) is not None


def _is_reply(error: Exception) -> bool:
    """Return whether a server has answered, if only with an error: it is not a wrong address."""
    replies = (redis.ResponseError, redis.BusyLoadingError, redis.AuthenticationError)
    return isinstance(error, (*replies, RedisClusterException)) or "max number" in str(error)


def eviction_policy(client: Any) -> str:
    """Return what a server does when its memory is full: its ``maxmemory-policy``."""
    return str(client.execute_command("INFO", "memory").get("maxmemory_policy", ""))
