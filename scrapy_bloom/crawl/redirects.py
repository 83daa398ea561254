"""Where redirects have led that were dropped as seen: if that is forgotten, so are their pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy_bloom.crawl.identity import MarkChain

MOST: Final = 10_000
"""Marks of dropped redirects that are remembered; beyond that, the oldest is discarded."""


class Dropped:
    """Redirects that were dropped as seen: whose marks lead where."""

    def __init__(self) -> None:
        # By mark of a page on the way: the target's mark, and the marks of all on the way.
        self._to: dict[bytes, tuple[bytes, MarkChain]] = {}

    def note(self, chain: MarkChain, target: bytes) -> None:
        """Note that the pages of a chain were redirected to one that was seen."""
        for mark in chain:
            self._to.pop(mark, None)  # so that the oldest stay first
            self._to[mark] = target, chain
        while len(self._to) > MOST:
            del self._to[next(iter(self._to))]

    def leads_back(self, chain: MarkChain, target: bytes) -> bool:
        """Return whether a dropped redirect leads to a page whose own was dropped for this chain.

        Nobody parses any of them. Scrapy follows such a circle until it takes it for endless.
        """
        passed, at = set[bytes](), target
        while at in self._to and at not in passed:
            passed.add(at)
            at, _ = self._to[at]
        return not passed.isdisjoint(chain)

    def pop_leading_to(self, marks: Collection[bytes]) -> list[MarkChain]:
        """Remove and return the chains of pages whose redirects to one of these were dropped."""
        found = [(mark, chain) for mark, (target, chain) in self._to.items() if target in marks]
        for mark, _ in found:
            del self._to[mark]
        return [*dict.fromkeys(chain for _, chain in found)]
