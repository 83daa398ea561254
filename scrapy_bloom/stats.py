"""The numbers in Scrapy's stats, in one table: their keys, their meanings, where they come from.

Those of faults, and of what a crawl does not use, are set only if they are not 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


def _as_it_is(value: float) -> float:
    return value


@dataclass(frozen=True)
class Stat:
    """One number.

    Attributes:
        key: its name in Scrapy's stats.
        meaning: one phrase for the docs.
        rounded: returns a value with only those digits that mean something.
    """

    key: str
    meaning: str
    rounded: Callable[[float], float] = _as_it_is


def _decimals(count: int) -> Callable[[float], float]:
    return lambda value: round(value, count)


CHECKED: Final = Stat("bloom/checked", "requests that the filter was asked about")
NEW: Final = Stat("bloom/new", "of these, not seen before: crawled")
SEEN: Final = Stat("bloom/seen", "of these, seen before: dropped")
REDIRECT_EXEMPT: Final = Stat(
    "bloom/redirect_exempt",
    "of these, seen before only as part of their own chain of redirects: crawled",
)
ERRORS: Final = Stat("bloom/errors", "of these, not checked because something failed: crawled")
RESTORED: Final = Stat("bloom/restored", "fingerprints known from earlier runs at the start")
UNCLEAN_STOP: Final = Stat("bloom/unclean_stop", "1 if the last run was killed")
NOT_STORED: Final = Stat("bloom/not_stored", "1 if something could not be stored at the end")
WITHDRAWN: Final = Stat(
    "bloom/withdrawn",
    "new requests that Scrapy's own scheduler could not store: their pages are eligible again",
)
FORGOTTEN: Final = Stat(
    "bloom/forgotten", "how often pages were forgotten: they are eligible again"
)
NOT_FORGOTTEN: Final = Stat(
    "bloom/not_forgotten",
    "pages that were to be forgotten, and were not marked or could not be forgotten",
)
FAILED: Final = Stat(
    "bloom/failed",
    "pages that failed and are eligible again in the next run: `BLOOM_FORGET_FAILED`",
)
STEP: Final = Stat(
    "bloom/canonical/{step}",
    "requests whose URL this step of the canonical form changed; see URLs in detail",
)

PENDING: Final = Stat(
    "bloom/frontier/pending",
    "requests that `scrapy_bloom.Scheduler` has stored: those that are not done in a `JOBDIR`,"
    " those that wait in Redis as last heard",
)
RECOVERED: Final = Stat(
    "bloom/frontier/recovered",
    "requests that were in flight when the last run was killed: fetched again",
)
HELD: Final = Stat(
    "bloom/frontier/held",
    "requests that cannot be serialized: the page that yielded one stays stored until it is done",
)
UNREADABLE: Final = Stat(
    "bloom/frontier/unreadable", "stored requests that could not be read: they stay stored"
)
COMMIT_ERRORS: Final = Stat(
    "bloom/frontier/commit_errors", "commits that failed, and were tried again"
)
REQUEUED: Final = Stat(
    "bloom/frontier/requeued", "requests of dead workers that this one put back into the queue"
)
MOVED_ASIDE: Final = Stat(
    "bloom/frontier/failed",
    "requests on the failed list: after ten tries that killed a worker, or that could not read it",
)

FROM_INFO: Final = {
    "items": Stat("bloom/items", "fingerprints in the filter, of this run and earlier ones"),
    "bytes": Stat("bloom/bytes", "memory that the filter takes"),
    "expected_lost": Stat(
        "bloom/expected_lost",
        "expected number of new requests that were called seen so far; with `BLOOM_WINDOW` by what"
        " has not expired",
        _decimals(3),
    ),
}
"""Those that are attributes of :class:`FilterInfo`, by their names there."""

FROM_BACKEND: Final = {
    "round_trips": Stat("bloom/redis/round_trips", "calls to Redis"),
    "unknown": Stat("bloom/redis/unknown", "checks that Redis could not be asked about: crawled"),
    "outages": Stat("bloom/redis/outages", "times that Redis could not be used"),
    "losses": Stat(
        "bloom/redis/losses",
        "times that Redis had lost what it held, or went back to an older state, or that this"
        " worker missed its lease",
    ),
}
"""Those of a filter or a queue in Redis, by their names in what its ``numbers`` returns."""

STATS: Final = (
    CHECKED,
    NEW,
    SEEN,
    REDIRECT_EXEMPT,
    ERRORS,
    RESTORED,
    UNCLEAN_STOP,
    NOT_STORED,
    WITHDRAWN,
    FORGOTTEN,
    NOT_FORGOTTEN,
    FAILED,
    STEP,
    PENDING,
    RECOVERED,
    HELD,
    UNREADABLE,
    COMMIT_ERRORS,
    REQUEUED,
    MOVED_ASIDE,
    *FROM_INFO.values(),
    *FROM_BACKEND.values(),
)
"""All of them, in the order of the docs."""
