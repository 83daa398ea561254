"""What a crawl's filter writes to Scrapy's stats and to the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from scrapy_bloom import stats
from scrapy_bloom.backends.base import Opened
from scrapy_bloom.core.info import FilterInfo
from scrapy_bloom.errors import BloomError
from scrapy_bloom.options import write_size, write_span
from scrapy_bloom.session.engine import close_spider
from scrapy_bloom.session.verdict import Verdict

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler


logger = logging.getLogger(__name__)

_STATS: Final = {
    Verdict.NEW: stats.NEW,
    Verdict.SEEN: stats.SEEN,
    Verdict.REDIRECT_EXEMPT: stats.REDIRECT_EXEMPT,
    Verdict.ERROR: stats.ERRORS,
}


_COUNTED: Final = stats.FROM_FILTER | stats.FROM_BACKEND


class Reporter:
    """Writes to stats and log. Nothing here raises: an error of a stats collector costs no page.

    A call of Scrapy's stats collector takes as long as a check of the filter. So verdicts are
    counted here and passed on in small batches: the stats are behind by at most 1 % of all checks,
    and never by more than 100.

    Attributes:
        starts_over: whether the last run was killed, and its requests were put aside.
    """

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.stats is not None  # noqa: S101 - Scrapy makes it before any component
        self._numbers: Callable[[], Mapping[str, float]] = dict
        self._crawler = crawler
        self._collector = crawler.stats
        self._pending = dict.fromkeys(Verdict, 0)
        self._total = 0
        self._due = 1
        self._stats_failed = False
        self._check_failed = False
        self._gave_up = False
        self._forget_failed = False
        self.starts_over = False

    def count(self, verdict: Verdict) -> None:
        """Count one check by its verdict."""
        self._pending[verdict] += 1
        self._due -= 1
        if not self._due:
            self.flush()

    def flush(self) -> None:
        """Bring Scrapy's stats up to date."""
        checked = sum(self._pending.values())
        self._total += checked
        self._due = min(100, 1 + self._total // 100)
        self.add(stats.CHECKED.key, checked)
        for verdict, count in self._pending.items():
            if count or verdict in (Verdict.NEW, Verdict.SEEN):
                self.add(_STATS[verdict].key, count)
            self._pending[verdict] = 0
        for name, value in self._numbers().items():
            if value and (stat := _COUNTED.get(name)):
                self.set(stat.key, stat.rounded(value))

    def add(self, key: str, count: int = 1) -> None:
        """Add to one of Scrapy's stats."""
        try:
            self._collector.inc_value(key, count)
        except Exception as error:  # noqa: BLE001 - a collector may be anybody's
            self._say_stats_failed(error)

    def set(self, key: str, value: float) -> None:
        """Set one of Scrapy's stats."""
        try:
            self._collector.set_value(key, value)
        except Exception as error:  # noqa: BLE001 - a collector may be anybody's
            self._say_stats_failed(error)

    def describe(self, info: FilterInfo) -> None:
        """Write the state of the filter to the stats."""
        for name, stat in stats.FROM_INFO.items():
            self.set(stat.key, stat.rounded(getattr(info, name)))

    def opened(self, opened: Opened, *, emptied: bool) -> None:
        """Tell how the filter was opened, and whether it was emptied then."""
        self._numbers = opened.numbers
        self.set(stats.RESTORED.key, 0 if emptied else opened.restored)
        if opened.unclean or self.starts_over:
            self.set(stats.UNCLEAN_STOP.key, 1)
        restored = f"{opened.restored:,} fingerprints"
        if emptied:
            restored = f"emptied of {restored}"
        else:
            restored += " restored" + f" from {opened.restored_from}" * bool(opened.restored)
        try:
            info = opened.filter.info()
        except BloomError as error:  # it was there a moment ago; the checks deal with that
            self._log(
                logging.WARNING,
                "Bloom filter %(place)s: %(restored)s, state unknown: %(error)s",
                {"place": opened.place, "restored": restored, "error": error},
            )
            return
        self._log(
            logging.INFO,
            "Bloom filter %(place)s: capacity %(capacity)s, error rate %(rate)g, %(size)s when"
            " full%(window)s, %(restored)s",
            {
                "place": opened.place,
                "capacity": f"{info.capacity:,}",
                "rate": info.error_rate,
                "size": write_size(info.bytes_at_capacity),
                "window": f", window {write_span(info.window)}" if info.window else "",
                "restored": restored,
            },
        )
        self.describe(info)

    def check_failed(self, request: Request, error: Exception) -> None:
        """Log that a request could not be checked, once in a crawl."""
        if self._check_failed:
            return
        self._check_failed = True
        self._log(
            logging.ERROR,
            "Could not check whether %(request)s is a duplicate: it is crawled. More such errors"
            " are counted in bloom/errors and not shown.",
            {"request": request},
            error,
        )

    def forget_failed(self, request: Request, error: Exception) -> None:
        """Count that a page could not be forgotten, and log it, once in a crawl."""
        self.add(stats.NOT_FORGOTTEN.key)
        if self._forget_failed:
            return
        self._forget_failed = True
        self._log(
            logging.ERROR,
            "The page of %(request)s could not be forgotten: it counts as seen. More such errors"
            " are counted in %(stat)s and not shown.",
            {"request": request, "stat": stats.NOT_FORGOTTEN.key},
            error,
        )

    def give_up(self, error: BloomError) -> None:
        """Log why the crawl cannot go on and close the spider, once.

        To be used during a check: an exception there would lose the request.
        """
        if self._gave_up:
            return
        self._gave_up = self._check_failed = True
        self.error(error)
        try:
            close_spider(self._crawler, error.reason)
        except Exception as failure:  # noqa: BLE001 - an error of the engine; the crawl goes on
            self._log(logging.ERROR, "The spider could not be closed", {}, failure)

    def unstored(self, count: int) -> None:
        """Log that requests are lost at a clean stop."""
        self._log(
            logging.WARNING,
            "%(count)s requests could not be serialized, so Scrapy has not stored them. The next"
            " run fetches those of their pages that it finds a link to. With"
            " SCHEDULER_DEBUG = True Scrapy says what it cannot serialize: lambdas as callbacks,"
            " for example.",
            {"count": f"{count:,}"},
        )

    def error(self, error: BloomError) -> None:
        """Log what went wrong, in the words of the error."""
        self._log(logging.ERROR, "%(error)s", {"error": error})

    def _say_stats_failed(self, error: Exception) -> None:
        if self._stats_failed:
            return
        self._stats_failed = True
        self._log(
            logging.ERROR,
            "The stats collector failed, so stats that begin with bloom/ may be wrong. The filter"
            " works on. This is logged once.",
            {},
            error,
        )

    def _log(
        self,
        level: int,
        text: str,
        values: Mapping[str, object],
        error: Exception | None = None,
    ) -> None:
        # Logging would take an empty mapping for an argument that the text does not use.
        values_if_any = [values] if values else []
        spider = {"spider": self._crawler.spider}
        logger.log(level, text, *values_if_any, exc_info=error, extra=spider)
