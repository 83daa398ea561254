"""What level and rules amount to for one host: the steps to take, and when none is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote_plus

from scrapy_bloom.canonical.names import Names, Params
from scrapy_bloom.canonical.parts import Parts, take_apart
from scrapy_bloom.canonical.rules import DEFAULT_LEVEL, LEVELS, Rule, Rules
from scrapy_bloom.canonical.steps import STEPS, Step
from scrapy_bloom.canonical.tracking import TRACKING_PARAMS

_HOSTS_KEPT: Final = 4096
# One round nearly always does; every step but one takes something away, so rounds end.
_ROUNDS: Final = 8


class Profile:
    """The steps of one level and rule.

    :param left_out: names of steps not to take all the same.

    Attributes:
        names: their names, in order.
        routes: whether a fragment may name a page.
    """

    def __init__(self, rule: Rule, left_out: frozenset[str] = frozenset()) -> None:
        self._params = Params(
            drop=Names.of(rule.drop),
            keep=Names.of(rule.keep),
            keep_only=None if rule.keep_only is None else Names.of(rule.keep_only),
        )
        steps = tuple(
            step for step in STEPS if self._takes(step, rule) and step.name not in left_out
        )
        self.names = tuple(step.name for step in steps)
        self._changes = tuple((step.name, step.change) for step in steps)
        self.routes = "fragment_route" in self.names
        self._query_only = all(step.reach != "all" for step in steps)
        self._suspect = _suspect(self.names, rule)

    @staticmethod
    def _takes(step: Step, rule: Rule) -> bool:
        if step.tier == "setting":
            return getattr(rule, step.name) not in ((), None)
        return step.name in rule.steps or step.tier in LEVELS[rule.level or DEFAULT_LEVEL]

    def leaves(self, query: str | None) -> bool:
        """Tell whether no step changes a plain URL with this `query`."""
        return self._query_only and (
            query is None or self._suspect is None or self._suspect(query) is None
        )

    def walk(self, url: str, spell: Callable[[Parts], str]) -> Iterator[tuple[str, Parts]]:
        """Take the steps on `url`, again and again until none changes it.

        `spell` puts parts together into the URL that the next round begins with. Yields the name
        of each step that changes something, with what it makes of the URL.
        """
        parts = take_apart(url)
        for _ in range(_ROUNDS):
            if parts is None:
                return
            begun = parts
            for name, change in self._changes:
                changed = change(parts, self._params)
                if changed is not parts:
                    parts = changed
                    yield name, parts
            if parts is begun:
                return
            spelled = take_apart(spell(parts))
            parts = spelled and spelled._replace(route=parts.route)


def _suspect(names: tuple[str, ...], rule: Rule) -> Callable[[str], object] | None:
    """Return a search for parameters that a step might drop from a plain query."""
    of_lists = {"tracking": TRACKING_PARAMS, "drop": rule.drop}
    touching = [step.name for step in STEPS if step.reach == "query" and step.name in names]
    if not touching:
        return None
    if any(name not in of_lists for name in touching):
        return re.compile("").search  # any parameter might go
    patterns = Names.of(pattern for name in touching for pattern in of_lists[name])
    exact = "|".join(re.escape(quote_plus(name)) for name in sorted(patterns.exact))
    begun = "|".join(re.escape(quote_plus(prefix)) for prefix in patterns.prefixes)
    return re.compile(rf"(?:^|&)(?:(?:{exact})=|{begun or '(?!)'})").search


class Profiles:
    """The profiles of all hosts.

    Attributes:
        general: that of hosts without a rule of their own.
    """

    def __init__(self, rules: Rules, left_out: frozenset[str]) -> None:
        self._rules = rules
        self._left_out = left_out
        self._by_host: dict[tuple[str, str | None], Profile] = {}
        self._by_rule: dict[Rule, Profile] = {}
        self.general = self._profile(rules.general)

    def of(self, url: str, level: str | None) -> Profile:
        """Return the profile for the host of `url`, at `level` if that is given."""
        if not self._rules.domains and level is None:
            return self.general
        host = _host(url) if self._rules.domains else ""
        profile = self._by_host.get((host, level))
        if profile is None:
            profile = self._profile(self._rule_for(host, level))
            if len(self._by_host) >= _HOSTS_KEPT:
                self._by_host.clear()
            self._by_host[host, level] = profile
        return profile

    def _rule_for(self, host: str, level: str | None) -> Rule:
        rule = self._rules.general
        labels = host.rstrip(".").split(".")
        for start in reversed(range(len(labels))):  # from the widest domain to the host itself
            narrower = self._rules.domains.get(".".join(labels[start:]))
            rule = rule.plus(narrower) if narrower else rule
        return rule.plus(Rule(level=level)) if level else rule

    def _profile(self, rule: Rule) -> Profile:
        if rule not in self._by_rule:
            self._by_rule[rule] = Profile(rule, self._left_out)
        return self._by_rule[rule]


def _host(url: str) -> str:
    """Return the host of `url` in lower case, "" if there is none."""
    authority = url.partition("://")[2].partition("/")[0].partition("?")[0].partition("#")[0]
    address = authority.rpartition("@")[2]
    if address.startswith("["):
        return address.partition("]")[0] + "]"
    return address.partition(":")[0].lower()
