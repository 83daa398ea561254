"""Writes what ``copy`` reads to a new job directory.

The file is made in a folder of its own, and moved to its place when it is complete. So a killed
copy leaves no job.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final

from scrapy_bloom import file
from scrapy_bloom.commands.copy_from import Source
from scrapy_bloom.commands.local_target import LocalTarget, occupied
from scrapy_bloom.commands.output import progress
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import start_in
from scrapy_bloom.crawl.outcomes import Ended
from scrapy_bloom.errors import StateError
from scrapy_bloom.local.backend import SEEN, STATUSES
from scrapy_bloom.local.job import DIGEST, FILTER, LOCK, REQUESTS, lock_job, owner_notes
from scrapy_bloom.local.later import LATER, note_hold, waiting_body
from scrapy_bloom.local.scrapys import STATE, digest
from scrapy_bloom.local.starts import Start
from scrapy_bloom.local.store import NAME, RUNS, Store

_CHUNK: Final = 1 << 20  # bytes of requests that are committed at once
_BESIDE: Final = "copying"
_COUNT: Final = "SELECT (SELECT count(*) FROM requests) + (SELECT count(*) FROM failed)"


def write_job(source: Source, target: LocalTarget, owner: Project) -> None:
    """Make a job of `scrapy_bloom.Scheduler`, or a filter by itself.

    :param owner: of the new job.
    :raises StateError: if something is there, or it cannot be written. Nothing is changed then.
    """
    path, folder = target.path, target.folder
    beside = folder / _BESIDE
    if path.exists():
        raise occupied(target.name)
    with file.refusing(folder), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(lock_job(folder))
        if left := {each.name for each in folder.iterdir()} - {LOCK, _BESIDE}:
            raise occupied(target.name, min(left))
        shutil.rmtree(beside, ignore_errors=True)  # of a killed copy
        beside.mkdir()
        stack.callback(shutil.rmtree, beside, ignore_errors=True)
        source.filter.save(beside / NAME)
        with closing(Store(beside / NAME)) as store:
            count = _add_requests(store, source)
            keeps = source.keeps_requests or owner.keeps_requests
            identity = replace(source.identity, spider=owner.spider)
            store.meta |= owner_notes(identity, REQUESTS if keeps else FILTER)
            for slot, date in source.holds.items():
                note_hold(store, slot, date)
            _add_account(store, source)
            store.meta |= {DIGEST: digest(folder), STATE: source.state}
        with file.reading(beside / NAME) as database:
            if database.execute(_COUNT).fetchone() != (count,):
                raise StateError(f"{target.name}: requests were lost on the way. Copy again.")
        (beside / NAME).replace(path)


def _add_requests(store: Store, source: Source) -> int:
    """Store the requests, each with its mark; return how many there are."""
    size = count = 0
    for request in progress(source.requests, "requests copied"):
        queue, body = (request.queue, request.slot), request.body
        if request.date:
            queue, body = (LATER, None), waiting_body(request.date, request.priority, body)
        row = store.push(store.queue(*queue), body)
        if request.failed is not None:
            store.fail(row, request.failed)
            if start := start_in(body):
                store.starts[start] = Start(row)
        if request.mark is not None:
            store.filter.add(request.mark)
        count, size = count + 1, size + len(body)
        if size > _CHUNK:
            store.commit()
            size = 0
    return count


def _add_account(store: Store, source: Source) -> None:
    """Note what has become of the pages that have no request any more."""
    store.meta[RUNS] = store.failed.run  # what has failed has failed in an earlier run
    if source.account is not None:
        names = (Ended.DONE.value, Ended.REDIRECTED.value, SEEN)
        store.meta |= {name: getattr(source.account, name) for name in names}
        store.meta[STATUSES] = json.dumps(source.account.statuses)
    for start, ended in source.starts:
        store.starts[start] = Start(ended=ended)
