"""What was called seen only because of a step: how often, and a sample to look at."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from scrapy import Request

from scrapy_bloom.canonical.fingerprint import Change

SAMPLE: Final = 1000
"""Most merges that a sample holds; each stays with the same chance."""

_BITS: Final = 24
"""Fingerprints are told apart by so many bits of a hash: a set of them takes 2 MiB.

With a million spellings in it, 6 % of the merges that follow are not counted.
"""


class Merge(NamedTuple):
    """A request that was called seen only because of a step.

    Attributes:
        url: the URL that was not fetched.
        canonical: the form that it shares with one that was.
        steps: the steps that changed it; none if it was the other URL that they changed.
    """

    url: str
    canonical: str
    steps: tuple[str, ...]


class Merges:
    """Counts and samples merges.

    A request that a step has changed is one if it is called seen and its own spelling was not met
    before; so is an unchanged one if the request that was let through in its stead was changed.
    What other runs and workers have met is not known here: a spelling of theirs counts once more.

    :param untouched: gives a request's fingerprint without any step.

    Attributes:
        count: how many there were.
        sample: at most :data:`SAMPLE` of them, chosen at random.
    """

    def __init__(self, untouched: Callable[[Request], bytes]) -> None:
        self.count = 0
        self.sample: list[Merge] = []
        self._untouched = untouched
        self._spellings: _Marks | None = None
        self._stand_ins: _Marks | None = None
        self._random = random.Random()  # noqa: S311 - a sample, not a secret

    def note(
        self, request: Request, fingerprint: bytes, change: Change | None, *, seen: bool
    ) -> bool:
        """Take note of a verdict; return whether it was a merge.

        To be called for every request that a step changed, and every one that was called seen.
        """
        if self._spellings is None or self._stand_ins is None:
            if change is None:
                return False
            self._spellings, self._stand_ins = _Marks(), _Marks()
        if change is None:
            if fingerprint not in self._stand_ins or not self._spellings.add(fingerprint):
                return False
            return self._keep(Merge(request.url, request.url, ()))
        is_new = self._spellings.add(self._untouched(request))
        if seen:
            return is_new and self._keep(Merge(request.url, *change))
        self._stand_ins.add(fingerprint)
        return False

    def go_on_from(self, count: int, sample: list[Merge]) -> None:
        """Add to what an earlier run has found."""
        self.count, self.sample = count, sample[:SAMPLE]

    def _keep(self, merge: Merge) -> bool:
        self.count += 1
        if len(self.sample) < SAMPLE:
            self.sample.append(merge)
        else:
            place = self._random.randrange(self.count)
            if place < SAMPLE:
                self.sample[place] = merge
        return True


class _Marks:
    """A set of fingerprints that takes a few bits of a hash for the whole."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << _BITS - 3)

    def add(self, fingerprint: bytes) -> bool:
        """Add one; return whether it is new."""
        byte, bit = _place(fingerprint)
        is_new = not self._bits[byte] & bit
        self._bits[byte] |= bit
        return is_new

    def __contains__(self, fingerprint: bytes) -> bool:
        byte, bit = _place(fingerprint)
        return bool(self._bits[byte] & bit)


def _place(fingerprint: bytes) -> tuple[int, int]:
    number = hash(fingerprint) & (1 << _BITS) - 1
    return number >> 3, 1 << (number & 7)
