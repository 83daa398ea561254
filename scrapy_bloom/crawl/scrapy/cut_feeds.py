"""Ends the last line of a feed that a kill has cut off: the next item would be appended to it.

The item on that line will come again, because its page is not done.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from scrapy.extensions.feedexport import FileFeedStorage

_LINES: Final = ("csv", "jl", "jsonl", "jsonlines")  # formats with one item per line
_QUOTING: Final = {"dialect", "doublequote", "escapechar", "quotechar", "quoting"}
_AT_ONCE: Final = 1 << 20  # bytes


def end_last_line(slot: Any, *, unclean: bool) -> None:
    """End the last line of a feed, if it is a local file in which each item has a line.

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
