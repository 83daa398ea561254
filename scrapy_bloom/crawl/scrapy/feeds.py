"""The feeds of a crawl: Scrapy's objects for them, and the files that they write to."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from io import UnsupportedOperation
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage, StdoutFeedStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider
    from scrapy.crawler import Crawler

_WHOLE: Final = ("json", "xml")  # formats of a file with a beginning and an end
_LINES: Final = ("csv", "jl", "jsonl", "jsonlines")  # formats with one item per line
_WHO: Final = re.compile(r"//[^/]*@")  # credentials in a URI


class Feeds:
    """Exports items, and keeps those that a feed could not write: they are written later.

    :param export: gets each item instead of Scrapy's exporter; calls :meth:`export`.
    :param sync: whether to sync files to disk, rather than only flush them to the operating system.
    """

    def __init__(
        self, crawler: Crawler, export: Callable[[Any, Spider], None], *, sync: bool
    ) -> None:
        self._sync = sync
        self._refused: deque[tuple[Any, Spider]] = deque()
        self._ends: list[tuple[Any, int]] = []  # where files ended before the first refused item
        self._slots: list[Any] = []  # those whose files were looked at
        self._finished: list[Any] = []  # those of batches that are full, until their files are safe
        self._exporter: Any = crawler.get_extension(FeedExporter)
        if self._exporter is not None:
            with suppress(KeyError):  # a custom class that connects differently
                crawler.signals.disconnect(self._exporter.item_scraped, signals.item_scraped)
                crawler.signals.connect(export, signals.item_scraped)

    def export(self, item: Any, spider: Spider) -> None:
        """Export an item, after those that the feeds have refused.

        :raises OSError: if they refuse it.
        """
        self._refused.append((item, spider))
        if len(self._refused) == 1:
            self._export_refused()

    def flush(self) -> None:
        """Write out all items that were exported. Raises whatever the exporter raises."""
        self._export_refused()
        for file in self._files():
            self.write_out(file)
        self._sync_finished()

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
        """End the last lines of files that feeds are about to open; note those that are full."""
        slots = self._all()
        if slots != self._slots:
            for slot in slots:
                if slot not in self._slots:
                    _end_last_line(slot)
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
                self._exporter.item_scraped(item, spider)
                self._hand_over()
                self.end_lines()  # of the next batch's file
            except OSError:  # after any other error Scrapy continues without the item
                self._refused.appendleft((item, spider))
                self._ends = ends
                raise

    def _hand_over(self) -> None:
        """Hand what is in the buffers of local files to the system, so that a kill cuts no item."""
        for slot in self._slots:
            if _is_plain(slot) and slot.file is not None and not slot.file.closed:
                slot.file.flush()

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


def _end_last_line(slot: Any) -> None:
    """End the last line of a local file before Scrapy opens it, if each item has a line there.

    The next item would be appended to it. Within quotes in CSV, this ends them, too.
    """
    options = slot.feed_options
    if not _is_plain(slot) or options.get("overwrite") or slot.format not in _LINES:
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
