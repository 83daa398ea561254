"""A job of Scrapy's scheduler with our filter that was killed: it is put aside, and starts over.

Scrapy stores its queue only when a spider closes, so a kill loses requests whose marks an earlier
filter may have. Nobody can say which. So filter and queue go together: without marks no page is
suppressed, and the crawl finds all of them again.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Final

from scrapy_bloom.storage import scrapy_queue, seen_file
from scrapy_bloom.storage.files import remove, replace, sync_folder
from scrapy_bloom.storage.marker import (
    MARKER,
    REQUESTS,
    SNAPSHOT,
    STOPPED,
    has_lost_requests,
    is_outdated,
    read_marker,
    read_stopped,
    write_marker,
)
from scrapy_bloom.storage.snapshot import read_head

UNCLEAN: Final = "unclean"
"""The folder in a job directory for what is put aside."""

# A spider's state goes, too: one that says what is done would keep the crawl from starting over.
_TOGETHER: Final = (scrapy_queue.NAME, seen_file.NAME, seen_file.STATE, SNAPSHOT, STOPPED)


def is_plain(folder: Path) -> bool:
    """Return whether our filter has run in a job directory, under Scrapy's own scheduler."""
    if (folder / REQUESTS).exists():
        return False
    return any((folder / name).exists() for name in (SNAPSHOT, MARKER, STOPPED))


def why_unclean(folder: Path) -> str:
    """Return what shows that filter and queue do not fit each other, in words; empty if they do.

    Only for a job for which :func:`is_plain` is true; the caller has locked its directory.

    :raises StateError: if marker, note or snapshot cannot be read.
    :raises OSError: if a file of the queue cannot be read.
    """
    marker, head = read_marker(folder), read_head(folder / SNAPSHOT)
    if has_lost_requests(folder, head):
        return ""  # which is refused
    if marker and not is_outdated(marker, head):
        process = f" (process {marker.pid} on {marker.host})" if marker.pid else ""
        return f"the last run{process} was killed"
    left = head.queue if head else read_stopped(folder)
    if left is not None and left != scrapy_queue.digest(folder):
        return f"{scrapy_queue.NAME} is not as the last run with this filter left it"
    return ""


def put_aside(folder: Path, *, filter_too: bool) -> Path:
    """Move filter, queue and all that belongs to them out of the way; return where they are now.

    A kill in between changes nothing: the marker goes last, and the next run moves the rest.

    :param filter_too: whether the filter is there as well. Else the marker stays until the run
        stops: a filter elsewhere is emptied only when it is opened.
    :raises OSError: if something cannot be moved.
    """
    head = read_head(folder / SNAPSHOT)
    write_marker(folder, head.generation if head else 0)
    aside = _next(folder / UNCLEAN)
    for name in _TOGETHER:
        if (path := folder / name).exists() or path.is_symlink():
            replace(path, aside / name)
    sync_folder(folder)
    if filter_too:
        remove(folder / MARKER)
    return aside


def _next(parent: Path) -> Path:
    """Make the folder with the next number."""
    aside = next(each for number in count(1) if not (each := parent / str(number)).exists())
    aside.mkdir(parents=True)
    sync_folder(parent)
    return aside
