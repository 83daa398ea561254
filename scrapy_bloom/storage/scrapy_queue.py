"""Scrapy's request queue in the job directory, as far as the filter has to know it.

Scrapy keeps the requests in one file for each slot and priority, and writes which of them to read
again, ``active.json``, when a spider closes. Three kinds of queue are known here, all of queuelib:

LIFO
    A file: how many records there are (u32), then the records, each followed by its length (u32).
    The count is written when a spider closes, so after a kill it is that of the last clean stop.
FIFO
    A folder: ``info.json``, also written at the end only, and chunks of records.
SQLite
    A database, from Scrapy 2.19: whole at any moment, a kill does it no harm.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import BinaryIO, Final

NAME: Final = "requests.queue"
SAVED: Final = "active.json"

_U32: Final = Struct(">I")
_SQLITE: Final = b"SQLite format 3\0"
_SQLITE_COMPANIONS: Final = ("-journal", "-wal", "-shm")
_PRIORITY: Final = re.compile(r"-?\d+s?")  # the name of a LIFO or SQLite file or a FIFO folder
_CHUNK: Final = re.compile(r"q\d{5,}")  # of a FIFO queue
_INFO: Final = "info.json"  # of a FIFO queue


def is_saved(folder: Path) -> bool:
    """Return whether a run in this job directory has ever stored its queue."""
    return (folder / NAME / SAVED).exists()


def is_gone(folder: Path) -> bool:
    """Return whether somebody has taken the stored queue away: Scrapy has made the folder anew."""
    return (folder / NAME).is_dir() and not is_saved(folder)


def is_empty(folder: Path) -> bool:
    """Return whether Scrapy finds no request in the stored queue, or no stored queue."""
    return not is_to_be_read(folder)


def why_stale(folder: Path) -> str:
    """Return what shows that a run has used the stored queue and was killed; empty if nothing does.

    That reads what :func:`find_flaw` reads. To be asked before the run has added a request.

    :raises OSError: if a file cannot be read.
    """
    saved = folder / NAME / SAVED
    if not saved.exists():
        return ""
    if found := find_flaw(folder) or find_surplus(folder) or _why_other_queues(folder):
        return found
    # At a clean stop Scrapy closes all files of the queue before it writes which ones to read.
    last = saved.stat().st_mtime_ns
    for path in files(folder):
        if not is_blank(path) and path.lstat().st_mtime_ns > last:
            return f"{path} was written after {saved}"
    return ""


def find_surplus(folder: Path) -> str:
    """Return what shows that the stored queue has more requests than Scrapy counts, in words.

    They are of a killed run.

    :raises OSError: if a file cannot be read.
    """
    for path in files(folder):
        if _is_lifo(path):
            with path.open("rb") as file:
                if _walk_lifo(file)[1] > _U32.size:
                    return f"{path} holds more requests than it says"
    return find_surplus_in_fifo(folder)


def find_surplus_in_fifo(folder: Path) -> str:
    """Return the same of FIFO queues only: there it costs requests that are still to come.

    Scrapy reads what is too much in the place of later requests, and never comes to those.

    :raises OSError: if a file cannot be read.
    """
    return next(filter(None, map(_surplus_in_fifo, (folder / NAME).rglob(_INFO))), "")


def files(folder: Path) -> Iterator[Path]:
    """Yield the files and links in the queue, except ``active.json``. Follows no link."""
    for place, folders, files in os.walk(folder / NAME):
        for name in [*files, *(each for each in folders if Path(place, each).is_symlink())]:
            if (path := Path(place, name)) != folder / NAME / SAVED:
                yield path


def is_blank(path: Path) -> bool:
    """Return whether a file in the queue holds no request, so that Scrapy may just have made it.

    Scrapy 2.13 leaves such files when it opens a queue. And SQLite may write those beside a
    database when it opens that.
    """
    if path.name.endswith(_SQLITE_COMPANIONS):
        return True
    if path.is_symlink() or path.lstat().st_size > _U32.size:
        return False
    return not any(path.read_bytes())


def survives_kills(folder: Path) -> bool:
    """Return whether the queue is in SQLite files, which a kill leaves as they were."""
    queues = [path for path in files(folder) if _PRIORITY.fullmatch(path.name)]
    return bool(queues) and all(_is_sqlite(path) for path in queues)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed run left of a queue that Scrapy is not going to read.

    Scrapy would append to these files all the same. If the kill has truncated one, appending fails,
    and every request of that priority would be lost. SQLite files are whole, and stay.

    :raises OSError: if something cannot be removed.
    """
    if is_to_be_read(folder):
        return
    for path in files(folder):
        if not _is_sqlite(path):
            path.unlink()
    for path in sorted(_folders(folder), reverse=True):  # the inner ones first
        if not any(path.iterdir()):
            path.rmdir()


def remove_stumps(folder: Path) -> None:
    """Remove files that a kill has cut off before they held anything: Scrapy fails to open them.

    :raises OSError: if one cannot be removed.
    """
    for path in files(folder):
        if _PRIORITY.fullmatch(path.name) and path.lstat().st_size < _U32.size:
            path.unlink()


def find_flaw(folder: Path) -> str:
    """Return what makes a stored queue unreadable, in words; empty if nothing does.

    Scrapy would fail at such a queue again and again, and the crawl would never end. This reads one
    number for each waiting request: about 1 s for 1,000,000 of them.

    :raises OSError: if a file cannot be read.
    """
    if flaw := find_flaw_at_opening(folder):
        return flaw
    if not is_to_be_read(folder):
        return ""
    for path in files(folder):
        if _is_lifo(path):
            with path.open("rb") as file:
                if flaw := _walk_lifo(file)[0]:
                    return f"{path} {flaw}"
    return ""


def find_flaw_at_opening(folder: Path) -> str:
    """Return what Scrapy fails at when it opens the stored queue, in words; empty if at nothing.

    :raises OSError: if a file cannot be read.
    """
    saved = folder / NAME / SAVED
    if saved.exists() and not _is_json(saved):
        return f"{saved} is no JSON: it was cut off when it was written"
    for info in (folder / NAME).rglob(_INFO):
        if not _is_json(info):
            return f"{info} is no JSON: it was cut off when it was written"
        if flaw := _flaw_in_fifo(info):
            return flaw
    return ""


def _is_lifo(path: Path) -> bool:
    return bool(_PRIORITY.fullmatch(path.name)) and not path.is_symlink() and not _is_sqlite(path)


def _walk_lifo(file: BinaryIO) -> tuple[str, int]:
    """Return what is wrong with a LIFO file, and the bytes before the requests that it counts."""
    start = file.read(_U32.size)
    if len(start) < _U32.size:
        return f"ends within its first {_U32.size} bytes", 0
    (waiting,) = _U32.unpack(start)
    end = file.seek(0, os.SEEK_END)
    for number in range(waiting):
        # Each record is followed by its length.
        if end - _U32.size < _U32.size:
            return f"holds {number:,} requests, and says that it holds {waiting:,}", 0
        file.seek(end - _U32.size)
        (length,) = _U32.unpack(file.read(_U32.size))
        end -= _U32.size + length
        if end < _U32.size:
            return "ends in the middle of a request", 0
    return "", end


def _surplus_in_fifo(info: Path) -> str:
    """Return whether a FIFO queue goes on after the place where the next request is to be put."""
    try:
        chunk, count = json.loads(info.read_bytes())["head"]
        path = info.with_name(f"q{chunk:05d}")
        with path.open("rb") as file:
            for _ in range(count):
                (length,) = _U32.unpack(file.read(_U32.size))
                file.seek(length, os.SEEK_CUR)
            return f"{path} holds more requests than {info} says" if file.read(1) else ""
    except (KeyError, TypeError, ValueError, FileNotFoundError, StructError, RecursionError):
        return ""  # Scrapy says itself what is wrong with it


def _why_other_queues(folder: Path) -> str:
    """Return whether other queues are there than those to be read, in words; empty if not."""
    saved = folder / NAME / SAVED
    named = _count_named(saved)
    there = set()
    for path in files(folder):
        queue = path.parent if _CHUNK.fullmatch(path.name) else path
        if path.name == _INFO or is_blank(path):
            continue
        if not _PRIORITY.fullmatch(queue.name):
            return ""  # of a kind of queue that is not known here
        there.add((queue.parent, int(queue.name.rstrip("s"))))
    if named is None or named == len(there):
        return ""
    return f"{saved} names {named:,} queues, and there are {len(there):,}"


def _count_named(saved: Path) -> int | None:
    """Return how many queues Scrapy is going to read, None if that cannot be known."""
    state = json.loads(saved.read_bytes())
    try:
        lists = state.values() if isinstance(state, dict) else [state]
        return sum(len(set(priorities)) for priorities in lists)
    except TypeError:
        return None


def _flaw_in_fifo(info: Path) -> str:
    try:
        fields = json.loads(info.read_bytes())
        oldest = info.with_name(f"q{fields['tail'][0]:05d}") if fields["size"] else info
    except (KeyError, IndexError, TypeError, ValueError):
        return ""  # Scrapy says itself what is wrong with it
    return "" if oldest.exists() else f"{oldest} is missing"


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return True


def is_to_be_read(folder: Path) -> bool:
    """Return whether there are requests in the queue that Scrapy is going to read."""
    try:
        return bool(json.loads((folder / NAME / SAVED).read_bytes()))
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError):  # Scrapy says itself what is wrong with it
        return True


def _folders(folder: Path) -> list[Path]:
    """List the folders in the queue."""
    return [
        path
        for place, folders, _ in os.walk(folder / NAME)
        for path in (Path(place, name) for name in folders)
        if not path.is_symlink()
    ]


def _is_sqlite(path: Path) -> bool:
    """Return whether this is an SQLite database, or a file that SQLite keeps beside one."""
    for companion in _SQLITE_COMPANIONS:
        if path.name.endswith(companion):
            path = path.with_name(path.name.removesuffix(companion))
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE
