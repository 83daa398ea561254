"""The state of a filter in Redis, read by ordinary commands while a crawl may use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from scrapy_bloom.core.info import FilterInfo, SliceCount, filter_info
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.header import Header, Plan, first_slice, read_slices
from scrapy_bloom.redis.layout import layout_of
from scrapy_bloom.redis.place import Place

_CALLS: Final = 10
"""A look at one shard may take as long as so many calls: it asks for thousands of counts."""


@dataclass(frozen=True)
class _ShardCount:
    """What was read of one shard.

    Attributes:
        slices: its slices, oldest first.
        forgotten: how many of its items are new once more.
        bytes: memory that it takes.
    """

    slices: Sequence[SliceCount]
    forgotten: int
    bytes: int


def describe(shards: Iterable[tuple[Place, Header | None, Plan]], error_rate: float) -> FilterInfo:
    """Return the state of a filter from a sample of it.

    :param shards: for each shard where it is, what was found there, and what it would be made as.
    :raises BackendError: if its server cannot be used.
    """
    counts = []
    for place, header, plan in shards:
        with place.explained(), Within(_CALLS * place.timeout):
            counts.append(_inspect(place, header, plan))
    info = filter_info(
        [count.slices for count in counts],
        error_rate=error_rate,
        memory=sum(count.bytes for count in counts),
    )
    return replace(info, items=info.items - sum(count.forgotten for count in counts))


def _inspect(place: Place, header: Header | None, plan: Plan) -> _ShardCount:
    if header is None:
        return _empty(plan)
    gone = "forgotten" if header.layout.removes else "again"
    text, filled, forgotten = place.client.hmget(place.key, "slices", "filled", gone)
    names = place.client.hkeys(place.key)
    if text is None:
        return _empty(plan)
    layout, specs = header.layout, read_slices(text.decode())
    items = [*(spec.capacity for spec in specs[:-1]), int(filled or 0)]
    pipeline = place.client.pipeline(transaction=False)
    ends = [0]
    for i, spec in enumerate(specs):
        layout.ask(pipeline, f"{place.prefix(header.epoch)}{i}.", spec)
        ends.append(len(pipeline))
    answers = pipeline.execute()
    slices, memory = [], 0
    for i, (spec, added, (start, end)) in enumerate(zip(specs, items, pairwise(ends), strict=True)):
        slices.append(layout.count(spec, added, answers[start:end], header.hashes))
        field = f"m:{i}.".encode()
        made = [int(name[len(field) :]) for name in names if name.startswith(field)]
        memory += layout.memory(spec, added, made)
    return _ShardCount(slices, int(forgotten or 0), memory)


def _empty(plan: Plan) -> _ShardCount:
    spec, hashes = first_slice(plan)
    return _ShardCount([layout_of(plan.layout).count(spec, 0, [0], hashes)], 0, 0)
