"""What one worker knows of one shard without asking Redis, and what it still owes Redis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from scrapy_bloom.redis.seen_cache import SeenCache


class Ledger:
    """The fingerprints that a worker remembers, each with what is known of it.

    - *cached*: Redis has it.
    - *pending*: granted here while Redis could not be asked, and still to be reported.
    - *doubtful*: Redis may have it from a call of ours that failed, and nobody was granted it.

    :param size: most fingerprints in the cache.
    """

    __slots__ = ("_cache", "_doubtful", "_pending")

    def __init__(self, size: int) -> None:
        self._cache = SeenCache(size)
        self._pending: dict[bytes, None] = {}
        self._doubtful: set[bytes] = set()

    @property
    def pending(self) -> int:
        """How many fingerprints are to be reported."""
        return len(self._pending)

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether the worker can say by itself that the fingerprint was seen."""
        known = fingerprint in self._cache or fingerprint in self._pending
        return known and fingerprint not in self._doubtful

    def unknown(self, fingerprints: Iterable[bytes]) -> list[bytes]:
        """Return those that the worker does not know by itself, in order."""
        if self._pending or self._doubtful:
            return [fingerprint for fingerprint in fingerprints if not self.knows(fingerprint)]
        return self._cache.without(fingerprints)

    def grant(self, fingerprints: Sequence[bytes]) -> None:
        """Note that the worker called these new by itself, and owes Redis a report."""
        self._doubtful.difference_update(fingerprints)
        self._pending.update(dict.fromkeys(fingerprints))

    def disown(self, fingerprints: Iterable[bytes]) -> None:
        """Note that the caller was raised at: "seen" must not come of this add of them."""
        self._doubtful.update(fingerprints)

    def doubt(self, fingerprint: bytes) -> None:
        """Note that a call of ours may have marked this one, of which nobody was told."""
        if fingerprint not in self._pending:
            self._doubtful.add(fingerprint)

    def settle(self, fingerprints: Sequence[bytes], verdicts: list[bool]) -> list[bool]:
        """Note what Redis said; return the verdicts for the caller.

        A doubtful fingerprint is new: its bits may come from our own failed call.
        """
        self._cache.update(fingerprints)
        if not self._doubtful:
            return verdicts
        settled = [
            seen and fingerprint not in self._doubtful
            for fingerprint, seen in zip(fingerprints, verdicts, strict=True)
        ]
        self._doubtful.difference_update(fingerprints)
        return settled

    def next_report(self, size: int) -> list[bytes]:
        """Return the oldest pending fingerprints, at most `size`."""
        return list(islice(self._pending, size))

    def reported(self, fingerprints: Iterable[bytes]) -> None:
        """Note that Redis has these now."""
        for fingerprint in fingerprints:
            self._pending.pop(fingerprint, None)
            self._cache.add(fingerprint)

    def report_again(self) -> int:
        """Owe Redis all that is remembered, after it lost marks; return how many these are."""
        self._pending.update(dict.fromkeys(self._cache))
        self._cache.clear()
        return len(self._pending)

    def forget(self) -> None:
        """Forget all."""
        self._cache.clear()
        self._pending.clear()
        self._doubtful.clear()
