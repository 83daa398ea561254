"""A project's settings: the options of the package in one table, and their values, checked."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from scrapy_bloom.canonical.rules import (
    DEFAULT_LEVEL,
    Rule,
    Rules,
    read_level,
    read_names,
    read_rules,
)
from scrapy_bloom.errors import SettingError
from scrapy_bloom.values import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    Reader,
    number,
    one_of,
    read_age,
    read_capacity,
    read_error_rate,
    read_window,
    refusal,
)

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SCRAPY_REDIS: Final = {
    "REDIS_URL": "url",
    "REDIS_HOST": "host",
    "REDIS_PORT": "port",
    "REDIS_DB": "db",
}
_PREFIX: Final = "BLOOM_"
_HOUR: Final = 3600


@dataclass(frozen=True, eq=False)
class Option(Generic[T]):
    """One thing that users can choose.

    Attributes:
        setting: its name in Scrapy's settings.
        default: the value where users give none.
        read: reads what users wrote.
        meaning: one or two sentences for the docs.
    """

    setting: str
    default: T
    read: Reader[T]
    meaning: str

    def read_from(self, written: Mapping[str, Any]) -> T:
        """Return its value in Scrapy's settings.

        :raises SettingError: if it is invalid.
        """
        value = written.get(self.setting, self.default)
        return self.default if value is self.default else self.read(self.setting, value)


def _read_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise refusal(name, value, "must be a string.")


def _read_key(name: str, value: object) -> str:
    key = _read_text(name, value)
    if {*"{}"}.intersection(key) and key.partition("{")[2].find("}") <= 0:
        raise refusal(name, value, "braces must enclose what names the slot: '{crawl}:bloom'.")
    return key


def _read_flag(name: str, value: object) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    flag = words.get(str(value).strip().lower()) if isinstance(value, (str, int)) else None
    if flag is None:
        raise refusal(name, value, "must be True or False.")
    return flag


_read_status = number(int, 100, 599, "an HTTP status")


def _read_statuses(name: str, value: object) -> bool | tuple[int, ...]:
    with suppress(SettingError):
        return _read_flag(name, value)
    codes: Any = [value] if isinstance(value, int) else value
    if isinstance(value, str):
        codes = value.strip("[ ]").split(",")
    with suppress(SettingError, TypeError):  # no statuses, or nothing that has any
        if statuses := tuple(_read_status(name, code) for code in codes):
            return statuses
    raise refusal(
        name, value, "must be True, False or a list of HTTP statuses, such as [403, 404, 503]."
    )


def _read_rules(name: str, value: object) -> Mapping[str, Rule]:
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    return read_rules(name, value)


MAX_AGE: Final = "bloom_max_age"
"""The key in a request's meta: a page is eligible again if it was let through that long ago."""

CAPACITY: Final = Option(
    "BLOOM_CAPACITY",
    DEFAULT_CAPACITY,
    read_capacity,
    'How many pages the filter is sized for: `10_000_000`, `1e7` or `"10M"`, from 1 to 10G.'
    " Beyond that it grows; a good guess saves memory and time.",
)
ERROR_RATE: Final = Option(
    "BLOOM_ERROR_RATE",
    DEFAULT_ERROR_RATE,
    read_error_rate,
    "The share of new requests that may be called seen, and so lost, over the whole crawl: from"
    " 1e-15 to below 1.",
)
WINDOW: Final[Option[float | None]] = Option(
    "BLOOM_WINDOW",
    None,
    read_window,
    "How long a page counts as seen, or up to an eighth longer: seconds, a `timedelta`, or"
    ' a number with `s`, `m` (minutes), `h`, `d` or `w`, such as `"30d"` or `"1.5h"`; from 1 second'
    " to 100 years. `None`: forever. All workers of a filter in Redis need the same value.",
)
COMMIT_SYNC: Final = Option(
    "BLOOM_COMMIT_SYNC",
    "process",
    one_of("process", "machine"),
    "What a commit survives: the end of the `process`, or also of the `machine`, which makes it"
    " wait for the disk. With `process`, a power failure takes the crawl back to an earlier"
    " commit: no page is lost, more are fetched again.",
)
RETRY_FAILED: Final[Option[bool | tuple[int, ...]]] = Option(
    "BLOOM_RETRY_FAILED",
    default=True,
    read=_read_statuses,
    meaning="Whether the next run fetches [failed pages](../guides/account.md#pages-that-failed)"
    " again. A list of statuses replaces Scrapy's `RETRY_HTTP_CODES`, so it must be complete:"
    " `[403, 408, 429, 500, 502, 503, 504, 522, 524]` adds 403. With `False`, failed pages are"
    " unparsed. Needs `scrapy_bloom.Scheduler`.",
)
RETRY_AFTER: Final = Option(
    "BLOOM_RETRY_AFTER",
    600.0,
    read_age,
    "The longest pause for a host that answers 429, or 503 with `Retry-After`: seconds, a"
    ' `timedelta`, or a number with `s`, `m`, `h`, `d` or `w`, such as `"10m"`. `0` ignores such'
    " answers. Needs `scrapy_bloom.Scheduler`.",
)
BACKEND: Final = Option(
    "BLOOM_BACKEND",
    "auto",
    one_of("auto", "local", "redis"),
    "Where the filter is: `local`, in this process and its job directory, or `redis`, shared by all"
    " workers. `auto` is `redis` with `BLOOM_REDIS_URL` or scrapy-redis's scheduler, else `local`.",
)
REDIS_URL: Final = Option(
    "BLOOM_REDIS_URL",
    "",
    _read_text,
    "The Redis server, or a node of a cluster: `redis://user:password@host:port/db`, `rediss://`"
    " for TLS, `unix:///path`. If empty, scrapy-redis's `REDIS_URL`, `REDIS_HOST`, `REDIS_PORT`,"
    " `REDIS_DB` and `REDIS_PARAMS`, else `redis://localhost:6379/0`.",
)
REDIS_KEY: Final = Option(
    "BLOOM_REDIS_KEY",
    "%(project)s:%(spider)s:bloom",
    _read_key,
    "The key in Redis. Workers with the same key share filter and queue. `%(project)s` is"
    " `BOT_NAME`, `%(spider)s` the spider's name, and `%(NAME)s` its attribute `NAME`, as in"
    " Scrapy's `FEEDS`.",
)
REDIS_TIMEOUT: Final = Option(
    "BLOOM_REDIS_TIMEOUT",
    2.0,
    number(float, 0.001, _HOUR, f"a number of seconds from 0.001 to {_HOUR:,}"),
    "How many seconds to wait for an answer of Redis, in two tries. A call that may carry requests"
    " does not block the crawl, and waits a minute in each try, or this time if it is longer:"
    " enough for 8 MB over a link of 140 KB/s. Larger requests stay in memory, like those that"
    " cannot be stored. A name lookup takes as long as the system lets it.",
)
ON_BACKEND_ERROR: Final = Option(
    "BLOOM_ON_BACKEND_ERROR",
    "auto",
    one_of("auto", "close"),
    "What to do while Redis is unavailable. `auto`: with `scrapy_bloom.Scheduler` wait for it, with"
    " another scheduler fetch the pages that this worker does not know, without marking them."
    " `close`: close the spider.",
)
CANONICAL: Final = Option(
    "BLOOM_CANONICAL",
    DEFAULT_LEVEL,
    read_level,
    "Which URL variants are one page. `scrapy`: those that Scrapy merges. `safe`: also those that"
    " the URL standards call equivalent. `usual`: also a dot after the host, and tracking"
    " parameters.",
)
DROP_PARAMS: Final[Option[tuple[str, ...]]] = Option(
    "BLOOM_CANONICAL_DROP_PARAMS",
    (),
    read_names,
    "Parameters that make no difference, at any level. A trailing `*` stands for the rest of a"
    ' name: `["sid", "track_*"]`.',
)
KEEP_PARAMS: Final[Option[tuple[str, ...]]] = Option(
    "BLOOM_CANONICAL_KEEP_PARAMS",
    (),
    read_names,
    "Parameters that always make a difference, whatever other lists say.",
)
RULES: Final[Option[Mapping[str, Rule]]] = Option(
    "BLOOM_CANONICAL_RULES",
    {},
    _read_rules,
    "Further rules, for a domain and its subdomains or, under `*`, for all: a dict from domain to"
    " a dict with any of `level`, `steps`, `drop`, `keep`, `keep_only`.",
)

OPTIONS: Final[tuple[Option[Any], ...]] = (
    *(CAPACITY, ERROR_RATE, WINDOW, COMMIT_SYNC, RETRY_FAILED, RETRY_AFTER, BACKEND, REDIS_URL),
    *(REDIS_KEY, REDIS_TIMEOUT, ON_BACKEND_ERROR, CANONICAL, DROP_PARAMS),
    *(KEEP_PARAMS, RULES),
)
"""All of them, in the order of the docs."""


class Settings:
    """The value of every option in a project: ``settings[CAPACITY]``.

    Unknown ``BLOOM_`` settings are logged. A crawl reads its settings once, with :meth:`of`.

    :param written: Scrapy's settings, or any mapping from their names.
    :raises SettingError: naming the setting, its value and what it must be.

    Attributes:
        redis_params: the arguments that scrapy-redis would give to its client.
    """

    def __init__(self, written: Mapping[str, Any]) -> None:
        self._values = {option: option.read_from(written) for option in OPTIONS}
        self.redis_params = _scrapy_redis_params(written)
        _warn_of_unknown(written)

    @classmethod
    def of(cls, crawler: Crawler) -> Settings:
        """Return the settings of a crawl, which are read when they are first asked for."""
        settings = _of_crawls.get(crawler)
        if settings is None:
            settings = _of_crawls[crawler] = cls(crawler.settings)
        return settings

    def __getitem__(self, option: Option[T]) -> T:
        value: T = self._values[option]
        return value

    @property
    def rules(self) -> Rules:
        """What the project says of canonical URLs."""
        return Rules.of(self[CANONICAL], self[DROP_PARAMS], self[KEEP_PARAMS], self[RULES])


def is_in_redis(written: Mapping[str, Any], *, shared_queue: bool = False) -> bool:
    """Return whether a project's filter is in Redis; not if the settings that say so are invalid.

    :param written: Scrapy's settings.
    :param shared_queue: whether the requests wait there as well, for any worker.
    """
    with suppress(SettingError):
        auto = shared_queue or bool(REDIS_URL.read_from(written))
        return {"auto": auto, "redis": True}.get(BACKEND.read_from(written), False)
    return False


def failing_statuses(crawler: Crawler) -> frozenset[int]:
    """Return the statuses that are failures if no callback gets the response."""
    chosen = Settings.of(crawler)[RETRY_FAILED]
    codes = crawler.settings.getlist("RETRY_HTTP_CODES") if isinstance(chosen, bool) else chosen
    return frozenset(map(int, codes))


_of_crawls: WeakKeyDictionary[Crawler, Settings] = WeakKeyDictionary()


def _scrapy_redis_params(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return scrapy-redis's settings as arguments. REDIS_URL and the like win over REDIS_PARAMS."""
    params = written.get("REDIS_PARAMS") or {}
    if not isinstance(params, Mapping):  # not shown: there may be a password in it
        raise SettingError(
            f"REDIS_PARAMS is a {type(params).__name__}: must be a dict of arguments for redis-py."
        )
    params = dict(params)
    for name, parameter in _SCRAPY_REDIS.items():
        if written.get(name):
            params[parameter] = written[name]
    return params


def _warn_of_unknown(written: Mapping[str, Any]) -> None:
    known = {option.setting.removeprefix(_PREFIX) for option in OPTIONS}
    for name in written:
        own = name.removeprefix(_PREFIX)
        if own != name and own not in known:
            close = get_close_matches(own, known, n=1)
            hint = f"; did you mean {_PREFIX}{close[0]}?" if close else "."
            logger.warning("There is no setting %s%s", name, hint)
