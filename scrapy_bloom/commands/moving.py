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
from typing import Any, Final

from bitarray import bitarray

from scrapy_bloom.commands.places import Contents, requests_stay
from scrapy_bloom.commands.redis_target import RedisTarget, identity_in
from scrapy_bloom.errors import BackendError, SettingError
from scrapy_bloom.filter.hashing import make_probe
from scrapy_bloom.filter.sizing import BLOCK_BYTES, MAX_HASHES, blocks_for
from scrapy_bloom.filter.state import FilterState, Slice
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.plan import BATCH, KEY_BLOCKS, Plan, geometry
from scrapy_bloom.redis.plan import Slice as Listed
from scrapy_bloom.redis.reader import State
from scrapy_bloom.redis.shard import FORMAT, PROGRAM
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


def read_bits(source: RedisTarget) -> Contents:
    """Return a filter of bits that is in Redis, also while workers add to it."""
    with source.link() as link:
        states = source.states(link)
        state, plan = states[0], states[0].plan
        if plan.layout != "bitmap":
            raise SettingError(
                f"{source.name}: this filter has the layout 'sets': it keeps a number for each"
                f" page, from which the fingerprint cannot be recovered to set its bits elsewhere."
                f" It can be copied to Redis. To fill a filter of bits, add the URLs."
            )
        if len(states) > 1:
            raise SettingError(
                f"{source.name}: a filter of {len(states)} shards cannot be kept in a file: each"
                f" shard hashes with a secret of its own. Copy it to Redis."
            )
        kept = FilterState(state.secret, MAX_HASHES, plan.digests, plan.window or None)
        for one in state.slices:
            kept.next_id = one.number + 1
            slice_ = kept.new_slice(one.since if plan.window else 0.0, one.spec)
            slice_.items = one.items
            start = f"{beginning(state.key)}{state.epoch}.{one.number}."
            for number in range(one.keys):
                data = link.client.get(f"{start}{number}") or b""
                for at in range(0, len(data) - 1, BLOCK_BYTES):
                    _set_block(slice_, number * KEY_BLOCKS + at // BLOCK_BYTES, data, at)
            for probe in link.client.smembers(f"{start}again"):
                _leave_out(slice_, [*_PROBE.unpack(probe)])
    stay = requests_stay(source.name, state.waiting + state.taken)
    return Contents(identity_in(plan), plan.capacity, plan.error_rate, kept, stay)


def write_bits(target: RedisTarget, contents: Contents, owner: dict[str, str]) -> None:
    """Put a filter into Redis that was in a file; whole or, if that fails, not at all.

    :param owner: whose requests will be beside it; empty if none.
    """
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
        project=owner.get("project", ""),
        spider=owner.get("spider", identity.spider),
        order=owner.get("order", ""),
    )
    listed = [_listed(one, newest=one is slices[-1]) for one in slices]
    fields = {"slices": listed, "plan": plan.write(state.secret), "window": repr(plan.window)}
    fields |= {"first": geometry(plan.next([])), "order": plan.order.partition(" ")[0]}
    with target.link() as link:
        target.check_free(link)
        with _installing(link, target.key, fields) as (start, keys):
            for slice_, one in zip(slices, listed, strict=True):
                for number in range(one.keys):
                    blocks = slice_.blocks[number * KEY_BLOCKS : (number + 1) * KEY_BLOCKS]
                    if any(block.any() for block in blocks):
                        keys.append(f"{start}{one.number}.{number}")
                        data = b"".join(block.tobytes() for block in blocks)
                        link.client.set(keys[-1], data + _ENDING, ex=_HOURS)


def copy_keys(source: RedisTarget, target: RedisTarget, spider: str) -> list[str]:
    """Copy a filter of any layout to another place in Redis; return what users should know.

    :param spider: whose filter it becomes; empty for that whose it is.
    """
    with source.link() as here, target.link() as there:
        target.check_free(there)
        states = source.states(here)
        for state in reversed(states):  # the first one leads to the others
            _copy_shard(here, there, state, target.key + state.key[len(source.key) :], spider)
    return requests_stay(source.name, sum(state.waiting + state.taken for state in states))


def _copy_shard(here: Link, there: Link, state: State, key: str, spider: str) -> None:
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
    spec = slice_.spec
    capacity, rate = spec.capacity, spec.error_rate
    if newest and blocks_for(capacity + BATCH, rate, MAX_HASHES) > spec.blocks:
        capacity = max(1, slice_.items, capacity - BATCH)
    keys = ceil(spec.blocks / KEY_BLOCKS)
    sizes = capacity, rate, spec.blocks, keys
    return Listed(*sizes, slice_.id - 1, slice_.since, slice_.items)
