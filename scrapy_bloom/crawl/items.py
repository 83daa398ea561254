"""Writes out items: those of a page are written before the page is done."""

from __future__ import annotations

import logging
import os
import re
from asyncio import CancelledError
from codecs import StreamReaderWriter, StreamWriter
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from inspect import isawaitable
from io import IOBase, UnsupportedOperation
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.exporters import BaseItemExporter
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage, StdoutFeedStorage
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred, DeferredLock
from twisted.python.failure import Failure

from scrapy_bloom import stats
from scrapy_bloom.crawl.cut_feeds import end_last_line
from scrapy_bloom.signals import before_commit

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.engine import Engine
    from scrapy_bloom.crawl.report import Report

_WHOLE: Final = ("json", "xml")  # formats of a file with a beginning and an end
_FEW: Final = 100  # of what a pipeline holds at most so many are looked through for files
_WHO: Final = re.compile(r"//[^/]*@")  # credentials in a URI


class Items:
    """Writes out the items that a crawl has scraped so far.

    An item that a feed could not write, because the disk was full, say, is kept and written later.

    :param engine: tells when the pipelines are about to be closed.
    :param report: counts and logs failures.
    :param sync: whether to sync feeds to disk, rather than only flush them to the operating system.
    :param unclean: whether the last run may have been killed, so that feeds may be cut off.
    """

    def __init__(
        self,
        crawler: Crawler,
        engine: Engine,
        report: Report,
        *,
        sync: bool,
        unclean: bool = True,
    ) -> None:
        self._crawler, self._engine = crawler, engine
        self._report = report
        self._sync, self._unclean = sync, unclean
        self._pipelines_closed = False
        self._one_at_a_time = DeferredLock()
        self._pipelines_error: Exception | None = None  # from when they were last asked
        self._failing = False
        self._refused: deque[tuple[Any, Spider]] = deque()
        self._ends: list[tuple[Any, int]] = []  # where files ended before the first refused item
        self._feeds: Any = crawler.get_extension(FeedExporter)
        self._slots: list[Any] = []  # those of the feeds whose files were looked at
        self._finished: list[Any] = []  # those of batches that are full, until their files are safe
        if self._feeds is not None:
            with suppress(KeyError):  # a custom class that connects differently
                crawler.signals.disconnect(self._feeds.item_scraped, signals.item_scraped)
                crawler.signals.connect(self._export, signals.item_scraped)
            crawler.signals.connect(self._feeds_opened, signals.spider_opened)
        engine.before_closing(self._close_pipelines)

    async def flush(self) -> bool:
        """Flush local feeds, have pipelines flush, and return whether all items are written.

        A failure is logged once, until flushing works again.
        """
        error = self._flush_feeds()
        if error is None:
            await self._one_at_a_time.run(Deferred.fromCoroutine, self._ask_pipelines())
            error = self._pipelines_error
        if error is not None:
            self._log_failure(error)
        elif self._failing:
            self._failing = False
            self._report.info("Items can be written again.")
        return error is None

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

    def _export(self, item: Any, spider: Spider) -> None:
        """Export an item, after those that the feeds have refused."""
        self._refused.append((item, spider))
        if len(self._refused) == 1:
            try:
                self._export_refused()
            except OSError as error:
                self._log_failure(error)

    def _export_refused(self) -> None:
        """Export the items that the feeds have refused.

        :raises OSError: if they refuse again.
        """
        for file, end in self._ends:  # it may end with part of an item
            if not file.closed:
                file.flush()
                file.seek(end)
                file.truncate()
        self._ends = []
        while self._refused:
            ends = [(file, at) for file in self._files() if (at := _end(file)) is not None]
            item, spider = self._refused.popleft()
            try:
                self._feeds.item_scraped(item, spider)
                self._end_lines()  # of the next batch's file
            except OSError:  # after any other error Scrapy continues without the item
                self._refused.appendleft((item, spider))
                self._ends = ends
                raise

    def _flush_feeds(self) -> Exception | None:
        try:
            self._export_refused()
            for file in self._files():
                self._write_out(file)
            self._sync_finished()
        except Exception as error:  # noqa: BLE001 - the exporter may be third-party
            return error
        return None

    def _sync_finished(self) -> None:
        """Sync the files of batches that the exporter has closed: closing only flushes them."""
        for slot in [*self._finished]:
            if _plain(slot.file).closed:
                if self._sync and isinstance(slot.storage, FileFeedStorage):
                    # Where another program has taken it away, there is nothing to sync.
                    with suppress(FileNotFoundError), Path(slot.storage.path).open("rb+") as file:
                        os.fsync(file.fileno())
                self._finished.remove(slot)

    def _flush_pipelines(self) -> None:
        """Write out the files that pipelines, or the spider, write items to.

        :raises OSError: if one cannot be written.
        """
        for owner in (self._crawler.spider, *self._engine.pipelines):
            for file in _files_in(getattr(owner, "__dict__", {}), depth=3):
                with suppress(ValueError):  # somebody has closed what is below it
                    self._write_out(file)

    def _write_out(self, file: Any) -> None:
        file.flush()
        if self._sync:
            with suppress(AttributeError, UnsupportedOperation):  # it is not on a disk
                number = _plain(file).fileno()
                if S_ISREG(os.fstat(number).st_mode):  # neither is a pipe
                    os.fsync(number)

    async def _ask_pipelines(self, *, last: bool = False) -> None:
        if not self._pipelines_closed:
            self._pipelines_closed = last
            self._pipelines_error = await self._answer_of_pipelines()

    async def _answer_of_pipelines(self) -> Exception | None:
        for _, answer in self._crawler.signals.send_catch_log(before_commit):
            try:
                if isawaitable(answer):
                    await deferred_from_coro(answer)
            except CancelledError:  # is no Exception
                return Exception("a handler of before_commit was cancelled")
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                return error
            if isinstance(answer, Failure):
                return Exception(answer.getErrorMessage())
        try:
            self._flush_pipelines()
        except OSError as error:
            return error
        return None

    def _files(self) -> Iterator[Any]:
        for slot in (*getattr(self._feeds, "slots", ()), *self._finished):
            file = getattr(slot, "file", None)
            if file is not None and not _plain(file).closed:
                yield file

    def _log_failure(self, error: Exception) -> None:
        self._report.add(stats.COMMIT_ERRORS)
        if not self._failing:
            self._failing = True
            self._report.log(
                logging.ERROR,
                "Items could not be written out: %s. The crawl continues and retries. Until that"
                " succeeds, their pages are not done, and are fetched again after a kill.",
                error,
            )

    def _end_lines(self) -> None:
        """End the last lines of files that feeds are about to open; note those that are full."""
        slots = getattr(self._feeds, "slots", [])
        if slots != self._slots:
            for slot in slots:
                if slot not in self._slots:
                    end_last_line(slot, unclean=self._unclean)
            gone = (slot for slot in self._slots if slot not in slots)
            self._finished += [slot for slot in gone if slot.file is not None]
            self._slots = slots

    def _feeds_opened(self) -> None:
        """Repair feeds that a kill has cut off, and warn about feeds that may lose items."""
        self._end_lines()
        for slot in getattr(self._feeds, "slots", ()):
            uri, options = _WHO.sub("//", str(slot.uri_template)), slot.feed_options
            local = isinstance(slot.storage, FileFeedStorage)
            processed = options.get("postprocessing")
            if processed or not (local or isinstance(slot.storage, StdoutFeedStorage)):
                how = "post-processed" if processed else "uploaded when it ends"
                self._report.warn(
                    f"The feed {uri} is {how}: a kill loses the last items in it, though their"
                    f" pages are done. To lose none, use a plain local feed and compress or upload"
                    f" it afterwards, or a pipeline with before_commit."
                )
            elif local and options.get("overwrite"):
                self._report.warn(
                    f"The feed {uri} is overwritten by each run: the items of earlier runs are lost"
                    f" with it. To keep them, set overwrite to False (-o instead of -O)."
                )
            elif local and slot.format in _WHOLE and "%(" not in uri:
                self._report.warn(
                    f"A second run cannot append to the {slot.format} feed {uri}: the file would"
                    f" not be valid. Use jsonlines or csv, or one feed per run."
                )


def _plain(file: Any) -> Any:
    """Return the file itself, of one that is temporary or post-processed."""
    return getattr(file, "file", file)


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


def _end(file: Any) -> int | None:
    """Return where a feed's file ends; None if it is not a plain file."""
    if hasattr(file, "head_plugin"):  # what was written to it is not what the file contains
        return None
    try:
        return int(file.tell())
    except OSError:
        return None
