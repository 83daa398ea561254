"""Processes that ask about the same fingerprints at the same moment."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial

from scrapy_bloom import RedisFilter
from support import processes
from support.contract import fingerprints
from support.waiting import PATIENCE


def grants(url, key, *, workers, items, batch, capacity, shards, layout):
    """Let `workers` processes add the same items in step; return how often each was granted.

    Then one of them forgets all items, and all add them again.
    """
    open_filter = partial(
        RedisFilter.from_url,
        url,
        key=key,
        capacity=capacity,
        error_rate=1e-9,
        shards=shards,
        layout=layout,
    )
    context = processes.workers()
    barrier, results = context.Barrier(workers), context.Queue()
    working = [
        context.Process(target=_work, args=(open_filter, items, batch, barrier, results))
        for _ in range(workers)
    ]
    for process in working:
        process.start()
    counts = Counter(dict.fromkeys(range(items), 0))
    for _ in working:
        counts.update(results.get(timeout=PATIENCE))
    for process in working:
        process.join(PATIENCE)
        assert process.exitcode == 0
    return counts


def _work(open_filter, items, batch, barrier, results):
    known = fingerprints(items)
    seen = open_filter()
    granted = _add_in_step(seen, known, batch, barrier)
    if barrier.wait(60) == 0:
        assert all(seen.forget_many(known))
    barrier.wait(60)
    # What a worker knows by itself is seen until it hears of that, with its next call.
    seen.add_many([os.urandom(20) for _ in range(20)])
    assert not any(seen.contains_many(known))
    granted += _add_in_step(seen, known, batch, barrier)
    seen.close()
    results.put(granted)


def _add_in_step(seen, known, batch, barrier):
    granted = []
    for start in range(0, len(known), batch):
        part = known[start : start + batch]
        barrier.wait(60)
        verdicts = seen.add_many(part)
        granted += [start + i for i, was_there in enumerate(verdicts) if not was_there]
    return granted
