"""Reading and writing values: numbers, spans of time, sizes.

A reader gets the name to use in an error: that of a setting, or of an argument of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from math import isfinite, nextafter
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from scrapy_bloom.errors import SettingError, shown

T = TypeVar("T")
N = TypeVar("N", int, float)

Span: TypeAlias = float | str | timedelta
"""A span of time as users write it: seconds, or ``30d``, or a timedelta."""

Reader = Callable[[str, object], T]
"""Turns a name and a written value into the value; raises :class:`SettingError` by that name."""


def visible(text: str) -> str:
    """Return a text that controls nothing: no cursor, no colour, no direction of writing.

    Titles of pages, URLs and the names of workers are others' data.
    """
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def one_of(*choices: str) -> Reader[str]:
    """Return a reader that takes one of some names, in any case."""

    def read(name: str, value: object) -> str:
        if isinstance(value, str) and value.lower() in choices:
            return value.lower()
        raise refusal(name, value, f"must be one of {', '.join(map(repr, choices))}.")

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
        if isinstance(value, timedelta) and suffixes is _SPANS:
            value = value.total_seconds()
        parsed = finite(value, suffixes)
        if parsed is None or not low <= parsed <= high or kind(parsed) != parsed:
            raise refusal(name, value, f"must be {expected}.")
        return kind(parsed)

    return read


def finite(value: object, suffixes: Mapping[str, float] = MappingProxyType({})) -> float | None:
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
        parsed = float(value) * factor
    except (ValueError, OverflowError):
        return None
    return parsed if isfinite(parsed) else None


DEFAULT_CAPACITY: Final = 1_000_000
DEFAULT_ERROR_RATE: Final = 1e-6
MAX_CAPACITY: Final = 10_000_000_000
MIN_ERROR_RATE: Final = 1e-15

LONGEST: Final = 36_500 * 86_400
"""Seconds of the longest window."""

THOUSANDS: Final = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SPANS: Final = {"S": 1.0, "M": 60.0, "H": 3600.0, "D": 86_400.0, "W": 604_800.0}
_SPAN_EXAMPLES: Final = "seconds, or '45s', '90m', '12h', '30d', '2w', or a timedelta"

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


def encodable(text: str) -> str:
    """Return a text without halves of characters, which Python and JSON may have and no file can.

    Whatever a project or the world has named comes through here before it is written.
    """
    return text.encode(errors="replace").decode()


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
