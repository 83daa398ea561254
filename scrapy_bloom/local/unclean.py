"""A job of a plain filter whose last run was killed: it is moved away, and the crawl starts over.

Scrapy stores its queue only when a spider closes, so a kill loses requests whose marks an earlier
filter may have. Nobody can say which. So filter and queue go together: without marks no page is
suppressed, and the crawl finds all of them again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

from filelock import Timeout
from scrapy.pqueues import _path_safe

from scrapy_bloom.errors import StateError
from scrapy_bloom.local.job import (
    FILTER,
    KIND,
    PID,
    QUEUE,
    REQUESTS,
    SEEN,
    STATE,
    identity_of,
    in_use,
    lock_of,
    read_meta,
    unusable,
)
from scrapy_bloom.local.store import NAME

logger = logging.getLogger(__name__)

ACTIVE: Final = "active.json"
"""The file in Scrapy's queue that says which of the others to read; written at a clean stop."""

DIGEST: Final = "queue"
"""Key of a note: Scrapy's queue at the last clean stop, see :func:`digest`."""

_SQLITE_COMPANIONS: Final = ("-journal", "-wal", "-shm")
_COUNT: Final = 4  # bytes: what an empty file of a queue starts with
_START: Final = 128  # bytes: the count of a LIFO file; SQLite's counter of changes
_END: Final = 4096  # bytes: the requests that a LIFO file is read from first


def set_aside_if_unclean(folder: Path, spider: str) -> bool:
    """Start a job of a plain filter over if its last run was killed, or its queue has changed.

    To be called before Scrapy's scheduler opens its queue. A job that only others have used is not
    touched, nor that of another spider, nor one that is in use: it only looks like a killed one.

    :returns: whether it was moved away.
    :raises JobInUseError: if another process is using it. What Scrapy reads then is not to be used.
    :raises StateError: if something cannot be read or moved.
    """
    path = folder / NAME
    if not path.exists():
        return False
    try:
        with lock_of(folder):
            meta, clean = read_meta(path)
            if meta.get(KIND) != FILTER or identity_of(path, meta).spider != spider:
                return False  # the door says what is wrong
            if not clean:
                why = f"the last run (process {meta.get(PID)}) was killed"
            elif meta.get(DIGEST) != digest(folder):
                why = f"{QUEUE} is not as the last run with this filter left it"
            else:
                return False
            aside = _set_aside(folder)
    except Timeout:
        raise in_use(folder) from None
    except OSError as error:
        raise unusable(folder, error) from error
    logger.warning(
        "%s: %s, so requests may be lost that the filter calls seen. Filter and queue are in %s"
        " now, and the crawl starts over: no page is lost. With SCHEDULER ="
        " 'scrapy_bloom.Scheduler' a killed crawl resumes.",
        folder,
        why,
        aside,
    )
    return True


def _set_aside(folder: Path) -> Path:
    """Move all that a job has to a folder of its own, from which nothing is ever deleted."""
    parent = folder / "unclean"
    aside = next(each for number in count(1) if not (each := parent / str(number)).exists())
    aside.mkdir(parents=True)
    logs = sorted(path.name for path in folder.glob(f"{NAME}-*"))
    # The file goes last: until it is gone, a move that was killed is done again. A spider's state
    # goes, too: one that says what is done would keep the crawl from starting over.
    for name in (QUEUE, SEEN, STATE, *logs, NAME):
        if (folder / name).exists():
            (folder / name).rename(aside / name)
    return aside


def waits_with_scrapy(folder: Path) -> bool:
    """Return whether requests wait in a job's queue of Scrapy's, so that the job is to end there.

    What cannot be read counts as none: whoever opens the job says what is wrong with it.
    """
    path = folder / NAME
    try:
        ours = path.exists() and read_meta(path)[0].get(KIND) == REQUESTS
        return not ours and bool(digest(folder))
    except (StateError, OSError):
        return False


def digest(folder: Path) -> str:
    """Return what tells Scrapy's queue from any other that holds requests; empty if it holds none.

    It depends on contents, not on times, so that a job directory may be copied, and not on whether
    Scrapy has opened the queue. Some bytes of each file are read.

    :raises OSError: if a file cannot be read.
    """
    named = _named(folder)
    holding = sorted(path for path in queue_files(folder) if not is_blank(path))
    if not named and not holding:
        return ""
    found = hashlib.sha256(named.encode("utf-8", "surrogatepass"))
    for path in holding:
        name = path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
        found.update(b"\0%b\0" % name)
        if path.is_file():
            found.update(_sample(path))
    return found.hexdigest()


def queue_files(folder: Path) -> Iterator[Path]:
    """Yield the files and links in Scrapy's queue, except ``active.json``. Follows no link."""
    for place, folders, files in os.walk(folder / QUEUE):
        for name in [*files, *(each for each in folders if Path(place, each).is_symlink())]:
            if (path := Path(place, name)) != folder / QUEUE / ACTIVE:
                yield path


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


def saved_queues(folder: Path) -> Iterator[tuple[str | None, str]]:
    """Yield the queues that Scrapy is going to read: download slot, and path in the queue's folder.

    Start requests are perhaps in one beside it, which has an ``s`` after its name.

    :raises ValueError: if ``active.json`` makes no sense.
    :raises TypeError: likewise.
    """
    try:
        state: Any = json.loads((folder / QUEUE / ACTIVE).read_bytes())
    except FileNotFoundError:
        return
    slots = state if isinstance(state, dict) else {None: state}
    for slot, priorities in slots.items():
        before = "" if slot is None else _path_safe(slot) + "/"
        for priority in priorities:
            yield slot, f"{before}{int(priority)}"


def _named(folder: Path) -> str:
    """Return which queues Scrapy is going to read, whatever their order; empty if none."""
    try:
        return "\n".join(sorted(f"{slot} {path}" for slot, path in saved_queues(folder)))
    except (TypeError, ValueError, RecursionError):
        return "unreadable: " + (folder / QUEUE / ACTIVE).read_text("utf-8", "surrogateescape")


def _sample(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        start = file.read(_START)
        file.seek(max(size - _END, 0))
        return b"%d\0%b%b" % (size, start, file.read())
