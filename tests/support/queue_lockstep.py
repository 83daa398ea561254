"""Processes that offer the same pages to a shared queue at the same moment, and take them."""

from __future__ import annotations

import time
from collections import Counter

from support import processes
from support.queues import Worker, entry, names

_BATCH = 25


def crawl_in_lockstep(url, key, *, workers, pages, shards=1):
    """Let processes offer the same pages in step and take what there is, until all have finished.

    Returns how often each page was granted to somebody, and how often it was done.
    """
    context = processes.workers()
    barrier, results = context.Barrier(workers), context.Queue()
    working = [
        context.Process(target=_work, args=(url, key, pages, shards, barrier, results))
        for _ in range(workers)
    ]
    for process in working:
        process.start()
    granted, done = Counter(), Counter()
    for _ in working:
        some, finished = results.get(timeout=120)
        granted.update(some)
        done.update(finished)
    for process in working:
        process.join(30)
        assert process.exitcode == 0
    return granted, done


def _work(url, key, pages, shards, barrier, results):
    granted, done, under_way = [], [], []
    with Worker(url, key, shards=shards, capacity=300) as worker:
        queue = worker.queue
        for start in range(0, pages, _BATCH):
            some = [str(number) for number in range(start, start + _BATCH)]
            barrier.wait(60)
            offered = queue.offer([entry(name) for name in some])
            granted += [name for name, seen in zip(some, offered.seen, strict=True) if not seen]
            taken = queue.take(4, under_way)
            done += names(taken)
            under_way = [one.ticket for one in taken]
        versions = []
        while len(versions) < 2:
            taken = queue.take(10, under_way)
            done += names(taken)
            under_way = [one.ticket for one in taken]
            state = queue.look()
            ended = not (taken or state.waiting or state.elsewhere)
            versions = [v for v in versions if v == state.version]
            versions += [state.version] if ended else []
            if not taken:
                time.sleep(0.01)
    results.put((granted, done))
