"""One file for each part of the benchmarks."""

from __future__ import annotations

from typing import Final

from bench.part import Part
from bench.parts import (
    hashing,
    redis_crawl,
    redis_faults,
    redis_latency,
    redis_memory,
    redis_rates,
)

PARTS: Final[dict[str, Part]] = {
    part.name: part
    for part in (
        hashing.PART,
        redis_rates.PART,
        redis_memory.PART,
        redis_crawl.PART,
        redis_faults.PART,
        redis_latency.PART,
    )
}
"""In the order of the page."""
