"""Levels and rules of canonical URLs: as users write them, and as a filter remembers them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from w3lib.url import canonicalize_url

from scrapy_bloom.canonical.rules import DEFAULT_LEVEL, EVERYWHERE, LEVELS, OPT_IN, Rule, Rules
from scrapy_bloom.errors import SettingError, shown
from scrapy_bloom.options import CANONICAL, DROP_PARAMS, KEEP_PARAMS, RULES, one_of
from scrapy_bloom.settings import Settings

FORM: Final = 1
"""Number of the way in which steps and Scrapy's canonical form make a fingerprint.

It changes when the same rules give some URL other bytes.
"""

_KEYS: Final = tuple(part.name for part in fields(Rule))


def rules_of(settings: Settings) -> Rules:
    """Return what a project's settings say of canonical URLs."""
    return Rules.of(
        settings[CANONICAL], settings[DROP_PARAMS], settings[KEEP_PARAMS], settings[RULES]
    )


def rules_of_arguments(
    level: str = DEFAULT_LEVEL,
    drop_params: Iterable[str] = (),
    keep_params: Iterable[str] = (),
    rules: Mapping[str, Mapping[str, Any]] | None = None,
) -> Rules:
    """Return what arguments say of canonical URLs.

    :raises SettingError: if a level, step or rule does not exist.
    """
    return Rules.of(
        read_level("level", level),
        read_names("drop_params", drop_params),
        read_names("keep_params", keep_params),
        read_rules("rules", {} if rules is None else rules),
    )


def read_level(name: str, value: object) -> str:
    """Return `value` as a level.

    :param name: what to call the value in an error.
    :raises SettingError: if there is no such level.
    """
    return one_of(LEVELS)(name, value)


def read_names(name: str, value: object) -> tuple[str, ...]:
    """Return `value` as names of parameters.

    :param name: what to call the value in an error.
    :param value: a list, tuple or set of names, or text with commas between names.
    :raises SettingError: if it is something else.
    """
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple, set, frozenset)) and all(map(_is_name, value)):
        return tuple(sorted(value) if isinstance(value, (set, frozenset)) else value)
    raise SettingError(
        f"{name} = {shown(value)}: must be a list of parameter names, with a '*' at the end for all"
        f" that begin so: ['sid', 'utm_*']."
    )


def _is_name(value: object) -> bool:
    if not isinstance(value, str) or not value.strip("*") or "*" in value[:-1]:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half a character: no URL has it
        return False
    return True


def read_rules(name: str, value: object) -> dict[str, Rule]:
    """Return `value` as rules by domain. Domains are written as in canonical URLs.

    :param name: what to call the value in an error.
    :param value: a dict from domain, or ``*`` for all, to a dict with any of ``level``, ``steps``,
        ``drop``, ``keep`` and ``keep_only``.
    :raises SettingError: if a rule is wrong. The message names its domain and key, and says what is
        allowed.
    """
    if not isinstance(value, Mapping):
        raise SettingError(
            f"{name} = {shown(value)}: must be a dict from domain to rule, such as"
            f" {{'example.com': {{'steps': ['trailing_slash']}}}}."
        )
    return {
        _read_domain(name, domain): _read_rule(f"{name}[{shown(domain)}]", rule)
        for domain, rule in value.items()
    }


def _read_rule(name: str, rule: object) -> Rule:
    if not isinstance(rule, Mapping):
        raise SettingError(f"{name} = {shown(rule)}: must be a dict with any of {_listed(_KEYS)}.")
    for key in rule:
        if key not in _KEYS:
            raise SettingError(f"{name} has {shown(key)}: must be one of {_listed(_KEYS)}.")
    given = {key: value for key, value in rule.items() if value is not None}
    read: dict[str, Any] = {
        key: read_level(f"{name}['level']", value)
        if key == "level"
        else read_names(f"{name}[{key!r}]", value)
        for key, value in given.items()
    }
    for step in read.get("steps", ()):
        if step not in OPT_IN:
            raise SettingError(f"{name}['steps'] has {step!r}: must be one of {_listed(OPT_IN)}.")
    return Rule(**read)


def _read_domain(name: str, domain: object) -> str:
    if domain == EVERYWHERE:
        return EVERYWHERE
    if isinstance(domain, str) and domain.strip(".") and not set(domain) & set("/:@?#* "):
        try:
            return canonicalize_url(f"http://{domain.strip('.')}/")[len("http://") : -1]
        except ValueError:
            pass
    raise SettingError(
        f"{name} has the domain {shown(domain)}: must be a host name such as 'example.com', without"
        f" scheme, port or path, or {EVERYWHERE!r} for all."
    )


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))


def record(rules: Rules) -> dict[str, Any]:
    """Return what a filter remembers of how its fingerprints are made."""
    return {"form": FORM, "rules": rules.as_json()}


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a message that says what differs between two records; "" if nothing does.

    :param then: the record of a filter.
    :param now: the record of this crawl.
    """
    changes = [
        f"{name} {shown(then.get(key))}, now {shown(now.get(key))}"
        for key, name in (("form", "canonical form"), ("rules", "the rules"))
        if then.get(key) != now.get(key)
    ]
    if not changes:
        return ""
    return (
        f"The filter was filled with {'; '.join(changes)}. Pages whose URLs now have another"
        " canonical form are fetched again. URLs that were one page stay one page. To avoid both,"
        " restore the earlier rules, or start with an empty filter."
    )


def rules_of_record(then: Mapping[str, Any]) -> Rules | None:
    """Return the rules that a record has, None if it has none.

    :raises SettingError: if this version does not know them.
    """
    rules = then.get("rules")
    return Rules.of(DEFAULT_LEVEL, domains=read_rules("rules", rules)) if rules else None
