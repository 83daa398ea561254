"""What a filter remembers of how its fingerprints were made, and what a change of that means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from typing import Any, Final

from scrapy_bloom.canonical.rules import DEFAULT_LEVEL, EVERYWHERE, Rules
from scrapy_bloom.crawl.rules import read_rules

FORM: Final = 1
"""Number of the way in which steps and Scrapy's canonical form make a fingerprint.

It changes when the same rules give some URL other bytes.
"""

MAX_RULES: Final = 1000
"""Longest rules, in characters of JSON, that are recorded in full."""

_LIBRARIES: Final = ("scrapy", "w3lib")
_NAMES: Final = {
    "form": "canonical form",
    "rules": "the rules",
    "scrapy": "Scrapy",
    "w3lib": "w3lib",
}


def record(rules: Rules) -> dict[str, Any]:
    """Return what goes into a filter's header: form, rules (with the level), library versions.

    Rules longer than :data:`MAX_RULES` are recorded as their SHA-256, their number of domains and
    their first characters, so that a header stays small however many domains have rules.
    """
    return {
        "form": FORM,
        "rules": _bounded(rules.as_json()),
        **{name: version(name) for name in _LIBRARIES},
    }


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a message that says what differs between two records; "" if nothing does.

    :param then: the record of a filter.
    :param now: the record of this crawl.
    """
    changes = [
        f"{name} {_shown(then.get(key))}, now {_shown(now.get(key))}"
        for key, name in _NAMES.items()
        if then.get(key) != now.get(key)
    ]
    if not changes:
        return ""
    return (
        f"The filter was filled with {'; '.join(changes)}. Pages whose URLs now have another"
        " canonical form are fetched again. URLs that were taken for one page before stay one"
        " page. To avoid both, go back to the earlier rules and versions, or start with an empty"
        " filter."
    )


def rules_of_record(then: Mapping[str, Any]) -> Rules | None:
    """Return the rules that a record tells; None if it has none, or only their SHA-256.

    :raises SettingError: if it has rules that this version does not know.
    """
    rules = then.get("rules")
    if not isinstance(rules, Mapping) or EVERYWHERE not in rules:
        return None
    return Rules.of(DEFAULT_LEVEL, domains=read_rules("rules", rules))


def _bounded(rules: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `rules` as they are recorded."""
    text = _as_text(rules)
    if len(text) <= MAX_RULES:
        return rules
    return {
        "sha256": sha256(text.encode()).hexdigest(),
        "domains": len(rules) - 1,
        "begin": text[: MAX_RULES // 4],
    }


def _shown(value: object) -> str:
    return value if isinstance(value, str) else _as_text(value)


def _as_text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
