"""The options of the package, in one table, and how each of them is read.

Its reader gets the name to use in an error: that of the setting, or of an argument of the library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from math import isfinite, nextafter
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from scrapy_bloom.canonical.rules import (
    DEFAULT_LEVEL,
    Rule,
    read_level,
    read_names,
    read_rules,
)
from scrapy_bloom.errors import SettingError, shown

T = TypeVar("T")
N = TypeVar("N", int, float)

Reader = Callable[[str, object], T]
"""Turns a name and a written value into the value; raises :class:`SettingError` by that name."""


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


class OnBackendError(str, Enum):
    """What to do when Redis cannot be used."""

    AUTO = "auto"
    ALLOW = "allow"
    WAIT = "wait"
    CLOSE = "close"


class CommitSync(str, Enum):
    """What a commit of ``scrapy_bloom.Scheduler`` survives."""

    PROCESS = "process"
    MACHINE = "machine"


def one_of(choices: Iterable[T]) -> Reader[T]:
    """Return a reader that takes one of some names, or a member of an enum or its value."""
    known = {str(getattr(choice, "value", choice)): choice for choice in choices}

    def read(name: str, value: object) -> T:
        plain = getattr(value, "value", value)
        if isinstance(plain, str) and plain.lower() in known:
            return known[plain.lower()]
        raise refusal(name, value, f"must be one of {', '.join(map(repr, known))}.")

    return read


def refusal(name: str, value: object, expected: str) -> SettingError:
    """Return the error that refuses a value and says what is expected."""
    return SettingError(f"{name} = {shown(value)}: {expected}")


def number(
    kind: Callable[[float], N],
    low: float,
    high: float,
    expected: str,
    suffixes: Mapping[str, float] = MappingProxyType({}),
) -> Reader[N]:
    """Return a reader of numbers, or of text such as ``10_000_000``, ``1e7`` or ``10M``.

    :param kind: ``int`` or ``float``.
    :param low: the least number that is taken; `high` is the greatest.
    :param expected: what an error says that it must be.
    :param suffixes: what a letter at the end of text multiplies it by.
    """

    def read(name: str, value: object) -> N:
        found = _number(value, suffixes)
        if found is None or not low <= found <= high or kind(found) != found:
            raise refusal(name, value, f"must be {expected}.")
        return kind(found)

    return read


def _number(value: object, suffixes: Mapping[str, float]) -> float | None:
    """Return the finite number that `value` is or says, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    factor = 1.0
    if isinstance(value, str):
        value = value.strip()
        suffix = value[-1:].upper()
        factor = suffixes.get(suffix, 1.0)
        value = value[:-1] if suffix in suffixes else value
    try:
        found = float(value) * factor
    except (ValueError, OverflowError):
        return None
    return found if isfinite(found) else None


DEFAULT_CAPACITY: Final = 1_000_000
DEFAULT_ERROR_RATE: Final = 1e-6
MAX_CAPACITY: Final = 10_000_000_000
MIN_ERROR_RATE: Final = 1e-15

LONGEST: Final = 36_500 * 86_400
"""Seconds of the longest window."""

THOUSANDS: Final = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SPANS: Final = {"S": 1.0, "M": 60.0, "H": 3600.0, "D": 86_400.0, "W": 604_800.0}
_SPAN_EXAMPLES: Final = "seconds, or '45s', '90m', '12h', '30d', '2w'"
_HOUR: Final = 3600

read_capacity: Final = number(
    int,
    1,
    MAX_CAPACITY,
    f"a whole number of items from 1 to {MAX_CAPACITY:,}, such as 10_000_000, 1e7 or '10M'",
    THOUSANDS,
)
"""Reads a number of items, whole: ``10_000_000``, ``1e7``, or with K, M or G at its end."""

read_error_rate: Final = number(
    float,
    MIN_ERROR_RATE,
    nextafter(1, 0),
    f"a number from {MIN_ERROR_RATE:g} to below 1, the share of new items that may be called seen:"
    f" 1e-6 loses one page in a million",
)
"""Reads the share of new items that may be called seen."""

read_age: Final = number(float, 0, LONGEST, f"a time from 0 to 100 years: {_SPAN_EXAMPLES}", _SPANS)
"""Reads the seconds of a maximum age: a number, or text such as ``45s``, ``12h``, ``30d``."""

_read_span: Final = number(
    float, 1, LONGEST, f"a time from 1 second to 100 years: {_SPAN_EXAMPLES}", _SPANS
)


def read_window(name: str, value: object) -> float | None:
    """Return `value` as the seconds of a window; None, for ever, stays what it is.

    :param value: as :data:`read_age` takes it.
    :raises SettingError: if it is not a time, or below a second or above a hundred years.
    """
    return None if value is None else _read_span(name, value)


def write_span(seconds: float) -> str:
    """Return a time as users write it: ``30d``, ``90m``, or seconds if no unit fits."""
    for unit in reversed(_SPANS):
        if seconds >= _SPANS[unit] and seconds % _SPANS[unit] == 0:
            return f"{seconds / _SPANS[unit]:.0f}{unit.lower()}"
    return f"{seconds:g}s"


def write_size(size: float) -> str:
    """Return a number of bytes as people read it: ``49.8 kB``, ``4.3 MB``, ``44.0 GB``."""
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:  # noqa: PLR2004 - the step between units
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} GB"


def counted(number: int, what: str) -> str:
    """Return a number with what it counts: ``1 page``, ``2,000 pages``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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


def _read_statuses(name: str, value: object) -> bool | tuple[int, ...]:
    written = value
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value.lower())
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    given = value if isinstance(value, Collection) else [value]
    numbers = [_number(one, {}) for one in given]
    statuses = tuple(int(one) for one in numbers if one is not None and one == int(one))
    if statuses and len(statuses) == len(numbers) and all(100 <= one <= 599 for one in statuses):  # noqa: PLR2004
        return statuses
    raise refusal(
        name, written, "must be True, False or a list of HTTP statuses, such as [403, 404, 503]."
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
    "How long a page is seen after it was let through, or up to an eighth longer: seconds, or a"
    ' number with `s`, `m` (minutes), `h`, `d` or `w`, such as `"30d"` or `"1.5h"`; from 1 second'
    " to 100 years. `None`: forever. All workers of a filter in Redis need the same value.",
)
COMMIT_SYNC: Final = Option(
    "BLOOM_COMMIT_SYNC",
    CommitSync.PROCESS,
    one_of(CommitSync),
    "What a commit survives: the end of the `process`, or also of the `machine`, which makes it"
    " wait for the disk. With `process`, a power failure takes the crawl back to an earlier"
    " commit: no page is lost, more are fetched again.",
)
FORGET_FAILED: Final[Option[bool | tuple[int, ...]]] = Option(
    "BLOOM_FORGET_FAILED",
    default=False,
    read=_read_statuses,
    meaning="Whether failed pages are eligible again in the next run: `True` for those whose"
    " download failed after all retries or ended in a status of Scrapy's `RETRY_HTTP_CODES`, or"
    " a list of statuses to use instead: `[403, 404, 503]`.",
)
EXACT: Final[Option[bool]] = Option(
    "BLOOM_EXACT",
    default=False,
    read=_read_flag,
    meaning="Whether to rule out that a new page is called seen. It needs"
    " `scrapy_bloom.Scheduler` with a `JOBDIR`. The guide Exact has the costs.",
)
BACKEND: Final = Option(
    "BLOOM_BACKEND",
    "auto",
    one_of(("auto", "local", "redis")),
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
    " `BOT_NAME`, `%(spider)s` the spider's name.",
)
REDIS_TIMEOUT: Final = Option(
    "BLOOM_REDIS_TIMEOUT",
    2.0,
    number(float, 0.001, _HOUR, f"a number of seconds from 0.001 to {_HOUR:,}"),
    "How many seconds a call to Redis may take in all, with its retry, a name lookup, and a reply"
    " that arrives byte by byte.",
)
ON_BACKEND_ERROR: Final = Option(
    "BLOOM_ON_BACKEND_ERROR",
    OnBackendError.AUTO,
    one_of(OnBackendError),
    "What to do while Redis is unavailable. With `scrapy_bloom.Scheduler`: `wait` for it, or"
    " `close` the spider. With another scheduler: `allow` fetches the pages that this worker does"
    " not know, without marking them; `wait` first waits once per outage, up to"
    " `BLOOM_REDIS_TIMEOUT`; `close` closes the spider. `auto` is `allow` with Scrapy's"
    " scheduler, else `wait`.",
)
CANONICAL: Final = Option(
    "BLOOM_CANONICAL",
    DEFAULT_LEVEL,
    read_level,
    "Which URL variants are one page: `scrapy` what is one page for Scrapy, `safe` also what the"
    " URL standards call equivalent, `usual` also a dot after the host and tracking parameters.",
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

OPTIONS: Final[tuple[Option[Any], ...]] = tuple(
    one for one in tuple(globals().values()) if isinstance(one, Option)
)
"""All of them, in the order of the docs."""
