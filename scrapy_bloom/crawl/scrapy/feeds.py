"""Scrapy's feed exporter, for crawls whose pages are done once their items are safe.

What the exporter of a local feed writes waits in memory until the pages of these items are about to
be done. In a job directory the commit by which they are has these bytes, too, and they are appended
to the file after it: if a kill comes in between, the next run appends them.
"""

from __future__ import annotations

import csv
import operator
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import IOBase, UnsupportedOperation
from pathlib import Path
from stat import S_ISREG
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, Final

from itemadapter import ItemAdapter
from scrapy.exporters import CsvItemExporter
from scrapy.extensions import feedexport
from scrapy.extensions.feedexport import FileFeedStorage, StdoutFeedStorage
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_bloom.crawl.scrapy.loop import pause

if TYPE_CHECKING:
    from scrapy import Spider

_WHOLE: Final = ("json", "xml")  # formats of a file with a beginning and an end
_LINES: Final = ("csv", "jl", "jsonl", "jsonlines")  # formats with one item per line
_WHO: Final = re.compile(r"//[^/]*@")  # credentials in a URI
_fill_in: Final = getattr(feedexport, "apply_uri_params", operator.mod)  # from Scrapy 2.18


class FeedExporter(feedexport.FeedExporter):
    """Scrapy's ``FeedExporter``, with which :class:`~scrapy_bloom.Scheduler` writes items once.

    With another scheduler it is just Scrapy's.
    """

    _scraped: Callable[[Any, Any], None] | None = None
    _local: LocalFiles | None = None

    def adopt(self, scraped: Callable[[Any, Any], None], local: LocalFiles) -> None:
        """Let others decide when items are exported and written. Call it before feeds are opened.

        :param scraped: gets each item and its response, and calls :meth:`export`.
        :param local: gets the local files to which items are appended.
        """
        self._scraped, self._local = scraped, local
        if self.exporters.get("csv") is CsvItemExporter:
            self.exporters["csv"] = _ContinuedCsv

    def item_scraped(self, item: Any, spider: Spider, response: Any = None) -> None:
        """Export an item, or let it wait."""
        if self._scraped is None:
            super().item_scraped(item, spider)
        else:
            self._scraped(item, response)

    def export(self, item: Any) -> list[tuple[str, Exception]]:
        """Export an item to each feed by itself; return those whose exporters raise an error."""
        slots, self.slots = self.slots, []
        after, raised = [], []
        for slot in slots:
            self.slots = [slot]
            try:
                super().item_scraped(item, slot.spider)
            except Exception as error:
                raised.append((_name(slot).rpartition("/")[2], error))
            after += self.slots  # perhaps a new one, of the next batch
        self.slots = after
        return raised

    async def close_spider(self, spider: Spider) -> None:
        """Write all that waits, and close the feeds."""
        if self._local is not None:
            self._local.finish()
        await super().close_spider(spider)

    def _get_storage(self, uri: str, feed_options: dict[str, Any]) -> Any:
        storage: Any = super()._get_storage(uri, feed_options)
        appends = type(storage) is FileFeedStorage and storage.write_mode == "ab"
        if self._local is None or not appends or feed_options.get("postprocessing"):
            return storage
        path = Path(storage.path)
        is_file = path.is_file() or not path.exists()  # closing a pipe would end its reader
        return self._local.add(uri, feed_options) if is_file else storage

    def _start_new_batch(self, **batch: Any) -> Any:  # type: ignore[override]
        """Begin a batch: the first one of a run after those of earlier runs, which may be full."""
        options, template = batch["feed_options"], batch["uri_template"]
        appends = self._scraped and options["batch_item_count"] and not options.get("overwrite")
        appends, before = appends and "%(batch_id)" in template, ""
        while appends and before != (uri := batch["uri"]) and _size_of(FileFeedStorage(uri).path):
            before = uri
            last: Any = SimpleNamespace(batch_id=batch["batch_id"])
            names = self._get_uri_params(batch["spider"], options["uri_params"], last)
            batch |= {"batch_id": last.batch_id + 1, "uri": _fill_in(template, names)}
        return super()._start_new_batch(**batch)


class LocalFiles:
    """The local files of a crawl to which items are appended.

    :param sync: whether to sync them to disk, rather than only hand bytes to the system.
    """

    def __init__(self, *, sync: bool) -> None:
        self._sync, self._here = sync, Path.cwd()  # a spider may change it
        self._files: list[_LocalFile] = []  # until they are closed

    def add(self, uri: str, feed_options: dict[str, Any]) -> _LocalFile:
        """Return a new one, which is on the disk once something is written."""
        file = _LocalFile(uri, feed_options, self._here, sync=self._sync)
        self._files.append(file)
        return file

    @property
    def size(self) -> int:
        """How many bytes wait."""
        return sum(len(file.waiting) for file in self._files)

    def collect_due(self) -> dict[str, tuple[int, bytes]]:
        """Return all bytes that wait, by path, each with its offset in the file; they are due.

        A path that the settings have as a relative one is so here, and moves with the job.

        :raises OSError: if a file cannot be looked at, or what was written to it is not synced: the
            record that has it must not be replaced.
        """
        found: dict[str, tuple[int, bytes]] = {}
        for file in self._files:
            file.sync()
            if file.waiting:
                size, before = found.get(file.stored_as, (_size_of(file.path), b""))
                found[file.stored_as] = size, before + bytes(file.waiting)
        for file in self._files:
            file.due = len(file.waiting)
        return found

    def write(self) -> None:
        """Write what is due.

        :raises OSError: if a file refuses it; what it has not taken waits.
        """
        refusal = None
        for file in self._files:
            try:
                file.write()
            except OSError as error:
                refusal = error
        self._files = [file for file in self._files if not (file.stored and file.stored.called)]
        if refusal is not None:
            raise refusal

    def forget(self, *, due: bool = False) -> None:
        """Forget what is not due, and if wanted what is, too."""
        for file in self._files:
            file.due = 0 if due else file.due
            del file.waiting[file.due :]

    def finish(self) -> None:
        """Write all that waits, and whatever comes from now on, at once."""
        for file in self._files:
            file.finish()


class _LocalFile(FileFeedStorage):
    """A local file to which items are appended. It is open only while something is written.

    Attributes:
        waiting: what was exported, and is not written.
        due: how many bytes of that :meth:`write` writes.
        stored_as: its path as given, perhaps relative to `here`.
        stored: once nothing more comes, is fired when all is written.
    """

    def __init__(self, uri: str, feed_options: dict[str, Any], here: Path, *, sync: bool) -> None:
        super().__init__(uri, feed_options=feed_options)
        self.stored_as, self.path = self.path, str(here / self.path)
        is_ascii = "\n".encode(feed_options.get("encoding") or "utf-8") == b"\n"  # not UTF-16
        self._has_lines = is_ascii and feed_options["format"] in _LINES
        self.waiting, self.due = bytearray(), 0
        self.stored: Deferred[None] | None = None
        self._sync = sync
        self._finishing = self._unsynced = False

    def open(self, spider: Spider) -> Any:  # noqa: ARG002 - Scrapy's signature
        """Return what an exporter writes to. Its first line is a new one."""
        if self._has_lines and not _ends_line(self.path):
            self.waiting += b"\n"
        return _Waiting(self.waiting, self.path)

    def store(self, file: IO[bytes]) -> Deferred[None]:  # noqa: ARG002 - Scrapy's signature
        """Close the file once all is written; return what fires then."""
        self.stored = Deferred[None]()
        if self._finishing:
            self.finish()
        return self.stored

    def write(self) -> None:
        """Write what is due.

        :raises OSError: if the file refuses it. What it has not taken waits.
        """
        if self.due or (self._finishing and self.stored):  # then an empty one is made, too
            with self.open_file() as file:
                while self.due:
                    count = file.write(self.waiting[: self.due])
                    self._unsynced = self._sync
                    del self.waiting[:count]
                    self.due -= count
        self.sync()
        if self.stored and not self.waiting:
            self.stored.callback(None)

    def open_file(self) -> Any:
        """Open what is on the disk, without a buffer."""
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        return Path(self.path).open("ab", buffering=0)

    def sync(self) -> None:
        """Sync what was written, if that is wanted.

        :raises OSError: if that fails.
        """
        if self._unsynced:
            with suppress(FileNotFoundError), Path(self.path).open("rb+") as file:
                os.fsync(file.fileno())  # unless somebody has taken it away
            self._unsynced = False

    def finish(self) -> None:
        """Write what waits, if nothing more comes; else do so when it has come."""
        self._finishing = True
        if self.stored and not self.stored.called:
            self.due = len(self.waiting)
            try:
                self.write()
            except OSError as error:
                self.stored.errback(error)


class _Waiting(IOBase):
    """What the exporter of a local file writes to.

    Attributes:
        name: the path of the file.
    """

    def __init__(self, waiting: bytearray, name: str) -> None:
        self._waiting, self.name = waiting, name

    def write(self, data: bytes) -> int:
        self._waiting += data
        return len(data)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return where the next byte will be: only the first ones may be a byte order mark."""
        return len(self._waiting) + _size_of(self.name)


class _ContinuedCsv(CsvItemExporter):
    """Keeps to the columns of a CSV file that is there, without a second header."""

    def __init__(self, file: Any, **options: Any) -> None:
        super().__init__(file, **options)
        self._header: list[str] = []
        if isinstance(file, _Waiting) and self.include_headers_line:
            path = Path(file.name)
            with suppress(Exception), path.open(newline="", encoding=self.encoding) as old:
                head = next(csv.reader(old, **self._kwargs), [])
                self._header = [name.strip("\ufeff ") for name in head]

    def _write_headers_and_set_fields_to_export(self, item: Any) -> None:
        names = self.fields_to_export
        if self._header and not names and {*ItemAdapter(item).field_names()} <= {*self._header}:
            self.fields_to_export, self._autodetected_fields = self._header, True
        elif not self._header or [*getattr(names, "values", lambda: names or ())()] != self._header:
            super()._write_headers_and_set_fields_to_export(item)


def flush_others(exporter: feedexport.FeedExporter | None, *, sync: bool) -> None:
    """Write out the feeds that are not in :class:`LocalFiles`, as far as an exporter knows them.

    :raises OSError: if that fails.
    """
    for slot in getattr(exporter, "slots", ()):
        file = getattr(slot.file, "file", slot.file)  # if it is temporary or post-processed
        if file is not None and not file.closed:
            write_out(slot.file, sync=sync)


def write_out(file: Any, *, sync: bool) -> None:
    """Flush a file, and sync it to disk if that is wanted.

    :raises OSError: if it cannot be written.
    """
    file.flush()
    if sync:
        with suppress(AttributeError, UnsupportedOperation):  # it is not on a disk
            number = getattr(file, "file", file).fileno()
            if S_ISREG(os.fstat(number).st_mode):  # neither is a pipe
                os.fsync(number)


def warnings(exporter: feedexport.FeedExporter | None) -> Iterator[str]:
    """Yield warnings about feeds that may lose items."""
    for slot in getattr(exporter, "slots", ()):
        name, options = _name(slot), slot.feed_options
        local = isinstance(slot.storage, FileFeedStorage)
        remote = not (local or isinstance(slot.storage, StdoutFeedStorage))
        if remote or options.get("postprocessing"):
            yield (
                f"The feed {name} is post-processed or uploaded: a kill loses the last items in it,"
                f" though their pages are done. To lose none, use a plain local feed and compress"
                f" or upload it afterwards, or a pipeline with before_commit."
            )
        elif local and options.get("overwrite"):
            yield (
                f"The feed {name} is overwritten by each run. To keep the items of earlier runs,"
                f" use -o instead of -O."
            )
        elif local and slot.format in _WHOLE:
            yield f"The feed {name} is invalid after a kill or a second run: use jsonlines or csv."


def _name(slot: Any) -> str:
    return _WHO.sub("//", str(slot.uri_template))


async def close_full_batches(exporter: feedexport.FeedExporter | None) -> None:
    """Begin to close what Scrapy 2.14 to 2.17 closes only at the end, as other versions do.

    An uploaded batch may take long, so nothing waits for it.
    """
    pending = getattr(exporter, "_pending_close_coros", [])
    new = [each for each in pending if each.cr_code is not _wait_for.__code__]
    if new:
        begun = [_wait_for(deferred_from_coro(each)) for each in new]
        pending[:] = [each for each in pending if each not in new] + begun
        await pause(0)  # a file is closed at once


async def _wait_for(closing: Deferred[None]) -> None:
    await maybe_deferred_to_future(closing)


def _size_of(path: str) -> int:
    return Path(path).stat().st_size if Path(path).exists() else 0


def _ends_line(path: str) -> bool:
    """Return whether a file is empty, is not there, or its last line has an end."""
    with suppress(OSError), Path(path).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() in (b"", b"\n")
    return True
