"""The steps that level and rules choose for a host, and when none of them would change a URL."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final
from urllib.parse import quote_plus

from scrapy_bloom.canonical.names import TRACKING_PARAMS, Names, Params
from scrapy_bloom.canonical.parts import Parts
from scrapy_bloom.canonical.rules import DEFAULT_LEVEL, LEVELS, Rule, Rules
from scrapy_bloom.canonical.steps import STEPS, Step

_MAX_HOSTS: Final = 4096
# One round is nearly always enough. `www.127.1` needs two if the step `www` is on.
_MAX_ROUNDS: Final = 8


class Pipeline:
    """The steps of one rule, in the order of :data:`STEPS`.

    A step sees the URL as Scrapy sends it, with all its escapes, and none decodes what it keeps.
    Decoding between two steps would decode some text twice: ``%2%65`` becomes ``%2e`` and then a
    dot, and a URL that a site never answers could hide one of its pages.
    """

    def __init__(self, rule: Rule) -> None:
        self._params = Params(
            drop=Names.of(rule.drop),
            keep=Names.of(rule.keep),
            keep_only=None if rule.keep_only is None else Names.of(rule.keep_only),
        )
        self._steps = [step for step in STEPS if _chooses(rule, step)]
        reaches = {step.reach for step in self._steps}
        self._any_part = "all" in reaches
        self._last_dot = "host" in reaches
        self._ports = (":80", ":443") if "port" in reaches else ()
        self._may_drop = _search_for_dropped({step.name for step in self._steps}, rule)

    def is_noop_for(self, host: str, port: str, query: str) -> bool:
        """Return whether no step changes the canonical form of a tame URL; False means "perhaps".

        The parts are as the fast path gives them.
        """
        return not (
            self._any_part
            or port in self._ports
            or (self._last_dot and host[-1] == ".")
            or (query and self._may_drop and self._may_drop(f"&{query}"))
        )

    def take(self, parts: Parts) -> list[tuple[str, Parts]]:
        """Take the steps, round after round, until a round changes nothing.

        :return: for each step that changes something, its name and the parts after it.
        """
        taken = []
        for _ in range(_MAX_ROUNDS):
            before = parts
            for step in self._steps:
                changed = step.change(parts, self._params)
                if changed is not parts:
                    parts = changed
                    taken.append((step.name, parts))
            if parts is before or not self._any_part:
                break
        return taken


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
    words = [f"{quote_plus(name)}=" for name in patterns.exact]
    words += [quote_plus(prefix) for prefix in patterns.prefixes]
    return re.compile(f"&(?:{'|'.join(map(re.escape, sorted(words)))})").search


def pipelines(rules: Rules) -> Callable[[str, str | None], Pipeline]:
    """Return what gives the pipeline for a host, at a level instead of the host's if one is given.

    :param rules: those of the crawl.
    """
    of_rule = cache(Pipeline)

    @lru_cache(_MAX_HOSTS)
    def of_host(host: str, level: str | None) -> Pipeline:
        return of_rule(rules.for_host(host, level))

    return of_host if rules.domains else lambda _, level: of_host("", level)
