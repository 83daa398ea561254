"""The filter in this process's memory, kept in the job directory if there is one."""

from __future__ import annotations

import logging
import time
from typing import Final

from scrapy_bloom.backends.base import Backend, Crawl, Opened
from scrapy_bloom.core.growth import outgrown
from scrapy_bloom.options import CAPACITY, ERROR_RATE, WINDOW, in_settings
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.store import JobStore, make_filter

logger = logging.getLogger(__name__)

_SLOW: Final = 32_000_000
"""Bytes that take about 0.1 s to be counted and stored."""


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
            memory = make_filter(
                None,
                capacity=capacity,
                error_rate=error_rate,
                digests=crawl.digests,
                on_growth=on_growth,
                window=settings[WINDOW],
                clock=time.time,
            )
            return Opened(
                memory,
                memory.close,
                "in memory",
                let_through=memory.forgotten,
                numbers=lambda: {"let_through": memory.readmitted},
            )
        job = JobStore(
            crawl.job_dir,
            crawl.identity,
            capacity=capacity,
            error_rate=error_rate,
            digests=crawl.digests,
            on_growth=on_growth,
            window=settings[WINDOW],
            clock=time.time,
            journaled=crawl.journaled,
        )
        return Opened(
            job.filter,
            job.close,
            f"in memory, kept in {crawl.job_dir}",
            job.restored,
            job.restored_from,
            filled_with=job.filled_with,
            let_through=job.filter.forgotten,
            numbers=lambda: {"let_through": job.filter.readmitted},
            closes_slowly=lambda: job.size > _SLOW,
            job=job if crawl.journaled else None,
        )
