"""The filter of a crawl whose requests another scheduler stores, in memory or in a JOBDIR."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.utils.job import job_dir

from scrapy_bloom import stats
from scrapy_bloom.crawl.identity import Identifier
from scrapy_bloom.crawl.scrapy.crawler import is_inspection_command
from scrapy_bloom.crawl.whose import writer_of
from scrapy_bloom.local.job import Identity, Job, new_filter
from scrapy_bloom.local.metadata import FILTER
from scrapy_bloom.local.scrapys import SCRAPYS_MARKS
from scrapy_bloom.settings import Settings
from scrapy_bloom.values import counted

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.report import Report


class PlainFilter:
    """The filter of a crawl under Scrapy's own scheduler, or any other.

    It is read on the event loop, since Scrapy opens filters there, before the first request.

    :param spider: name of the spider.
    :param report: writes to stats and log.
    :param unclean: whether the last run was killed, and its files were moved away.
    :raises BloomError: if the crawl cannot be filtered as configured. Nothing is changed.

    Attributes:
        identifier: says what a request is.
        filter: answers whether it was seen.
        emptied: whether it has been emptied; no one else uses it.
    """

    def __init__(self, crawler: Crawler, spider: str, report: Report, *, unclean: bool) -> None:
        settings = Settings.of(crawler)
        self._report = report
        self.identifier = identifier = Identifier(crawler, settings)
        fingerprinter = identifier.fingerprinter
        digests = fingerprinter.digests
        folder = None if is_inspection_command(crawler) else job_dir(crawler.settings)
        self.emptied = False
        self._job: Job | None = None
        if folder is None:
            self.filter = memory = new_filter(settings, digests=digests)
            report.opened(
                "Bloom filter",
                "in memory only",
                "0 marks; without a JOBDIR nothing is kept after this run",
                memory.info(),
                restored=0,
            )
        else:
            writer = "" if crawler.spider is None else writer_of(crawler.spider)
            owner = Identity(spider, fingerprinter.wrapped, identifier.made_by, writer)
            job = Job(Path(folder), owner, FILTER)
            with job.opening():
                job.open(settings, digests=digests)
                job.begin()
            self._job, self.filter = job, job.store.filter
            self._report_opened(job, unclean=unclean)

    def _report_opened(self, job: Job, *, unclean: bool) -> None:
        self._report.opened(
            "Bloom filter",
            f"in {job.path}",
            f"{counted(job.restored, 'mark')}; after a kill the crawl starts over",
            self.filter.info(),
            restored=job.restored,
            unclean=unclean,
        )
        theirs = job.folder / SCRAPYS_MARKS
        if not job.previous and theirs.exists():
            self._report.warn(
                f"{theirs}: the marks of Scrapy's own filter are not read, so pages are fetched"
                f" again."
            )

    def clear(self, *, at_end: bool = False) -> bool:  # noqa: ARG002 - as in a shared filter
        """Empty the filter; returns True."""
        self.emptied = self.filter.clear()
        return self.emptied

    def close(self) -> None:
        """Store the filter and write the final stats."""
        self._report.describe(self.filter.info())
        self._report.flush()
        if self._job is not None and not self._job.close():
            self._report.set(stats.NOT_STORED, 1)
