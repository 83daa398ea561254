"""The feeds of a crawl: Scrapy's objects for them, and the files that they write to."""

from __future__ import annotations

import csv
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from io import UnsupportedOperation
from pathlib import Path
from stat import S_ISREG
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from itemadapter import ItemAdapter
from scrapy import signals
from scrapy.exporters import CsvItemExporter
from scrapy.extensions.feedexport import FeedExporter, FeedSlot, FileFeedStorage, StdoutFeedStorage

from scrapy_bloom.crawl.scrapy.feed_ends import End, end_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.scrapy.feed_ends import Notes

_WHOLE: Final = ("json", "xml")  # formats of a file with a beginning and an end
_LINES: Final = ("csv", "jl", "jsonl", "jsonlines")  # formats with one item per line
_WHO: Final = re.compile(r"//[^/]*@")  # credentials in a URI


class Rejected(NamedTuple):
    """An item that an exporter cannot export.

    Attributes:
        page: the page that yielded it; None if that is unknown.
        error: what the exporter raised.
        feed: the name of the file.
    """

    page: Any
    error: Exception
    feed: str


class Feeds:
    """Exports items, and keeps those that a feed could not write: they are written later.

    :param scraped: gets each item and its response instead of Scrapy's exporter; calls
        :meth:`export`.
    :param notes: is told where local feeds end; None if nobody wants to know.
    :param sync: whether to sync files to disk, rather than only flush them to the operating system.

    Attributes:
        rejected: items that an exporter cannot export, for the caller to take from here.
        opened: where files ended that were opened since :meth:`ends` was called last, by path.
    """

    def __init__(
        self, crawler: Crawler, scraped: Callable[..., None], notes: Notes | None, *, sync: bool
    ) -> None:
        self._crawler, self._notes, self._sync = crawler, notes, sync
        self.rejected: list[Rejected] = []
        self.opened: dict[str, End] = {}
        self._refused: deque[tuple[Any, Any]] = deque()  # with their pages
        self._paths: dict[Any, str] = {}  # of files that are open, and where they end is noted
        self._ends: list[tuple[Any, int]] = []  # where files ended before the first refused item
        self._slots: list[Any] = []  # those whose files were looked at
        self._finished: list[Any] = []  # those of batches that are full, until their files are safe
        self._exporter: Any = crawler.get_extension(FeedExporter)
        if self._exporter is not None:
            with suppress(KeyError):  # a custom class that connects differently
                crawler.signals.disconnect(self._exporter.item_scraped, signals.item_scraped)
                crawler.signals.connect(scraped, signals.item_scraped)

    def export(self, item: Any, page: Any) -> None:
        """Export an item of a page, after those that the feeds have refused.

        :raises OSError: if they refuse it.
        """
        self._refused.append((item, page))
        if len(self._refused) == 1:
            self._export_refused()

    def flush(self) -> None:
        """Write out all items that were exported.

        :raises OSError: if that fails.
        """
        self._export_refused()
        for file in self._files():
            self.write_out(file)
        self._sync_finished()

    def ends(self) -> dict[str, End]:
        """Return where the files end to which items are appended, by path.

        Those that somebody has moved away are not among them.
        """
        self.opened = {}
        self._paths = {slot: self._paths[slot] for slot in self._all() if slot in self._paths}
        found = ((slot, path, end_of(path)) for slot, path in self._paths.items())
        ends = {
            path: end
            for slot, path, end in found
            if end is not None and end.inode == os.fstat(slot.file.fileno()).st_ino
        }
        self._note_sizes(writing=False)  # after that: no size of ours is less than such an end
        return ends

    def write_out(self, file: Any) -> None:
        """Flush a file, and sync it to disk if that is wanted.

        :raises OSError: if it cannot be written.
        """
        file.flush()
        if self._sync:
            with suppress(AttributeError, UnsupportedOperation):  # it is not on a disk
                number = _plain(file).fileno()
                if S_ISREG(os.fstat(number).st_mode):  # neither is a pipe
                    os.fsync(number)

    def end_lines(self) -> None:
        """End the last lines of files that feeds are about to open; collect those that are full."""
        slots = self._all()
        if slots != self._slots:
            for slot in slots:
                if slot not in self._slots:
                    _end_last_line(slot)
                    self._watch_opening(slot)
            gone = (slot for slot in self._slots if slot not in slots)
            self._finished += [slot for slot in gone if slot.file is not None]
            self._slots = slots

    def warnings(self) -> Iterator[str]:
        """Yield warnings about feeds that may lose items."""
        for slot in self._all():
            uri, options = _WHO.sub("//", str(slot.uri_template)), slot.feed_options
            local = isinstance(slot.storage, FileFeedStorage)
            processed = options.get("postprocessing")
            if processed or not (local or isinstance(slot.storage, StdoutFeedStorage)):
                how = "post-processed" if processed else "uploaded when it ends"
                yield (
                    f"The feed {uri} is {how}: a kill loses the last items in it, though their"
                    f" pages are done. To lose none, use a plain local feed and compress or upload"
                    f" it afterwards, or a pipeline with before_commit."
                )
            elif local and options.get("overwrite"):
                yield (
                    f"The feed {uri} is overwritten by each run: the items of earlier runs are lost"
                    f" with it. To keep them, set overwrite to False (-o instead of -O)."
                )
            elif local and slot.format in _WHOLE and "%(" not in uri:
                yield (
                    f"A second run cannot append to the {slot.format} feed {uri}: the file would"
                    f" not be valid. Use jsonlines or csv, or one feed per run."
                )

    def _all(self) -> list[Any]:
        return [*getattr(self._exporter, "slots", ())]

    def _watch_opening(self, slot: Any) -> None:
        """Note where a file ends once Scrapy has opened it to append to it, before it does."""
        if not _is_appended(slot):
            return
        path, start = str(Path(slot.storage.path).absolute()), slot.start_exporting

        def start_exporting() -> None:  # before each item
            is_open = slot.file is not None
            start()
            if not is_open:
                _hand_over_items(slot)
                if isinstance(slot.exporter, CsvItemExporter):
                    _keep_header(slot.exporter, path)
            if self._notes is None or slot in self._paths or (end := end_of(path)) is None:
                return
            self._notes.note_opened(path, end)
            self._paths[slot], self.opened[path] = path, end

        slot.start_exporting = start_exporting

    def _note_sizes(self, *, writing: bool) -> None:
        """Note which size the files have: what others append to them is not ours to cut off."""
        for slot, path in self._paths.items():
            if self._notes is not None and not _plain(slot.file).closed:
                self._notes.note_left(path, os.fstat(slot.file.fileno()).st_size, writing=writing)

    def _export_refused(self) -> None:
        """Export the items that the feeds have refused. What raises another error is rejected.

        :raises OSError: if they refuse again.
        """
        self._roll_back()
        while self._refused:
            ends = [(file, at) for file in self._files() if (at := _end(file)) is not None]
            item, page = self._refused.popleft()
            try:
                self._note_sizes(writing=True)
                self._exporter.item_scraped(item, self._crawler.spider)
                self._note_sizes(writing=False)
                self.end_lines()  # of the next batch's file
            except OSError:
                self._refused.appendleft((item, page))
                self._ends = ends
                with suppress(OSError):  # a file that is full of items may be closed soon
                    self._roll_back()
                raise
            except Exception as error:
                self.rejected.append(Rejected(page, error, _feed_of(error)))

    def _roll_back(self) -> None:
        """Cut off what files have of an item that one of them has refused.

        :raises OSError: if that refuses what is in its buffer once more.
        """
        left, refusal = [], None
        for file, end in self._ends:
            try:
                if not file.closed:
                    file.flush()
                    file.seek(end)
                    file.truncate()
            except OSError as error:
                left.append((file, end))
                refusal = error
        self._ends = left
        if refusal is not None:
            raise refusal

    def _sync_finished(self) -> None:
        """Sync the files of batches that the exporter has closed: closing only flushes them."""
        for slot in [*self._finished]:
            if _plain(slot.file).closed:
                if self._sync and isinstance(slot.storage, FileFeedStorage):
                    # Where another program has taken it away, there is nothing to sync.
                    with suppress(FileNotFoundError), Path(slot.storage.path).open("rb+") as file:
                        os.fsync(file.fileno())
                self._finished.remove(slot)

    def _files(self) -> Iterator[Any]:
        for slot in (*self._all(), *self._finished):
            file = getattr(slot, "file", None)
            if file is not None and not _plain(file).closed:
                yield file


def _is_plain(slot: Any) -> bool:
    """Return whether a feed is a local file that contains what the exporter writes."""
    return isinstance(slot.storage, FileFeedStorage) and not slot.feed_options.get("postprocessing")


def _is_appended(slot: Any) -> bool:
    """Return whether a feed is a local file to which each run appends items, one after another."""
    return _is_plain(slot) and not slot.feed_options.get("overwrite") and slot.format not in _WHOLE


def _hand_over_items(slot: Any) -> None:
    """Have each item of a feed handed to the system as a whole, so that a kill cuts none in two."""
    export_item = slot.exporter.export_item

    def export_and_flush(item: Any) -> None:
        export_item(item)
        slot.file.flush()

    slot.exporter.export_item = export_and_flush


def _keep_header(exporter: Any, path: str) -> None:
    """Have an exporter keep to the columns of a CSV file, without a second header."""
    header: list[str] = []
    with suppress(Exception), Path(path).open(newline="", encoding=exporter.encoding) as file:
        header = next(csv.reader(file, **exporter._kwargs), header)
    write_header = exporter._write_headers_and_set_fields_to_export

    def write_new_header(item: Any) -> None:
        names = exporter.fields_to_export
        if not names and {*ItemAdapter(item).field_names()} <= {*header}:
            exporter.fields_to_export, exporter._autodetected_fields = header, True
        elif not names or [*getattr(names, "values", lambda: names)()] != header:
            write_header(item)

    if header and exporter.include_headers_line:
        exporter._write_headers_and_set_fields_to_export = write_new_header


def _feed_of(error: Exception) -> str:
    """Return the name of the file of the feed whose exporter has raised an error."""
    for frame, _ in walk_tb(error.__traceback__):
        slot = frame.f_locals.get("slot")
        if isinstance(slot, FeedSlot):
            return _WHO.sub("//", str(slot.uri_template)).rpartition("/")[2]
    return "a feed"


def _end_last_line(slot: Any) -> None:
    """End the last line of a local file before Scrapy opens it, if each item has a line there.

    The next item would be appended to it. Within quotes in CSV, this ends them, too.
    """
    options = slot.feed_options
    if not _is_appended(slot) or slot.format not in _LINES:
        return
    if "\n".encode(options.get("encoding") or "utf-8") != b"\n":  # UTF-16
        return
    usual = slot.format == "csv" and not options.get("item_export_kwargs")
    with suppress(OSError), Path(slot.storage.path).open("rb+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read() not in (b"", b"\n"):
            file.write(b' "\n' if usual else b"\n")


def _plain(file: Any) -> Any:
    """Return the file itself, of one that is temporary or post-processed."""
    return getattr(file, "file", file)


def _end(file: Any) -> int | None:
    """Return where a feed's file ends; None if it is not a plain file."""
    if hasattr(file, "head_plugin"):  # what was written to it is not what the file contains
        return None
    try:
        return int(file.tell())
    except OSError:
        return None
