"""JSON from files that may be damaged or forged: every field is checked by type and range."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def read_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object that `data` holds.

    :raises ValueError: if it holds none.
    """
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return _checked("it", found, dict)


def integer(fields: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """Return a field that is a whole number from `low` to `high`.

    :raises ValueError: if it is missing or something else; so do all functions below.
    """
    value = _field(fields, name, int)
    if isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r:.60}")
    return value


def number(fields: Mapping[str, Any], name: str, low: float, high: float) -> float:
    """Return a field that is a number from `low` to `high`."""
    value = fields[name] if isinstance(fields.get(name), int) else _field(fields, name, float)
    if isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r:.60}")
    return float(value)


def number_or_none(fields: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """Return a field that is null, or a number from `low` to `high`."""
    return None if fields.get(name, 0) is None else number(fields, name, low, high)


def share(fields: Mapping[str, Any], name: str) -> float:
    """Return a field that is a number above 0 and below 1."""
    value = _field(fields, name, float)
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value!r}")
    return value


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false."""
    return _field(fields, name, bool)


def text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is text."""
    return _field(fields, name, str)


def object_(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that is an object."""
    return _field(fields, name, dict)


def objects(fields: Mapping[str, Any], name: str, most: int) -> list[dict[str, Any]]:
    """Return a field that is a list of at most so many objects."""
    values = _field(fields, name, list)
    if len(values) > most:
        raise ValueError(f"{name} has {len(values):,} entries")
    return [_checked(name, value, dict) for value in values]


def texts(fields: Mapping[str, Any], name: str) -> list[str]:
    """Return a field that is a list of texts."""
    return [_checked(name, value, str) for value in _field(fields, name, list)]


def _field(fields: Mapping[str, Any], name: str, kind: type[T]) -> T:
    if name not in fields:
        raise ValueError(f"there is no {name}")
    return _checked(name, fields[name], kind)


def _checked(name: str, value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {_shown(value)}")  # noqa: TRY004 - it is the file's fault
    return value


def _shown(value: object) -> str:
    kind = type(value).__name__
    return f"a {kind}" if isinstance(value, (dict, list)) else repr(value)[:60]
