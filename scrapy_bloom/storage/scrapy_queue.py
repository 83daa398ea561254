"""Scrapy's request queue in the job directory, as far as the filter has to know it.

Scrapy keeps the requests in files of its own, one for each slot and priority, and writes which of
them to read again, ``active.json``, when a spider closes. Nobody but Scrapy can say what is in them
after a kill. So all that is asked here is whether they are as they were at a clean stop.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from scrapy.pqueues import _path_safe

NAME: Final = "requests.queue"
SAVED: Final = "active.json"

_SQLITE_COMPANIONS: Final = ("-journal", "-wal", "-shm")
_COUNT: Final = 4  # bytes: what an empty file of a queue starts with
_START: Final = 128  # bytes: the count of a LIFO file; SQLite's counter of changes
_END: Final = 4096  # bytes: the requests that a LIFO file is read from first


def is_empty(folder: Path) -> bool:
    """Return whether Scrapy finds no request in the stored queue, or no stored queue."""
    return not is_to_be_read(folder)


def waiting_in(folder: Path) -> str:
    """Return the path of the stored queue if requests wait in it; else an empty text."""
    return "" if is_empty(folder) else str(folder / NAME)


def digest(folder: Path) -> str:
    """Return what tells the queue from any other that holds requests; empty if it holds none.

    It depends on contents, not on times, so that a job directory may be copied, and not on whether
    Scrapy has opened the queue. Some bytes of each file are read.

    :raises OSError: if a file cannot be read.
    """
    named = _named(folder / NAME / SAVED)
    holding = sorted(path for path in files(folder) if not is_blank(path))
    if not named and not holding:
        return ""
    found = hashlib.sha256(named.encode("utf-8", "surrogatepass"))
    for path in holding:
        name = path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
        found.update(b"\0%b\0" % name)
        if path.is_file():
            found.update(_sample(path))
    return found.hexdigest()


def files(folder: Path) -> Iterator[Path]:
    """Yield the files and links in the queue, except ``active.json``. Follows no link."""
    for place, folders, files in os.walk(folder / NAME):
        for name in [*files, *(each for each in folders if Path(place, each).is_symlink())]:
            if (path := Path(place, name)) != folder / NAME / SAVED:
                yield path


def folders(folder: Path) -> Iterator[Path]:
    """Yield the folder of the queue and those in it. Follows no link."""
    for place, _, _ in os.walk(folder / NAME):
        yield Path(place)


def lost(folder: Path) -> Path | None:
    """Return the path of a queue that Scrapy is going to read and that has no requests.

    At a clean stop there is none, except for requests that cannot be stored: those are lost, too.
    What ``active.json`` says is taken as it is; if it makes no sense, nothing is looked for.

    :raises OSError: if a file cannot be read.
    """
    holding = {path for path in files(folder) if not is_blank(path)}
    holding |= {parent for path in holding for parent in path.parents}  # a FIFO queue is a folder
    with suppress(TypeError, ValueError, RecursionError):
        for _, queue in saved(folder):
            path = folder / NAME / queue
            if not holding & {path, path.with_name(f"{path.name}s")}:
                return path
    return None


def saved(folder: Path) -> Iterator[tuple[str | None, str]]:
    """Yield the queues that Scrapy is going to read: download slot, and path in the folder.

    Start requests are perhaps in one beside it, which has an ``s`` after its name.

    :raises ValueError: if ``active.json`` makes no sense.
    :raises TypeError: likewise.
    """
    try:
        state: Any = json.loads((folder / NAME / SAVED).read_bytes())
    except FileNotFoundError:
        return
    slots = state if isinstance(state, dict) else {None: state}
    for slot, priorities in slots.items():
        before = "" if slot is None else _path_safe(slot) + "/"
        for priority in priorities:
            yield slot, f"{before}{int(priority)}"


def is_blank(path: Path) -> bool:
    """Return whether a file in the queue holds no request, so that Scrapy may just have made it.

    Scrapy 2.13 leaves such files when it opens a queue. And SQLite may write those beside a
    database when it opens that.
    """
    if path.name.endswith(_SQLITE_COMPANIONS):
        return True
    if path.is_symlink() or path.lstat().st_size > _COUNT:
        return False
    return not any(path.read_bytes())


def is_to_be_read(folder: Path) -> bool:
    """Return whether there are requests in the queue that Scrapy is going to read."""
    try:
        return bool(json.loads((folder / NAME / SAVED).read_bytes()))
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError):  # Scrapy says itself what is wrong with it
        return True


def _named(saved: Path) -> str:
    """Return which queues Scrapy is going to read, whatever their order; empty if none."""
    try:
        text = saved.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
    try:
        state: Any = json.loads(text)
        slots = state.items() if isinstance(state, dict) else [("", state)]
        queues = {slot: sorted(priorities) for slot, priorities in slots}
        return json.dumps(queues, sort_keys=True) if state else ""
    except (TypeError, ValueError, RecursionError):
        return f"unreadable: {text}"


def _sample(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        start = file.read(_START)
        file.seek(max(size - _END, 0))
        return b"%d\0%b%b" % (size, start, file.read())
