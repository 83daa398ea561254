"""The state of a filter in Redis, read by ordinary commands while a crawl may use it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from scrapy_bloom.core.info import FilterInfo, SliceCount, filter_info
from scrapy_bloom.redis.deadline import Within
from scrapy_bloom.redis.header import Header, Plan, first_slice, read_slices
from scrapy_bloom.redis.layout import layout_of
from scrapy_bloom.redis.link import ScriptRunner
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
        window: seconds that its items are kept; 0 for ever.
        dates: those of its slices.
    """

    slices: Sequence[SliceCount]
    forgotten: int
    bytes: int
    window: float = 0.0
    dates: Sequence[float] = ()


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
    info = replace(info, items=info.items - sum(count.forgotten for count in counts))
    window = counts[0].window
    return (
        info.dated(window, [date for count in counts for date in count.dates]) if window else info
    )


def _inspect(place: Place, header: Header | None, plan: Plan) -> _ShardCount:
    if header is None:
        return _empty(plan)
    field = "forgotten" if header.layout.removes else "again"
    text, filled, forgotten = place.client.hmget(place.key, "slices", "filled", field)
    names = place.client.hkeys(place.key)
    if text is None:
        return _empty(plan)
    layout = header.layout
    header = replace(header, slices=read_slices(text.decode()), filled=int(filled or 0))
    if header.plan.window:
        header = header.live(ScriptRunner(place).now())
    specs = header.slices
    items = [*(spec.items for spec in specs[:-1]), header.filled]
    pipeline = place.client.pipeline(transaction=False)
    ends = [0]
    for spec in specs:
        layout.ask(pipeline, f"{place.prefix(header.epoch)}{spec.number}.", spec)
        ends.append(len(pipeline))
    answers = pipeline.execute()
    slices, memory = [], 0
    for spec, added, (start, end) in zip(specs, items, pairwise(ends), strict=True):
        slices.append(layout.count(spec, added, answers[start:end], header.hashes))
        start_ = f"m:{spec.number}.".encode()
        made = [int(name[len(start_) :]) for name in names if name.startswith(start_)]
        memory += layout.memory(spec, added, made)
    gone = min(sum(items), int(forgotten or 0))
    dates = [spec.since or time.time() for spec in specs]
    return _ShardCount(slices, gone, memory, header.plan.window, dates)


def _empty(plan: Plan) -> _ShardCount:
    spec, hashes = first_slice(plan)
    count = layout_of(plan.layout).count(spec, 0, [0], hashes)
    return _ShardCount([count], 0, 0, plan.window, [time.time()])
