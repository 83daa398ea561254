"""The filter of a crawl whose requests another scheduler keeps: in memory, or in a JOBDIR."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy.utils.job import job_dir

from scrapy_bloom import stats
from scrapy_bloom.crawl.engine import only_looks, run_beside
from scrapy_bloom.crawl.session import Session
from scrapy_bloom.errors import SettingError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local.job import FILTER, SEEN, Identity, Job, new_filter, waits_with_scrapy
from scrapy_bloom.options import EXACT
from scrapy_bloom.settings import Settings
from scrapy_bloom.signals import forget_page

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred

    from scrapy_bloom.crawl.report import Report, Verdict
    from scrapy_bloom.local.store import Store


_SLOW: Final = 32_000_000
"""Bytes of a filter that take about 0.1 s to be stored."""


class MemoryMarks:
    """Marks that no run keeps for the next one."""

    def __init__(self, filter_: LocalFilter) -> None:
        self.filter = filter_

    def mark(self, fingerprint: bytes, max_age: float | None = None) -> bool:
        """Mark a fingerprint; return whether it was marked before, or lately."""
        if max_age is None:
            return self.filter.add(fingerprint)
        return self.filter.add_aged(fingerprint, max_age)

    def contains(self, fingerprint: bytes) -> bool:
        """Return whether a fingerprint is marked."""
        return fingerprint in self.filter

    def withhold(self, fingerprints: Iterable[bytes]) -> None:
        """Do nothing: there is no next run."""

    def release(self, fingerprints: Iterable[bytes]) -> None:
        """Do nothing, likewise."""


class PlainFilter:
    """The filter of a crawl under Scrapy's own scheduler, or any other one.

    :param spider: name of the spider.
    :param report: writes to stats and log.
    :param unclean: whether the last run was killed, and its files were moved away.
    :raises BloomError: if the crawl cannot be filtered as the settings say. Nothing is changed.
    """

    def __init__(self, crawler: Crawler, spider: str, report: Report, *, unclean: bool) -> None:
        settings = Settings(crawler.settings, warn=False)
        if settings[EXACT] and not only_looks(crawler):
            raise SettingError(
                f"{EXACT.setting} = True: it needs SCHEDULER = 'scrapy_bloom.Scheduler' with a"
                f" JOBDIR, or a filter in Redis with BLOOM_REDIS_LAYOUT = 'sets'. Without any of"
                f" these use Scrapy's own filter, which is exact: DUPEFILTER_CLASS ="
                f" 'scrapy.dupefilters.RFPDupeFilter'."
            )
        self._report = report
        self._session = session = Session(crawler, settings, report)
        made = session.fingerprinter
        folder = None if only_looks(crawler) else job_dir(crawler.settings)
        self._job: Job | None = None
        self._marks: MemoryMarks | Store
        if folder is None:
            memory = new_filter(settings, digests=made.digests)
            self._marks = MemoryMarks(memory)
            report.opened("in memory", memory.info(), restored=0, unclean=False)
        else:
            job = Job(Path(folder), Identity(spider, made.wrapped, session.made_by), FILTER)
            with job.opening():
                job.open(settings, digests=made.digests)
                job.begin()
            self._job, self._marks = job, job.store
            info = job.store.filter.info()
            place = f"in memory, kept in {job.path}"
            report.opened(place, info, restored=job.restored, unclean=unclean)
            if job.is_finished(waiting=waits_with_scrapy(job.folder)):
                report.finished(job.folder, job.restored)
            if not job.previous and (job.folder / SEEN).exists():
                report.warn(
                    f"{job.folder / SEEN}: the marks of Scrapy's own filter stay unread, so pages"
                    f" are fetched again. SCHEDULER = 'scrapy_bloom.Scheduler' takes them over."
                )
        crawler.signals.connect(self.forget, signal=forget_page)

    def check(self, request: Request) -> Verdict:
        """Mark a request, and return the verdict on it. Never raises."""
        return self._session.check(request, self._marks)

    def withdraw(self, request: Request) -> None:
        """Make the page of a request eligible again: it was new, and the scheduler has lost it."""
        try:
            page = self._session.marks_of(request)
            there = [self._marks.contains(mark) for mark in page]
            self._marks.filter.forget_many(page)
            self._report.add(stats.WITHDRAWN, int(there[0]))
        except Exception as error:  # noqa: BLE001 - the crawl continues without
            self._report.check_failed(request, error)

    def clear(self, *, at_end: bool = False) -> bool:  # noqa: ARG002 - as a shared filter
        """Empty the filter; returns True."""
        return self._marks.filter.clear()

    def forget(self, request: Request, failed: bool = False) -> None:  # noqa: FBT001, FBT002 - a signal
        """Make the page of a request eligible again, in the next run only if it has failed."""
        self._session.forget(request, self._marks, failed=failed)

    def close(self) -> Deferred[None] | None:
        """Store the filter, and write the last stats; return what fires when that is done."""
        info = self._marks.filter.info()
        self._report.describe(info)
        self._report.flush()
        if self._job is None:
            return None
        if info.bytes > _SLOW:
            return run_beside(self._store)
        self._store()
        return None

    def _store(self) -> None:
        assert self._job is not None  # noqa: S101 - there is something to be stored
        if not self._job.close():
            self._report.set(stats.NOT_STORED, 1)
