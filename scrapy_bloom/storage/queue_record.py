"""How Scrapy's queue was when a run of ours had stored it, and what shows that it was used since.

The record says by content, not by times, whether the queue is as it was left: a job directory may
be copied or moved. Only where that says no, or where there is no record, times are looked at, too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scrapy_bloom.storage import scrapy_queue, seen_file

_START: Final = 128  # bytes: the count of a LIFO file; SQLite's counter of changes
_END: Final = 4096  # bytes: the requests that a LIFO file is read from first


@dataclass(frozen=True)
class QueueRecord:
    """Scrapy's queue at a clean stop, as the snapshot of the filter notes it.

    Attributes:
        digest: of the names, sizes, beginnings and ends of its files.
        waiting: whether there were requests in it.
        seen: bytes of ``requests.seen``, 0 without one.
    """

    digest: str
    waiting: bool
    seen: int


def record_of(folder: Path) -> QueueRecord:
    """Return how the queue in a job directory is now. Reads some bytes of each of its files.

    Does not depend on whether Scrapy has opened the queue: the empty files of that do not count.

    :raises OSError: if a file cannot be read.
    """
    files = [path for path in scrapy_queue.files(folder) if not scrapy_queue.is_blank(path)]
    digest = hashlib.sha256()
    for path in sorted([*files, folder / scrapy_queue.NAME / scrapy_queue.SAVED]):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode("utf-8", "surrogateescape"))
        if path.is_file():
            digest.update(_sample(path))
    return QueueRecord(digest.hexdigest(), bool(files), seen_file.size(folder))


def why_used(folder: Path, record: QueueRecord | None) -> str:
    """Return what shows that a run without us has used a queue of ours and was killed, in words.

    :param record: the queue as our last run left it, None if it did not say.
    :returns: that, or an empty text if nothing shows it.
    :raises OSError: if a file of the queue cannot be read.
    """
    if not scrapy_queue.is_saved(folder):
        return ""
    if record is None and not seen_file.exists(folder):
        return ""
    if record is not None and record_of(folder).digest == record.digest:
        return ""
    return seen_file.why_later(folder) or scrapy_queue.why_stale(folder)


def is_lost(folder: Path, record: QueueRecord | None) -> bool:
    """Return whether the requests that a run of ours stored are gone, and nobody fetched them.

    They may have been fetched if the marks of Scrapy's own filter have grown.

    :param record: as for :func:`why_used`.
    :raises OSError: if a file of the queue cannot be read.
    """
    if record is None:
        return scrapy_queue.is_gone(folder)
    if not record.waiting or not (folder / scrapy_queue.NAME).is_dir():
        return False
    if not scrapy_queue.is_empty(folder):  # a killed run has fetched them, and that is told
        return False
    now = record_of(folder)
    return not now.waiting and now.seen <= record.seen


def _sample(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        start = file.read(_START)
        file.seek(max(size - _END, 0))
        return b"%d\0%b%b" % (size, start, file.read())
