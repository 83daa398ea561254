"""Takes over a cleanly stopped job of Scrapy's own scheduler: its queue and its fingerprints.

The new file is built in a temporary folder and replaces the job's once it is complete; until then a
kill changes nothing.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_bloom import file
from scrapy_bloom.errors import StateError
from scrapy_bloom.local.job import (
    FILTER,
    KIND,
    REQUESTS,
    Job,
    file_in,
    open_store,
    owner_notes,
    read_meta,
)
from scrapy_bloom.local.scrapys import (
    ACTIVE,
    SCRAPYS_MARKS,
    SCRAPYS_QUEUE,
    STATE,
    read_queue,
    read_seen,
    saved_queues,
    waits_with_scrapy,
    why_unclean,
)
from scrapy_bloom.local.store import NAME, Store

if TYPE_CHECKING:
    from scrapy_bloom.crawl.serialize import QueueKind
    from scrapy_bloom.settings import Settings

logger = logging.getLogger(__name__)

_CHUNK: Final = 1 << 20  # bytes of requests that are written at once
_MARKS: Final = 50_000  # marks that are written at once


def is_for_scrapy(folder: Path) -> bool:
    """Return whether Scrapy's own scheduler began a job and can resume it.

    It cannot after a kill: it will not read the files with the queued requests. A job that cannot
    be read does not count; opening it reports what is wrong.
    """
    try:
        kind = read_meta(file_in(folder))[0].get(KIND)
        theirs = kind == FILTER or (kind is None and not why_unclean(folder))
        return theirs and waits_with_scrapy(folder)
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
    if not _is_stopped(job) or not (queue / ACTIVE).exists():
        return
    beside = job.path.parent / "taking-over"
    shutil.rmtree(beside, ignore_errors=True)
    with file.refusing(folder), ExitStack() as stack:
        beside.mkdir()
        stack.callback(shutil.rmtree, beside, ignore_errors=True)
        if job.previous == FILTER:
            _copy_filter(job.path, settings, beside / NAME, digests=digests)
        with closing(open_store(beside / NAME, settings, digests=digests)) as store:
            if job.previous != FILTER:  # else they predate the filter
                _add_marks(store, folder / SCRAPYS_MARKS)
            _add_requests(store, _read_requests(folder, plain, start))
            store.meta.update(owner_notes(job.identity, REQUESTS))
            requests, marks = len(store), store.filter.items
        (beside / NAME).replace(job.path)
        (folder / SCRAPYS_MARKS).unlink(missing_ok=True)  # first: marks alone would suppress pages
        shutil.rmtree(queue)
    if requests or marks:
        logger.info(
            "%s: took over %s requests and %s fingerprints of Scrapy's own scheduler.",
            job.path,
            f"{requests:,}",
            f"{marks:,}",
        )


def _copy_filter(path: Path, settings: Settings, target: Path, *, digests: bool) -> None:
    """Save the filter of a job's file in another one.

    :raises StateError: if the file has a log, which would be applied to what replaces it.
    """
    with closing(file.connect(path, "rw")) as last:  # which removes a log
        file.read_counters(last)
    file.check_no_log(path)
    with closing(open_store(path, settings, digests=digests, read_only=True)) as before:
        before.filter.save(target)


def _is_stopped(job: Job) -> bool:
    """Return whether the last run was stopped cleanly, as far as files show; if not, log that."""
    why = "" if job.previous else why_unclean(job.folder)
    if why:
        logger.warning(
            "%s: the job of Scrapy's own scheduler cannot be taken over: its last run was killed"
            " or is still running (%s). It was left as it is. The crawl starts over. If it was"
            " stopped cleanly, and copied in another order, update the time of %s.",
            job.folder,
            why,
            job.folder / STATE,
        )
    return not why


def _add_requests(store: Store, requests: Iterable[tuple[str, str | None, bytes]]) -> None:
    size = 0
    for path, slot, body in requests:
        store.push(store.queue(path, slot), body)
        size += len(body)
        if size > _CHUNK:
            store.commit()
            size = 0


def _add_marks(store: Store, path: Path) -> None:
    if path.exists():
        with path.open("rb") as stream:
            for number, fingerprint in enumerate(read_seen(stream), 1):
                store.filter.add(fingerprint)
                if number % _MARKS == 0:
                    store.commit()


def _read_requests(
    folder: Path, plain: QueueKind, start: QueueKind | None
) -> Iterator[tuple[str, str | None, bytes]]:
    """Yield what Scrapy would read when resuming: queue, download slot and bytes of each request.

    The oldest of each queue comes first.
    """
    path = folder / SCRAPYS_QUEUE / ACTIVE
    try:
        for slot, name in saved_queues(folder):
            for queue, kind in ((name, plain), (f"{name}s", start or plain)):
                path = folder / SCRAPYS_QUEUE / queue
                for body in read_queue(path, kind):
                    yield queue, slot, body
    except Exception as error:  # truncated files raise anything
        raise StateError(
            f"{path}: found a queue that cannot be read ({type(error).__name__}: {error}), expected"
            f" what Scrapy stores when a crawl stops cleanly. It was left as it is. Start with the"
            f" settings of that crawl, or delete the whole job directory and crawl again."
        ) from error
