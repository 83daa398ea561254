"""Copies the filter of a job directory to Redis, with its requests.

The list of forgotten pages cannot be copied: a file keeps fingerprints, Redis keeps probes. So one
bit of each forgotten page is cleared in the copy. The few other pages that share that bit are
fetched again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Final

from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.output import progress
from scrapy_bloom.commands.places import occupied
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.redis_target import RedisTarget
from scrapy_bloom.commands.requests import slot_in
from scrapy_bloom.errors import BackendError, StateError
from scrapy_bloom.filter.hashing import make_probe
from scrapy_bloom.filter.slices import Slice
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.key import MOST_BYTES, Call, SharedKey
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.plan import BATCH, KEY_BLOCKS, Plan, SliceRow, geometry
from scrapy_bloom.redis.reader import Reader, State
from scrapy_bloom.redis.worker import Worker

_ENDING: Final = b"\x80"  # the bit behind a key's blocks, which gives it its full size
_HOURS: Final = 6 * 3600
"""Seconds after which the keys of a copy vanish that was killed."""

_FINISH: Final = """
for i = 1, #KEYS do redis.call('PERSIST', KEYS[i]) end
redis.call('HSET', KEYS[1], 'plan', ARGV[1])
return 1
"""


def copy_job(source: LocalTarget, target: RedisTarget, project: Project) -> None:
    """Put the filter of a job into Redis, with the requests beside it, which come first.

    Until all is there its plan says that it has no requests, so that no crawl begins with a part.
    If it fails everything is removed; after a kill it vanishes by itself.

    :param project: of the spider whose it is from now on; of the job's spider if it names none.
    """
    with source.reading() as (identity, state, requests), target.link() as link:
        probe = make_probe(state.secret, digests=state.digests)
        slices = state.slices
        for positions in map(probe, state.again):
            for slice_ in slices:
                if slice_.has(positions):
                    _leave_out(slice_, positions)
        listed = [_listed(one, newest=one is slices[-1]) for one in slices]
        plan = Plan(
            state.capacity,
            state.error_rate,
            state.digests,
            identity.fingerprinter,
            json.dumps(identity.made_by, sort_keys=True),
            window=state.window or 0.0,
        )
        theirs = Project(project.given, project.spider or identity.spider)
        owned = requests is not None or theirs.keeps_requests
        owner = theirs.owner if owned else {"spider": theirs.spider}
        target.check_free(link)
        shared = SharedKey(link, target.key, plan)
        if not shared.made:
            raise occupied(target.name)
        client, start = link.client, beginning(target.key)
        keys = [target.key, f"{start}queue", f"{start}turns"]
        try:
            client.hset(target.key, "order", owner.get("order", "").partition(" ")[0])
            client.expire(target.key, _HOURS)
            entries = (
                Entry("p", None, body, priority, slot=slot_in(body))
                for priority, body in requests or ()
            )
            copied = 0
            for some in batches(entries):
                shared.call(Call(some))
                copied += len(some)
                for key in keys[1:]:
                    client.expire(key, _HOURS)
            rows = (
                f"{geometry(one)}:{one.number}:{one.since:.6f}:{one.items}:{one.again}"
                for one in listed
            )
            client.hset(target.key, "slices", " ".join(rows))
            for name, data in _strings(f"{start}{shared.epoch}.", slices, listed):
                keys.append(name)
                client.set(name, data, ex=_HOURS)
            shared.leave()
            arrived(link, target, copied)
            client.eval(_FINISH, len(keys), *keys, replace(plan, **owner).write(state.secret))
        except BaseException:
            client.close()  # an interrupted call may still be answered on its connection
            with suppress(BackendError):  # the keys expire
                shared.delete()
            raise


def arrived(link: Worker, target: RedisTarget, count: int) -> State:
    """Return the state of a copy, if all its requests are there.

    :raises StateError: if the server has lost some: their pages would not be fetched.
    """
    state = Reader(link, target.key).existing()
    if state.waiting != count:
        raise StateError(f"{target.name}: the server has lost requests. Copy again.")
    return state


def batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield requests, as many at a time as go with one call."""
    some: list[Entry] = []
    size = 0
    for entry in progress(entries, "requests copied"):
        size += len(entry.body)
        if some and (size > MOST_BYTES or len(some) == BATCH):
            yield some
            some, size = [], len(entry.body)
        some.append(entry)
    if some:
        yield some


def _strings(
    start: str, slices: Sequence[Slice], listed: Sequence[SliceRow]
) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the values of the keys that have the bits."""
    for slice_, one in zip(slices, listed, strict=True):
        for number in range(one.keys):
            blocks = slice_.blocks[number * KEY_BLOCKS : (number + 1) * KEY_BLOCKS]
            if any(block.any() for block in blocks):
                data = b"".join(block.tobytes() for block in blocks)
                yield f"{start}{one.number}.{number}", data + _ENDING


def _leave_out(slice_: Slice, probe: list[int]) -> None:
    *positions, h = probe
    slice_.writable(h * len(slice_.blocks) >> 32)[positions[0]] = 0


def _listed(slice_: Slice, *, newest: bool) -> SliceRow:
    """Return how the header lists a slice; the newest one may get a whole batch too many."""
    spec = slice_.spec
    capacity = max(1, slice_.items, spec.capacity - BATCH) if newest else spec.capacity
    sizes = capacity, spec.error_rate, spec.blocks, ceil(spec.blocks / KEY_BLOCKS)
    return SliceRow(*sizes, slice_.id - 1, slice_.since, slice_.items)
