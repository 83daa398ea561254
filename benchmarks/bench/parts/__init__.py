"""One file for each part of the benchmarks."""

from __future__ import annotations

from typing import Final

from bench.part import Part
from bench.parts import (
    core,
    frontier_crawl,
    growth,
    kills,
    outage,
    polite,
    redis_crawl,
    request_seen,
)

PARTS: Final[dict[str, Part]] = {
    part.name: part
    for part in (
        request_seen.PART,
        core.PART,
        frontier_crawl.PART,
        redis_crawl.PART,
        growth.PART,
        polite.PART,
        kills.PART,
        outage.PART,
    )
}
"""In the order of the page."""
