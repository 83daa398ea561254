"""The numbers in Scrapy's stats, in one table: their keys, their meanings, where they come from.

Those of faults, and of what a crawl does not use, are set only if they are not 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scrapy_bloom.options import MIN_ERROR_RATE


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


def _rounded_rate(value: float) -> float:
    """Return a rate with three digits, or 0 if it is below the lowest rate that one can set."""
    return float(f"{value:.3g}") if value >= MIN_ERROR_RATE else 0.0


CHECKED: Final = Stat("bloom/checked", "requests that the filter was asked about")
NEW: Final = Stat("bloom/new", "of these, not seen before: crawled")
SEEN: Final = Stat("bloom/seen", "of these, seen before: dropped")
REDIRECT_EXEMPT: Final = Stat(
    "bloom/redirect_exempt",
    "of these, seen before only as part of their own chain of redirects: crawled",
)
ERRORS: Final = Stat("bloom/errors", "of these, not checked because something failed: crawled")
RESTORED: Final = Stat("bloom/restored", "fingerprints known from earlier runs at the start")
UNCLEAN_STOP: Final = Stat("bloom/unclean_stop", "1 if the run before this one was killed")
NOT_STORED: Final = Stat("bloom/not_stored", "1 if the filter could not be stored at the end")
WITHDRAWN: Final = Stat(
    "bloom/withdrawn",
    "requests that were new, but that Scrapy could not store: the next one for such a page is new"
    " again, in this run or the next",
)
FORGOTTEN: Final = Stat(
    "bloom/forgotten", "pages that were forgotten: the next request for each is new again, likewise"
)
NOT_FORGOTTEN: Final = Stat(
    "bloom/not_forgotten",
    "pages that were to be forgotten, and were not marked or could not be forgotten",
)
FAILED: Final = Stat(
    "bloom/failed",
    "pages whose requests failed, and that were forgotten for the next run: `BLOOM_FORGET_FAILED`",
)
LET_THROUGH: Final = Stat(
    "bloom/let_through",
    "of the new ones, those whose page had been withdrawn, forgotten or failed before; with the"
    " filter in Redis only those that had been withdrawn",
)
FALSE_POSITIVES: Final = Stat(
    "bloom/false_positives",
    "of the new ones, those that the filter called seen and `BLOOM_EXACT` caught in this run; "
    "`bloom/expected_lost` counts all runs",
)
AGED: Final = Stat(
    "bloom/max_age/new", "of the new ones, those with a `bloom_max_age` in their meta"
)
INVALID_MAX_AGE: Final = Stat(
    "bloom/max_age/invalid", "requests whose `bloom_max_age` cannot be read: crawled"
)
STEP: Final = Stat(
    "bloom/canonical/{step}",
    "requests whose URL this step of the canonical form changed; see URLs in detail",
)

PENDING: Final = Stat(
    "bloom/frontier/pending", "requests in the store of `scrapy_bloom.Scheduler`, not done yet"
)
RECOVERED: Final = Stat(
    "bloom/frontier/recovered",
    "requests that were under way when the run before was killed: fetched again",
)
HELD: Final = Stat(
    "bloom/frontier/held", "requests that could not be stored: the pages that made them stay there"
)
UNREADABLE: Final = Stat(
    "bloom/frontier/unreadable", "stored requests that could not be read: they stay in the store"
)
COMMIT_ERRORS: Final = Stat(
    "bloom/frontier/commit_errors", "commits that failed, and were repeated"
)

WAITING: Final = Stat(
    "bloom/frontier/waiting",
    "requests that wait in the shared queue, as last heard; at the end, those that are left there",
)
FROM_QUEUE: Final = {
    "requeued": Stat(
        "bloom/frontier/requeued", "requests of killed workers that this one put back"
    ),
    "failed": Stat(
        "bloom/frontier/failed",
        "requests that it put aside: ten workers were killed with each, or it could not be read",
    ),
}
"""Those that a shared queue counts, by their names in what its ``numbers`` returns."""

FROM_INFO: Final = {
    "items": Stat(
        "bloom/items",
        "fingerprints in the filter, of this run and earlier ones; in Redis with `BLOOM_WINDOW` and"
        " forgotten pages at least so many",
    ),
    "bytes": Stat("bloom/bytes", "memory that the filter takes"),
    "fill_ratio": Stat("bloom/fill_ratio", "share of its bits that are set, 0 to 1", _decimals(4)),
    "estimated_fp_rate": Stat(
        "bloom/estimated_fp_rate",
        "probability that the next new request is called seen",
        _rounded_rate,
    ),
    "expected_lost": Stat(
        "bloom/expected_lost",
        "expected number of new requests that were called seen so far; with `BLOOM_WINDOW` by the"
        " generations that are not over, and no more by those that were dropped",
        _decimals(3),
    ),
}
"""Those that are attributes of :class:`FilterInfo`, by their names there."""

FROM_FILTER: Final = {
    "let_through": LET_THROUGH,
    "false_positives": FALSE_POSITIVES,
}
"""Those that a local filter counts, by their names in what :attr:`Opened.numbers` returns."""

FROM_BACKEND: Final = {
    "round_trips": Stat("bloom/redis/round_trips", "calls to Redis, repeated ones included"),
    "unknown": Stat("bloom/redis/unknown", "checks that Redis could not be asked about: crawled"),
    "outages": Stat("bloom/redis/outages", "times that Redis could not be used"),
    "waited": Stat(
        "bloom/redis/waited", "seconds that the crawl stood still for Redis", _decimals(3)
    ),
    "losses": Stat(
        "bloom/redis/losses", "times that the filter, or a part of it, had vanished from Redis"
    ),
}
"""Those that a backend counts, by their names in what :attr:`Opened.numbers` returns."""

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
    LET_THROUGH,
    FALSE_POSITIVES,
    AGED,
    INVALID_MAX_AGE,
    STEP,
    PENDING,
    RECOVERED,
    HELD,
    UNREADABLE,
    COMMIT_ERRORS,
    WAITING,
    *FROM_QUEUE.values(),
    *FROM_INFO.values(),
    *FROM_BACKEND.values(),
)
"""All of them, in the order of the docs."""
