"""The state of a filter in Redis, read by ordinary commands while a crawl may use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from scrapy_bloom.core import sizing
from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.core.info import FilterInfo, SliceCount, filter_info
from scrapy_bloom.redis.bitmap import SEGMENT_BLOCKS
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.header import Header, Plan, first_slice, read_slices
from scrapy_bloom.redis.place import Place

_CALLS: Final = 10
"""A look at one shard may take as long as so many calls: it asks for thousands of counts."""

_SAMPLE: Final = 1024
"""Most blocks of a slice that are counted: 8 MB. The fill ratio is exact to 0.1 % then."""


@dataclass(frozen=True)
class _ShardCount:
    """What was read of one shard.

    Attributes:
        slices: its slices, oldest first.
        hashes: k.
        bytes: memory that its bits take.
    """

    slices: Sequence[SliceCount]
    hashes: int
    bytes: int


def describe(shards: Iterable[tuple[Place, Header | None, Plan]], error_rate: float) -> FilterInfo:
    """Return the state of a filter from a sample of its blocks.

    :param shards: for each shard where it is, what was found there, and what it would be made as.
    :raises BackendError: if its server cannot be used.
    """
    counts = []
    for place, header, plan in shards:
        with place.explained(), Within(_CALLS * place.timeout):
            counts.append(_inspect(place, header, plan))
    return filter_info(
        [count.slices for count in counts],
        counts[0].hashes,
        error_rate=error_rate,
        memory=sum(count.bytes for count in counts),
    )


def _inspect(place: Place, header: Header | None, plan: Plan) -> _ShardCount:
    client = place.client
    if header is None:
        return _empty(plan)
    text, filled, names = _read(place)
    if text is None:
        return _empty(plan)
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
    fills = [[next(counts) / sizing.BLOCK_BITS for _ in blocks] for blocks in samples]
    return _ShardCount(
        [SliceCount(*slice_) for slice_ in zip(specs, items, fills, strict=True)],
        header.hashes,
        sum(segment_bytes(spec, i, made) for i, spec in enumerate(specs)),
    )


def _read(place: Place) -> tuple[bytes | None, bytes | None, Iterable[bytes]]:
    text, filled = place.client.hmget(place.key, "slices", "filled")
    return text, filled, place.client.hkeys(place.key)


def segment_bytes(spec: SliceSpec, number: int, made: set[str]) -> int:
    """Return the bytes of those segments of a slice that were made."""
    total = 0
    for j, first in enumerate(range(0, spec.blocks, SEGMENT_BLOCKS)):
        if f"{number}.{j}" in made:
            total += min(SEGMENT_BLOCKS, spec.blocks - first) * sizing.BLOCK_BYTES + 1
    return total


def _empty(plan: Plan) -> _ShardCount:
    spec, hashes = first_slice(plan)
    return _ShardCount([SliceCount(spec, 0, [0.0])], hashes, 0)


def _sampled(spec: SliceSpec) -> Iterable[int]:
    count = min(spec.blocks, _SAMPLE)
    return (i * spec.blocks // count for i in range(count))
