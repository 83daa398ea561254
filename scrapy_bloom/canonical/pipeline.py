"""The steps that level and rules choose for a host, and a short way for nearly all URLs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Final
from urllib.parse import quote_plus

from scrapy_bloom.canonical.names import TRACKING_PARAMS, Names, Params
from scrapy_bloom.canonical.parts import Parts
from scrapy_bloom.canonical.rules import DEFAULT_LEVEL, LEVELS, Rule, Rules
from scrapy_bloom.canonical.steps import STEPS, Step

_MAX_HOSTS: Final = 4096
_MAX_ORIGINS: Final = 1024  # only those with a port or a dot at the end of the host


class Pipeline:
    """The steps of one rule, in the order of :data:`STEPS`.

    A step sees the URL as Scrapy sends it, with all its escapes, and none decodes what it keeps.
    Decoding between two steps would decode some text twice: ``%2%65`` becomes ``%2e`` and then a
    dot, and a URL that a site never answers could hide one of its pages.

    Attributes:
        any_part: whether some step may change any part of a tame URL. If not, :meth:`origin` and
            :meth:`drop` together change its canonical form as :meth:`take` would.
    """

    def __init__(self, rule: Rule) -> None:
        self._params = Params(
            drop=Names.of(rule.drop),
            keep=Names.of(rule.keep),
            keep_only=None if rule.keep_only is None else Names.of(rule.keep_only),
        )
        self._steps = [step for step in STEPS if _chooses(rule, step)]
        self._of_query = [step for step in self._steps if step.reach == "query"]
        self.any_part = any(step.reach == "all" for step in self._steps)
        self.origin = lru_cache(_MAX_ORIGINS)(self._origin)
        self._may_drop = _search_for_dropped(self._of_query, rule)

    def take(self, parts: Parts, steps: Sequence[Step] | None = None) -> list[tuple[str, Parts]]:
        """Take the steps, or only those given.

        :return: for each step that changes something, its name and the parts after it.
        """
        taken = []
        for step in self._steps if steps is None else steps:
            changed = step.change(parts, self._params)
            if changed is not parts:
                parts = changed
                taken.append((step.name, parts))
        return taken

    def _origin(self, scheme: str, host: str, port: str) -> tuple[str, str]:
        """Return host and port as the steps change them; all are as the fast path has them."""
        taken = self.take(Parts(scheme, "", host, port[1:], "", None, None))
        if not taken:
            return host, port
        changed = taken[-1][1]
        return changed.host, changed.port and f":{changed.port}"

    def drop(self, query: str) -> str:
        """Return a canonical query without what the steps drop."""
        if not query or self._may_drop is None or self._may_drop(f"&{query}") is None:
            return query
        taken = self.take(Parts("", "", "", "", "", query, None), self._of_query)
        return (taken[-1][1].query or "") if taken else query


def _chooses(rule: Rule, step: Step) -> bool:
    if step.tier == "setting":
        return getattr(rule, step.name) not in ((), None)
    return step.name in rule.steps or step.tier in LEVELS[rule.level or DEFAULT_LEVEL]


def _search_for_dropped(steps: list[Step], rule: Rule) -> Callable[[str], object] | None:
    """Return a search for parameters that a step might drop, in a canonical query behind a &."""
    of_lists = {"tracking": TRACKING_PARAMS, "drop": rule.drop}
    if not steps:
        return None
    if any(step.name not in of_lists for step in steps):
        return re.compile("").search  # any parameter might be dropped
    patterns = Names.of(pattern for step in steps for pattern in of_lists[step.name])
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
