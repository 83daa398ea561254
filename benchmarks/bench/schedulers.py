"""The schedulers of a plain Scrapy crawl in a job directory, as settings."""

from __future__ import annotations

from typing import Final

from bench.scrapy_filters import Settings

OURS: Final = "scrapy-bloom"
SCRAPY: Final = "Scrapy's own"
SQLITE: Final = "Scrapy's own, SQLite queue"

SCHEDULERS: Final[dict[str, Settings]] = {
    OURS: {"SCHEDULER": "scrapy_bloom.Scheduler"},
    SCRAPY: {},
    SQLITE: {
        "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleLifoSQLiteQueue",
        "SCHEDULER_START_DISK_QUEUE": "scrapy.squeues.PickleFifoSQLiteQueue",
    },
}

PACKAGES: Final = ("Scrapy", "queuelib", "Twisted")

ABOUT: Final = """\
Ours is `scrapy_bloom.Scheduler` at its defaults. Scrapy's own scheduler has its own filter, and its
default queue, of pickles in files, or the queue on SQLite that is new in Scrapy 2.19.
"""
