"""Requests that were called seen only because of a step: their number, and a sample of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from scrapy import Request

from scrapy_bloom.canonical.fingerprint import Change

SAMPLE: Final = 1000
"""Size limit of a sample. Each merge has the same chance to be in it."""


class Marks(Protocol):
    """A set of fingerprints, which may be wrong now and then: it may "find" one never added."""

    def add(self, fingerprint: bytes) -> bool:
        """Add a fingerprint; return whether it was in the set before."""

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether a fingerprint was added."""


class Merge(NamedTuple):
    """A request that was called seen only because of a step.

    Attributes:
        url: the URL that was not fetched.
        canonical: the canonical form of that URL, which a fetched URL shares.
        steps: the steps that changed the URL; none if they changed only the other URL.
    """

    url: str
    canonical: str
    steps: tuple[str, ...]


class Merges:
    """Counts merges, and keeps a random sample of them.

    A request that is called seen is a merge in two cases. Either steps changed its URL, and no
    request for the unchanged URL came before. Or steps did not change its URL, but the URL of the
    request that was fetched instead. Only the requests of this process are known here: a URL that
    an earlier run or another worker has met counts once more.

    :param untouched: returns the fingerprint of a request without any step.
    :param marks: returns an empty set; called when steps change a URL for the first time.

    Attributes:
        count: number of merges.
        sample: at most :data:`SAMPLE` merges, chosen at random.
    """

    def __init__(self, untouched: Callable[[Request], bytes], marks: Callable[[], Marks]) -> None:
        self.count = 0
        self.sample: list[Merge] = []
        self._untouched = untouched
        self._marks = marks
        self._met: Marks | None = None
        self._fetched_changed: Marks | None = None
        self._random = random.Random()  # noqa: S311 - a sample, not a secret

    def note(
        self, request: Request, fingerprint: bytes, change: Change | None, *, seen: bool
    ) -> bool:
        """Note the verdict on a request; return whether it is a merge.

        Must be called for all requests that were changed by a step or called seen.
        """
        if self._met is None or self._fetched_changed is None:
            if change is None:
                return False
            self._met, self._fetched_changed = self._marks(), self._marks()
        if change is None:
            if fingerprint not in self._fetched_changed or self._met.add(fingerprint):
                return False
            return self._keep(Merge(request.url, request.url, ()))
        is_new = not self._met.add(self._untouched(request))
        if seen:
            return is_new and self._keep(Merge(request.url, *change))
        self._fetched_changed.add(fingerprint)
        return False

    def resume_from(self, count: int, sample: list[Merge]) -> None:
        """Continue from the count and sample of an earlier run."""
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
