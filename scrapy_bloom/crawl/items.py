"""Hands over items: those of a page are safe before the page is done.

What pipelines and other feeds have is written out. For local feeds of a job, items wait until their
page has ended. The commit that says that it is done has their bytes, which are appended after it,
see :mod:`.feeds`: so a kill loses none, and none comes twice. With Redis they are appended first.
"""

from __future__ import annotations

import logging
import pickle
import time
from asyncio import CancelledError
from codecs import StreamReaderWriter, StreamWriter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import isawaitable
from io import IOBase
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.exporters import BaseItemExporter
from scrapy.extensions import feedexport
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred, DeferredLock
from twisted.python.failure import Failure

from scrapy_bloom import stats
from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.crawl.scrapy.feeds import (
    FeedExporter,
    LocalFiles,
    close_full_batches,
    flush_others,
    warnings,
    write_out,
)
from scrapy_bloom.crawl.scrapy.loop import pause
from scrapy_bloom.signals import before_commit
from scrapy_bloom.values import write_size

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.backend import Backend
    from scrapy_bloom.crawl.in_flight import InFlight
    from scrapy_bloom.crawl.page import Page
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.scrapy.engine import Engine

_PAUSE: Final = 1.0  # seconds until items that could not be written are tried again

_LOG_AGAIN: Final = 60.0  # seconds until it is logged again that items cannot be written

_LOOKS: Final = 5.0  # seconds between two searches for files of pipelines

_MUCH: Final = 1 << 20  # bytes for feeds: to export, commit and append more takes a turn each

_FEW: Final = 100  # of what a pipeline holds at most so many are looked through for files

MOST_DEFERRED: Final = 16 << 20
"""Bytes of items of a page that wait for its end, at most."""

MOST_BYTES: Final = 64 << 20
"""The same of all pages: a page may wait for others for long, see :class:`Page`."""

_NOT_DONE: Final = "unfinished until then: after a stop or a kill they are fetched again"
_DONE: Final = "done: the items are stored, and after a stop or a kill the next run appends them"


@dataclass(eq=False)
class _Deferred:
    """Copies of the deferred items of a page: callbacks may change what they yielded.

    Attributes:
        size: their bytes, pickled.
    """

    items: list[Any] = field(default_factory=list)
    size: int = 0


class Items:
    """Writes out the items that a crawl has scraped so far.

    What a feed could not write, because the disk was full, say, is written later.

    :param engine: tells when the pipelines are about to be closed.
    :param in_flight: knows which page an item is of, and learns if it cannot be exported.
    :param backend: may store what is due to local feeds. If it is shared, items do not wait for
        the end of their page.
    :param report: counts and logs failures.
    :param sync: whether to sync feeds to disk, rather than only flush them to the operating system.

    Attributes:
        deferred: how many bytes of items are deferred until their page ends, pickled.
        failing: whether some could not be written when that was last tried.
    """

    def __init__(
        self,
        crawler: Crawler,
        engine: Engine,
        in_flight: InFlight,
        backend: Backend,
        report: Report,
        *,
        sync: bool,
    ) -> None:
        self._crawler, self._engine = crawler, engine
        self._in_flight, self._backend, self._report = in_flight, backend, report
        self._deferred: dict[Page, _Deferred] = {}
        self._ended: list[tuple[Page, _Deferred]] = []  # what is to be exported next
        self.deferred, self.failing = 0, False
        self._again_at = self._log_at = 0.0
        self._pipelines_closed = False
        self._one_at_a_time = DeferredLock()
        self._pipelines_error: Exception | None = None  # from when they were last asked
        self._files: list[Any] = []  # that pipelines and the spider write to
        self._look_at = 0.0
        self._sync = sync
        self._scrapys = crawler.get_extension(feedexport.FeedExporter)
        self._exporter = crawler.get_extension(FeedExporter)
        self._local = LocalFiles(sync=sync)
        if self._exporter is not None:
            self._exporter.adopt(self._scraped, self._local)
        crawler.signals.connect(self._feeds_opened, signals.spider_opened)
        engine.before_closing(self._close_pipelines)

    @property
    def waiting(self) -> bool:
        """Whether there are some to flush although no page waits for that."""
        return self.failing or self.unwritten > 0

    @property
    def unwritten(self) -> int:
        """How many bytes of items are only in memory although their pages have ended."""
        return self._local.size + sum(deferred.size for _, deferred in self._ended)

    async def flush(self, *, at_once: bool = False) -> bool:
        """Have pipelines flush, and hand what feeds get to the backend; return whether that worked.

        :param at_once: whether to try even if items could not be written a moment ago.
        """
        if time.monotonic() < self._again_at and not at_once:
            return False
        ended = len(self._ended)  # what ends while pipelines are asked is flushed later
        try:
            await close_full_batches(self._scrapys)
            await self._one_at_a_time.run(Deferred.fromCoroutine, self._ask_pipelines())
            for page, deferred in self._ended[:ended]:
                self._export_all(page, deferred)
                await self._turn()
            del self._ended[:ended]
            flush_others(self._scrapys, sync=self._sync)
            if not self._backend.store_due(self._local.collect_due()):
                self._local.write()
        except Exception as error:
            self._record_failure(_NOT_DONE, error)
            return False
        await self._turn()
        return True

    async def committed(self) -> None:
        """Append to feeds what a commit has for them, after a flush that worked."""
        await self._turn()
        try:
            self._local.write()
        except OSError as error:
            self._record_failure(_DONE, error)
        else:
            if self.failing:
                self.failing = False
                self._report.info("Items can be written again.")

    def page_ended(self, page: Page) -> None:
        """Let the items of a page be flushed that have waited for its end."""
        if page in self._deferred:
            self._ended.append((page, self._deferred.pop(page)))

    def stop_exporting(self, pages: int) -> None:
        """Leave what is due to feeds to the next run, which gets items of pages that stay stored.

        :param pages: how many of these have ended, but their items could not be written.
        """
        self._local.forget()
        with suppress(OSError):  # then the record of the last flush stays, which says no less
            self._backend.store_due(self._local.collect_due())
        self._local.forget(due=True)
        if pages:
            self._report.log(
                logging.ERROR,
                "Items of %s pages could not be written out before the end, so the next run fetches"
                " these pages again.",
                f"{pages:,}",
            )

    async def _turn(self) -> None:
        """Let the event loop turn if what follows takes long."""
        if self._local.size > _MUCH:
            await pause(0)

    async def _close_pipelines(self) -> None:
        """Ask the pipelines for the last time, before Scrapy closes what they write to.

        This answer is final: nothing tells whether closing the pipelines loses items.
        """
        with suppress(Exception):  # which the next flush raises
            last = self._ask_pipelines(last=True)
            await self._one_at_a_time.run(Deferred.fromCoroutine, last)

    def _scraped(self, item: Any, response: Any = None) -> None:
        """Export an item when its page has ended, if that is known, or else at once."""
        page = self._in_flight.page_of_response(response)
        if self._backend.shared or page is None:
            self._export(item, page)
            return
        deferred, (copy, size) = self._deferred.setdefault(page, _Deferred()), _copy(item)
        deferred.items.append(copy)
        deferred.size += size
        self.deferred += size
        if deferred.size > MOST_DEFERRED or self.deferred > MOST_BYTES:
            self._export_all(page, deferred)
            self._report.once(
                logging.INFO,
                "%s has yielded more than %s of items (all pages: %s), or one that cannot be"
                " pickled. They are exported before it ends, so after a kill they may come twice."
                " More such pages are not shown.",
                response,
                write_size(MOST_DEFERRED),
                write_size(MOST_BYTES),
            )

    def _export_all(self, page: Page, deferred: _Deferred) -> None:
        for item in deferred.items:
            self._export(item, page)
        self.deferred -= deferred.size
        deferred.items, deferred.size = [], 0

    def _export(self, item: Any, page: Page | None) -> None:
        """Export an item. Its page fails if an exporter cannot export it."""
        for feed, error in [] if self._exporter is None else self._exporter.export(item):
            self._report.once(
                logging.ERROR,
                "The exporter of %s raised an error, so the page of the item has failed. More such"
                " errors are not shown.",
                feed,
                failure=error,
            )
            if page is not None:
                self._in_flight.item_rejected(page, Reason.of(error, f"exporter of {feed}"))

    async def _ask_pipelines(self, *, last: bool = False) -> None:
        """Raise what they raise, or once they are closed, what they raised last."""
        if not self._pipelines_closed:
            self._pipelines_closed, self._pipelines_error = last, None
            try:
                await self._flush_pipelines()
            except Exception as error:
                self._pipelines_error = error
        if self._pipelines_error is not None:
            raise self._pipelines_error

    async def _flush_pipelines(self) -> None:
        """Have pipelines write out their items, and the files that they or the spider write to.

        Raises whatever they raise.
        """
        for _, answer in self._crawler.signals.send_catch_log(before_commit):
            try:
                if isinstance(answer, Failure):
                    answer.raiseException()
                if isawaitable(answer):
                    await deferred_from_coro(answer)
            except CancelledError as error:  # is no Exception
                raise RuntimeError("a handler of before_commit was cancelled") from error
        if self._pipelines_closed or time.monotonic() >= self._look_at:
            self._look_for_files()
        for file in self._files:
            with suppress(ValueError):  # somebody has closed it, or what is below it
                write_out(file, sync=self._sync)

    def _look_for_files(self) -> None:
        """Record the files that are open. Looking at each commit would take long."""
        self._look_at = time.monotonic() + _LOOKS
        owners = (self._crawler.spider, *self._engine.pipelines)
        found = (_files_in(getattr(owner, "__dict__", {}), depth=3) for owner in owners)
        self._files = [*chain.from_iterable(found)]

    def _record_failure(self, pages_are: str, error: Exception) -> None:
        """Log that items cannot be written: once, and again each minute."""
        self._report.add(stats.COMMIT_ERRORS)
        now = time.monotonic()
        self._again_at = now + _PAUSE
        if not self.failing or now >= self._log_at:
            self._log_at = now + _LOG_AGAIN
            self._report.log(
                logging.ERROR,
                "Items could not be written out: %s. No request is sent until that succeeds. Their"
                " pages are %s.",
                error,
                pages_are,
            )
        self.failing = True

    def _feeds_opened(self) -> None:
        """Say which feeds may lose items, or have some twice."""
        self._look_for_files()
        if self._scrapys is not self._exporter:
            self._report.info(
                f"Feeds are written by {type(self._scrapys).__name__}, not by"
                " scrapy_bloom.FeedExporter, which the add-on sets: a kill duplicates items, and"
                " one that cannot be exported does not fail its page."
            )
        for warning in warnings(self._scrapys):
            self._report.warn(warning)


def _copy(item: Any) -> tuple[Any, int]:
    """Return a copy of an item, and its size in bytes: too large to wait if it cannot be copied."""
    try:
        pickled = pickle.dumps(item, protocol=4)
        return pickle.loads(pickled), len(pickled)  # noqa: S301 - it was nowhere else
    except Exception:  # it may contain anything
        return item, MOST_DEFERRED + 1


def _files_in(value: Any, depth: int) -> Iterator[Any]:
    """Yield what is open for writing in a small container, to some depth, or in an exporter."""
    if isinstance(value, (IOBase, StreamReaderWriter, StreamWriter)):
        with suppress(ValueError):  # it is closed, or detached
            if value.writable():
                yield value
        return
    if isinstance(value, BaseItemExporter):
        value = vars(value)
    values = [*value.values()] if isinstance(value, dict) else value
    if depth and isinstance(values, (list, tuple)) and len(values) <= _FEW:
        for each in [*values]:  # of more, commits would be slow
            yield from _files_in(each, depth - 1)
