"""Scrapy extensions for crawls that somebody watches from outside: numbers kept, and patience."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import DontCloseSpider, NotConfigured
from scrapy.statscollectors import StatsCollector

EXTENSIONS = json.dumps({f"{__name__}.{name}": 500 for name in ("StatsFile", "StayIdle")})
"""Switches them on, as text for ``scrapy crawl -s EXTENSIONS=…``; each has a setting of its own."""


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


class StayIdle:
    """Keep a worker open while others may still find work for it.

    A worker that shares its queue may have nothing to do for a moment. With ``STAY_IDLE`` it closes
    only when it has had no request for that many seconds; without, the extension is off.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = monotonic()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> StayIdle:
        """Make the extension and have it called at every request, and when there is none."""
        seconds = crawler.settings.getfloat("STAY_IDLE")
        if not seconds:
            raise NotConfigured
        extension = cls(seconds)
        crawler.signals.connect(extension.busy, signal=signals.request_reached_downloader)
        crawler.signals.connect(extension.idle, signal=signals.spider_idle)
        return extension

    def busy(self) -> None:
        """Note that there is work."""
        self._last = monotonic()

    def idle(self) -> None:
        """Keep the spider open for a while.

        :raises DontCloseSpider: while that lasts.
        """
        if monotonic() - self._last < self._seconds:
            raise DontCloseSpider
