"""What one worker knows about one shard without asking Redis."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from scrapy_bloom.redis.seen_cache import SeenCache


class Ledger:
    """The fingerprints that a worker remembers, and the state of each one.

    - *cached*: Redis has it.
    - *let through*: called new while Redis could not be asked, and not marked. It is known only
      until Redis answers again: else pages that link to each other would be fetched over and over.
    - *doubtful*: Redis may have it from a call of ours that failed, and nobody was granted it.

    :param size: most fingerprints in the cache.
    :param shared_queue: whether the requests wait in Redis. Then nothing is known that was let
        through: the server may not have taken its request either.
    """

    __slots__ = ("_cache", "_doubtful", "_let_through", "_shared_queue")

    def __init__(self, size: int, *, shared_queue: bool = False) -> None:
        self._cache = SeenCache(size)
        self._let_through: set[bytes] = set()
        self._doubtful: set[bytes] = set()
        self._shared_queue = shared_queue

    @property
    def doubted(self) -> Collection[bytes]:
        """The doubtful fingerprints."""
        return self._doubtful

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether the worker knows, without Redis, that the fingerprint was seen."""
        known = fingerprint in self._cache or fingerprint in self._let_through
        return known and fingerprint not in self._doubtful

    def unknown(self, fingerprints: Iterable[bytes]) -> list[bytes]:
        """Return the fingerprints that only Redis can know about, in order."""
        if self._let_through or self._doubtful:
            return [fingerprint for fingerprint in fingerprints if not self.knows(fingerprint)]
        return self._cache.without(fingerprints)

    def let_through(self, fingerprints: Sequence[bytes]) -> None:
        """Note that the worker called these new without Redis."""
        self._doubtful.difference_update(fingerprints)
        if not self._shared_queue:
            self._let_through.update(fingerprints)

    def doubt(self, fingerprints: Iterable[bytes]) -> None:
        """Note that a failed call may have marked these, and that nobody was granted them."""
        self._doubtful.update(fingerprints)

    def settle(self, fingerprints: Sequence[bytes], verdicts: list[bool]) -> list[bool]:
        """Note what Redis said; return the verdicts for the caller.

        A doubtful fingerprint is new: its bits may come from our own failed call.
        """
        self._let_through.clear()
        self._cache.update(fingerprints)
        if self._doubtful:
            verdicts = [
                seen and fingerprint not in self._doubtful
                for fingerprint, seen in zip(fingerprints, verdicts, strict=True)
            ]
            self._doubtful.difference_update(fingerprints)
        return verdicts

    def forget(self) -> None:
        """Forget what Redis has: somebody may have taken it out, or the server has lost it."""
        self._cache.clear()
        self._let_through.clear()

    def take_out(self, fingerprints: Iterable[bytes]) -> None:
        """Forget fingerprints that are to be new again."""
        self.forget()
        self._doubtful.difference_update(fingerprints)

    def clear(self) -> None:
        """Forget everything: the filter is empty."""
        self.forget()
        self._doubtful.clear()
