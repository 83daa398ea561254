"""Bits between a file and Redis, and keys between two places in Redis.

A list of forgotten pages cannot go from one kind of place to the other: here it has fingerprints,
in Redis probes. So one bit of each forgotten page is left out of the copy. A few other pages had
this bit, too, and are fetched again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from math import ceil
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from bitarray import bitarray

from scrapy_bloom.commands.target import Contents, Owner
from scrapy_bloom.errors import BackendError, SettingError
from scrapy_bloom.filter.growth import SliceSpec
from scrapy_bloom.filter.hashing import make_probe
from scrapy_bloom.filter.sizing import BLOCK_BYTES, MAX_HASHES, blocks_for
from scrapy_bloom.filter.state import FilterState, Slice
from scrapy_bloom.local.job import Identity
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.plan import BATCH, KEY_BLOCKS, Plan, geometry
from scrapy_bloom.redis.plan import Slice as Listed
from scrapy_bloom.redis.reader import State
from scrapy_bloom.redis.shard import FORMAT, PROGRAM

if TYPE_CHECKING:
    from scrapy_bloom.commands.output import Output
    from scrapy_bloom.redis.worker import Worker as Link

_PROBE: Final = Struct(f">{MAX_HASHES}HI")
_ENDING: Final = b"\x80"  # the bit behind a key's blocks, which gives it its full size
_HOURS: Final = 6 * 3600
"""Seconds after which the keys of a copy vanish that was killed."""

_AT_ONCE: Final = 100

_INSTALL: Final = """
if redis.call('HEXISTS', KEYS[1], 'epoch') == 1 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV))
redis.call('PERSIST', KEYS[1])
return 1
"""


def read_bits(name: str, link: Link, states: Sequence[State], output: Output) -> Contents:
    """Return a filter of bits that is in Redis, also while workers add to it."""
    plan = states[0].plan
    if plan.layout != "bitmap":
        raise SettingError(
            f"{name}: this filter has the layout 'sets': it keeps a number for each page,"
            f" from which the fingerprint cannot be recovered to set its bits elsewhere. It can be"
            f" copied to Redis. To fill a filter of bits, add the URLs."
        )
    if len(states) > 1:
        raise SettingError(
            f"{name}: a filter of {len(states)} shards cannot be kept in a file: each shard"
            f" hashes with a secret of its own. Copy it to Redis."
        )
    (state,) = states
    kept = FilterState(state.secret, MAX_HASHES, plan.digests, plan.window or None)
    size = sum(one.blocks for one in state.slices) * BLOCK_BYTES
    with output.progress(f"reading {name}", size, "bytes") as told:
        for one in state.slices:
            kept.next_id = one.number + 1
            slice_ = kept.new_slice(one.since if plan.window else 0.0, one.spec)
            slice_.items = one.items
            start = f"{beginning(state.key)}{state.epoch}.{one.number}."
            for number in range(one.keys):
                data = link.client.get(f"{start}{number}") or b""
                for at in range(0, len(data) - 1, BLOCK_BYTES):
                    _set_block(slice_, number * KEY_BLOCKS + at // BLOCK_BYTES, data, at)
                told(len(data))
            for probe in link.client.smembers(f"{start}again"):
                _leave_out(slice_, [*_PROBE.unpack(probe)])
    identity = Identity(plan.spider, plan.fingerprinter, json.loads(plan.canonical))
    return Contents(identity, plan.capacity, plan.error_rate, kept, requests_stay(name, states))


def write_bits(
    name: str, key: str, link: Link, contents: Contents, owner: Owner, output: Output
) -> None:
    """Put a filter into Redis that was in a file."""
    state = contents.state
    if state.hashes != MAX_HASHES:
        raise SettingError(
            f"a filter with an error rate of {contents.error_rate:g} sets {state.hashes} bits for"
            f" each page here, and {MAX_HASHES} in Redis: its bits cannot be copied. Add the URLs"
            f" to a filter there instead."
        )
    probe = make_probe(state.secret, state.hashes, digests=state.digests)
    slices = [one.copy() for one in state.slices]
    for positions in map(probe, state.again):
        for slice_ in slices:
            if slice_.has(positions):
                _leave_out(slice_, positions)
    identity = contents.identity
    plan = Plan(
        contents.capacity,
        contents.error_rate,
        state.digests,
        identity.fingerprinter,
        json.dumps(identity.made_by, sort_keys=True),
        window=state.window or 0.0,
        project=owner.project,
        spider=owner.spider or identity.spider,
        order=owner.order,
    )
    listed = [_listed(one, newest=one is slices[-1]) for one in slices]
    fields = {"slices": listed, "plan": plan.write(state.secret), "window": repr(plan.window)}
    fields |= {"first": geometry(plan.next([])), "order": plan.order.partition(" ")[0]}
    size = sum(len(one.touched()) for one in slices) * BLOCK_BYTES
    with (
        output.progress(f"writing {name}", size, "bytes") as told,
        _installing(link, key, fields) as (start, keys),
    ):
        for slice_, one in zip(slices, listed, strict=True):
            for number in range(one.keys):
                blocks = slice_.blocks[number * KEY_BLOCKS : (number + 1) * KEY_BLOCKS]
                if any(block.any() for block in blocks):
                    keys.append(f"{start}{one.number}.{number}")
                    data = b"".join(block.tobytes() for block in blocks)
                    link.client.set(keys[-1], data + _ENDING, ex=_HOURS)
                    told(len(data))


def requests_stay(name: str, states: Sequence[State]) -> list[str]:
    """Return what to say of a filter beside which requests wait."""
    waiting = sum(state.waiting + state.taken for state in states)
    text = (
        f"{name}: {waiting:,} requests wait there. Its filter calls their pages seen, but the"
        f" requests are not copied: a crawl with the copy alone would not fetch them."
    )
    return [text] if waiting else []


def copy_shard(here: Link, there: Link, state: State, key: str, spider: str, told: Any) -> None:
    """Copy a shard of any layout from one place in Redis to another."""
    noted = here.client.hgetall(state.key)
    plan = replace(state.plan, spider=spider or state.plan.spider)
    fields = {name: noted[name.encode()] for name in ("first", "window", "order")}
    fields |= {"plan": plan.write(state.secret), "slices": state.slices}
    old = f"{beginning(state.key)}{state.epoch}."
    names = (
        f"{one.number}.{part}"
        for one in state.slices
        for part in ("again", "ages", *range(one.keys))
    )
    with _installing(there, key, fields) as (start, keys):
        while some := [*islice(names, _AT_ONCE)]:
            pipeline = here.client.pipeline(transaction=False)
            for name in some:
                pipeline.dump(old + name)
            writing = there.client.pipeline(transaction=False)
            for name, data in zip(some, pipeline.execute(), strict=True):
                if data is not None:
                    keys.append(start + name)
                    writing.restore(start + name, _HOURS * 1000, data)
            writing.execute()
            told(len(some))


@contextmanager
def _installing(link: Link, key: str, fields: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield what the names of the keys of a new filter begin with, and a list for these names.

    They get their header when all of them are there; after an error they are deleted.
    """
    epoch, client = secrets.token_hex(8), link.client
    seconds, parts = client.time()
    now = f"{seconds + parts / 1e6:.3f}"
    rows = (
        f"{geometry(one)}:{one.number}:{one.since:.6f}:{one.items}:{one.again}"
        for one in fields["slices"]
    )
    header = {
        "program": PROGRAM,
        "format": FORMAT,
        "epoch": epoch,
        **dict.fromkeys(("waiting", "taken", "failed", "version", "forgotten", "seq"), 0),
        "well": f"{now} {now}",
        **fields,
        "slices": " ".join(rows),
    }
    keys: list[str] = []
    try:
        yield f"{beginning(key)}{epoch}.", keys
        for name in keys:
            client.persist(name)
        if not client.eval(_INSTALL, 1, key, *(part for pair in header.items() for part in pair)):
            raise BackendError(f"{key}: a filter has come there meanwhile. It was left as it is.")
    except BaseException:
        _drop(client, keys)
        raise


def _drop(client: Any, keys: Sequence[str]) -> None:
    try:
        for name in keys:
            client.unlink(name)
    except Exception:  # noqa: BLE001, S110 - they expire by themselves; the error is raised
        pass


def _set_block(slice_: Slice, index: int, data: bytes, at: int) -> None:
    block = bitarray(endian="big")
    block.frombytes(data[at : at + BLOCK_BYTES])
    if block.any() and index < len(slice_.blocks):
        slice_.blocks[index] = block


def _leave_out(slice_: Slice, probe: list[int]) -> None:
    *positions, h = probe
    slice_.writable(h * len(slice_.blocks) >> 32)[positions[0]] = 0


def _listed(slice_: Slice, *, newest: bool) -> Listed:
    """Return how the header lists a slice; the newest one may get a whole batch too many."""
    spec: SliceSpec = slice_.spec
    capacity, rate = spec.capacity, spec.error_rate
    if newest and blocks_for(capacity + BATCH, rate, MAX_HASHES) > spec.blocks:
        capacity = max(1, slice_.items, capacity - BATCH)
    keys = ceil(spec.blocks / KEY_BLOCKS)
    sizes = capacity, rate, spec.blocks, keys
    return Listed(*sizes, slice_.id - 1, slice_.since, slice_.items)
