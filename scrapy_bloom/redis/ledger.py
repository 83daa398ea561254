"""What one worker knows about one shard without asking Redis, and what it must still report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from scrapy_bloom.redis.seen_cache import SeenCache


@dataclass(frozen=True)
class Reports:
    """What a worker does about marks that Redis has lost.

    Attributes:
        count: how many marks it reports again.
        maybe_lost: how many pages it was granted and has not finished. It does not report these,
            because their requests may have vanished together with the marks.
    """

    count: int
    maybe_lost: int = 0


class Ledger:
    """The fingerprints that a worker remembers, and the state of each one.

    - *cached*: Redis has it.
    - *pending*: granted here while Redis could not be asked. It must still be reported.
    - *doubtful*: Redis may have it from a call of ours that failed, and nobody was granted it.

    If the requests wait in Redis as well, a loss may take both a mark and its request. To report
    that mark again would hide the page. So these are kept in addition:

    - *finished*: this worker has the page's response. Only these are reported again.
    - *dropped*: the page was not finished when marks were lost.

    The heartbeat's thread reports what is pending while the crawl adds fingerprints. So each step
    here is one that no other thread can interrupt.

    :param size: most fingerprints in the cache, and most that are kept as finished.
    :param shared_queue: whether the requests wait in Redis.
    """

    __slots__ = (
        "_cache",
        "_doubtful",
        "_dropped",
        "_finished",
        "_pending",
        "_shared_queue",
        "_waiting",
    )

    def __init__(self, size: int, *, shared_queue: bool = False) -> None:
        self._cache = SeenCache(size)
        self._pending: dict[bytes, None] = {}
        self._doubtful: set[bytes] = set()
        self._shared_queue = shared_queue
        self._finished = SeenCache(size)
        self._dropped: frozenset[bytes] = frozenset()
        # Granted here minus finished here. Below 0 if this worker fetches what others were granted.
        self._waiting = 0

    @property
    def pending(self) -> int:
        """How many fingerprints are to be reported."""
        return len(self._pending)

    @property
    def doubted(self) -> Collection[bytes]:
        """The doubtful fingerprints."""
        return self._doubtful

    def knows(self, fingerprint: bytes) -> bool:
        """Return whether the worker knows, without Redis, that the fingerprint was seen."""
        known = fingerprint in self._cache or fingerprint in self._pending
        return known and fingerprint not in self._doubtful

    def unknown(self, fingerprints: Iterable[bytes]) -> list[bytes]:
        """Return the fingerprints that only Redis can know about, in order."""
        if self._pending or self._doubtful:
            return [fingerprint for fingerprint in fingerprints if not self.knows(fingerprint)]
        return self._cache.without(fingerprints)

    def grant(self, fingerprints: Sequence[bytes]) -> None:
        """Note that the worker called these new without Redis, and must report them."""
        self._doubtful.difference_update(fingerprints)
        self._pending.update(dict.fromkeys(fingerprints))
        self._waiting += len(fingerprints)

    def disown(self, fingerprints: Iterable[bytes]) -> None:
        """Note that nobody was granted these: their failed add must not make them seen."""
        for fingerprint in fingerprints:
            self._doubtful.add(fingerprint)
            self._pending.pop(fingerprint, None)

    def finish(self, fingerprint: bytes, *, added: bool) -> None:
        """Note that the worker has the response of this page.

        :param added: whether it is certain that a worker has added it. If not, the page counts only
            if this worker knows it.
        """
        if not self._shared_queue or fingerprint in self._finished:
            return
        if not (added or self.knows(fingerprint) or fingerprint in self._dropped):
            return
        self._finished.add(fingerprint)
        self._waiting -= 1
        if fingerprint in self._dropped:
            self._pending[fingerprint] = None

    def doubt(self, fingerprint: bytes) -> None:
        """Note that a failed call may have marked this one, and that nobody was granted it."""
        if fingerprint not in self._pending:
            self._doubtful.add(fingerprint)

    def settle(self, fingerprints: Sequence[bytes], verdicts: list[bool]) -> list[bool]:
        """Note what Redis said; return the verdicts for the caller.

        A doubtful fingerprint is new: its bits may come from our own failed call.
        """
        self._cache.update(fingerprints)
        if self._doubtful:
            verdicts = [
                seen and fingerprint not in self._doubtful
                for fingerprint, seen in zip(fingerprints, verdicts, strict=True)
            ]
            self._doubtful.difference_update(fingerprints)
        self._waiting += verdicts.count(False)
        return verdicts

    def next_report(self, size: int) -> list[bytes]:
        """Return the oldest pending fingerprints, at most `size`."""
        return list(islice(self._pending, size))

    def reported(self, fingerprints: Iterable[bytes]) -> None:
        """Note that Redis has these now."""
        for fingerprint in fingerprints:
            self._cache.add(fingerprint)  # before the next line, so that it is known at any time
            self._pending.pop(fingerprint, None)

    def report_again(self) -> Reports:
        """Make pending what may be marked again after Redis has lost marks."""
        if not self._shared_queue:
            self._pending.update(dict.fromkeys(self._cache))
            self._cache.clear()
            return Reports(len(self._pending))
        finished = dict.fromkeys(self._finished)
        self._dropped = frozenset({*self._cache, *self._pending}.difference(finished))
        self._pending = finished
        self._cache.clear()
        maybe_lost, self._waiting = max(0, self._waiting), 0
        return Reports(len(finished), maybe_lost)

    def forget_cache(self) -> None:
        """Forget what Redis has, so that it is asked again."""
        self._cache.clear()

    def unlearn(self) -> None:
        """Forget all that another worker may have taken out of the filter."""
        self._cache.clear()
        self._finished.clear()  # or it would be reported after a loss

    def take_out(self, fingerprints: Iterable[bytes]) -> None:
        """Forget fingerprints that are to be new again."""
        self.unlearn()
        for fingerprint in fingerprints:
            self._pending.pop(fingerprint, None)
            self._doubtful.discard(fingerprint)
        self._dropped = self._dropped.difference(fingerprints)

    def forget(self) -> None:
        """Forget everything."""
        self._cache.clear()
        self._pending.clear()
        self._doubtful.clear()
        self._finished.clear()
        self._dropped = frozenset()
        self._waiting = 0
