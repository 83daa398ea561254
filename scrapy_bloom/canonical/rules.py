"""Levels and rules: what a user may set, how it is written, and how a filter stores it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from w3lib.url import canonicalize_url

from scrapy_bloom.canonical.steps import STEPS, Tier
from scrapy_bloom.errors import SettingError, shown

LEVELS: Final[dict[str, frozenset[Tier]]] = {
    "scrapy": frozenset(),
    "safe": frozenset({"safe"}),
    "usual": frozenset({"safe", "usual"}),
}
"""Each level, and the tiers of steps that it takes."""

DEFAULT_LEVEL: Final = "safe"
OPT_IN: Final = tuple(step.name for step in STEPS if step.tier == "opt-in")
EVERYWHERE: Final = "*"

FORM: Final = 1
"""Number of the way in which steps and Scrapy's canonical form make a fingerprint.

It changes when the same rules give some URL other bytes.
"""


@dataclass(frozen=True)
class Rule:
    """What holds everywhere, or for one domain and its subdomains.

    Attributes:
        level: one of :data:`LEVELS`; None to use the level of the wider rule.
        steps: names of opt-in steps to take.
        drop: parameters to drop: names, or beginnings of names followed by ``*``.
        keep: parameters that no step drops, written in the same way.
        keep_only: if given, all parameters but these are dropped.
    """

    level: str | None = None
    steps: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    keep_only: tuple[str, ...] | None = None

    def extended_by(self, narrower: Rule) -> Rule:
        """Return this rule with the rule of a narrower domain added to it."""
        return Rule(
            level=narrower.level or self.level,
            steps=self.steps + narrower.steps,
            drop=self.drop + narrower.drop,
            keep=self.keep + narrower.keep,
            keep_only=self.keep_only if narrower.keep_only is None else narrower.keep_only,
        )


@dataclass(frozen=True)
class Rules:
    """All rules of one crawl.

    Attributes:
        general: what holds everywhere; its level is always given.
        domains: what is added for a domain and its subdomains.
    """

    general: Rule
    domains: Mapping[str, Rule] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        level: str,
        drop: tuple[str, ...] = (),
        keep: tuple[str, ...] = (),
        domains: Mapping[str, Rule] | None = None,
    ) -> Rules:
        """Combine what holds everywhere with the rules by domain, one of which may be ``*``."""
        narrower = dict(domains or {})
        everywhere = narrower.pop(EVERYWHERE, Rule())
        return cls(Rule(level=level, drop=drop, keep=keep).extended_by(everywhere), narrower)

    def for_host(self, host: str, level: str | None = None) -> Rule:
        """Return the rule for one host: the general one, then those of its domains, widest first.

        :param level: the level to use instead of the one that the rules give.
        """
        rule = self.general
        labels = host.rstrip(".").split(".")
        for start in reversed(range(len(labels))):
            narrower = self.domains.get(".".join(labels[start:]))
            rule = rule.extended_by(narrower) if narrower else rule
        return replace(rule, level=level) if level else rule

    def record(self) -> dict[str, Any]:
        """Return what a filter stores about how its fingerprints are made, ready for JSON."""
        ordered = sorted(self.domains.items())
        rules = {EVERYWHERE: _given(self.general)} | {name: _given(rule) for name, rule in ordered}
        return {"form": FORM, "rules": rules}


def _given(rule: Rule) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(rule).items()
        if value not in (None, ())
    }


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


def read_level(name: str, value: object) -> str:
    """Return `value` as a level.

    :param name: what to call the value in an error.
    :raises SettingError: if there is no such level.
    """
    level = value.lower() if isinstance(value, str) else ""
    if level in LEVELS:
        return level
    raise SettingError(f"{name} = {shown(value)}: must be one of {_listed(LEVELS)}.")


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
        f"{name} = {shown(value)}: must be a list of parameter names; a trailing '*' matches any"
        f" suffix: ['sid', 'utm_*']."
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
    keys = [part.name for part in fields(Rule)]
    if not isinstance(rule, Mapping) or not rule.keys() <= set(keys):
        raise SettingError(f"{name} = {shown(rule)}: must be a dict with any of {_listed(keys)}.")
    read: dict[str, Any] = {
        key: read_level(f"{name}['level']", value)
        if key == "level"
        else read_names(f"{name}[{key!r}]", value)
        for key, value in rule.items()
        if value is not None
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
