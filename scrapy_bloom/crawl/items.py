"""Writes out items: those of a page are written before the page is done.

In a job directory they wait until their page has ended. The next commit that says that it is done
says where the feeds end, too, so that a kill cuts off the items of pages that are not done.
"""

from __future__ import annotations

import logging
import pickle
import time
from asyncio import CancelledError
from codecs import StreamReaderWriter, StreamWriter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import isawaitable
from io import IOBase
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.exporters import BaseItemExporter
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred, DeferredLock
from twisted.python.failure import Failure

from scrapy_bloom import stats
from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.crawl.scrapy.feeds import Feeds
from scrapy_bloom.signals import before_commit
from scrapy_bloom.values import write_size

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.in_flight import InFlight
    from scrapy_bloom.crawl.page import Page
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.scrapy.engine import Engine
    from scrapy_bloom.crawl.scrapy.feed_ends import Notes

_SOONEST: Final = 0.1
"""Seconds until items that could not be written are tried again; they double each time."""

_SLOWEST: Final = 5.0

_LOOKS: Final = 5.0  # seconds between two searches for files of pipelines

MOST_HELD: Final = 1_000
"""Items of a page that wait for its end. Pages with more may go on for hours."""

MOST_HELD_BYTES: Final = 16 << 20
"""Their size."""

MOST_BYTES: Final = 64 << 20
"""The size of those of all pages: a page may wait for others for long, see :class:`Page`."""

_FEW: Final = 100  # of what a pipeline holds at most so many are looked through for files


@dataclass(eq=False)
class _Held:
    """Copies of the items of a page that wait for its end: callbacks may change what they yielded.

    Attributes:
        size: their bytes, pickled.
        full: whether further items no longer wait, but are exported as they come.
    """

    items: list[Any] = field(default_factory=list)
    size: float = 0
    full: bool = False


class Items:
    """Writes out the items that a crawl has scraped so far.

    An item that a feed could not write, because the disk was full, say, is kept and written later.

    :param engine: tells when the pipelines are about to be closed.
    :param in_flight: knows which page an item is of, and is told if it cannot be exported.
    :param notes: is told where local feeds end. Without it, items do not wait for their page's end.
    :param report: counts and logs failures.
    :param sync: whether to sync feeds to disk, rather than only flush them to the operating system.

    Attributes:
        failing: whether some could not be written when that was last tried.
    """

    def __init__(
        self,
        crawler: Crawler,
        engine: Engine,
        in_flight: InFlight,
        notes: Notes | None,
        report: Report,
        *,
        sync: bool,
    ) -> None:
        self._crawler, self._engine = crawler, engine
        self._in_flight, self._notes, self._report = in_flight, notes, report
        self._held: dict[Page, _Held] = {}
        self._held_bytes = 0.0
        self._pipelines_closed = False
        self._one_at_a_time = DeferredLock()
        self._pipelines_error: Exception | None = None  # from when they were last asked
        self.failing = False
        self._again_at, self._pause = 0.0, _SOONEST
        self._files: list[Any] = []  # that pipelines and the spider write to
        self._look_at = 0.0
        self._feeds = Feeds(crawler, self._scraped, notes, sync=sync)
        crawler.signals.connect(self._feeds_opened, signals.spider_opened)
        engine.before_closing(self._close_pipelines)

    async def flush(self, *, at_once: bool = False) -> bool:
        """Flush local feeds, have pipelines flush, and return whether all items are written.

        A failure is logged once, until flushing works again.

        :param at_once: whether to try even if it has failed a moment ago.
        """
        if time.monotonic() < self._again_at and not at_once:
            return False
        try:
            self._feeds.flush()
            self._fail_rejected()
            # As of now: what is exported while pipelines are asked is of pages that end later.
            ends = {} if self._notes is None else self._feeds.ends()
            error = await self._one_at_a_time.run(Deferred.fromCoroutine, self._ask_pipelines())
            if error is not None:
                raise error
        except Exception as error:
            self._log_failure(error)
            self._pause = min(_SLOWEST, 2 * self._pause)
            self._again_at = time.monotonic() + self._pause
            return False
        if self._notes is not None:
            self._notes.ends = ends | self._feeds.opened
        self._pause = _SOONEST
        if self.failing:
            self.failing = False
            self._report.info("Items can be written again.")
        return True

    def page_ended(self, page: Page) -> None:
        """Export the items of a page that have waited for its end."""
        held = self._held.pop(page, None)
        if held is not None:
            self._export_all(page, held)

    def export_held(self) -> None:
        """Export all items that wait, before the feeds are closed."""
        for page in [*self._held]:
            self.page_ended(page)

    def log_kept(self, pages: int) -> None:
        """Log at the end how many pages are not done because their items were not written."""
        if pages:
            self._report.log(
                logging.ERROR,
                "Items of %s pages could not be written out before the end, so these pages are not"
                " done: they are fetched again.",
                f"{pages:,}",
            )

    async def _close_pipelines(self) -> None:
        """Ask the pipelines for the last time, before Scrapy closes what they write to.

        This answer is final: nothing tells whether closing the pipelines loses items.
        """
        last = self._ask_pipelines(last=True)
        await self._one_at_a_time.run(Deferred.fromCoroutine, last)

    def _scraped(self, item: Any, response: Any = None) -> None:
        """Export an item when its page has ended, if that is known, or else at once."""
        page = self._in_flight.page_of_response(response)
        if self._notes is None or page is None or not self._hold(item, page, response):
            self._export(item, page)

    def _hold(self, item: Any, page: Page, response: Any) -> bool:
        """Let an item wait for the end of its page; return False if it cannot."""
        held = self._held.setdefault(page, _Held())
        if held.full:
            return False
        copy, size = _copy(item)
        held.full = (
            len(held.items) == MOST_HELD
            or held.size + size > MOST_HELD_BYTES
            or self._held_bytes + size > MOST_BYTES
        )
        if held.full:
            self._export_all(page, held)
            self._report.once(
                logging.INFO,
                "%s has yielded more than %s items, or %s of them, or one that cannot be pickled."
                " Its items are exported at once, so after a kill they come twice. More such pages"
                " are not shown.",
                response,
                f"{MOST_HELD:,}",
                write_size(MOST_HELD_BYTES),
            )
            return False
        held.items.append(copy)
        held.size += size
        self._held_bytes += size
        return True

    def _export_all(self, page: Page, held: _Held) -> None:
        for item in held.items:
            self._export(item, page)
        self._held_bytes -= held.size
        held.items, held.size = [], 0

    def _export(self, item: Any, page: Page | None) -> None:
        """Export an item, after those that the feeds have refused."""
        try:
            self._feeds.export(item, page)
        except OSError as error:
            self._log_failure(error)
        self._fail_rejected()

    def _fail_rejected(self) -> None:
        """Fail the pages whose items an exporter cannot export."""
        rejected, self._feeds.rejected = self._feeds.rejected, []
        for page, error, feed in rejected:
            self._report.once(
                logging.ERROR,
                "The exporter of %s raised an error, so the page of the item has failed. More such"
                " errors are not shown.",
                feed,
                failure=error,
            )
            if page is not None:
                self._in_flight.item_rejected(page, Reason.of(error, f"exporter of {feed}"))

    async def _ask_pipelines(self, *, last: bool = False) -> Exception | None:
        """Return what they have raised, which the next question may already have replaced."""
        if not self._pipelines_closed:
            self._pipelines_closed, found = last, None
            try:
                await self._flush_pipelines()
            except Exception as error:
                found = error
            self._pipelines_error = found
        return self._pipelines_error

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
                self._feeds.write_out(file)

    def _look_for_files(self) -> None:
        """Note the files that are open. Looking at each commit would take long."""
        self._look_at = time.monotonic() + _LOOKS
        owners = (self._crawler.spider, *self._engine.pipelines)
        held = (_files_in(getattr(owner, "__dict__", {}), depth=3) for owner in owners)
        self._files = [*chain.from_iterable(held)]

    def _log_failure(self, error: Exception) -> None:
        self._report.add(stats.COMMIT_ERRORS)
        if not self.failing:
            self.failing = True
            self._report.log(
                logging.ERROR,
                "Items could not be written out: %s. The crawl waits and tries again. Until that"
                " succeeds, their pages are not done, and are fetched again after a kill.",
                error,
            )

    def _feeds_opened(self) -> None:
        """Repair feeds that a kill has cut off, and warn about feeds that may lose items."""
        self._look_for_files()
        self._feeds.end_lines()
        for warning in self._feeds.warnings():
            self._report.warn(warning)


def _copy(item: Any) -> tuple[Any, float]:
    """Return a copy of an item, and its size in bytes: infinite if it cannot be copied."""
    try:
        pickled = pickle.dumps(item, protocol=4)
        return pickle.loads(pickled), len(pickled)  # noqa: S301 - it was nowhere else
    except Exception:  # it may contain anything
        return item, inf


def _files_in(value: Any, depth: int) -> Iterator[Any]:
    """Yield what is open for writing in a small container, to some depth, or in an exporter."""
    if isinstance(value, (str, bytes, int, float)):  # asked first, as most are
        return
    if isinstance(value, (IOBase, StreamReaderWriter, StreamWriter)):
        with suppress(ValueError):  # it is closed, or detached
            if value.writable():
                yield value
        return
    values: Collection[Any] = ()
    if isinstance(value, BaseItemExporter):
        values = vars(value).values()
    elif isinstance(value, dict):
        values = value.values()
    elif isinstance(value, (list, tuple)):
        values = value
    if depth and len(values) <= _FEW:  # others would make commits slow
        for each in [*values]:
            yield from _files_in(each, depth - 1)
