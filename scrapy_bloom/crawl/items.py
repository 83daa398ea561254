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
from scrapy_bloom.signals import before_commit
from scrapy_bloom.values import write_size

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.backend import Backend
    from scrapy_bloom.crawl.in_flight import InFlight
    from scrapy_bloom.crawl.page import Page
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.scrapy.engine import Engine

_SOONEST: Final = 0.2
"""Seconds until items that could not be written are tried again; they double each time."""

_SLOWEST: Final = 5.0

_SAID: Final = 60.0  # seconds until it is said again that items cannot be written

_LOOKS: Final = 5.0  # seconds between two searches for files of pipelines

_FEW: Final = 100  # of what a pipeline holds at most so many are looked through for files

MOST_HELD: Final = 1_000
"""Items of a page that wait for its end. Pages with more may go on for hours."""

MOST_HELD_BYTES: Final = 16 << 20
"""Their size."""

MOST_BYTES: Final = 64 << 20
"""The size of those of all pages: a page may wait for others for long, see :class:`Page`."""

_NOT_DONE: Final = "unfinished until then: after a stop or a kill they are fetched again"
_DONE: Final = "done: the items are stored, and after a stop or a kill the next run appends them"


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

    What a feed could not write, because the disk was full, say, is kept and written later.

    :param engine: tells when the pipelines are about to be closed.
    :param in_flight: knows which page an item is of, and is told if it cannot be exported.
    :param backend: may store what is due to local feeds. If it is shared, items do not wait for
        the end of their page.
    :param report: counts and logs failures.
    :param sync: whether to sync feeds to disk, rather than only flush them to the operating system.

    Attributes:
        held: how many bytes of items wait for the end of their page, pickled.
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
        self._held: dict[Page, _Held] = {}
        self._ended: list[tuple[Page, _Held]] = []  # what is to be exported next
        self.held = 0.0
        self._pipelines_closed = False
        self._one_at_a_time = DeferredLock()
        self._pipelines_error: Exception | None = None  # from when they were last asked
        self._files: list[Any] = []  # that pipelines and the spider write to
        self._look_at = 0.0
        self._failing: set[str] = set()  # what the pages are of items that could not be written
        self._again_at, self._say_at, self._pause = 0.0, 0.0, _SOONEST
        self._sync = sync
        self._scrapys = crawler.get_extension(feedexport.FeedExporter)
        self._exporter = crawler.get_extension(FeedExporter)
        self._local = LocalFiles(sync=sync)
        if self._exporter is not None:
            self._exporter.adopt(self._scraped, self._local)
        crawler.signals.connect(self._feeds_opened, signals.spider_opened)
        engine.before_closing(self._close_pipelines)

    @property
    def failing(self) -> bool:
        """Whether some could not be written when that was last tried."""
        return bool(self._failing)

    @property
    def waiting(self) -> bool:
        """Whether there are some to flush although no page waits for that."""
        return self.failing or self.unsaid > 0

    @property
    def unsaid(self) -> float:
        """How many bytes of items are only in memory although their pages have ended."""
        return self._local.size + sum(held.size for _, held in self._ended)

    async def flush(self, *, at_once: bool = False) -> bool:
        """Have pipelines flush, and hand what feeds get to the backend; return whether that worked.

        A failure is logged, and again each minute until flushing works.

        :param at_once: whether to try even if it has failed a moment ago.
        """
        if time.monotonic() < self._again_at and not at_once:
            return False
        ended = len(self._ended)  # what ends while pipelines are asked is flushed later
        try:
            await close_full_batches(self._scrapys)
            error = await self._one_at_a_time.run(Deferred.fromCoroutine, self._ask_pipelines())
            if error is not None:
                raise error
            self._export_ended(ended)
            flush_others(self._scrapys, sync=self._sync)
            if not self._backend.store_due(self._local.note()):
                self._local.write()
        except Exception as error:
            self._note_failure(_NOT_DONE, error)
            return False
        self._note_success(_NOT_DONE)
        return True

    def committed(self, *, at_once: bool = False) -> None:
        """Append to feeds what a commit has for them.

        :param at_once: as for :meth:`flush`.
        """
        if time.monotonic() < self._again_at and not at_once:
            return
        try:
            self._local.write()
        except OSError as error:
            self._note_failure(_DONE, error)
        else:
            self._note_success(_DONE)

    def page_ended(self, page: Page) -> None:
        """Let the items of a page be flushed that have waited for its end."""
        if page in self._held:
            self._ended.append((page, self._held.pop(page)))

    def end(self, pages: int) -> None:
        """Export nothing more: the next run gets the items of pages that stay stored again.

        :param pages: how many of these have ended, but their items could not be written.
        """
        self._local.forget(noted=self._backend.shared)  # else a commit has what was noted
        with suppress(OSError):  # then the note of the last commit stays, which says no less
            self._backend.store_due(self._local.note())
        if pages:
            self._report.log(
                logging.ERROR,
                "Items of %s pages could not be written out before the end, so the next run fetches"
                " these pages again.",
                f"{pages:,}",
            )

    def closed(self, *, stored: bool) -> None:
        """Leave what is due to feeds to the next run, unless all was stored: then try once more."""
        if not stored:
            self._local.forget(noted=True)

    async def _close_pipelines(self) -> None:
        """Ask the pipelines for the last time, before Scrapy closes what they write to.

        This answer is final: nothing tells whether closing the pipelines loses items.
        """
        last = self._ask_pipelines(last=True)
        await self._one_at_a_time.run(Deferred.fromCoroutine, last)

    def _scraped(self, item: Any, response: Any = None) -> None:
        """Export an item when its page has ended, if that is known, or else at once."""
        page = self._in_flight.page_of_response(response)
        if self._backend.shared or page is None or not self._hold(item, page, response):
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
            or self.held + size > MOST_BYTES
        )
        if held.full:
            self._export_all(page, held)
            self._report.once(
                logging.INFO,
                "%s has yielded more than %s items, or %s of them (all pages: %s), or one that"
                " cannot be pickled. Its items are exported at once, so a kill may duplicate them."
                " More such pages are not shown.",
                response,
                f"{MOST_HELD:,}",
                write_size(MOST_HELD_BYTES),
                write_size(MOST_BYTES),
            )
            return False
        held.items.append(copy)
        held.size += size
        self.held += size
        return True

    def _export_ended(self, count: int) -> None:
        for page, held in self._ended[:count]:
            self._export_all(page, held)
        del self._ended[:count]

    def _export_all(self, page: Page, held: _Held) -> None:
        for item in held.items:
            self._export(item, page)
        self.held -= held.size
        held.items, held.size = [], 0

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
                write_out(file, sync=self._sync)

    def _look_for_files(self) -> None:
        """Note the files that are open. Looking at each commit would take long."""
        self._look_at = time.monotonic() + _LOOKS
        owners = (self._crawler.spider, *self._engine.pipelines)
        held = (_files_in(getattr(owner, "__dict__", {}), depth=3) for owner in owners)
        self._files = [*chain.from_iterable(held)]

    def _note_failure(self, pages_are: str, error: Exception) -> None:
        """Log that items cannot be written: once, and again each minute."""
        self._report.add(stats.COMMIT_ERRORS)
        now = time.monotonic()
        self._again_at = now + self._pause
        self._pause = min(_SLOWEST, 2 * self._pause)
        if pages_are not in self._failing or now >= self._say_at:
            self._say_at = now + _SAID
            self._report.log(
                logging.ERROR,
                "Items could not be written out: %s. No request is sent until that succeeds. Their"
                " pages are %s.",
                error,
                pages_are,
            )
        self._failing.add(pages_are)

    def _note_success(self, pages_are: str) -> None:
        if pages_are in self._failing:
            self._failing.remove(pages_are)
            if not self._failing:
                self._pause = _SOONEST
                self._report.info("Items can be written again.")

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


def _copy(item: Any) -> tuple[Any, float]:
    """Return a copy of an item, and its size in bytes: infinite if it cannot be copied."""
    try:
        pickled = pickle.dumps(item, protocol=4)
        return pickle.loads(pickled), len(pickled)  # noqa: S301 - it was nowhere else
    except Exception:  # it may contain anything
        return item, inf


def _files_in(value: Any, depth: int) -> Iterator[Any]:
    """Yield what is open for writing in a small container, to some depth, or in an exporter."""
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
