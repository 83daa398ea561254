"""What has become of the pages of a crawl: each is done, failed, waiting or in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from scrapy_bloom.values import counted

_NAMED: Final = 5  # reasons


class Account(NamedTuple):
    """What has become of the pages of a crawl, in all runs and workers.

    Attributes:
        done: how many are done.
        redirected: how many were redirected to pages that were seen before.
        failed: how many are on the failed list.
        waiting: how many requests wait, or were taken by other workers.
        in_flight: how many this worker has taken.
        reasons: how many have failed for each reason.
        statuses: how many of those that are done were not parsed: by the status of a response that
            no callback got, or by why they failed, if such pages are not to be fetched again.
        seen: how many links were dropped, because they led to pages that were seen before.
    """

    done: int
    redirected: int
    failed: int
    waiting: int
    in_flight: int
    reasons: Mapping[str, int]
    statuses: Mapping[str, int]
    seen: int = 0

    def with_failed(self, reasons: Mapping[str, int]) -> Account:
        """Return it with so many more that have failed for each reason."""
        failed = self.failed + sum(reasons.values())
        return self._replace(failed=failed, reasons=Counter(self.reasons) + Counter(reasons))

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return self.done + self.redirected + self.failed + self.waiting + self.in_flight

    def __str__(self) -> str:
        """Return it as a list of phrases."""
        unparsed = f" ({listed(self.statuses)} not parsed)" if self.statuses else ""
        reasons = f" ({listed(self.reasons)})" if self.reasons else ""
        return ", ".join(
            phrase
            for count, phrase in (
                (1, counted(self.pages, "page")),
                (1, f"{self.done:,} done{unparsed}"),
                (self.redirected, f"{self.redirected:,} redirected to pages seen before"),
                (self.failed, f"{self.failed:,} failed{reasons}"),
                (1, f"{self.waiting:,} waiting"),
                (self.in_flight, f"{self.in_flight:,} in flight"),
            )
            if count
        )


def listed(reasons: Mapping[str, int]) -> str:
    """Return how often the most common of these came."""
    common = Counter(reasons).most_common(_NAMED)
    more = ["…"] if len(reasons) > len(common) else []
    return ", ".join([*(f"{count:,} \u00d7 {reason}" for reason, count in common), *more])
