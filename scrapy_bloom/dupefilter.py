"""Scrapy's contract for duplicate filters, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import CloseSpider
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.job import job_dir
from scrapy.utils.request import referer_str

from scrapy_bloom import stats as keys
from scrapy_bloom.backends.base import Crawl, Opened, choose
from scrapy_bloom.core.base import Filter
from scrapy_bloom.errors import BackendError, BloomError, FilterLostError
from scrapy_bloom.options import write_size
from scrapy_bloom.scrapy_redis import spare_queue
from scrapy_bloom.session.redirects import follows_itself, step_fingerprint
from scrapy_bloom.session.resolver import Spelling, rules_of
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.snapshot import Identity

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_bloom.canonical.fingerprint import Change

logger = logging.getLogger(__name__)


class BloomDupeFilter:
    """``DUPEFILTER_CLASS`` on a Bloom filter, for Scrapy's scheduler and for scrapy-redis's.

    Takes nothing when it is made; the filter is opened by :meth:`open`, or by the first request
    where nobody calls that.
    """

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.stats is not None  # noqa: S101 - Scrapy makes it before any component
        self._crawler = crawler
        self._stats = crawler.stats
        self._tally = keys.Tally(crawler.stats)
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._filter: Filter | None = None
        self._unusable = ""  # why, once it is
        self._emptied = False
        self._given_up = False
        self._shared_queue = False
        self._spelling: Spelling
        self._resolve: Callable[[Request], tuple[bytes, Change | None]]
        self._add: Callable[[bytes], bool]
        self._logged_duplicate = False
        self._logged_error = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the filter of a crawl."""
        return cls(crawler)

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Make the filter of a crawl for scrapy-redis's scheduler, which never opens or closes it.

        Requests of such a crawl wait in Redis, and so does its filter.
        """
        self = cls.from_crawler(spider.crawler)
        self._shared_queue = True
        spider.crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)
        spider.crawler.signals.connect(self._spider_closed, signal=signals.spider_closed)
        return self

    def open(self) -> None:
        """Get ready for the first request.

        :raises CloseSpider: if the crawl cannot be filtered as the settings say. The log tells why.
        """
        try:
            self._open()
        except BloomError as error:
            self._say(error)
            raise CloseSpider(error.reason) from error

    def request_seen(self, request: Request) -> bool:
        """Return whether an equal request was seen before. Never raises.

        Where anything fails the answer is False: the page is fetched, perhaps twice, never lost.
        """
        try:
            if self._filter is None:
                self._open()
            fingerprint, change = self._resolve(request)
            if not self._add(fingerprint):
                verdict = keys.NEW
            elif "redirect_urls" in request.meta and self._is_next_step(request, fingerprint):
                verdict = keys.REDIRECT_EXEMPT
            else:
                verdict = keys.SEEN
            if change or verdict is keys.SEEN:
                self._spelling.note(request, fingerprint, change, seen=verdict is keys.SEEN)
        except (BackendError, FilterLostError) as error:
            verdict = keys.ERRORS
            self._give_up(error)
        except Exception as error:  # noqa: BLE001 - raised, it would cost the page
            verdict = keys.ERRORS
            self._log_error(request, error)
        self._tally.count(verdict)
        return verdict is keys.SEEN

    def close(self, reason: str) -> None:  # noqa: ARG002 - Scrapy's signature
        """Store what is to be stored and write the last stats. Never raises a BloomError."""
        if self._filter is not None:
            self._describe(self._filter)
            self._spelling.close()
            self._stats.set_value(keys.NOT_STORED, 0)
            try:
                self._filter.close()
            except BloomError as error:
                self._stats.set_value(keys.NOT_STORED, 1)
                self._say(error)
        self._tally.flush()
        self._filter = None
        self._unusable = "The filter is closed."

    def clear(self) -> None:
        """Empty the filter before scrapy-redis empties its queue. Never raises a BloomError.

        Where other workers use the filter, or nobody can know that, filter and queue stay.
        """
        refused = self._unusable
        try:
            seen = self._open()
            self._describe(seen)
            self._emptied = seen.clear()
        except BloomError as error:
            if not refused:
                self._say(error)
            self._emptied = False
        if not self._emptied:
            spared = spare_queue(self._crawler, self)
            logger.info(
                "%s not emptied: other workers may be using them.",
                "Filter and request queue are" if spared else "The filter is",
                extra={"spider": self._crawler.spider},
            )

    def log(self, request: Request, spider: Spider) -> None:
        """Count a dropped request, and log the first one, or all with ``DUPEFILTER_DEBUG``."""
        if self._debug:
            logger.debug(
                "Filtered duplicate request: %(request)s (referer: %(referer)s)",
                {"request": request, "referer": referer_str(request)},
                extra={"spider": spider},
            )
        elif not self._logged_duplicate:
            self._logged_duplicate = True
            logger.debug(
                "Filtered duplicate request: %(request)s"
                " - no more duplicates will be shown"
                " (see DUPEFILTER_DEBUG to show all duplicates)",
                {"request": request},
                extra={"spider": spider},
            )
        self._stats.inc_value("dupefilter/filtered")

    def _is_next_step(self, request: Request, fingerprint: bytes) -> bool:
        """Return whether the request only goes on with the chain of redirects that it is in."""
        return follows_itself(
            request, fingerprint, self._spelling.fingerprinter.fingerprint
        ) and not self._add(step_fingerprint(request, fingerprint))

    def _log_error(self, request: Request, error: Exception) -> None:
        if self._logged_error:
            return
        self._logged_error = True
        logger.error(
            "Could not check %(request)s for being a duplicate: it is crawled. More such errors are"
            " counted in bloom/errors and not shown.",
            {"request": request},
            exc_info=error,
            extra={"spider": self._crawler.spider},
        )

    def _spider_opened(self) -> None:
        try:
            self._open()
        except BloomError as error:
            self._give_up(error)

    def _spider_closed(self, reason: str) -> None:
        self.close(reason)

    def _give_up(self, error: BloomError) -> None:
        """Close the spider, once: a request that is raised at would be lost."""
        if self._given_up:
            return
        self._given_up = self._logged_error = True
        self._say(error)
        engine = self._crawler.engine
        if engine is not None and hasattr(engine, "close_spider_async"):  # from Scrapy 2.14
            deferred_from_coro(engine.close_spider_async(reason=error.reason))
        elif engine is not None:
            self._close_spider(error.reason)

    def _close_spider(self, reason: str) -> None:
        """Close the spider of an older Scrapy, which hangs if that is done before it runs."""
        from twisted.internet import reactor  # noqa: PLC0415 - installs one, which Scrapy has

        engine: Any = self._crawler.engine
        if engine.running:
            engine.close_spider(self._crawler.spider, reason)
        else:
            reactor.callLater(0.01, self._close_spider, reason)  # type: ignore[arg-type]

    def _say(self, error: BloomError) -> None:
        logger.error("%s", error, extra={"spider": self._crawler.spider})

    def _describe(self, seen: Filter) -> None:
        """Write the filter's state to the stats; one that was emptied keeps what it was before."""
        try:
            info = seen.info()
        except BackendError:  # it was said when it began
            return
        if info.items or not self._emptied:
            keys.write_info(self._stats, info)

    def _open(self) -> Filter:
        if self._filter is not None:  # a request came before open()
            return self._filter
        if self._unusable:
            raise BloomError(self._unusable)
        self._unusable = "The filter could not be opened."
        crawler = self._crawler
        settings = Settings(crawler.settings)
        folder = job_dir(crawler.settings)
        place = Path(folder) if folder else None
        spelling = Spelling(crawler, rules_of(settings), place)
        maker = spelling.fingerprinter
        spider = crawler.spider or crawler.spidercls  # the class may have no name of its own
        crawl = Crawl(
            Identity(spider.name, maker.wrapped, spelling.record),
            digests=maker.digests,
            job_dir=place,
            shared_queue=self._shared_queue,
        )
        opened = choose(settings, crawl)(settings, crawl)
        self._spelling, self._resolve = spelling, maker.resolve
        self._filter = opened.filter
        self._tally.numbers = opened.numbers
        self._add = opened.filter.add
        self._unusable = ""
        self._report(opened)
        spelling.tell(opened.filled_with)
        return opened.filter

    def _report(self, opened: Opened) -> None:
        info = opened.filter.info()
        restored = f"{opened.restored:,} fingerprints restored"
        logger.info(
            "Bloom filter %(place)s: capacity %(capacity)s, error rate %(rate)g, %(size)s when"
            " full, %(restored)s",
            {
                "place": opened.place,
                "capacity": f"{info.capacity:,}",
                "rate": info.error_rate,
                "size": write_size(info.bytes_at_capacity),
                "restored": restored + f" from {opened.restored_from}" * bool(opened.restored),
            },
            extra={"spider": self._crawler.spider},
        )
        self._stats.set_value(keys.RESTORED, opened.restored)
        self._stats.set_value(keys.UNCLEAN_STOP, int(opened.unclean))
        keys.write_info(self._stats, info)
