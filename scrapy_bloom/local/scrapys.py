"""Takes over a cleanly stopped job of Scrapy's own scheduler: its queue and its fingerprints.

The new file is built in a temporary folder and replaces the job's once it is complete; until then a
kill changes nothing. Reading Scrapy's queue empties it, so a copy of it is read.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from queuelib import queue as queuelib

from scrapy_bloom import file
from scrapy_bloom.errors import StateError
from scrapy_bloom.local.job import (
    ACTIVE,
    FILTER,
    KIND,
    REQUESTS,
    SCRAPYS_MARKS,
    SCRAPYS_QUEUE,
    STATE,
    Job,
    open_store,
    owner_notes,
    queue_files,
    read_meta,
    saved_queues,
    unusable,
    waits_with_scrapy,
)
from scrapy_bloom.local.store import NAME

if TYPE_CHECKING:
    from scrapy_bloom.crawl.serialize import QueueKind
    from scrapy_bloom.local.store import Store
    from scrapy_bloom.settings import Settings

logger = logging.getLogger(__name__)

_CHUNK: Final = 1 << 20
_DIGIT: Final = ord("0")
_LENGTH: Final = 2  # bytes


def why_unclean(folder: Path) -> str:
    """Return the evidence that a crawl with Scrapy's own scheduler was killed; empty if none.

    After a kill, ``requests.seen`` has fingerprints of requests that are no longer in the queue. At
    a clean stop Scrapy writes the queue first, then the fingerprints, and the spider's state last.
    When a queue runs empty later, its file is removed at once, which changes the folder. What a
    killed run had queued is still there after a later clean stop, unnamed in ``active.json``.

    :raises OSError: if a file cannot be read.
    """
    root, state = folder / SCRAPYS_QUEUE, folder / STATE
    if not (found := [*root.rglob("*")]):
        return ""
    for path in (root / ACTIVE, state):
        if not path.exists():
            return f"there is no {path}, which Scrapy writes when a spider has closed"
    for path in (root, *found, folder / SCRAPYS_MARKS):
        late = path.exists() and path.stat().st_mtime_ns > state.stat().st_mtime_ns
        if late and path != root / ACTIVE:
            return f"{path} was written after {state}"
    try:
        named = {each for _, name in saved_queues(folder) for each in (name, f"{name}s")}
    except (ValueError, TypeError):  # reading the queues reports what is wrong
        return ""
    for path in queue_files(folder):
        queue = path.relative_to(root)
        if named.isdisjoint(each.as_posix() for each in (queue, *queue.parents)):
            return f"{path} holds requests, and {root / ACTIVE} does not name it"
    return ""


def is_for_scrapy(folder: Path) -> bool:
    """Return whether Scrapy's own scheduler began a job and can resume it.

    It cannot after a kill: it will not read the files with the queued requests. A job that cannot
    be read does not count; opening it reports what is wrong.
    """
    try:
        if (folder / NAME).exists():
            return read_meta(folder / NAME)[0].get(KIND) == FILTER and waits_with_scrapy(folder)
        return waits_with_scrapy(folder) and not why_unclean(folder)
    except (StateError, OSError):
        return False


def take_over(
    job: Job, settings: Settings, plain: QueueKind, start: QueueKind | None, *, digests: bool
) -> None:
    """Move what Scrapy's own scheduler has stored for a job, if anything, into the job's file.

    A job that was not stopped cleanly stays as it is, and the crawl starts over beside it: the job
    may belong to a running crawl, since Scrapy locks nothing.

    :param job: the job directory, not opened yet.
    :param plain: the kind of queue that stored the requests.
    :param start: the kind that stored start requests; None if they are among the others.
    :param digests: whether all fingerprints are SHA-1 digests.
    :raises StateError: if something cannot be read or written. Scrapy's files are as they were.
    """
    folder, queue = job.folder, job.folder / SCRAPYS_QUEUE
    if not job.previous and (why := why_unclean(folder)):
        logger.warning(
            "%s: the job of Scrapy's own scheduler cannot be taken over: its last run was killed"
            " or is still running (%s). It was left as it is. The crawl starts over.",
            folder,
            why,
        )
        return
    if not (queue / ACTIVE).exists():
        return
    beside = folder / "taking-over"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        shutil.copytree(queue, beside / SCRAPYS_QUEUE)
        if job.previous == FILTER:  # it was closed, so there is no log
            shutil.copyfile(job.path, beside / NAME)
        with closing(open_store(beside / NAME, settings, digests=digests)) as store:
            _fill(store, job, _read_queues(job, beside, plain, start))
            requests, marks = len(store), store.filter.items
        (beside / NAME).replace(job.path)
        (folder / SCRAPYS_MARKS).unlink(missing_ok=True)  # first: marks alone would suppress pages
        shutil.rmtree(queue)
    except OSError as error:
        raise unusable(folder, error) from error
    except sqlite3.Error as error:
        raise file.unusable(beside / NAME, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    if requests or marks:
        logger.info(
            "%s: took over %s requests and %s fingerprints of Scrapy's own scheduler.",
            job.path,
            f"{requests:,}",
            f"{marks:,}",
        )


def _fill(
    store: Store, job: Job, queues: Iterable[tuple[str, str | None, Iterable[bytes]]]
) -> None:
    for path, slot, bodies in queues:
        for body in bodies:
            store.push(store.queue(path, slot), body)
        store.commit()
    seen = job.folder / SCRAPYS_MARKS
    if job.previous != FILTER and seen.exists():  # else it predates the filter
        with seen.open("rb") as stream:
            for batch in read_seen(iter(lambda: stream.read(_CHUNK), b"")):
                for fingerprint in batch:
                    store.add(fingerprint)
                store.commit()
    for key, value in owner_notes(job.identity, REQUESTS).items():
        store.note(key, value)


def _read_queues(
    job: Job, beside: Path, plain: QueueKind, start: QueueKind | None
) -> Iterator[tuple[str, str | None, list[bytes]]]:
    """Yield what Scrapy would read when resuming: each queue's path, download slot and requests."""
    source = job.folder / SCRAPYS_QUEUE / ACTIVE
    try:
        for slot, name in saved_queues(beside):
            for path, kind in ((name, plain), (f"{name}s", start or plain)):
                source = job.folder / SCRAPYS_QUEUE / path
                yield path, slot, _bodies(beside / SCRAPYS_QUEUE / path, kind)
    except Exception as error:  # truncated files raise anything
        raise StateError(
            f"{source}: found a queue that cannot be read ({type(error).__name__}: {error}),"
            f" expected what Scrapy stores when a crawl stops cleanly. It was left as it is. Start"
            f" with the settings of that crawl, or delete the whole job directory and crawl again."
        ) from error


def _bodies(path: Path, kind: QueueKind) -> list[bytes]:
    """Empty one of Scrapy's queues; return its requests, the oldest first."""
    if not path.exists():
        return []
    queue = getattr(queuelib, kind.files)(path)
    try:
        found = [queue.pop() for _ in range(len(queue))]
    finally:
        queue.close()
    if None in found:
        raise ValueError(f"it ends after {found.index(None):,} of {len(found):,} requests")
    return found[::-1] if kind.newest_first else found


def read_seen(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the fingerprints in chunks of a ``requests.seen``; a truncated last one is skipped.

    Scrapy 2.19 writes each as its length (2 bytes, big-endian) and its bytes; older versions write
    a line of hexadecimal digits. A job that lived through the upgrade has both. A length starts
    with a byte below "0", unless a fingerprint has 12,288 bytes.
    """
    data = b""
    for more in chunks:
        data, start, batch = data + more, 0, []
        while len(data) >= start + _LENGTH:
            if data[start] >= _DIGIT:
                end = data.find(b"\n", start) + 1
                mark = _from_hex(data[start:end])
            else:
                first = start + _LENGTH
                end = first + int.from_bytes(data[start:first], "big")
                mark = data[first:end] if end <= len(data) else b""
            if not mark:
                break
            batch.append(mark)
            start = end
        yield batch
        data = data[start:]


def _from_hex(line: bytes) -> bytes:
    try:
        return bytes.fromhex(line.decode())
    except ValueError:
        return b""
