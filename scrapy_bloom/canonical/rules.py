"""Levels and rules: what a user may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from scrapy_bloom.canonical.steps import STEPS, Tier

LEVELS: Final[dict[str, frozenset[Tier]]] = {
    "scrapy": frozenset(),
    "safe": frozenset({"safe"}),
    "usual": frozenset({"safe", "usual"}),
}
"""Each level, and the tiers of steps that it takes."""

DEFAULT_LEVEL: Final = "safe"
OPT_IN: Final = tuple(step.name for step in STEPS if step.tier == "opt-in")
EVERYWHERE: Final = "*"


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
        left_out: names of steps that are not taken although a level or rule chooses them. No
            setting gives them: they are for questions such as "would this be one page without
            the step?".
    """

    general: Rule
    domains: Mapping[str, Rule] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

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

    def without(self, *steps: str) -> Rules:
        """Return the same rules, but never taking the named steps."""
        return replace(self, left_out=self.left_out.union(steps))

    def as_json(self) -> dict[str, Any]:
        """Return the rules as JSON-ready dicts, without the keys that are not given."""
        ordered = sorted(self.domains.items())
        return {EVERYWHERE: _given(self.general)} | {name: _given(rule) for name, rule in ordered}


def _given(rule: Rule) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(rule).items()
        if value not in (None, ())
    }
