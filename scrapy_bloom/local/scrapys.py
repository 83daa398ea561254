"""Takes over a job of Scrapy's own scheduler that was stopped cleanly: its queue and its marks.

All of it is built in a file beside the job's, which takes its name when it is whole; until then a
kill changes nothing. Scrapy's files are copied one queue at a time and read from the copy, because
reading them empties them. They are removed when ours is in place.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Any, Final

from queuelib import queue as queuelib

from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.errors import StateError
from scrapy_bloom.local.job import (
    FILTER,
    QUEUE,
    SEEN,
    STATE,
    Job,
    open_store,
)
from scrapy_bloom.local.store import NAME, Store
from scrapy_bloom.local.unclean import ACTIVE, is_blank, queue_files, saved_queues
from scrapy_bloom.settings import Settings

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 10_000  # requests in one commit
_CHUNK: Final = 1 << 20
_LONGEST: Final = 1 << 18  # of one record, in bytes: 65,535 of them in hexadecimal, and to spare

# Scrapy 2.19 writes each fingerprint as its length (2 bytes, big-endian) and its bytes; older
# versions write a line of hexadecimal digits. A job that lived through the upgrade has both. A
# length starts with a byte below "0" unless a fingerprint has 12,288 bytes.
_LINE: Final = re.compile(rb"((?:[0-9a-f]{2})+)\r?\n")
_LENGTH: Final = Struct(">H")


def why_unclean(folder: Path) -> str:
    """Return what shows that a crawl with Scrapy's own scheduler was killed; empty if nothing does.

    After a kill ``requests.seen`` has marks of requests that are no longer in the queue. At a clean
    stop Scrapy writes the queue first, then the fingerprints, and the state of the spider last. A
    queue that runs empty later has its file removed at once, which changes the folder.

    :raises OSError: if a file cannot be read.
    """
    root, state = folder / QUEUE, folder / STATE
    used = [path for path in queue_files(folder) if not is_blank(path)]
    holding = {*used, *(parent for path in used for parent in path.parents)}
    if (folder / SEEN).exists():
        used.append(folder / SEEN)
    if not used:
        return ""
    for path in (root / ACTIVE, state):
        if root.is_dir() and not path.exists():
            return f"there is no {path}, which Scrapy writes when a spider has closed"
    with suppress(TypeError, ValueError, RecursionError):  # what makes no sense is refused later
        for _, name in saved_queues(folder):
            path = root / name
            if not holding & {path, path.with_name(f"{path.name}s")}:
                return f"there is no {path}, which {root / ACTIVE} names"
    for path in (*used, *(Path(place) for place, _, _ in os.walk(root))):
        if state.exists() and path.lstat().st_mtime_ns > state.stat().st_mtime_ns:
            return f"{path} was written after {state}"
    return ""


def take_over(
    job: Job, settings: Settings, plain: QueueKind, start: QueueKind | None, *, digests: bool
) -> None:
    """Bring what a job of Scrapy's own scheduler has into the job's file, if there is any of it.

    What was not stopped cleanly stays as it is, and the crawl starts over beside it: it may be the
    job of a crawl that is on, since Scrapy locks nothing.

    :param job: the job directory, which has no file of ours, or one of a plain filter.
    :param plain: what wrote the requests.
    :param start: what wrote start requests; None if they are among the others.
    :param digests: whether all fingerprints are SHA-1 digests.
    :raises StateError: if a queue cannot be read. Scrapy's files are as they were.
    """
    folder = job.folder
    if job.kind != FILTER and (why := why_unclean(folder)):
        logger.warning(
            "%s: what Scrapy's own scheduler has left cannot be taken over: its last run was"
            " killed, or is still on (%s). It was left as it is. The crawl starts over.",
            folder,
            why,
        )
        return
    if not (folder / QUEUE / ACTIVE).exists():
        return
    beside = job.path.with_name(f"{NAME}.taking-over")
    _clear(beside)
    if job.kind == FILTER:  # it was closed: nothing is in a log
        shutil.copyfile(job.path, beside)
    store = open_store(beside, settings, digests=digests)
    count = 0
    try:
        for path, slot, kind in _queues(folder, plain, start):
            count += _copy(folder / QUEUE / path, path, slot, kind, store)
        if job.kind != FILTER:  # else they are from before its first run, and nobody knows more
            for batch in _seen(folder / SEEN):
                for fingerprint in batch:
                    store.mark(fingerprint)
                store.commit()
        known = store.filter.items
        job.note_taken_over(store)
        store.close()
    except BaseException:
        store.abandon()
        _clear(beside)
        raise
    beside.replace(job.path)
    logger.info(
        "%s: took over %s requests and %s fingerprints of Scrapy's own scheduler.",
        job.path,
        f"{count:,}",
        f"{known:,}",
    )


def _clear(beside: Path) -> None:
    """Remove a file that was not finished, with its log."""
    for path in beside.parent.glob(f"{beside.name}*"):
        _remove(path)


def _queues(
    folder: Path, plain: QueueKind, start: QueueKind | None
) -> Iterator[tuple[str, str | None, QueueKind]]:
    """List the queues that Scrapy would read again: path, download slot if any, what wrote it."""
    try:
        for slot, path in saved_queues(folder):
            yield path, slot, plain
            if start:
                yield f"{path}s", slot, start
    except (TypeError, ValueError) as error:
        raise _unreadable(folder / QUEUE / ACTIVE, error) from error


def _copy(source: Path, path: str, slot: str | None, kind: QueueKind, store: Store) -> int:
    """Copy one of Scrapy's queues into a store; return how many requests it has."""
    if not source.exists():
        return 0
    # Not in Scrapy's folder: after a kill that would not be as it was left.
    copy = store.path.with_name(f"{store.path.name}-queue")
    _remove(copy)
    if source.is_dir():
        shutil.copytree(source, copy)
    else:
        shutil.copyfile(source, copy)
    try:
        queue = getattr(queuelib, kind.files)(copy)
        try:
            return _move(queue, path, slot, kind, store)
        finally:
            with suppress(Exception):  # it is only a copy, and what was wrong has been raised
                queue.close()
    except Exception as error:  # whatever its class raises at a file that was cut off
        raise _unreadable(source, error) from error
    finally:
        _remove(copy)


def _move(queue: Any, path: str, slot: str | None, kind: QueueKind, store: Store) -> int:
    """Move all requests of one of Scrapy's queues into a store, in order."""
    total = len(queue)
    if not total:
        return 0
    number = store.queue(path, slot)
    first = store.reserve(number, total)
    for place in range(total):
        body = queue.pop()
        if body is None:
            raise ValueError(f"it ends after {place:,} of {total:,} requests")
        store.put(first + (total - 1 - place if kind.newest_first else place), body)
        if place % _AT_ONCE == _AT_ONCE - 1:
            store.commit()
    return total


def _seen(path: Path) -> Iterator[list[bytes]]:
    """Yield the fingerprints in ``requests.seen``, some at a time.

    :raises OSError: if it cannot be read.
    """
    if path.exists():
        with path.open("rb") as file:
            yield from read_seen(iter(lambda: file.read(_CHUNK), b""))


def read_seen(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the fingerprints in chunks of a ``requests.seen``; one that was cut off is skipped."""
    data = b""
    for more in chain(chunks, (b"",)):
        whole = not more
        data += more
        batch, start = [], 0
        while whole or len(data) - start >= _LONGEST:
            if line := _LINE.match(data, start):
                batch.append(bytes.fromhex(line[1].decode()))
                start = line.end()
                continue
            body = start + _LENGTH.size
            if len(data) < body:
                break
            end = body + _LENGTH.unpack_from(data, start)[0]
            if not body < end <= len(data):
                break
            batch.append(data[body:end])
            start = end
        if batch:
            yield batch
        data = data[start:]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _unreadable(path: Path, error: Exception) -> StateError:
    return StateError(
        f"{path}: found a queue that cannot be read ({type(error).__name__}: {error}), expected"
        f" what Scrapy stores when a crawl stops cleanly. It was left as it is. Start with the"
        f" settings of that crawl, or delete the whole job directory and crawl again."
    )
