"""The steps that level and rules choose for a host, and when none of them would change a URL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote_plus

from w3lib.url import canonicalize_url

from scrapy_bloom.canonical.names import Names, Params
from scrapy_bloom.canonical.parts import Parts, split_url
from scrapy_bloom.canonical.rules import DEFAULT_LEVEL, LEVELS, Rule, Rules
from scrapy_bloom.canonical.steps import STEPS, Step
from scrapy_bloom.canonical.tracking import TRACKING_PARAMS

_MAX_HOSTS: Final = 4096
# One round is nearly always enough. `www.127.1` needs two if the step `www` is on.
_MAX_ROUNDS: Final = 8

HOSTS_OWN: Final = frozenset(
    step.name
    for step in STEPS
    if all(canonicalize_url(before) == after for before, after in step.examples)
)
"""Names of the steps that the installed w3lib takes itself."""


class Pipeline:
    """The steps of one rule, in the order of :data:`STEPS`.

    A step sees the URL as Scrapy sends it, with all its escapes, and none decodes what it keeps.
    Decoding between two steps would decode some text twice: ``%2%65`` becomes ``%2e`` and then a
    dot, and a URL that a site never answers could hide one of its pages.

    :param left_out: names of steps to leave out.

    Attributes:
        steps: all of them.
        before_scrapy: those that are left to take if Scrapy's canonical form follows. All of them,
            if one sees what another one has done to the path.
    """

    def __init__(self, rule: Rule, left_out: frozenset[str] = frozenset()) -> None:
        self._params = Params(
            drop=Names.of(rule.drop),
            keep=Names.of(rule.keep),
            keep_only=None if rule.keep_only is None else Names.of(rule.keep_only),
        )
        self.steps = tuple(
            step for step in STEPS if _chooses(rule, step) and step.name not in left_out
        )
        reaches = {step.reach for step in self.steps}
        self._any_part = "all" in reaches
        self._last_dot = "host" in reaches
        self._ports = (":80", ":443") if "port" in reaches else ()
        self._may_drop = _search_for_dropped({step.name for step in self.steps}, rule)
        self.before_scrapy = self.steps
        if not self._any_part:
            self.before_scrapy = tuple(s for s in self.steps if s.name not in HOSTS_OWN)

    def is_noop_for(self, host: str, port: str, query: str) -> bool:
        """Return whether no step before Scrapy's form changes a tame URL; False means "perhaps".

        The parts are as the fast path gives them.
        """
        return not (
            self._any_part
            or port in self._ports
            or (self._last_dot and host[-1] == ".")
            or (query and self._may_drop and self._may_drop(f"&{query}"))
        )

    def before(self, parts: Parts) -> tuple[Parts | None, tuple[str, ...]]:
        """Take the steps before Scrapy's form.

        :return: the changed parts, None if nothing changes, and the names of the steps that did it.
        """
        changed = None
        names: dict[str, None] = {}
        for name, changed in self._follow(parts, self.before_scrapy):  # noqa: B007 - the last counts
            names[name] = None
        return changed, tuple(names)

    def walk(self, url: str) -> Iterator[tuple[str, Parts]]:
        """Take all steps with the URL of a request.

        :return: for each step that changes something, its name and the parts after it.
        """
        parts = split_url(url) if self.steps else None
        return self._follow(parts, self.steps) if parts else iter(())

    def _follow(self, parts: Parts, steps: tuple[Step, ...]) -> Iterator[tuple[str, Parts]]:
        """Take `steps`, round after round, until a round changes nothing."""
        for _ in range(_MAX_ROUNDS):
            before = parts
            for step in steps:
                changed = step.change(parts, self._params)
                if changed is not parts:
                    parts = changed
                    yield step.name, parts
            if parts is before or not self._any_part:
                return


def _chooses(rule: Rule, step: Step) -> bool:
    if step.tier == "setting":
        return getattr(rule, step.name) not in ((), None)
    return step.name in rule.steps or step.tier in LEVELS[rule.level or DEFAULT_LEVEL]


def _search_for_dropped(names: set[str], rule: Rule) -> Callable[[str], object] | None:
    """Return a search for parameters that a step might drop, in a canonical query behind a &."""
    of_lists = {"tracking": TRACKING_PARAMS, "drop": rule.drop}
    dropping = [step.name for step in STEPS if step.reach == "query" and step.name in names]
    if not dropping:
        return None
    if any(name not in of_lists for name in dropping):
        return re.compile("").search  # any parameter might be dropped
    patterns = Names.of(pattern for name in dropping for pattern in of_lists[name])
    exact = "|".join(re.escape(quote_plus(name)) for name in sorted(patterns.exact))
    prefixes = "|".join(re.escape(quote_plus(prefix)) for prefix in patterns.prefixes)
    return re.compile(rf"&(?:(?:{exact})=|{prefixes or '(?!)'})").search


class Pipelines:
    """The pipeline of each host.

    Attributes:
        general: the pipeline of hosts that no rule names.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._by_host: dict[tuple[str, str | None], Pipeline] = {}
        self._by_rule: dict[Rule, Pipeline] = {}
        self.general = self._pipeline(rules.general)

    def of(self, url: str, level: str | None) -> Pipeline:
        """Return the pipeline for the host of `url`, at `level` instead of the host's if given."""
        if not self._rules.domains and level is None:
            return self.general
        host = _host(url) if self._rules.domains else ""
        pipeline = self._by_host.get((host, level))
        if pipeline is None:
            pipeline = self._pipeline(self._rules.for_host(host, level))
            if len(self._by_host) >= _MAX_HOSTS:
                self._by_host.clear()
            self._by_host[host, level] = pipeline
        return pipeline

    def _pipeline(self, rule: Rule) -> Pipeline:
        if rule not in self._by_rule:
            self._by_rule[rule] = Pipeline(rule, self._rules.left_out)
        return self._by_rule[rule]


def _host(url: str) -> str:
    """Return the host of `url` in lower case, "" if there is none."""
    authority = url.partition("://")[2].partition("/")[0].partition("?")[0].partition("#")[0]
    address = authority.rpartition("@")[2]
    if address.startswith("["):
        return address.partition("]")[0] + "]"
    return address.partition(":")[0].lower()
