"""Takes over the requests of Scrapy's own disk queue, in the first run in a job directory.

Scrapy's files are copied one queue at a time and read from the copy, because reading them empties
them. They are removed when the new file is in place; until then a kill changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scrapy_bloom.errors import StateError
from scrapy_bloom.frontier.buckets import Fifo
from scrapy_bloom.frontier.requests import QueueKind, frame
from scrapy_bloom.frontier.store import Store
from scrapy_bloom.storage import scrapy_queue

_AT_ONCE: Final = 10_000  # requests in one commit


@dataclass(frozen=True)
class QueueFile:
    """One of Scrapy's queues on the disk.

    Attributes:
        path: the key of its bucket: priority, after its download slot perhaps.
        slot: its download slot; None if the queues are not sorted by slot.
        kind: what wrote it.
    """

    path: str
    slot: str | None
    kind: QueueKind


def take_over(folder: Path, into: Path, plain: QueueKind, start: QueueKind | None) -> int:
    """Copy the requests of Scrapy's queue into a store that is empty; return how many.

    :param folder: the job directory.
    :param into: path of the store's file.
    :param plain: what wrote the requests.
    :param start: what wrote start requests; None if they are among the others.
    :raises StateError: if a queue cannot be read. Scrapy's files are as they were.
    """
    root = folder / scrapy_queue.NAME
    store = Store(into)
    try:
        count = 0
        for queue in _queues(folder, plain, start):
            count += _copy(root / queue.path, root.with_name(f"{root.name}.copy"), queue, store)
        store.commit()
    finally:
        store.close()
    return count


def remove_queue(folder: Path) -> None:
    """Remove Scrapy's queue once its requests are in the store."""
    shutil.rmtree(folder / scrapy_queue.NAME, ignore_errors=True)


def _queues(folder: Path, plain: QueueKind, start: QueueKind | None) -> Iterator[QueueFile]:
    """List the queues that Scrapy would read again."""
    try:
        for slot, path in scrapy_queue.saved(folder):
            yield QueueFile(path, slot, plain)
            if start:
                yield QueueFile(f"{path}s", slot, start)
    except (TypeError, ValueError) as error:
        raise _unreadable(folder / scrapy_queue.NAME / scrapy_queue.SAVED, error) from error


def _copy(path: Path, copy: Path, queue: QueueFile, store: Store) -> int:
    if not path.exists():
        return 0
    _remove(copy)
    if path.is_dir():
        shutil.copytree(path, copy)
    else:
        shutil.copyfile(path, copy)
    try:
        source = queue.kind.files(copy)
        try:
            return _move(source, queue, store)
        finally:
            with suppress(Exception):  # it is only a copy, and what was wrong has been raised
                source.close()
    except Exception as error:  # whatever its class raises at a file that was cut off
        raise _unreadable(path, error) from error
    finally:
        _remove(copy)


def _move(source: Any, queue: QueueFile, store: Store) -> int:
    """Move all requests of one of Scrapy's queues into a bucket, in order."""
    total = len(source)
    if not total:
        return 0
    number = store.make(queue.path, queue.slot)
    first = store.reserve(number, total)
    fifo = queue.kind.order is Fifo
    for place in range(total):
        payload = source.pop()
        if payload is None:
            raise ValueError(f"it ends after {place:,} of {total:,} requests")
        store.put(first + (place if fifo else total - 1 - place), frame(payload))
        if store.gathered >= _AT_ONCE:
            store.commit()
    return total


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
