"""The filter of a crawl in Redis, while another scheduler keeps the requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from scrapy_bloom import stats
from scrapy_bloom.crawl.session import Session
from scrapy_bloom.errors import BloomError
from scrapy_bloom.options import ON_BACKEND_ERROR, REDIS_TIMEOUT, OnBackendError
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.project import (
    key_of,
    plans_of,
    project_of,
    report_opened,
    report_state,
    target_of,
)
from scrapy_bloom.redis.shard import KNOWN
from scrapy_bloom.settings import Settings
from scrapy_bloom.signals import forget_page

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred

    from scrapy_bloom.crawl.report import Report, Verdict


class RedisMarks:
    """Marks in Redis, and the pages that have failed in this run: it does not try them again."""

    def __init__(self, filter_: RedisFilter) -> None:
        self.filter = filter_
        self._withheld: set[bytes] = set()

    def mark(self, fingerprint: bytes, max_age: float | None = None) -> bool:
        """Mark a fingerprint; return whether it was marked before, or lately."""
        if fingerprint in self._withheld:
            return True
        if max_age is None:
            return self.filter.add(fingerprint)
        return self.filter.add_aged(fingerprint, max_age)

    def contains(self, fingerprint: bytes) -> bool:
        """Return whether a fingerprint is marked."""
        return fingerprint in self._withheld or fingerprint in self.filter

    def withhold(self, fingerprints: Iterable[bytes]) -> None:
        """Forget fingerprints; only this worker calls them seen for the rest of its run."""
        some = [*fingerprints]
        self.filter.forget_many(some)
        self._withheld.update(some)

    def release(self, fingerprints: Iterable[bytes]) -> None:
        """Have this worker, too, let fingerprints through."""
        self._withheld.difference_update(fingerprints)


class PlainFilter:
    """The filter of a crawl whose requests wait with another scheduler.

    It lives no longer than they do: where they are in this process only, it is deleted at the end,
    and emptied at the start if a killed run has left it; unless other workers use it.

    :param spider: name of the spider.
    :param report: writes to stats and log.
    :param shared_queue: whether the requests wait in Redis as well, for any worker.
    :param empty: whether to empty the filter at once.
    :raises BloomError: if the crawl cannot be filtered as the settings say.

    Attributes:
        emptied: whether it was emptied when that was last wanted.
    """

    def __init__(
        self, crawler: Crawler, spider: str, report: Report, *, shared_queue: bool, empty: bool
    ) -> None:
        settings = Settings(crawler.settings, warn=False)
        policy = settings[ON_BACKEND_ERROR]
        if policy is OnBackendError.AUTO:
            policy = OnBackendError.WAIT if shared_queue else OnBackendError.ALLOW
        self._report, self._kept = report, shared_queue
        self._session = Session(crawler, settings, report)
        self._key = key_of(settings, spider=spider, project=project_of(crawler))
        filter_ = self._filter = RedisFilter(
            target_of(settings),
            self._key,
            plans_of(settings, self._session.fingerprinter, self._session.made_by),
            on_error=policy,
            timeout=settings[REDIS_TIMEOUT],
            # A flush takes a shared queue with it: what this worker knows would hide its pages.
            known=0 if shared_queue else KNOWN,
        )
        self._marks = RedisMarks(filter_)
        self._deleted = self.emptied = False
        try:
            self._begin(empty=empty)
        except BaseException:
            filter_.close()
            raise
        crawler.signals.connect(self.forget, signal=forget_page)

    def _begin(self, *, empty: bool) -> None:
        """Empty the filter if the requests that belong to its marks are gone, and log how it is."""
        filter_, report = self._filter, self._report
        found = not all(shard.made for shard in filter_.shards)
        if found and (empty or not self._kept):
            self.emptied = filter_.clear()
        report_opened(report, self._session, filter_.worker, self._key)
        if self.emptied:
            where = f"Bloom filter in Redis at {filter_.worker.where}, key {self._key}"
            left = "it was left by a crawl that has ended"
            why = "SCHEDULER_FLUSH_ON_START wants that" if empty else left
            report.info(f"{where}: emptied, since {why}. Pages are fetched again.")

    def check(self, request: Request) -> Verdict:
        """Mark a request, and return the verdict on it. Never raises."""
        return self._session.check(request, self._marks)

    def withdraw(self, request: Request) -> None:
        """Make the page of a request eligible again: it was new, and the scheduler has lost it."""
        try:
            there = self._filter.forget_many(self._session.marks_of(request))
            self._report.add(stats.WITHDRAWN, int(there[0]))
        except Exception as error:  # noqa: BLE001 - the crawl continues without
            self._report.check_failed(request, error)

    def forget(self, request: Request, failed: bool = False) -> None:  # noqa: FBT001, FBT002 - a signal
        """Make the page of a request eligible again, in the next run only if it has failed."""
        self._session.forget(request, self._marks, failed=failed)

    def clear(self, *, at_end: bool = False) -> bool:
        """Empty the filter; return False where it stays, because others use it or nobody knows.

        :param at_end: whether the crawl is over: then nothing of it stays in Redis.
        """
        self._describe()
        try:
            self.emptied = self._filter.delete() if at_end else self._filter.clear()
        except BloomError as error:
            self._report.error(error)
            self.emptied = False
        self._deleted = self.emptied and at_end
        return self.emptied

    def close(self) -> Deferred[None] | None:
        """Write the last stats, delete what nobody needs, and leave."""
        if self._filter.usable and not self._deleted:
            if self._kept:
                self._describe()
            else:
                self.clear(at_end=True)
        for name, value in self._filter.numbers().items():
            if value and name in stats.FROM_BACKEND:
                self._report.set(stats.FROM_BACKEND[name], value)
        self._report.flush()
        self._filter.close()
        return None

    def _describe(self) -> None:
        if self._filter.usable:
            report_state(self._report, self._filter.worker, self._key)
