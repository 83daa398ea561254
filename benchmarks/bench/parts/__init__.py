"""One file for each part of the benchmarks."""

from __future__ import annotations

from typing import Final

from bench.part import Part
from bench.parts import (
    beside,
    core,
    frontier_crawl,
    growth,
    kills,
    memory,
    outage,
    polite,
    request_seen,
    saturation,
    shared_crawl,
    urls,
)

PARTS: Final[dict[str, Part]] = {
    part.name: part
    for part in (
        request_seen.PART,
        urls.PART,
        core.PART,
        memory.PART,
        frontier_crawl.PART,
        shared_crawl.PART,
        saturation.PART,
        growth.PART,
        polite.PART,
        beside.PART,
        kills.PART,
        outage.PART,
    )
}
"""In the order of the page."""
