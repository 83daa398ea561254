"""Bits from a filter in Redis, and to one, with the requests beside them.

A list of forgotten pages cannot go from one kind of place to the other: here it has fingerprints,
in Redis probes. So one bit of each forgotten page is left out of the copy. A few other pages had
this bit, too, and are fetched again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from struct import Struct
from typing import Final

from bitarray import bitarray

from scrapy_bloom.commands.places import Contents, occupied
from scrapy_bloom.commands.redis_target import RedisTarget, identity_in
from scrapy_bloom.errors import BackendError, SettingError, StateError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.hashing import make_probe
from scrapy_bloom.filter.sizing import BLOCK_BYTES, MAX_HASHES, blocks_for
from scrapy_bloom.filter.slices import Slice
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.plan import BATCH, KEY_BLOCKS, Plan, geometry
from scrapy_bloom.redis.plan import Slice as Listed
from scrapy_bloom.redis.reader import State
from scrapy_bloom.redis.shard import MOST_BYTES, Call, Entry, Shard, Surprise
from scrapy_bloom.redis.worker import Worker as Link

_PROBE: Final = Struct(f">{MAX_HASHES}HI")
_ENDING: Final = b"\x80"  # the bit behind a key's blocks, which gives it its full size
_HOURS: Final = 6 * 3600
"""Seconds after which the keys of a copy vanish that was killed."""

_FINISH: Final = """
for i = 1, #KEYS do redis.call('PERSIST', KEYS[i]) end
redis.call('HSET', KEYS[1], 'plan', ARGV[1])
return 1
"""


@contextmanager
def reading(source: RedisTarget) -> Iterator[Contents]:
    """Read a filter of bits, also while workers add to it.

    :raises SettingError: if its bits cannot be copied.
    :raises StateError: if requests wait beside it.
    """
    with source.link() as link:
        yield _read(source.name, link, source.states(link))


def _read(name: str, link: Link, states: Sequence[State]) -> Contents:
    state, plan = states[0], states[0].plan
    if plan.layout != "bitmap" or plan.shards > 1:
        raise SettingError(
            f"{name}: only a filter with the layout 'bitmap' and one shard can be copied. Redis"
            f" itself can copy this one, as a replica, or by its RDB file."
        )
    if waiting := state.waiting + state.taken + state.failed:
        raise StateError(
            f"{name}: {waiting:,} requests wait beside this filter, and without them a copy would"
            f" suppress their pages. Let the crawl finish first."
        )
    window, slices = plan.window or None, []
    for one in state.slices:
        slice_ = Slice(one.number + 1, one.since if window else 0.0, one.spec, one.items)
        slices.append(slice_)
        start = f"{beginning(state.key)}{state.epoch}.{one.number}."
        for number in range(one.keys):
            data = link.client.get(f"{start}{number}") or b""
            for at in range(0, len(data) - 1, BLOCK_BYTES):
                _set_block(slice_, number * KEY_BLOCKS + at // BLOCK_BYTES, data, at)
        for probe in link.client.smembers(f"{start}again"):
            _leave_out(slice_, [*_PROBE.unpack(probe)])
    kept = LocalFilter(plan.capacity, plan.error_rate, window=window, digests=plan.digests)
    kept.adopt(state.secret, MAX_HASHES, slices, slices[-1].id + 1)
    return Contents(identity_in(plan), kept)


def write_bits(
    target: RedisTarget,
    contents: Contents,
    owner: dict[str, str],
    on_request: Callable[[int], None],
) -> None:
    """Put a filter into Redis, with the requests beside it, which come first.

    Until all is there its plan says that it has no requests, so that no crawl begins with a part.
    If it fails everything is removed; after a kill it vanishes by itself.

    :param owner: whose requests are beside it; empty if none.
    :param on_request: is called with the number of requests that came to Redis just now.
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
    )
    owned = Plan(**{**vars(plan), "spider": identity.spider, **owner})
    listed = [_listed(one, newest=one is slices[-1]) for one in slices]
    with target.link() as link:
        target.check_free(link)
        shard = Shard(link, target.key, plan)
        if not shard.made:
            raise occupied(target.name)
        client, start = link.client, beginning(target.key)
        keys = [target.key, f"{start}queue"]
        try:
            client.hset(target.key, "order", owner.get("order", "").partition(" ")[0])
            client.expire(target.key, _HOURS)
            for entries in batches(contents.requests or ()):
                shard.call(Call(entries))
                client.expire(f"{start}queue", _HOURS)
                on_request(len(entries))
            rows = (
                f"{geometry(one)}:{one.number}:{one.since:.6f}:{one.items}:{one.again}"
                for one in listed
            )
            client.hset(target.key, "slices", " ".join(rows))
            for name, data in _strings(f"{start}{shard.epoch}.", slices, listed):
                keys.append(name)
                client.set(name, data, ex=_HOURS)
            shard.leave()
            client.eval(_FINISH, len(keys), *keys, owned.write(state.secret))
        except BaseException as error:
            with suppress(BackendError):  # the keys expire
                shard.delete()
            if isinstance(error, Surprise):
                raise StateError(f"{target.name}: {error}. Nothing is there now.") from None
            raise


def batches(requests: Iterable[tuple[int, bytes]]) -> Iterator[list[Entry]]:
    """Yield requests, with their priorities, as entries of calls."""
    entries: list[Entry] = []
    size = 0
    for priority, body in requests:
        size += len(body)
        if entries and (size > MOST_BYTES or len(entries) == BATCH):
            yield entries
            entries, size = [], len(body)
        entries.append(Entry("p", None, body, priority))
    if entries:
        yield entries


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
