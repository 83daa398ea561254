"""What was called seen only because of a step: how often, and a sample to look at."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from scrapy import Request

from scrapy_bloom.canonical.fingerprint import Change

SAMPLE: Final = 1000
"""Most merges that a sample holds; each stays with the same chance."""


class Marks(Protocol):
    """A set of fingerprints; now and then it may take a new one for one that it has."""

    def add(self, fingerprint: bytes) -> bool:
        """Add one; return whether it was there before."""

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether it was added."""


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
    :param marks: makes an empty set, when the first step changes a URL.

    Attributes:
        count: how many there were.
        sample: at most :data:`SAMPLE` of them, chosen at random.
    """

    def __init__(self, untouched: Callable[[Request], bytes], marks: Callable[[], Marks]) -> None:
        self.count = 0
        self.sample: list[Merge] = []
        self._untouched = untouched
        self._marks = marks
        self._spellings: Marks | None = None
        self._stand_ins: Marks | None = None
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
            self._spellings, self._stand_ins = self._marks(), self._marks()
        if change is None:
            if fingerprint not in self._stand_ins or self._spellings.add(fingerprint):
                return False
            return self._keep(Merge(request.url, request.url, ()))
        is_new = not self._spellings.add(self._untouched(request))
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
