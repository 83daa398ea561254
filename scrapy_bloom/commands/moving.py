"""Bits from a filter in Redis, and to one.

A list of forgotten pages cannot go from one kind of place to the other: here it has fingerprints,
in Redis probes. So one bit of each forgotten page is left out of the copy. A few other pages had
this bit, too, and are fetched again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import ceil
from struct import Struct
from typing import Any, Final

from bitarray import bitarray

from scrapy_bloom.commands.places import Contents, requests_stay
from scrapy_bloom.commands.redis_target import RedisTarget, identity_in
from scrapy_bloom.errors import BackendError, SettingError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.hashing import make_probe
from scrapy_bloom.filter.sizing import BLOCK_BYTES, MAX_HASHES, blocks_for
from scrapy_bloom.filter.slices import Slice
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.plan import BATCH, KEY_BLOCKS, Plan, geometry
from scrapy_bloom.redis.plan import Slice as Listed
from scrapy_bloom.redis.shard import FORMAT, PROGRAM

_PROBE: Final = Struct(f">{MAX_HASHES}HI")
_ENDING: Final = b"\x80"  # the bit behind a key's blocks, which gives it its full size
_HOURS: Final = 6 * 3600
"""Seconds after which the keys of a copy vanish that was killed."""

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
                f" To fill a filter of bits, add the URLs."
            )
        if len(states) > 1:
            raise SettingError(
                f"{source.name}: a filter of {len(states)} shards cannot be copied: each shard"
                f" hashes with a secret of its own."
            )
        window, slices, next_id = plan.window or None, [], 1
        for one in state.slices:
            next_id = one.number + 1
            slice_ = Slice(one.number, one.since if plan.window else 0.0, one.spec, one.items)
            slices.append(slice_)
            start = f"{beginning(state.key)}{state.epoch}.{one.number}."
            for number in range(one.keys):
                data = link.client.get(f"{start}{number}") or b""
                for at in range(0, len(data) - 1, BLOCK_BYTES):
                    _set_block(slice_, number * KEY_BLOCKS + at // BLOCK_BYTES, data, at)
            for probe in link.client.smembers(f"{start}again"):
                _leave_out(slice_, [*_PROBE.unpack(probe)])
    stay = requests_stay(source.name, state.waiting + state.taken)
    kept = LocalFilter(plan.capacity, plan.error_rate, window=window, digests=plan.digests)
    kept.adopt(state.secret, MAX_HASHES, slices, next_id)
    return Contents(identity_in(plan), kept, stay)


def write_bits(target: RedisTarget, contents: Contents, owner: dict[str, str]) -> None:
    """Put a filter into Redis that was in a file; whole or, if that fails, not at all.

    :param owner: whose requests will be beside it; empty if none.
    """
    state = contents.filter
    if state.hashes != MAX_HASHES:
        raise SettingError(
            f"a filter with an error rate of {state.error_rate:g} sets {state.hashes} bits for"
            f" each page here, and {MAX_HASHES} in Redis: its bits cannot be copied. Add the URLs"
            f" to a filter there instead."
        )
    probe = make_probe(state.secret, state.hashes, digests=state.digests)
    slices = state.slices
    for positions in map(probe, state.again):
        for slice_ in slices:
            if slice_.has(positions):
                _leave_out(slice_, positions)
    identity = contents.identity
    plan = Plan(
        state.capacity,
        state.error_rate,
        state.digests,
        identity.fingerprinter,
        json.dumps(identity.made_by, sort_keys=True),
        window=state.window or 0.0,
        project=owner.get("project", ""),
        spider=owner.get("spider", identity.spider),
        order=owner.get("order", ""),
    )
    listed = [_listed(one, newest=one is slices[-1]) for one in slices]
    epoch = secrets.token_hex(8)
    keys: list[str] = []
    with target.link() as link:
        target.check_free(link)
        try:
            for name, data in _strings(f"{beginning(target.key)}{epoch}.", slices, listed):
                keys.append(name)
                link.client.set(name, data, ex=_HOURS)
            for name in keys:
                link.client.persist(name)
            fields = _header(epoch, plan, plan.write(state.secret), listed, link.client.time())
            if not link.client.eval(_INSTALL, 1, target.key, *fields):
                raise BackendError(
                    f"{target.name}: a filter has come there meanwhile. It was left as it is."
                )
        except BaseException:
            with suppress(Exception):  # they expire by themselves; the error is raised
                for name in keys:
                    link.client.unlink(name)
            raise


def _strings(
    start: str, slices: Sequence[Slice], listed: Sequence[Listed]
) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the values of the keys that have the bits."""
    for slice_, one in zip(slices, listed, strict=True):
        for number in range(one.keys):
            blocks = slice_.blocks[number * KEY_BLOCKS : (number + 1) * KEY_BLOCKS]
            if any(block.any() for block in blocks):
                data = b"".join(block.tobytes() for block in blocks)
                yield f"{start}{one.number}.{number}", data + _ENDING


def _header(
    epoch: str, plan: Plan, written: str, slices: Sequence[Listed], time: tuple[int, int]
) -> list[Any]:
    """Return the fields of a header and their values, in turns."""
    now = f"{time[0] + time[1] / 1e6:.3f}"
    rows = (
        f"{geometry(one)}:{one.number}:{one.since:.6f}:{one.items}:{one.again}" for one in slices
    )
    fields = {
        "program": PROGRAM,
        "format": FORMAT,
        "epoch": epoch,
        "plan": written,
        "slices": " ".join(rows),
        "first": geometry(plan.next([])),
        "window": repr(plan.window),
        "order": plan.order.partition(" ")[0],
        **dict.fromkeys(("waiting", "taken", "failed", "version", "forgotten", "seq"), 0),
        "well": f"{now} {now}",
    }
    return [part for pair in fields.items() for part in pair]


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
