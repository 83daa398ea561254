"""What a crawl reports about its filter, in Scrapy's stats and in the log."""

from __future__ import annotations

import logging
import time
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom import stats
from scrapy_bloom.crawl.scrapy.crawler import close_spider, exit_with_error_code
from scrapy_bloom.errors import BloomError, StateError
from scrapy_bloom.settings import Settings, is_in_redis
from scrapy_bloom.values import counted, visible, write_size, write_span

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.account import Account
    from scrapy_bloom.filter.info import FilterInfo
    from scrapy_bloom.stats import Stat

logger = logging.getLogger(__name__)

_TIMES: Final = 3  # an error that nobody expects ends the crawl when it comes so often in a minute


class Verdict(Enum):
    """The filter's verdict on one request. Only ``SEEN`` requests are dropped."""

    NEW = "new"
    """Not seen before."""
    SEEN = "seen"
    """Seen before."""
    REDIRECT_EXEMPT = "redirect_exempt"
    """Seen before, but only as part of the request's own chain of redirects."""
    ERROR = "error"
    """Not checked, because something failed."""

    __hash__ = object.__hash__  # faster than Enum's own; every request needs it


_STATS: Final = {
    Verdict.NEW: stats.NEW,
    Verdict.SEEN: stats.SEEN,
    Verdict.REDIRECT_EXEMPT: stats.REDIRECT_EXEMPT,
    Verdict.ERROR: stats.ERRORS,
}


class Report:
    """Writes stats and log messages. Never raises: a failing stats collector must not cost a page.

    A call to Scrapy's stats collector takes as long as a filter check, so verdicts are counted
    here and passed on in small batches. The stats lag by at most 1 % of all checks, and at most
    100.

    Attributes:
        account: what has become of all pages, once a crawl that stores its requests is closed.
        through: whether all that ``start()`` yields is stored, or was.
        unlisted: why requests have failed that were only in memory, and that no page led to.
    """

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.stats is not None  # Scrapy makes it before any component
        self._crawler = crawler
        # Scrapy looks at each access to a method of its collector.
        self._inc_value, self._collector = crawler.stats.inc_value, crawler.stats
        self._pending = dict.fromkeys(Verdict, 0)
        self._total = self._seen = 0
        self._due = 1
        self._noun = "Bloom filter"  # for the log
        self._opened = False  # not if the crawl was refused
        self._last: tuple[float, int] | None = None  # when progress was logged, and what waited
        self._fatal_logged = False
        self.account: Account | None = None
        self.through = False
        self.unlisted: Counter[str] = Counter()
        self._logged: set[str] = set()
        self._errors: list[tuple[float, type[Exception]]] = []  # that nobody expects, and when

    # Stats

    def count(self, verdict: Verdict) -> None:
        """Count one check by its verdict."""
        self._pending[verdict] += 1
        self._due -= 1
        if not self._due:
            self.flush()

    def ended(self, kind: str, *, unparsed: bool) -> None:
        """Count a page that no callback got, by its reason, as it is listed."""
        stat = stats.UNPARSED if unparsed else stats.FAILED
        self.inc(stat.key.format(kind=kind))

    def not_kept(self, kept: int) -> None:
        """Log once that there are too many unparsed pages to store all of them.

        :param kept: how many are stored.
        """
        self.once(
            logging.WARNING,
            "%s are unparsed: further ones are only counted. To make room: 'scrapy bloom queue"
            " --drop --reason 404'.",
            counted(kept, "page"),
        )

    @property
    def spider_name(self) -> str:
        """The name of the crawl's spider."""
        return str(getattr(self._crawler.spider, "name", ""))

    @property
    def seen(self) -> int:
        """How many requests this run has dropped, because their pages were seen before."""
        return self._seen + self._pending[Verdict.SEEN]

    def flush(self) -> None:
        """Bring Scrapy's stats up to date."""
        checked = sum(self._pending.values())
        self._total += checked
        self._due = min(100, 1 + self._total // 100)
        self._seen = self.seen
        self.add(stats.CHECKED, checked)
        for verdict, count in self._pending.items():
            if count or verdict in (Verdict.NEW, Verdict.SEEN):
                self.add(_STATS[verdict], count)
            self._pending[verdict] = 0

    def add(self, stat: Stat, count: int = 1) -> None:
        """Add to one of our stats."""
        self.inc(stat.key, count)

    def inc(self, key: str, count: int = 1) -> None:
        """Add to one of Scrapy's stats."""
        try:
            self._inc_value(key, count)
        except Exception as error:  # the collector may be third-party
            self.stats_failed(error)

    def set(self, stat: Stat, value: float) -> None:
        """Set one of our stats, rounded to three decimals."""
        self._collect("set_value", stat.key, round(value, 3))

    def set_if_used(self, stat: Stat, value: float) -> None:
        """Set one of our stats, unless it is 0 and was never set."""
        if value or self._get(stat):
            self.set(stat, value)

    def describe(self, info: FilterInfo) -> None:
        """Write the state of the filter to the stats."""
        for name, stat in stats.FROM_INFO.items():
            self.set(stat, getattr(info, name))

    # Log

    def opened(
        self,
        noun: str,
        where: str,
        contents: str,
        info: FilterInfo,
        *,
        restored: int,
        unclean: bool = False,
    ) -> None:
        """Log that the filter was opened, and set its stats.

        :param noun: what was opened: "Crawl state" or "Bloom filter".
        :param where: where it is.
        :param contents: what it holds, and what a kill costs; empty for a new crawl.
        :param restored: number of fingerprints from earlier runs.
        :param unclean: whether the last run was killed.
        """
        self.set(stats.RESTORED, restored)
        if unclean:
            self.set(stats.UNCLEAN_STOP, 1)
        self._opened = True
        self._noun, settings = noun, Settings.of(self._crawler)
        self.log(
            logging.INFO,
            "%s. Capacity %s, error rate %g, %s when full, URLs %r%s",
            f"{noun} {where}: {contents}" if contents else f"New crawl, stored {where}",
            f"{info.capacity:,}",
            info.error_rate,
            write_size(info.bytes_at_capacity),
            settings.rules.general.level,
            f", window {write_span(info.window)}" if info.window else "",
        )
        self.describe(info)

    def progress(self, waiting: int, *others: str) -> None:
        """Log how far the crawl is, with the change of what waits since the last time.

        :param waiting: how many requests wait.
        :param others: what else there is to say, such as "16 in flight".
        """
        now, change = time.monotonic(), ""
        if self._last is not None and now > self._last[0]:
            then, before = self._last
            change = f" ({(waiting - before) / (now - then) * 60:+,.0f}/min)"
        self._last = now, waiting
        later = self._get(stats.LATER)
        words = (
            self._marks(),
            f"{counted(waiting, 'request')} waiting{change}",
            *((f"{later:,} of them delayed",) if later else ()),
            *others,
            self._loss("expected loss"),
        )
        self.log(logging.INFO, "%s: %s", self._noun, ", ".join(words))

    def closed(self, reason: str = "", *, shared_queue: bool = False) -> None:
        """Log a summary of this run, unless the crawl was refused.

        :param reason: why the spider closes.
        :param shared_queue: whether another scheduler shares its requests with other workers.
        """
        self.flush()
        checked = self._get(stats.CHECKED)
        if not (self._opened or checked):
            return
        account = (
            None if self._fatal_logged else self.account
        )  # else it is not known what is stored
        in_redis = is_in_redis(self._crawler.settings, shared_queue=shared_queue)
        if account is None:  # nor what has failed, or others have to do
            what, loss = "Worker" if in_redis else "Crawl", "false positives may have cost"
            text = f"{self._marks()}, {counted(checked, 'link')} checked"
            text += f", {self._get(stats.NEW):,} of them new"
        else:
            what, loss = "Crawl", "expected loss"
            text = str(account.with_failed(self.unlisted))
        # For other workers, or another run.
        left = account is not None and (account.waiting or not self.through)
        ended = "finished" if reason == "finished" and not left else "stopped"
        fetched = self._fetched("worker" if in_redis else "run")
        said = what, ended, text, fetched, self._loss(loss)
        self.once(logging.INFO, "%s %s: %s; %s%s.", *said)
        if reason == "finished" and account is not None and not account.pages:
            self.warn(
                "Nothing was fetched: the spider has yielded no request. Its start() must yield"
                " requests, or start_urls must list pages; start_requests() is not called by every"
                " version of Scrapy."
            )

    def _fetched(self, here: str) -> str:
        """Say how many responses came here, unless Scrapy does not count them."""
        if self._collect("get_value", "start_time", None) is None:
            return ""
        responses = self._collect("get_value", "response_received_count", 0)
        robots = self._collect("get_value", "robotstxt/response_count", 0)
        return f"this {here} received {counted(responses - robots, 'response')}; "

    def _marks(self) -> str:
        return counted(self._get(stats.FROM_INFO["items"]), "mark")

    def _loss(self, what: str) -> str:
        return f"{what} {self._get(stats.FROM_INFO['expected_lost']):.1f} pages"

    def fetched_again(self, count: int) -> None:
        """Log that this run puts failed requests of earlier runs back."""
        requests = "1 request that failed in an earlier run is"
        if count > 1:
            requests = f"{count:,} requests that failed in earlier runs are"
        self.info(f"{requests} fetched again.")

    def check_failed(self, request: Request, error: Exception) -> None:
        """Log that a request could not be checked, once per crawl."""
        if not self._fatal_logged:  # else that was logged
            self.once(
                logging.ERROR,
                "Could not check whether %s is a duplicate, so it is let through. More such errors"
                " are counted in %s and not shown.",
                request,
                stats.ERRORS.key,
                failure=error,
            )

    def unexpected(self, error: Exception) -> StateError | None:
        """Count an error that nobody expects, and log the first one of a crawl.

        :returns: what ends the crawl, if the same came again and again.
        """
        self.add(stats.COMMIT_ERRORS)
        self.once(
            logging.ERROR,
            "Unexpected error: %s. The crawl continues and retries.",
            error,
            failure=error,
        )
        now, kind = time.monotonic(), type(error)
        self._errors = [(at, each) for at, each in self._errors if at > now - 60] + [(now, kind)]
        if [each for _, each in self._errors].count(kind) < _TIMES:
            return None
        return StateError(
            f"The same error occurred {_TIMES} times within a minute ({error!r}), so nothing more"
            f" is stored. Start the crawl again: it resumes from what was stored last."
        )

    def not_forgotten(self, request: Request, error: Exception) -> None:
        """Count a page that could not be forgotten, and log the first one of a crawl."""
        self.add(stats.NOT_FORGOTTEN)
        self.once(
            logging.ERROR,
            "The page of %s could not be forgotten: it counts as seen. More such errors are counted"
            " in %s and not shown.",
            request,
            stats.NOT_FORGOTTEN.key,
            failure=error,
        )

    def info(self, text: str) -> None:
        """Log a message at level INFO."""
        self.log(logging.INFO, "%s", text)

    def warn(self, text: str) -> None:
        """Log a message at level WARNING."""
        self.log(logging.WARNING, "%s", text)

    def error(self, error: BloomError) -> None:
        """Log an error's message, without a traceback."""
        self.log(logging.ERROR, "%s", error)

    def log_fatal(self, error: BloomError) -> bool:
        """Log why the crawl cannot continue; return False if that was logged before."""
        if self._fatal_logged:
            return False
        self._fatal_logged = True
        self.error(error)
        return True

    def once(
        self, level: int, text: str, *values: object, failure: Exception | None = None
    ) -> None:
        """Log a message only the first time it occurs in a crawl."""
        if text not in self._logged:
            self._logged.add(text)
            self.log(level, text, *values, failure=failure)

    def log(self, level: int, text: str, *values: object, failure: Exception | None = None) -> None:
        """Log a message about the crawl.

        :param failure: an error to show with its traceback.
        """
        text = visible(text % values if values else text)
        logger.log(level, "%s", text, exc_info=failure, extra={"spider": self._crawler.spider})

    def stats_failed(self, error: Exception) -> None:
        """Log that a number could not be counted, once per crawl."""
        self.once(
            logging.ERROR,
            "The stats collector failed, so stats that begin with bloom/ may be wrong. The filter"
            " is not affected. This is logged once.",
            failure=error,
        )

    def _get(self, stat: Stat, default: Any = 0) -> Any:
        return self._collect("get_value", stat.key, default)

    def _collect(self, method: str, key: str, value: Any) -> Any:
        try:
            return getattr(self._collector, method)(key, value)
        except Exception as error:  # the collector may be third-party
            self.stats_failed(error)
            return value


def end_crawl(crawler: Crawler, report: Report, error: BloomError) -> None:
    """Log why a crawl cannot continue, and close the spider. Later calls do nothing.

    Use it in the middle of a crawl, where raising would lose a request.
    """
    if report.log_fatal(error):
        exit_with_error_code(crawler)
        try:
            close_spider(crawler, error.reason)
        except Exception as failure:  # an engine error; the crawl continues
            report.log(logging.ERROR, "The spider could not be closed", failure=failure)
