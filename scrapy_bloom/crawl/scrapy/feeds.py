"""The feeds of a crawl: Scrapy's objects for them, and the files that they write to."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import UnsupportedOperation
from pathlib import Path
from stat import S_ISREG
from typing import IO, TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage, StdoutFeedStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider
    from scrapy.crawler import Crawler

_LINES: Final = ("csv", "jl", "jsonl", "jsonlines")  # formats with one item per line
_QUOTING: Final = {"dialect", "doublequote", "escapechar", "quotechar", "quoting"}
_AT_ONCE: Final = 1 << 20  # bytes
_WHOLE: Final = ("json", "xml")  # formats of a file with a beginning and an end
_WHO: Final = re.compile(r"//[^/]*@")  # credentials in a URI


class Feeds:
    """Exports items, and keeps those that a feed could not write: they are written later.

    :param export: gets each item instead of Scrapy's exporter; calls :meth:`export`.
    :param sync: whether to sync files to disk, rather than only flush them to the operating system.
    :param unclean: whether the last run may have been killed, so that feeds may be cut off.
    """

    def __init__(
        self, crawler: Crawler, export: Callable[[Any, Spider], None], *, sync: bool, unclean: bool
    ) -> None:
        self._sync, self._unclean = sync, unclean
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
                    end_last_line(slot, unclean=self._unclean)
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
                self.end_lines()  # of the next batch's file
            except OSError:  # after any other error Scrapy continues without the item
                self._refused.appendleft((item, spider))
                self._ends = ends
                raise

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


def end_last_line(slot: Any, *, unclean: bool) -> None:
    """End the last line of a feed that a kill has cut off: the next item would be appended to it.

    That needs a local file in which each item has a line. The item on that line will come again,
    because its page is not done.

    :param slot: Scrapy's object for the feed, before it opens the file.
    :param unclean: whether the last run was killed. In CSV a field may then be open although the
        file ends with a line break. A quote that stays open would swallow the next items.
    """
    options = slot.feed_options
    plain = isinstance(slot.storage, FileFeedStorage) and not options.get("postprocessing")
    if not plain or options.get("overwrite") or slot.format not in _LINES:
        return
    if "\n".encode(options.get("encoding") or "utf-8") != b"\n":  # UTF-16
        return
    written = options.get("item_export_kwargs") or {}
    quoted = slot.format == "csv" and not _QUOTING & {*written}
    with suppress(OSError), Path(slot.storage.path).open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        ended = file.read() in (b"", b"\n")
        if quoted and (unclean or not ended) and _is_open(file):
            file.write(b'"\n')
        elif not ended:
            file.write(b"\n")


def _is_open(file: IO[bytes]) -> bool:
    """Return whether a CSV file ends within quotes: their number is odd. Leave it at its end."""
    file.seek(0)
    return sum(part.count(b'"') for part in iter(partial(file.read, _AT_ONCE), b"")) % 2 == 1
