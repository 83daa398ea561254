"""Pages whose redirects were dropped, because another request had their target before.

Many pages may redirect to one login or error page. The first redirect marks it, and those that come
before its response are dropped as seen. If that page is forgotten then, the pages that were to lead
to it must be forgotten as well: they stay marked, and nobody has had them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

MOST_MARKS: Final = 50_000
"""Marks that are kept at most: with one target 6 MB, with as many targets 20 MB."""


class DroppedChains:
    """For each target the chains of redirects that ended at it, each as the marks of its pages.

    There is room for a number of marks. Where that is too little, the target to which nothing was
    redirected for the longest time is let go first.

    :param room: for how many marks.
    """

    def __init__(self, room: int = MOST_MARKS) -> None:
        self._room = room
        self._by_target: OrderedDict[bytes, list[tuple[bytes, ...]]] = OrderedDict()

    def add(self, target: bytes, marks: Iterable[bytes]) -> None:
        """Note a chain of redirects to a target, if there is room."""
        chain = tuple(marks)
        chains = self._by_target.pop(target, [])
        while self._room < len(chain) and self._by_target:
            _, oldest = self._by_target.popitem(last=False)
            self._room += sum(map(len, oldest))
        if self._room >= len(chain):
            self._room -= len(chain)
            chains.append(chain)
        if chains:
            self._by_target[target] = chains

    def pop(self, targets: Iterable[bytes]) -> list[tuple[bytes, ...]]:
        """Let go of all chains to these targets, and to the pages of these chains; return them."""
        found: list[tuple[bytes, ...]] = []
        left = [*targets] if self._by_target else []
        while left:
            for chain in self._by_target.pop(left.pop(), ()):
                self._room += len(chain)
                found.append(chain)
                left += chain
        return found
