"""What has become of the pages of a crawl: each is done, unparsed, failed, waiting or in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from scrapy_bloom.values import counted

_NAMED: Final = 5  # reasons


class Account(NamedTuple):
    """What has become of the pages of a crawl, in all runs and workers.

    Attributes:
        done: how many are done: a callback had them, or they have not changed (304).
        waiting: how many requests wait, or were taken by other workers.
        in_flight: how many this worker has taken.
        failures: how many have failed for each reason.
        decisions: how many are unparsed for each reason.
        not_kept: how many are unparsed and only counted, see :meth:`.Backend.fail`.
        seen: how many links were dropped, because they led to pages that were seen before.
    """

    done: int
    waiting: int
    in_flight: int
    failures: Mapping[str, int]
    decisions: Mapping[str, int]
    not_kept: int = 0
    seen: int = 0

    def with_failed(self, reasons: Mapping[str, int]) -> Account:
        """Return it with so many more that have failed for each reason."""
        return self._replace(failures=Counter(self.failures) + Counter(reasons))

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Account:
        """Return the account that :meth:`facts` was called on."""
        return cls(**{name: facts[name] for name in cls._fields})

    @property
    def failed(self) -> int:
        """How many have failed."""
        return sum(self.failures.values())

    @property
    def unparsed(self) -> int:
        """How many are unparsed and stored."""
        return sum(self.decisions.values())

    @property
    def pages(self) -> int:
        """How many pages there are."""
        known = self.done + self.unparsed + self.failed + self.waiting + self.in_flight
        return known + self.not_kept

    def facts(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        sums = {"unparsed": self.unparsed, "failed": self.failed, "pages": self.pages}
        return self._asdict() | sums

    def __str__(self) -> str:
        """Return it as a list of phrases."""
        return ", ".join(
            phrase
            for count, phrase in (
                (1, counted(self.pages, "page")),
                (1, f"{self.done:,} done"),
                (self.unparsed, f"{self.unparsed:,} unparsed ({listed(self.decisions)})"),
                (self.not_kept, f"{self.not_kept:,} not kept"),
                (self.failed, f"{self.failed:,} failed ({listed(self.failures)})"),
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
