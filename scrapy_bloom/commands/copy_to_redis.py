"""Writes what ``copy`` reads to a key in Redis: requests first, then marks.

A mark without its request would suppress a page; a request without its mark is only fetched twice.
Until everything is copied, the plan says that there are no requests, so no crawl can start with a
part of them. If copying fails, everything is deleted; what a killed copy has left, the next one or
``delete`` does.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import ceil
from typing import Any, Final

from scrapy_bloom.commands.copy_from import Source
from scrapy_bloom.commands.local_target import occupied
from scrapy_bloom.commands.output import progress
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.redis_target import COPYING, RedisTarget
from scrapy_bloom.commands.requests import StoredRequest, decoded, for_redis, start_in
from scrapy_bloom.crawl.reading import Reading, Refused
from scrapy_bloom.errors import BackendError, StateError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.hashing import make_hash, make_probe
from scrapy_bloom.filter.slices import Slice
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import Entry, Taken
from scrapy_bloom.redis.plan import BATCH, KEY_BLOCKS, Plan, SliceRow, geometry
from scrapy_bloom.redis.reader import Listed, Reader
from scrapy_bloom.redis.wire import Call, as_counted, in_calls
from scrapy_bloom.redis.worker import Worker, delete

_ENDING: Final = b"\x80"  # the bit behind a key's blocks, which gives it its full size


def write_crawl(source: Source, target: RedisTarget, owner: Project) -> None:
    """Put requests, holds and marks under a key.

    :param owner: whose it is from now on.
    :raises StateError: if something is there, but for the filter of a crawl of scrapy-redis whose
        queue is copied: that is joined. Or if the server loses something.
    """
    with target.connected() as link:
        shared, joins = _opened(source, target, link)
        client, prefix = link.client, beginning(target.key)
        owned = source.keeps_requests or owner.keeps_requests
        notes = owner.owner if owned else {"spider": owner.spider}
        order = notes.get("order", "").partition(" ")[0]
        try:
            began = {"order": order, "waiting": 0, COPYING: "" if joins else 1}
            client.hset(target.key, mapping=began)
            if joins:  # a killed copy may have left requests
                client.unlink(f"{prefix}queue", f"{prefix}turns")
            source.requests = _for_redis(source.requests, owner.reading)
            count = _add_requests(shared, source, client, prefix, joins=joins)
            if not joins:
                _add_account(source, client, target.key, prefix)
                start = f"{prefix}{shared.epoch}."
                _copy_slices(source.filter, client, target.key, start)
            shared.leave()
            state = Reader(link, target.key).existing()
            if state.counts.waiting + state.counts.failed != count:
                raise StateError(f"{target.name}: the server has lost requests. Copy again.")
            secret = state.secret if joins else source.filter.secret
            written = replace(state.plan, **notes).write(secret)
            client.hset(target.key, mapping={"plan": written, COPYING: ""})
        except BaseException:
            client.close()  # an interrupted call may still be answered on its connection
            with suppress(BackendError):  # the lease is over soon
                if joins:
                    shared.leave()
                else:
                    delete(link, target.key, {shared.name}, note=False)
            raise


def _opened(source: Source, target: RedisTarget, link: Link) -> tuple[Worker, bool]:
    """Open the key; return whether its filter was there. Raises what :func:`write_crawl` does."""
    found = _joined(target, link) if source.joins else None
    if found is None:
        target.check_free(link)
    shared = Worker(link, target.key, found or _plan_of(source))
    if shared.made is (found is not None):
        raise occupied(target.name)
    return shared, found is not None


def _joined(target: RedisTarget, link: Link) -> Plan | None:
    """Return the plan of a filter that was used beside scrapy-redis's scheduler, if there is one.

    :raises StateError: if a crawl uses what is there, or requests wait.
    """
    state = Reader(link, target.key).state()
    if state is None or link.client.hget(target.key, COPYING):
        return None
    if state.alive:
        raise StateError(
            f"{target.name}: worker {state.alive[0]} uses it, or was killed less than half a"
            f" minute ago. Stop it, and copy again. Nothing was changed."
        )
    if state.plan.order:
        count = state.counts.waiting + state.counts.taken
        raise occupied(target.name, f"a crawl of scrapy_bloom.Scheduler with {count:,} requests")
    return state.plan


def _plan_of(source: Source) -> Plan:
    filter_, identity = source.filter, source.identity
    return Plan(
        filter_.capacity,
        filter_.error_rate,
        filter_.digests,
        identity.fingerprinter,
        json.dumps(identity.made_by, sort_keys=True),
        window=filter_.window or 0.0,
        writer=json.dumps(identity.writer, sort_keys=True),
    )


def _add_requests(shared: Worker, source: Source, client: Any, prefix: str, *, joins: bool) -> int:
    """Queue the requests, then mark their pages; return how many requests there are.

    :param prefix: of the keys that they are in.
    :param joins: whether the marks go to the filter that is there, else to that of the source.
    """
    since, count, kinds = time.monotonic() - time.time(), 0, Counter[bytes]()
    holds = {slot.encode(): date + since for slot, date in source.holds.items()}
    requests = progress(source.requests, "requests copied")
    for batch in in_calls(requests, lambda each: len(each.body)):
        waiting = [_entry(each, since) for each in batch if each.failed is None]
        shared.call(Call(waiting, holds=holds))
        _add_failed(client, prefix, batch, count, kinds)
        count += len(batch)
        marks = [each.mark for each in batch if each.mark is not None]
        if joins:
            shared.call(Call([Entry("m", mark) for mark in marks]))
        else:
            source.filter.add_many(marks)
    return count


def _add_failed(
    client: Any, prefix: str, batch: Iterable[StoredRequest], count: int, kinds: Counter[bytes]
) -> None:
    """Put the requests of a batch on the failed list that are on one.

    :param count: of the requests before them.
    :param kinds: why these have failed; those of the batch are added.
    """
    rows = {}
    for number, each in enumerate(batch, count):
        if each.failed is not None:
            id_ = number.to_bytes(8, "big")  # others are larger
            key, kind = start_in(each.body) or id_, each.failed.kind.encode()
            request = Taken(id_, _slot_of(each), each.priority, 0, None, each.body)
            rows[key] = Listed(key, each.failed, request).write(kind)
            kinds[kind] += 1
    if rows:
        client.hset(f"{prefix}failed", mapping=rows)
        client.hset(f"{prefix}reasons", mapping=kinds)


def _add_account(source: Source, client: Any, header: str, prefix: str) -> None:
    """Note what has become of the pages that have no request any more."""
    if source.account is not None:
        names = ("done", "redirected", "seen")
        client.hset(header, mapping={name: getattr(source.account, name) for name in names})
        if source.account.statuses:
            client.hset(f"{prefix}statuses", mapping={**source.account.statuses})
        starts = iter(source.starts)
        while batch := dict(islice(starts, BATCH)):
            counted = {id_: as_counted(ended) for id_, ended in batch.items()}
            client.hset(f"{prefix}starts", mapping=counted)


def _for_redis(requests: Iterable[StoredRequest], reading: Reading) -> Iterator[StoredRequest]:
    """Yield requests as Redis has them.

    :raises StateError: if one could not be read there: its page would be lost.
    """
    for request in requests:
        try:
            yield request._replace(body=for_redis(request.body, reading))
        except Refused as error:  # a request takes longer than that
            raise StateError(
                f"found a request that cannot be in Redis: {error}. Nothing was copied."
            ) from None


def _entry(request: StoredRequest, since: float) -> Entry:
    body, date, slot = request.body, request.date, _slot_of(request)
    return Entry("p", None, body, request.priority, slot=slot, due=date and date + since)


def _slot_of(request: StoredRequest) -> bytes:
    return (decoded(request.body).slot if request.slot is None else request.slot).encode()


def _copy_slices(filter_: LocalFilter, client: Any, header: str, prefix: str) -> None:
    """List the slices, then write bits and forgotten pages: a deletion frees what is listed."""
    newest = filter_.slices[-1]
    rows = [_row_of(each, newest=each is newest) for each in filter_.slices]
    # Keys without bits are not here: the first worker makes them.
    coming = f"{geometry(rows[-1])}:{rows[-1].number}:0"
    client.hset(header, mapping={"slices": _listed(rows), "coming": coming})
    hash_ = make_hash(filter_.secret, digests=filter_.digests)
    probe = make_probe(filter_.secret, digests=filter_.digests)
    for index, (slice_, row) in enumerate(zip(filter_.slices, rows, strict=True)):
        start, count = f"{prefix}{row.number}.", 0
        for number, data in _strings(slice_, row.keys):
            client.set(f"{start}{number}", data)
        forgotten = (hash_(mark) for mark in filter_.again if slice_.has(probe(mark)))
        while batch := [*islice(forgotten, BATCH)]:
            count += client.sadd(f"{start}again", *batch)
        rows[index] = row._replace(again=count)
    client.hset(header, "slices", _listed(rows))


def _listed(rows: Iterable[SliceRow]) -> str:
    return " ".join(
        f"{geometry(row)}:{row.number}:{row.since:.6f}:{row.items}:{row.again}" for row in rows
    )


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
