"""What a filter remembers of how its fingerprints came about, and what a change of that means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from scrapy_bloom.canonical.rules import Rules

_LIBRARIES: Final = ("scrapy", "w3lib")


def record(rules: Rules) -> dict[str, Any]:
    """Return what goes into a filter's header: rules (with the level) and library versions."""
    return {"rules": rules.as_json(), **{name: version(name) for name in _LIBRARIES}}


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say in one message what differs between two records and what it means; "" if nothing."""
    changes = [
        f"{_NAMES[key]} {_shown(then.get(key))}, now {_shown(now.get(key))}"
        for key in _NAMES
        if then.get(key) != now.get(key)
    ]
    if not changes:
        return ""
    return (
        f"The filter was filled with {'; '.join(changes)}. Pages whose URLs are now spelled in"
        " another way are fetched again; URLs that were taken for one page before stay one. To"
        " have neither, go back to what it was, or start with an empty filter."
    )


_NAMES: Final = {"rules": "the rules", "scrapy": "Scrapy", "w3lib": "w3lib"}


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
