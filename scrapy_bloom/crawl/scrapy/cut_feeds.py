"""Ends the last line of a feed that a kill has cut off: the next item would be appended to it.

The item on that line will come again, because its page is not done.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from scrapy.extensions.feedexport import FileFeedStorage

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINES: Final = ("csv", "jl", "jsonl", "jsonlines")  # formats with one item per line
_QUOTING: Final = {"dialect", "doublequote", "escapechar", "quotechar", "quoting"}

_WINDOW: Final = 1 << 20
"""Bytes at the end of a CSV file that usually tell whether a field is open there. A field as long
as that could not be read anyway: Python's csv module takes 131,072 characters at most."""

_LONGEST_WINDOW: Final = 64 << 20


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
        if quoted and (unclean or not ended) and _is_open(file, size, written):
            file.write(b'"\n')
        elif not ended:
            file.write(b"\n")


def _is_open(file: IO[bytes], size: int, written: dict[str, Any]) -> bool:
    """Return whether a CSV file ends within quotes; leave it at its end.

    It does if the number of quotes is odd. It is read from the end until what is there makes sense
    in one way only, so a large file need not be read whole.
    """
    delimiter = str(written.get("delimiter", ",")).encode()
    window = _WINDOW
    while window < min(size, _LONGEST_WINDOW):
        file.seek(size - window)
        parts = file.read().split(b'"')
        if len(parts) == 1:
            return False
        whole = parts[1:-1]
        ways = [first for first in (0, 1) if _makes_sense(whole[1 - first :: 2], delimiter)]
        if len(ways) == 1:
            return (len(parts) - ways[0]) % 2 == 0  # of its parts the first one counts as 0
        window *= 4
    file.seek(0)
    return sum(part.count(b'"') for part in iter(partial(file.read, _WINDOW), b"")) % 2 == 1


def _makes_sense(outside: Sequence[bytes], delimiter: bytes) -> bool:
    """Return whether these parts of a CSV file may be what is outside of its quotes.

    A quoted field begins after a delimiter or a line break, and ends before one. Nothing is between
    two quotes that stand for one within a field.
    """
    before, after = (delimiter, b"\n"), (delimiter, b"\r", b"\n")
    return all(not part or (part.endswith(before) and part.startswith(after)) for part in outside)
