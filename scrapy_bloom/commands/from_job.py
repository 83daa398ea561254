"""Copies the filter of a job directory to Redis, with its requests and its forgotten pages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import ceil
from typing import Any, Final

from scrapy_bloom import file
from scrapy_bloom.commands.local_target import LocalTarget, bodies, identity_in
from scrapy_bloom.commands.output import progress
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.redis_target import RedisTarget, occupied
from scrapy_bloom.commands.requests import for_redis, slot_in
from scrapy_bloom.crawl.reading import Reading, Refused
from scrapy_bloom.errors import BackendError, StateError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.hashing import make_hash, make_probe
from scrapy_bloom.filter.slices import Slice
from scrapy_bloom.local.job import KIND, REQUESTS, Identity, lock_job
from scrapy_bloom.local.later import stored_holds
from scrapy_bloom.local.store import Store
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.header import State
from scrapy_bloom.redis.key import MOST_BYTES, Call, SharedKey, delete
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.plan import BATCH, KEY_BLOCKS, Plan, SliceRow, geometry
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.worker import Worker

_ENDING: Final = b"\x80"  # the bit behind a key's blocks, which gives it its full size
_HOURS: Final = 6 * 3600
"""Seconds after which the keys of an interrupted copy expire."""

_FINISH: Final = """
for i = 1, #KEYS do redis.call('PERSIST', KEYS[i]) end
redis.call('HSET', KEYS[1], 'plan', ARGV[1])
return 1
"""


def copy_job(source: LocalTarget, target: RedisTarget, project: Project) -> None:
    """Put the filter of a job into Redis, with requests and holds, which come first.

    Until everything is copied, its plan says that it has no requests, so no crawl can start with a
    part of them. If copying fails, everything is deleted; after a kill it expires.

    :param project: of the spider whose it is from now on; of the job's spider if it names none.
    """
    with (
        source.copying() as store,
        lock_job(source.path.parent),  # while a crawl goes on, pages would be fetched twice
        target.connected() as worker,
    ):
        filter_, identity = store.filter, identity_in(store)
        plan = _plan_of(filter_, identity)
        owner_project = Project(project.given, project.spider or identity.spider)
        owned = store.meta.get(KIND) == REQUESTS or owner_project.keeps_requests
        owner = owner_project.owner if owned else {"spider": owner_project.spider}
        target.check_free(worker)
        shared = SharedKey(worker, target.key, plan)
        if not shared.made:
            raise occupied(target.name)
        client, prefix = worker.client, beginning(target.key)
        keys = [target.key, *(f"{prefix}{name}" for name in ("queue", "later", "turns", "holds"))]
        since = time.monotonic() - time.time()
        held = {slot.encode(): date + since for slot, date in stored_holds(store).items()}
        try:
            client.hset(target.key, "order", owner.get("order", "").partition(" ")[0])
            client.expire(target.key, _HOURS)
            copied = 0
            for batch in batches(_entries_of(store, since, owner_project.reading)):
                shared.call(Call(batch, holds=held))
                copied += len(batch)
                for key in keys[1:]:
                    client.expire(key, _HOURS)
            keys += _copy_slices(filter_, client, target.key, f"{prefix}{shared.epoch}.")
            shared.leave()
            arrived(worker, target, copied)
            client.eval(_FINISH, len(keys), *keys, replace(plan, **owner).write(filter_.secret))
        except BaseException:
            client.close()  # an interrupted call may still be answered on its connection
            with suppress(BackendError):  # the keys expire
                delete(worker, target.key, {shared.name}, note=False)
            raise


def _entries_of(store: Store, since: float, reading: Reading) -> Iterator[Entry]:
    """Yield all requests, the oldest first.

    :raises StateError: if one does not match its checksum, or could not be read again: its page
        would be lost.
    """
    for priority, body, date in bodies(store, newest_first=False):
        if body is None:
            raise file.damaged(store.path, "a request does not match its checksum")
        try:
            body = for_redis(body, reading)  # noqa: PLW2901
        except Refused as error:
            raise StateError(
                f"{store.path}: found a request that cannot be in Redis: {error}. Nothing was"
                f" copied."
            ) from None
        yield Entry("p", None, body, priority, slot=slot_in(body), due=date and date + since)


def _plan_of(filter_: LocalFilter, identity: Identity) -> Plan:
    return Plan(
        filter_.capacity,
        filter_.error_rate,
        filter_.digests,
        identity.fingerprinter,
        json.dumps(identity.made_by, sort_keys=True),
        window=filter_.window or 0.0,
    )


def arrived(worker: Worker, target: RedisTarget, count: int) -> State:
    """Return the state of a copy, if all its requests are in Redis.

    :raises StateError: if the server has lost some: their pages would not be fetched.
    """
    state = Reader(worker, target.key).existing()
    if state.counts.waiting != count:
        raise StateError(f"{target.name}: the server has lost requests. Copy again.")
    return state


def batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield requests in batches, each as large as one call may be."""
    batch: list[Entry] = []
    size = 0
    for entry in progress(entries, "requests copied"):
        size += len(entry.body)
        if batch and (size > MOST_BYTES or len(batch) == BATCH):
            yield batch
            batch, size = [], len(entry.body)
        batch.append(entry)
    if batch:
        yield batch


def _copy_slices(filter_: LocalFilter, client: Any, header: str, prefix: str) -> list[str]:
    """Write bits and forgotten pages, and then list the slices; return the names of the keys."""
    rows, names = [], []
    hash_ = make_hash(filter_.secret, digests=filter_.digests)
    probe = make_probe(filter_.secret, digests=filter_.digests)
    for slice_ in filter_.slices:
        forgotten = (hash_(mark) for mark in filter_.again if slice_.has(probe(mark)))
        row = _row_of(slice_, newest=slice_ is filter_.slices[-1])
        start, count = f"{prefix}{row.number}.", 0
        for number, data in _strings(slice_, row.keys):
            names.append(f"{start}{number}")
            client.set(names[-1], data, ex=_HOURS)
        while batch := [*islice(forgotten, BATCH)]:
            count += client.sadd(f"{start}again", *batch)
            client.expire(f"{start}again", _HOURS)
        if count:
            names.append(f"{start}again")
        rows.append(f"{geometry(row)}:{row.number}:{row.since:.6f}:{row.items}:{count}")
    client.hset(header, "slices", " ".join(rows))
    return names


def _strings(slice_: Slice, keys: int) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of each key that has bits."""
    for number in range(keys):
        blocks = slice_.blocks[number * KEY_BLOCKS : (number + 1) * KEY_BLOCKS]
        if any(block.any() for block in blocks):
            yield number, b"".join(block.tobytes() for block in blocks) + _ENDING


def _row_of(slice_: Slice, *, newest: bool) -> SliceRow:
    """Return how the header lists a slice; the newest one may get a whole batch too many."""
    spec = slice_.spec
    capacity = max(1, slice_.items, spec.capacity - BATCH) if newest else spec.capacity
    sizes = capacity, spec.error_rate, spec.blocks, ceil(spec.blocks / KEY_BLOCKS)
    return SliceRow(*sizes, slice_.id - 1, slice_.since, slice_.items)
