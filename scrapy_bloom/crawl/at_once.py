"""Judging requests at once, by a filter, while another scheduler keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scrapy_bloom import stats
from scrapy_bloom.crawl.judge import Judge, Marks
from scrapy_bloom.crawl.meta import MetaKeys
from scrapy_bloom.crawl.report import Report, Verdict

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.identity import Identifier


class Filter(Marks, Protocol):
    """Decides which pages were seen. Any method may raise anything."""

    def add(self, fingerprint: bytes) -> bool:
        """Add a fingerprint; return whether it was there."""

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this let it through in the last `max_age` seconds; if not, add it."""


class Checks:
    """What checks the requests of another scheduler.

    :param identifier: says what a request is.
    :param report: writes to stats and log.
    :param filter_: answers.

    Attributes:
        judge: judges by these answers.
        forget: makes the page of a request eligible again, see :meth:`Judge.forget`.
    """

    def __init__(
        self, crawler: Crawler, identifier: Identifier, report: Report, filter_: Filter
    ) -> None:
        self._report = report
        self._add, self._add_aged = filter_.add, filter_.add_aged
        self._keys = MetaKeys(report)
        self.judge = Judge(crawler, identifier, report, filter_)
        self.forget = self.judge.forget

    def check(self, request: Request) -> Verdict:
        """Return the verdict on a request, and mark it. Never raises."""
        if not request.meta.keys() <= self._keys.known:
            self._keys.learn(request.meta)
        verdict = self.judge.check(request, self._ask)
        assert isinstance(verdict, Verdict)  # the filter answers at once
        return verdict

    def _ask(self, mark: bytes, max_age: float | None) -> bool:
        return self._add(mark) if max_age is None else self._add_aged(mark, max_age)

    def withdraw(self, request: Request) -> None:
        """Make the page of a request eligible again, see :meth:`Judge.withdraw`. Never raises."""
        try:
            self._report.add(stats.WITHDRAWN, int(self.judge.withdraw(request)))
        except Exception as error:  # the crawl continues without
            self._report.check_failed(request, error)
