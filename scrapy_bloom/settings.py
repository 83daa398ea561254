"""The only reader of ``BLOOM_*``: each setting's name, default, range and meaning."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Generic, TypeVar

from scrapy_bloom.canonical.rules import (
    DEFAULT_LEVEL,
    Rule,
    Rules,
    read_level,
    read_names,
    read_rules,
)
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    read_capacity,
    read_error_rate,
)
from scrapy_bloom.redis.breaker import OnBackendError, read_policy
from scrapy_bloom.redis.options import MAX_SHARDS, RedisOptions
from scrapy_bloom.storage.job import OnUnclean

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One setting.

    Attributes:
        name: as users write it.
        default: the value when users write none, as they would write it.
        read: turns name and written value into the value; raises :class:`SettingError`.
        meaning: one sentence for the README.
    """

    name: str
    default: object
    read: Callable[[str, object], T]
    meaning: str

    def of(self, settings: Mapping[str, Any]) -> T:
        """Return the value that `settings` gives, or the default."""
        return self.read(self.name, settings.get(self.name, self.default))


def _read_on_unclean(name: str, value: object) -> OnUnclean:
    try:
        return OnUnclean(str(value).lower())
    except ValueError:
        known = ", ".join(repr(policy.value) for policy in OnUnclean)
        raise SettingError(f"{name} = {value!r}: give one of {known}.") from None


def _read_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise SettingError(f"{name} = {value!r}: give text.")


def _read_count(low: int, high: int) -> Callable[[str, object], int]:
    def read(name: str, value: object) -> int:
        try:
            count = int(str(value))
        except ValueError:
            count = low - 1
        if low <= count <= high:
            return count
        raise SettingError(f"{name} = {value!r}: give a whole number from {low} to {high:,}.")

    return read


def _read_seconds(name: str, value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1
    if 0 < seconds <= _HOUR:
        return seconds
    raise SettingError(f"{name} = {value!r}: give a number of seconds above 0, at most {_HOUR:,}.")


def _read_backend(name: str, value: object) -> str:
    if value in _BACKENDS:
        return str(value)
    known = ", ".join(map(repr, _BACKENDS))
    raise SettingError(f"{name} = {value!r}: give one of {known}.")


_HOUR: Final = 3600
_BACKENDS: Final = ("auto", "local", "redis")

BACKEND: Final = Setting(
    "BLOOM_BACKEND",
    "auto",
    _read_backend,
    "Where the filter is: `local`, in this process and its job directory, or `redis`, shared by all"
    " workers. `auto` is `redis` with `BLOOM_REDIS_URL` or scrapy-redis's scheduler, else `local`.",
)


def _read_rules(name: str, value: object) -> dict[str, Rule]:
    if isinstance(value, str):  # from the command line
        with suppress(ValueError):
            value = json.loads(value)
    return read_rules(name, value)


CAPACITY: Final = Setting(
    "BLOOM_CAPACITY",
    DEFAULT_CAPACITY,
    read_capacity,
    'How many requests the filter is sized for: `10_000_000`, `1e7` or `"10M"`, from 1 to 10G.'
    " Beyond that it grows; a good guess saves memory and time.",
)
ERROR_RATE: Final = Setting(
    "BLOOM_ERROR_RATE",
    DEFAULT_ERROR_RATE,
    read_error_rate,
    "The share of new requests that may be called seen, and so lost, in total however far the"
    " filter grows: from 1e-15 to below 1.",
)
ON_UNCLEAN: Final = Setting(
    "BLOOM_ON_UNCLEAN",
    OnUnclean.ROLLBACK.value,
    _read_on_unclean,
    "What to do when the last run in the job directory was killed: `rollback` to its last clean"
    " stop, `reset` to an empty filter (also if `requests.queue` was deleted since), or `fail`: do"
    " not start.",
)
REDIS_URL: Final = Setting(
    "BLOOM_REDIS_URL",
    "",
    _read_text,
    "The Redis server, or a node of a cluster: `redis://user:password@host:port/db`, `rediss://`"
    " for TLS, `unix:///path`. Empty: as scrapy-redis's `REDIS_URL`, `REDIS_HOST`, `REDIS_PORT`,"
    " `REDIS_DB` and `REDIS_PARAMS` say, else `redis://localhost:6379/0`.",
)
REDIS_KEY: Final = Setting(
    "BLOOM_REDIS_KEY",
    "%(spider)s:bloom",
    _read_text,
    "Its key in Redis; workers with the same key share a filter.",
)
REDIS_SHARDS: Final = Setting(
    "BLOOM_REDIS_SHARDS",
    RedisOptions.shards,
    _read_count(1, MAX_SHARDS),
    "Parts that it is spread over in a Redis Cluster, 1 to 1,024.",
)
REDIS_CACHE: Final = Setting(
    "BLOOM_REDIS_CACHE",
    RedisOptions.cache,
    _read_count(0, 10**9),
    "Fingerprints that a worker remembers by itself, to answer repeats without a round trip: about"
    " 120 bytes each, 0 for none.",
)
REDIS_TIMEOUT: Final = Setting(
    "BLOOM_REDIS_TIMEOUT",
    RedisOptions.timeout,
    _read_seconds,
    "Seconds that Redis may hold up one check before it counts as out.",
)
REDIS_WAIT: Final = Setting(
    "BLOOM_REDIS_WAIT",
    RedisOptions.wait,
    _read_seconds,
    "Seconds that one outage may hold up the crawl with `BLOOM_ON_BACKEND_ERROR = 'wait'`.",
)
ON_BACKEND_ERROR: Final = Setting(
    "BLOOM_ON_BACKEND_ERROR",
    OnBackendError.ALLOW.value,
    read_policy,
    "While Redis cannot be used: `allow`, go on by the worker's own memory and report to Redis"
    " later; `wait` for it, then `allow`; or `close` the spider.",
)

CANONICAL: Final = Setting(
    "BLOOM_CANONICAL",
    DEFAULT_LEVEL,
    read_level,
    "Which spellings of a URL are one page: `scrapy` those that are for Scrapy, `safe` also those"
    " that the URL standards call the same, `usual` also a dot after the host and tracking"
    " parameters.",
)
DROP_PARAMS: Final = Setting(
    "BLOOM_CANONICAL_DROP_PARAMS",
    (),
    read_names,
    "Parameters that make no difference, at any level: names, or beginnings of names followed by"
    ' `*`: `["sid", "track_*"]`.',
)
KEEP_PARAMS: Final = Setting(
    "BLOOM_CANONICAL_KEEP_PARAMS",
    (),
    read_names,
    "Parameters that always make a difference, though they are on the tracking list or another.",
)
RULES: Final = Setting(
    "BLOOM_CANONICAL_RULES",
    {},
    _read_rules,
    "More rules, for a domain and its subdomains or, under `*`, for all: a dict from domain to a"
    " dict with any of `level`, `steps`, `drop`, `keep`, `keep_only`.",
)

ALL: Final[tuple[Setting[Any], ...]] = (
    CAPACITY,
    ERROR_RATE,
    ON_UNCLEAN,
    BACKEND,
    REDIS_URL,
    REDIS_KEY,
    REDIS_SHARDS,
    REDIS_CACHE,
    REDIS_TIMEOUT,
    REDIS_WAIT,
    ON_BACKEND_ERROR,
    CANONICAL,
    DROP_PARAMS,
    KEEP_PARAMS,
    RULES,
)

_SCRAPY_REDIS: Final = {
    "REDIS_URL": "url",
    "REDIS_HOST": "host",
    "REDIS_PORT": "port",
    "REDIS_DB": "db",
}


@dataclass(frozen=True)
class Settings:
    """What the user chose, read and checked.

    Attributes:
        capacity: items in the first slice.
        error_rate: bound for the total error rate.
        on_unclean: what to do after a kill.
        backend: ``auto`` or a name in :data:`BACKENDS`.
        redis_url: ours; empty if there is none.
        redis_params: scrapy-redis's, as arguments for a client.
        redis: how Redis is used; `key` has the spider's name still to be put in.
        canonical: which URLs are one page.
    """

    capacity: int
    error_rate: float
    on_unclean: OnUnclean
    backend: str
    redis_url: str = field(repr=False)
    redis_params: Mapping[str, Any] = field(repr=False)
    redis: RedisOptions
    canonical: Rules

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Settings:
        """Read and check all settings; a name that is none of ours is said in the log.

        :raises SettingError: naming the setting, its value and what it may be.
        """
        _warn_of_unknown(settings)
        return cls(
            capacity=CAPACITY.of(settings),
            error_rate=ERROR_RATE.of(settings),
            on_unclean=ON_UNCLEAN.of(settings),
            backend=BACKEND.of(settings),
            redis_url=REDIS_URL.of(settings),
            redis_params=_scrapy_redis_params(settings),
            redis=RedisOptions(
                key=REDIS_KEY.of(settings),
                shards=REDIS_SHARDS.of(settings),
                cache=REDIS_CACHE.of(settings),
                timeout=REDIS_TIMEOUT.of(settings),
                wait=REDIS_WAIT.of(settings),
                on_error=ON_BACKEND_ERROR.of(settings),
            ),
            canonical=Rules.of(
                CANONICAL.of(settings),
                DROP_PARAMS.of(settings),
                KEEP_PARAMS.of(settings),
                RULES.of(settings),
            ),
        )


def _scrapy_redis_params(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what scrapy-redis would give its client: REDIS_PARAMS come last."""
    params = dict(settings.get("REDIS_PARAMS") or {})
    for name, parameter in _SCRAPY_REDIS.items():
        if settings.get(name):
            params[parameter] = settings[name]
    return params


def _warn_of_unknown(settings: Mapping[str, Any]) -> None:
    known = [setting.name for setting in ALL]
    for name in settings:
        if name.startswith("BLOOM_") and name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            logger.warning("There is no setting %s%s", name, hint or ".")
