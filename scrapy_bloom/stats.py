"""All stats, in one table: their keys, their meanings, and where they come from.

Those for faults and for unused features are set only if they are not 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Stat:
    """One number.

    Attributes:
        key: its name in Scrapy's stats.
        meaning: one phrase for the docs.
    """

    key: str
    meaning: str


CHECKED: Final = Stat("bloom/checked", "requests that were checked")
NEW: Final = Stat("bloom/new", "of these, new: crawled")
SEEN: Final = Stat("bloom/seen", "of these, seen before: dropped")
REDIRECT_EXEMPT: Final = Stat(
    "bloom/redirect_exempt", "of these, seen before only in their own chain of redirects: crawled"
)
ERRORS: Final = Stat("bloom/errors", "of these, not checked because of an error: crawled")
RESTORED: Final = Stat("bloom/restored", "marks from earlier runs at the start")
UNCLEAN_STOP: Final = Stat("bloom/unclean_stop", "1 if the last run was killed")
NOT_STORED: Final = Stat("bloom/not_stored", "1 if something could not be stored at the end")
NOT_FORGOTTEN: Final = Stat(
    "bloom/not_forgotten",
    "times that a page was not forgotten, because it was not marked or an error occurred",
)
FAILED: Final = Stat("bloom/failed/{kind}", "failed pages, by reason: a status or an exception")
UNPARSED: Final = Stat(
    "bloom/unparsed/{kind}",
    "pages that no callback handled, by reason: a status, `robots.txt`, a redirect to a seen page",
)

WAITING: Final = Stat(
    "bloom/queue/waiting",
    "waiting requests of `scrapy_bloom.Scheduler`, without those in flight; in Redis as last"
    " reported",
)
LATER: Final = Stat(
    "bloom/queue/later",
    "of these, delayed ones: by `bloom_delay`, or retries after `Retry-After`",
)
PAUSES: Final = Stat("bloom/queue/holds", "times that a host was paused because it asked for it")
RECOVERED: Final = Stat(
    "bloom/queue/recovered",
    "requests that were in flight when the last run was killed, and are fetched again",
)
UNREADABLE: Final = Stat(
    "bloom/queue/unreadable", "times that a stored request could not be read; it stays stored"
)
COMMIT_ERRORS: Final = Stat("bloom/queue/commit_errors", "commits that failed and were retried")
REQUEUED: Final = Stat(
    "bloom/queue/requeued", "requests of dead workers that this one put back into the queue"
)

FROM_INFO: Final = {
    "items": Stat("bloom/known", "marks, from this run and earlier ones"),
    "bytes": Stat("bloom/bytes", "memory that the filter takes"),
    "expected_lost": Stat(
        "bloom/expected_lost",
        "expected number of new requests that were called seen; with `BLOOM_WINDOW`, by marks that"
        " have not expired",
    ),
}
"""Those that are attributes of :class:`FilterInfo`, by their names there."""

FROM_BACKEND: Final = {
    "round_trips": Stat("bloom/redis/round_trips", "calls to Redis"),
    "unknown": Stat("bloom/redis/unknown", "checks that Redis could not answer: crawled"),
    "outages": Stat("bloom/redis/outages", "times that Redis became unavailable"),
    "losses": Stat(
        "bloom/redis/losses",
        "times that Redis lost data or went back to an older state, or that this worker missed its"
        " lease",
    ),
}
"""Those of a filter or a queue in Redis, by their names in what its ``numbers`` returns."""

STATS: Final = (
    *(CHECKED, NEW, SEEN, REDIRECT_EXEMPT, ERRORS, RESTORED, UNCLEAN_STOP, NOT_STORED),
    *(NOT_FORGOTTEN, FAILED, UNPARSED, WAITING, LATER, PAUSES, RECOVERED),
    *(UNREADABLE, COMMIT_ERRORS, REQUEUED),
    *FROM_INFO.values(),
    *FROM_BACKEND.values(),
)
"""All of them, in the order of the docs."""
