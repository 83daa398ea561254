"""The two numbers a user chooses: their defaults, ranges, and how they may be written."""

from __future__ import annotations

from math import isfinite
from typing import Final

from scrapy_bloom.errors import SettingError

DEFAULT_CAPACITY: Final = 1_000_000
DEFAULT_ERROR_RATE: Final = 1e-6
MAX_CAPACITY: Final = 10_000_000_000
MIN_ERROR_RATE: Final = 1e-15

_SUFFIXES: Final = {"K": 1e3, "M": 1e6, "G": 1e9}
_BYTES_PER_ITEM: Final = 4.4  # of a slice at the default error rate, full to its capacity


def read_capacity(name: str, value: object) -> int:
    """Return `value` as a number of items.

    :param name: what to call it in an error: the setting or argument it comes from.
    :param value: an integer, an integral float, or text such as ``10_000_000``, ``1e7``, ``10M``
        (suffixes K, M, G: thousands, millions, thousand millions).
    :raises SettingError: if it is none of these, or outside 1 to 10,000,000,000.
    """
    number = _number(value, _SUFFIXES)
    if number is not None and number == int(number) and 1 <= number <= MAX_CAPACITY:
        return int(number)
    raise SettingError(
        f"{name} = {value!r}: give a whole number of items from 1 to {MAX_CAPACITY:,}, such as"
        f" 10_000_000, 1e7 or '10M'. {_memory(number)}"
    )


def read_error_rate(name: str, value: object) -> float:
    """Return `value` as an error rate.

    :param name: what to call it in an error: the setting or argument it comes from.
    :param value: a number, or text such as ``0.001`` or ``1e-6``.
    :raises SettingError: if it is not a number from 1e-15 to below 1.
    """
    number = _number(value, {})
    if number is not None and MIN_ERROR_RATE <= number < 1:
        return number
    raise SettingError(
        f"{name} = {value!r}: give a number from {MIN_ERROR_RATE:g} to below 1, the share of new"
        f" items that may be called seen: 1e-6 loses one page in a million."
    )


def write_size(size: float) -> str:
    """Return a number of bytes as people read it: ``49.8 kB``, ``4.3 MB``, ``44.0 GB``."""
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:  # noqa: PLR2004 - the step between units
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} GB"


def _number(value: object, suffixes: dict[str, float]) -> float | None:
    """Return the finite number that `value` is or says, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    factor = 1.0
    if isinstance(value, str):
        value = value.strip()
        factor = suffixes.get(value[-1:].upper(), 1.0)
        value = value[:-1] if factor != 1 else value
    try:
        number = float(value) * factor
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _memory(items: float | None) -> str:
    """Say what a capacity takes: the asked one where that is a size, else the largest one."""
    count = items if items is not None and items >= 1 else float(MAX_CAPACITY)
    size = write_size(count * _BYTES_PER_ITEM)
    return f"{count:,.0f} items take about {size} at an error rate of {DEFAULT_ERROR_RATE:g}."
