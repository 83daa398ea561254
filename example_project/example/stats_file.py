"""A Scrapy extension for crawls that somebody watches from outside: it keeps their numbers."""

from __future__ import annotations

import json
from pathlib import Path

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.statscollectors import StatsCollector

EXTENSIONS = json.dumps({f"{__name__}.StatsFile": 500})
"""Switches it on, as text for ``scrapy crawl -s EXTENSIONS=…``."""


class StatsFile:
    """Write Scrapy's stats as one JSON object to the file that ``STATS_FILE`` names.

    Without that setting the extension is off. Dates are written as text.
    """

    def __init__(self, stats: StatsCollector, path: Path) -> None:
        self._stats = stats
        self._path = path

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> StatsFile:
        """Make the extension and have it called at the end of the crawl."""
        path = crawler.settings.get("STATS_FILE")
        if not path:
            raise NotConfigured
        extension = cls(crawler.stats, Path(path))
        crawler.signals.connect(extension.spider_closed, signal=signals.spider_closed)
        return extension

    def spider_closed(self) -> None:
        """Write the file. The filter is closed by now, so its numbers are final."""
        self._path.write_text(json.dumps(self._stats.get_stats(), indent=2, default=str))
