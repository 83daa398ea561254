"""Items on their way out: what a page gave is written before the page is done."""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage, StdoutFeedStorage
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom import stats
from scrapy_bloom.signals import before_commit

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.report import Report

logger = logging.getLogger(__name__)

_WHO: Final = re.compile(r"//[^/]*@")  # in a URI: may have a password


class Items:
    """Writes out the items that a crawl has so far.

    An item that a feed could not take, since the disk was full, say, is kept and given to it again.

    :param report: counts what fails.
    :param sync: whether feeds go to the disk itself, and not only out of this process.
    """

    def __init__(self, crawler: Crawler, report: Report, *, sync: bool) -> None:
        self._crawler = crawler
        self._report = report
        self._sync = sync
        self._pipelines_closed = False
        self._pipelines_error: Exception | None = None  # of the last time that they were asked
        self._failing = False
        self._warned = False
        self._refused: deque[tuple[Any, Spider]] = deque()
        self._ends: list[tuple[Any, int | None]] = []  # where files ended before the last item
        self._feeds: Any = crawler.get_extension(FeedExporter)
        if self._feeds is not None:
            with suppress(KeyError):  # a class of somebody's that listens in another way
                crawler.signals.disconnect(self._feeds.item_scraped, signals.item_scraped)
                crawler.signals.connect(self._export, signals.item_scraped)
            crawler.signals.connect(self._warn_of_feeds, signals.spider_opened)

    async def flush(self) -> bool:
        """Flush local feeds and have pipelines flushed; return whether all items are written.

        What fails is logged, once until it works again.
        """
        error = self._flush_feeds() or await self._flush_pipelines()
        if error is not None:
            self._log_failure(error)
        elif self._failing:
            self._failing = False
            logger.info("Items are written out again.", extra={"spider": self._crawler.spider})
        return error is None

    def pipelines_are_closed(self) -> None:
        """Ask the pipelines for nothing more: they have closed what they write to.

        What they said the last time counts: one that has failed then may have lost its items.
        """
        self._pipelines_closed = True

    def log_kept(self, pages: int) -> None:
        """Log at the end how many pages are not done because of their items."""
        if not pages:
            return
        logger.error(
            "Items of %s pages could not be written out before the end, so these pages are not"
            " done: they are fetched again.",
            f"{pages:,}",
            extra={"spider": self._crawler.spider},
        )

    def _export(self, item: Any, spider: Spider) -> None:
        """Give an item to the feeds, behind those that they have refused."""
        if self._refused:
            self._refused.append((item, spider))
            return
        self._ends = [(file, _end(file)) for file in self._files()]
        try:
            self._feeds.item_scraped(item, spider)
        except OSError as error:
            self._refused.append((item, spider))
            self._log_failure(error)

    def _export_refused(self) -> None:
        """Give the feeds what they have refused.

        :raises OSError: if they refuse it again.
        """
        if not self._refused:
            return
        for file, end in self._ends:  # a part of an item may be there
            if end is not None and not file.closed:
                file.flush()
                file.seek(end)
                file.truncate()
        while self._refused:
            self._ends = [(file, _end(file)) for file in self._files()]
            self._feeds.item_scraped(*self._refused[0])
            self._refused.popleft()

    def _flush_feeds(self) -> Exception | None:
        try:
            self._export_refused()
            for file in self._files():
                self._flush_plugins(file)
                file.flush()
                if self._sync:
                    _to_disk(getattr(file, "file", file).fileno())
        except Exception as error:  # noqa: BLE001 - an exporter may be anybody's
            return error
        return None

    def _flush_plugins(self, file: Any) -> None:
        """Flush what compresses a feed, the first plugin first; ``flush`` of the file does not."""
        target, plugin = getattr(file, "file", None), getattr(file, "head_plugin", None)
        if plugin is None:
            return
        while plugin is not None and plugin is not target:
            flush = getattr(getattr(plugin, "gzipfile", plugin), "flush", None)
            if flush is None:
                self._warn_of_plugin(plugin)
            else:
                flush()
            plugin = getattr(plugin, "file", None)
        if target is not None and not target.closed:
            target.flush()

    async def _flush_pipelines(self) -> Exception | None:
        if not self._pipelines_closed:
            self._pipelines_error = await self._ask_pipelines()
        return self._pipelines_error

    async def _ask_pipelines(self) -> Exception | None:
        for _, answer in self._crawler.signals.send_catch_log(before_commit):
            try:
                if isinstance(answer, Deferred):
                    await answer
                elif isawaitable(answer):
                    await deferred_from_coro(answer)
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                return error
            if isinstance(answer, Failure):
                return Exception(answer.getErrorMessage())
        return None

    def _files(self) -> Iterator[Any]:
        for slot in getattr(self._feeds, "slots", ()):
            file = getattr(slot, "file", None)
            if file is not None and not file.closed:
                yield file

    def _log_failure(self, error: Exception) -> None:
        self._report.add(stats.COMMIT_ERRORS)
        if not self._failing:
            self._failing = True
            logger.error(
                "Items could not be written out: %s. The crawl continues and tries again; until"
                " that works their pages are not done: after a kill they are fetched again.",
                error,
                extra={"spider": self._crawler.spider},
            )

    def _warn_of_feeds(self) -> None:
        """Log which feeds a kill does harm to."""
        for slot in getattr(self._feeds, "slots", ()):
            uri, options = str(slot.uri_template), slot.feed_options
            shown, extra = _WHO.sub("//", uri), {"spider": self._crawler.spider}
            continued = not options.get("overwrite") and "time)s" not in uri
            if not isinstance(slot.storage, (FileFeedStorage, StdoutFeedStorage)):
                logger.warning(
                    "The feed %s is uploaded when it ends: a kill loses the items that it has till"
                    " then, though their pages are done. To lose none, use a local feed, or a"
                    " pipeline with before_commit; with batch_item_count it is one batch at most.",
                    shown,
                    extra=extra,
                )
            elif continued and options.get("postprocessing"):
                logger.warning(
                    "The feed %s is post-processed, and each run continues its file: what comes"
                    " after a kill cannot be read by usual means. Put %%(time)s into its URI, or"
                    " compress the feed afterwards.",
                    shown,
                    extra=extra,
                )

    def _warn_of_plugin(self, plugin: Any) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "A feed is post-processed by %s, which cannot be flushed: after a kill its last"
                " items are missing, though their pages are done. To lose none, use GzipPlugin, or"
                " compress the feed afterwards.",
                f"{type(plugin).__module__}.{type(plugin).__qualname__}",
                extra={"spider": self._crawler.spider},
            )


def _to_disk(descriptor: int) -> None:
    """Bring a file to the disk. On macOS ``fsync`` leaves it in the memory of the disk."""
    try:
        fcntl: Any = import_module("fcntl")  # not on Windows
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    except (ImportError, AttributeError, OSError):  # not every file system can
        os.fsync(descriptor)


def _end(file: Any) -> int | None:
    """Return where a feed's file ends; None if it is no plain file."""
    if hasattr(file, "head_plugin"):  # what it has taken is not what is in the file
        return None
    try:
        return int(file.tell())
    except OSError:
        return None
