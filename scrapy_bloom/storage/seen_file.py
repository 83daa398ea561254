"""The marks of Scrapy's own filter, ``requests.seen``: read once, when a job switches to ours.

Scrapy 2.19 writes each fingerprint as its length (2 bytes, big-endian) and its bytes; older
versions write a line of hexadecimal digits. A job that lived through the upgrade has both in one
file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Final

from scrapy_bloom.storage import scrapy_queue
from scrapy_bloom.storage.files import open_regular

NAME: Final = "requests.seen"

# The length of a binary record starts with a byte below "0" unless a fingerprint has 12,288 bytes.
_LINE: Final = re.compile(rb"((?:[0-9a-f]{2})+)\r?\n")
_CHUNK: Final = 1 << 20
_LONGEST: Final = 1 << 18  # of one record, in bytes: 65,535 of them in hexadecimal, and to spare
_BINARY: Final = Struct(">2x20s")
_BINARY_RUN: Final = re.compile(rb"(?:\0\x14.{20})+", re.DOTALL)
_TEXT_RUN: Final = re.compile(rb"(?:[0-9a-f]{40}\n)+")

STATE: Final = "spider.state"


def read_seen_file(folder: Path) -> Iterator[bytes]:
    """Yield the fingerprints in a job directory's ``requests.seen``, in order.

    If a kill has cut off the last record, that one is skipped. If there is no such file, nothing is
    yielded.

    :raises StateError: if it is not a regular file that can be read.
    """
    file = open_regular(folder / NAME)
    if file is None:
        return
    with file:
        for batch in read_batches(iter(lambda: file.read(_CHUNK), b"")):
            yield from batch


def read_batches(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the fingerprints in the chunks of a file, some at a time, in order."""
    data = b""
    for more in chain(chunks, [b""]):
        whole = not more
        data += more
        batch, start = [], 0
        while whole or len(data) - start >= _LONGEST:
            some, start = _alike(data, start)
            batch += some
            record = _record(data, start)
            if record is None:
                break
            fingerprint, start = record
            batch.append(fingerprint)
        yield batch
        data = data[start:]


def _alike(data: bytes, start: int) -> tuple[list[bytes], int]:
    """Return the fingerprints of SHA-1's size that follow each other in one form, and their end.

    Read all together they take a tenth of the time.
    """
    if run := _BINARY_RUN.match(data, start):
        return [fingerprint for (fingerprint,) in _BINARY.iter_unpack(run[0])], run.end()
    if run := _TEXT_RUN.match(data, start):
        packed = bytes.fromhex(run[0].decode())  # which skips the ends of lines
        return [packed[i : i + 20] for i in range(0, len(packed), 20)], run.end()
    return [], start


def exists(folder: Path) -> bool:
    """Return whether Scrapy's own filter has run in a job directory."""
    return (folder / NAME).exists()


def why_unclean(folder: Path) -> str:
    """Return what shows that a crawl of Scrapy's alone has not stopped cleanly; empty if nothing.

    After a kill ``requests.seen`` has marks of requests that are no longer in the queue. Whoever
    took those marks over would lose the pages. At a clean stop Scrapy writes the queue first, then
    the fingerprints, and the state of the spider last. A queue that runs empty later has its file
    removed at once, which changes the folder.

    Only for a job directory without a filter of ours.

    :raises OSError: if the files cannot be looked at.
    """
    queue, seen, state = (folder / name for name in (scrapy_queue.NAME, NAME, STATE))
    used = [path for path in scrapy_queue.files(folder) if not scrapy_queue.is_blank(path)]
    if exists(folder):
        used.append(seen)
    if not used:
        return ""
    saved = queue / scrapy_queue.SAVED
    for path in (saved, state):
        if queue.is_dir() and not path.exists():
            return f"there is no {path}, which Scrapy writes when a spider has closed"
    if lost := scrapy_queue.lost(folder):
        return f"there is no {lost}, which {saved} names"
    used += scrapy_queue.folders(folder)
    for path in used:
        if state.exists() and path.lstat().st_mtime_ns > state.stat().st_mtime_ns:
            return f"{path} was written after {state}"
    return ""


def _record(data: bytes, start: int) -> tuple[bytes, int] | None:
    """Return the fingerprint that starts at `start` and where it ends, or None if it is cut off."""
    if line := _LINE.match(data, start):
        return bytes.fromhex(line[1].decode()), line.end()
    body = start + 2
    end = body + int.from_bytes(data[start:body], "big")
    return (data[body:end], end) if body < end <= len(data) else None
