"""One file for each part of the benchmarks."""

from __future__ import annotations

from typing import Final

from bench.part import Part
from bench.parts import bytes as bytes_
from bench.parts import (
    commands,
    core,
    crawl,
    curves,
    error_rate,
    exact,
    frontier_crawl,
    frontier_queue,
    growth,
    hashing,
    identical,
    kills,
    long_run,
    memory,
    moving,
    reactor_stops,
    real_site,
    redis_crawl,
    redis_faults,
    redis_large,
    redis_latency,
    redis_layouts,
    redis_memory,
    redis_rates,
    request_seen,
    resume,
    shared_crawl,
    shared_kills,
    shared_server,
    shared_stops,
    shared_workers,
    window,
)

PARTS: Final[dict[str, Part]] = {
    part.name: part
    for part in (
        core.PART,
        growth.PART,
        hashing.PART,
        bytes_.PART,
        long_run.PART,
        error_rate.PART,
        curves.PART,
        request_seen.PART,
        crawl.PART,
        memory.PART,
        resume.PART,
        kills.PART,
        real_site.PART,
        frontier_crawl.PART,
        frontier_queue.PART,
        reactor_stops.PART,
        identical.PART,
        redis_rates.PART,
        redis_memory.PART,
        redis_crawl.PART,
        redis_faults.PART,
        redis_latency.PART,
        redis_layouts.PART,
        redis_large.PART,
        shared_server.PART,
        shared_crawl.PART,
        shared_kills.PART,
        shared_stops.PART,
        shared_workers.PART,
        commands.PART,
        moving.PART,
        exact.PART,
        window.PART,
    )
}
"""In the order of the page."""
