"""The way back: the requests of a job as Scrapy's own scheduler stores them at a clean stop.

The new queue and the snapshot are put in place first, and the store is removed last. A kill in
between leaves a job that ``scrapy_bloom.Scheduler`` goes on with, and from which this can be done
again.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any, Final

from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.frontier import file, spider_state
from scrapy_bloom.frontier.opening import QUEUES, identity_of, replay, start_priorities
from scrapy_bloom.frontier.requests import QueueKind, payload_of
from scrapy_bloom.frontier.store import NUMBER_BITS, Store
from scrapy_bloom.layers.exact import remove_lists
from scrapy_bloom.storage import scrapy_queue
from scrapy_bloom.storage.files import remove, write_whole
from scrapy_bloom.storage.past import REQUESTS
from scrapy_bloom.storage.store import JobStore

_AT_ONCE: Final = 1_000  # rows


def noted_queues(folder: Path) -> dict[str, str | None]:
    """Return the settings of the queues in the last run of a job; empty if it has noted none.

    :raises BloomError: if the store cannot be read.
    """
    path = folder / REQUESTS
    file.check(path)
    store = Store(path)
    try:
        found: dict[str, str | None] = json.loads(str(store.noted(QUEUES) or "{}"))
    except sqlite3.Error as error:
        raise file.unusable(path, error) from error
    except ValueError as error:
        raise file.damaged(path, f"notes that make no sense, {error!r}") from error
    finally:
        store.abandon()
    return found


def give_back(
    folder: Path, queue_class: type[Any], plain: QueueKind, start: QueueKind | None
) -> int:
    """Turn a job of ``scrapy_bloom.Scheduler`` into one of Scrapy's own; return how many requests.

    :param folder: the job directory. No crawl may use it.
    :param queue_class: Scrapy's priority queue that is to read them.
    :param plain: its queues.
    :param start: its queues of start requests; None if those are among the others.
    :raises BloomError: if the job cannot be used, or not with these queues. It is as it was.
    """
    path = folder / REQUESTS
    file.check(path)
    store = Store(path)  # its lock comes with the job's; until then it is only read
    try:
        try:
            job = JobStore(folder, identity_of(store), journaled=True)
        except (TypeError, ValueError) as error:
            raise file.damaged(path, f"notes that make no sense, {error!r}") from error
        try:
            count = _give_back(job, store, start_priorities(store, queue_class), plain, start)
        finally:
            job.close()
    except sqlite3.Error as error:
        raise file.unusable(path, error) from error
    except OSError as error:
        raise StateError(
            f"{error.filename or folder}: {error.strerror}. The job was left as it was."
        ) from error
    finally:
        store.abandon()
    for end in ("", "-wal", "-shm"):
        remove(path.with_name(path.name + end))
    remove_lists(path.parent)
    return count


def _give_back(
    job: JobStore, store: Store, state: Any, plain: QueueKind, start: QueueKind | None
) -> int:
    queue = job.folder / scrapy_queue.NAME
    beside = scrapy_queue.unfinished(job.folder)
    beside.mkdir()  # the job has removed what a killed process left there
    try:
        count = sum(_write(store, path, beside, plain, start) for path in store.paths())
        write_whole(beside / scrapy_queue.SAVED, [json.dumps(state).encode()])
        replay(store, job.filter, told=True)
        spider_state.restore(store, job.folder, killed=True)
        snapshot = job.freeze(store.withheld)
        snapshot.write()
        snapshot.put_in_place()
        shutil.rmtree(queue, ignore_errors=True)
        beside.rename(queue)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)  # it takes room, perhaps the last
        raise
    return count


def _write(store: Store, path: str, folder: Path, plain: QueueKind, start: QueueKind | None) -> int:
    """Write the requests of one bucket as one of Scrapy's queues; return how many."""
    kind = start if path.endswith("s") else plain
    number = store.find(path)
    if kind is None or number is None:
        raise SettingError(
            f"{store.path}: found start requests in queues of their own, which"
            f" SCHEDULER_START_DISK_QUEUE = None would not read. Give it the value of the last run."
        )
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    queue = kind.files(folder / path)
    count, low, end = 0, number << NUMBER_BITS, (number + 1) << NUMBER_BITS
    while rows := store.read(low, end, _AT_ONCE, newest_first=False):
        for row, body in rows:
            try:
                queue.push(payload_of(body, kind))
            except SettingError:
                raise
            except ValueError as error:
                raise file.DamageError(f"request {row}: {error}") from error
            low = row
        count += len(rows)
    queue.close()
    if count != store.waiting(number):
        raise file.DamageError(
            f"queue {path!r} has {count:,} requests of {store.waiting(number):,}"
        )
    return count
