"""The marks of Scrapy's own filter, ``requests.seen``: read once, when a job switches to ours.

Scrapy 2.19 writes each fingerprint as its length (2 bytes, big-endian) and its bytes; older
versions write a line of hexadecimal digits. A job that lived through the upgrade has both in one
file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final

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

_SPIDER_STATE: Final = "spider.state"


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
        for batch in read_batches(file):
            yield from batch


def read_batches(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the fingerprints in an open file, some at a time, in order.

    :param file: has the method ``read``.
    """
    data, whole = b"", False
    while not whole:
        more = file.read(_CHUNK)
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


def size(folder: Path) -> int:
    """Return the bytes of the file, 0 if there is none."""
    return (folder / NAME).stat().st_size if exists(folder) else 0


def why_unclean(folder: Path) -> str:
    """Return what shows that a crawl with Scrapy's own filter was killed; empty if nothing does.

    After a kill the file has marks of requests that are no longer in the queue. Whoever took those
    marks over would lose the pages.

    Only for a job directory without a filter of ours.

    :raises OSError: if a file of the queue cannot be read.
    """
    if not exists(folder):
        return ""
    queue = folder / scrapy_queue.NAME
    if not scrapy_queue.is_saved(folder):
        return f"{queue} was never saved, or was deleted" if queue.is_dir() else ""
    # A queue may be saved during a crawl, but the spider's state only when the spider has closed.
    state = folder / _SPIDER_STATE
    if not state.exists():
        return f"there is no {state}, which Scrapy writes when a spider has closed"
    return why_later(folder) or scrapy_queue.why_stale(folder)


def why_later(folder: Path) -> str:
    """Return whether fingerprints came after the last clean stop, in words; empty if none did."""
    seen, state = folder / NAME, folder / _SPIDER_STATE
    # At a clean stop Scrapy writes the queue first, then the fingerprints, and then this state.
    if seen.exists() and state.exists() and seen.stat().st_mtime_ns > state.stat().st_mtime_ns:
        return f"{seen} was written after {state}"
    return ""


def _record(data: bytes, start: int) -> tuple[bytes, int] | None:
    """Return the fingerprint that starts at `start` and where it ends, or None if it is cut off."""
    if line := _LINE.match(data, start):
        return bytes.fromhex(line[1].decode()), line.end()
    body = start + 2
    end = body + int.from_bytes(data[start:body], "big")
    return (data[body:end], end) if body < end <= len(data) else None
