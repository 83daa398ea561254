"""The numbers in Scrapy's stats: their keys and meanings, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy.statscollectors import StatsCollector

    from scrapy_bloom.core.info import FilterInfo

CHECKED: Final = "bloom/checked"
NEW: Final = "bloom/new"
SEEN: Final = "bloom/seen"
REDIRECT_EXEMPT: Final = "bloom/redirect_exempt"
ERRORS: Final = "bloom/errors"
RESTORED: Final = "bloom/restored"
UNCLEAN_STOP: Final = "bloom/unclean_stop"
NOT_STORED: Final = "bloom/not_stored"

MERGED: Final = "bloom/canonical/merged"
STEP: Final = "bloom/canonical/{step}"

_FROM_INFO: Final = {
    "bloom/items": "items",
    "bloom/slices": "slices",
    "bloom/bytes": "bytes",
    "bloom/fill_ratio": "fill_ratio",
    "bloom/estimated_fp_rate": "estimated_fp_rate",
    "bloom/expected_lost": "expected_lost",
}

_FROM_BACKEND: Final = {
    "bloom/redis/round_trips": "round_trips",
    "bloom/redis/local": "local",
    "bloom/redis/ambiguous": "ambiguous",
    "bloom/redis/unknown": "unknown",
    "bloom/redis/replayed": "replayed",
    "bloom/redis/outages": "outages",
    "bloom/redis/waited": "waited",
    "bloom/redis/losses": "losses",
}

MEANINGS: Final = {
    CHECKED: "requests that the filter was asked about",
    NEW: "of these, not seen before: crawled",
    SEEN: "of these, seen before: dropped",
    REDIRECT_EXEMPT: "of these, seen before only as part of their own chain of redirects: crawled",
    ERRORS: "of these, not checked because something failed: crawled",
    RESTORED: "fingerprints known from earlier runs at the start",
    UNCLEAN_STOP: "1 if the run before this one was killed",
    NOT_STORED: "1 if the filter could not be stored at the end",
    STEP: "requests whose URL this step of the canonical form changed; see docs/canonical.md",
    MERGED: "of those seen, the ones that are so only because of a step",
    "bloom/items": "fingerprints in the filter, of this run and earlier ones",
    "bloom/slices": "slices that the filter has grown to",
    "bloom/bytes": "memory that the filter takes",
    "bloom/fill_ratio": "share of its bits that are set, 0 to 1",
    "bloom/estimated_fp_rate": "chance that the next new request is called seen",
    "bloom/expected_lost": "how many new requests were called seen so far, as an expectation",
    "bloom/redis/round_trips": "calls to Redis, repeated ones included",
    "bloom/redis/local": "checks answered from the worker's own memory",
    "bloom/redis/ambiguous": "calls that were sent and brought no answer",
    "bloom/redis/unknown": "checks that Redis could not be asked about: crawled",
    "bloom/redis/replayed": "fingerprints reported to Redis later",
    "bloom/redis/outages": "times that Redis could not be used",
    "bloom/redis/waited": "seconds that the crawl stood still for Redis",
    "bloom/redis/losses": "times that the filter, or a part of it, had vanished from Redis",
}
"""What each key means, one phrase for the README."""


class Tally:
    """Counts verdicts, and hands them on to Scrapy's stats in small batches.

    Scrapy's own counting costs as much as a check of the filter. The stats are behind by at most
    1 % of all checks, and never by more than 100.
    """

    __slots__ = ("_due", "_pending", "_stats", "_total", "numbers")

    def __init__(self, stats: StatsCollector) -> None:
        self.numbers: Callable[[], Mapping[str, float]] = dict  # of the backend
        self._stats = stats
        self._pending = dict.fromkeys((NEW, SEEN, REDIRECT_EXEMPT, ERRORS), 0)
        self._total = 0
        self._due = 1

    def count(self, verdict: str) -> None:
        """Count one check and what came of it: one of the four keys of verdicts."""
        self._pending[verdict] += 1
        self._due -= 1
        if not self._due:
            self.flush()

    def flush(self) -> None:
        """Bring Scrapy's stats up to date."""
        checked = sum(self._pending.values())
        self._total += checked
        self._due = min(100, 1 + self._total // 100)
        self._stats.inc_value(CHECKED, checked)
        for key, count in self._pending.items():
            self._stats.inc_value(key, count)
            self._pending[key] = 0
        numbers = self.numbers()
        for key, name in _FROM_BACKEND.items():
            if name in numbers:
                self._stats.set_value(key, numbers[name])


def count_steps(stats: StatsCollector, steps: Iterable[str]) -> None:
    """Count a request for each step that changed its URL."""
    for step in steps:
        stats.inc_value(STEP.format(step=step))


def write_info(stats: StatsCollector, info: FilterInfo) -> None:
    """Set the keys that describe the filter."""
    for key, attribute in _FROM_INFO.items():
        stats.set_value(key, getattr(info, attribute))
