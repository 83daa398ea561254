"""The filter in this process's memory, kept in the job directory if there is one."""

from __future__ import annotations

import logging

from scrapy_bloom.backends.base import Backend, Crawl, Opened
from scrapy_bloom.core.growth import outgrown
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.options import CAPACITY, ERROR_RATE, ON_UNCLEAN, in_settings
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.store import JobStore

logger = logging.getLogger(__name__)


class LocalBackend(Backend):
    """``BLOOM_BACKEND = "local"``."""

    def open(self, settings: Settings, crawl: Crawl) -> Opened:
        """Open a filter in memory.

        :raises BloomError: as :class:`JobStore` does.
        """
        capacity, error_rate = settings[CAPACITY], settings[ERROR_RATE]

        def on_growth(items: int) -> None:
            logger.warning("Bloom filter: %s", outgrown(items, error_rate, in_settings(CAPACITY)))

        if crawl.job_dir is None:
            memory = LocalFilter(capacity, error_rate, digests=crawl.digests, on_growth=on_growth)
            return Opened(memory, memory.close, "in memory")
        job = JobStore(
            crawl.job_dir,
            crawl.identity,
            capacity=capacity,
            error_rate=error_rate,
            digests=crawl.digests,
            on_unclean=settings[ON_UNCLEAN],
            on_growth=on_growth,
        )
        return Opened(
            job.filter,
            job.close,
            f"in memory, kept in {crawl.job_dir}",
            job.restored,
            job.restored_from,
            unclean=job.unclean,
            filled_with=job.filled_with,
        )
