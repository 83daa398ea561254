"""The state of a filter in Redis, read by ordinary commands beside the running crawl."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from scrapy_bloom.core import sizing
from scrapy_bloom.core.base import FilterInfo
from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.core.local import FilterState, Slice, expected_lost
from scrapy_bloom.redis.connection import explained
from scrapy_bloom.redis.header import Header, read_slices
from scrapy_bloom.redis.scripts import SEGMENT_BLOCKS
from scrapy_bloom.redis.shard import Place, Shard

_SAMPLE: Final = 1024
"""Most blocks of a slice that are counted: 8 MB, and an error of the fill ratio below 0.1 %."""


@dataclass(frozen=True)
class _ShardInfo:
    """What one shard adds to the whole."""

    state: FilterState
    fills: list[list[float]]  # of the sampled blocks of each slice
    bytes: int


def describe(shards: Sequence[Shard], error_rate: float) -> FilterInfo:
    """Return the state of a filter from a sample of its blocks.

    :raises BackendError: if its server cannot be used.
    """
    parts = []
    for shard in shards:
        with explained(shard.place.server):
            parts.append(_inspect(shard))
    slices = [part for shard in parts for part in shard.state.slices]
    bits = sum(part.spec.blocks for part in slices) * sizing.BLOCK_BITS
    ones = [
        sum(fill) / len(fill) * part.spec.blocks * sizing.BLOCK_BITS
        for shard in parts
        for fill, part in zip(shard.fills, shard.state.slices, strict=True)
    ]
    hashes = parts[0].state.hashes
    return FilterInfo(
        capacity=sum(part.spec.capacity for part in slices),
        error_rate=error_rate,
        items=sum(part.items for part in slices),
        estimated_items=sum(
            sizing.estimated_items(round(count), part.spec.blocks, hashes)
            for count, part in zip(ones, slices, strict=True)
        ),
        fill_ratio=sum(ones) / bits,
        estimated_fp_rate=sum(_rate(part) for part in parts) / len(parts),
        expected_lost=sum(expected_lost(part.state) for part in parts),
        bytes=sum(part.bytes for part in parts),
        bytes_at_capacity=bits // 8,
        slices=max(len(part.state.slices) for part in parts),
    )


def _inspect(shard: Shard) -> _ShardInfo:
    place, header = shard.place, shard.header
    client = place.client
    if header is None:
        return _empty(shard)
    text, filled, names = _read(place)
    if text is None:
        return _empty(shard)
    specs = read_slices(text.decode())
    items = [*(spec.capacity for spec in specs[:-1]), int(filled or 0)]
    made = {name[2:].decode() for name in names if name.startswith(b"m:")}
    pipeline = client.pipeline(transaction=False)
    samples = [list(_sampled(spec)) for spec in specs]
    for i, blocks in enumerate(samples):
        for block in blocks:
            segment, rest = divmod(block, SEGMENT_BLOCKS)
            start = rest * sizing.BLOCK_BYTES
            key = f"{place.prefix(header.epoch)}{i}.{segment}"
            pipeline.bitcount(key, start, start + sizing.BLOCK_BYTES - 1)
    counts = iter(pipeline.execute())
    return _ShardInfo(
        _state(header, [Slice(*pair, []) for pair in zip(specs, items, strict=True)]),
        [[next(counts) / sizing.BLOCK_BITS for _ in blocks] for blocks in samples],
        sum(segment_bytes(spec, i, made) for i, spec in enumerate(specs)),
    )


def _read(place: Place) -> tuple[bytes | None, bytes | None, Iterable[bytes]]:
    text, filled = place.client.hmget(place.key, "slices", "filled")
    return text, filled, place.client.hkeys(place.key)


def segment_bytes(spec: SliceSpec, number: int, made: set[str]) -> int:
    """Return what those segments of a slice take that were made."""
    total = 0
    for j, first in enumerate(range(0, spec.blocks, SEGMENT_BLOCKS)):
        if f"{number}.{j}" in made:
            total += min(SEGMENT_BLOCKS, spec.blocks - first) * sizing.BLOCK_BYTES + 1
    return total


def _empty(shard: Shard) -> _ShardInfo:
    spec, hashes = shard.first_slice()
    state = FilterState(b"", hashes, digests=True, slices=[Slice(spec, 0, [])])
    return _ShardInfo(state, [[0.0]], 0)


def _state(header: Header, slices: Sequence[Slice]) -> FilterState:
    return FilterState(header.secret, header.hashes, header.plan.digests, slices)


def _sampled(spec: SliceSpec) -> Iterable[int]:
    count = min(spec.blocks, _SAMPLE)
    return (i * spec.blocks // count for i in range(count))


def _rate(shard: _ShardInfo) -> float:
    k = shard.state.hashes
    passed = [sum(fill**k for fill in fills) / len(fills) for fills in shard.fills]
    return 1 - prod(1 - rate for rate in passed)
