"""A filter at its default settings that grows a hundredfold: bytes on the way, and pages lost."""

from __future__ import annotations

import math
from typing import Any

from bench.colours import colour_of
from bench.fingerprints import feed, resident, stream
from bench.intervals import LOSSES, poisson
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from scrapy_bloom import LocalFilter
from scrapy_bloom.options import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE


def run(scale: Scale) -> Rows:
    """Fill a filter far over its capacity; ask often, and just after each growth."""
    capacity, times = scale.of((DEFAULT_CAPACITY, 100), (20_000, 10))
    growths = [capacity << i for i in range(times.bit_length())]
    told = {capacity, 10 * capacity, 100 * capacity}
    parts = (1, 1.005, 1.01, 1.02, 1.2, 1.5)
    moments = {round(items * part) for items in growths for part in parts} | told
    before = resident()
    seen, source, items, lost = LocalFilter(capacity), stream(1), 0, 0
    way: list[Row] = []
    for moment in sorted(moments):
        if moment > times * capacity:
            break
        lost += feed(seen.add, source, moment - items)
        items = moment
        info = seen.info()
        way.append(
            {
                "items": items,
                "slices": info.slices,
                "bytes": info.bytes,
                "bytes_per_url": info.bytes / items,
                "expected_lost": info.expected_lost,
                "lost": lost,
            }
        )
    worst = max(way, key=lambda row: float(row["bytes_per_url"]))
    moments_told: list[Row] = [
        {"moment": "full to the default capacity", **way[0]},
        {"moment": "worst", **worst},
        {"moment": "at the end", **way[-1], "grown": resident() - before},
    ]
    losses = [row | poisson(row["lost"]) for row in way if row["items"] in told]
    return {"moments": moments_told, "losses": losses, "way": way}


def draw(axes: Any, rows: Rows) -> None:
    """Draw bytes per URL against URLs."""
    way = rows["way"]
    axes.plot(
        [r["items"] for r in way],
        [r["bytes_per_url"] for r in way],
        label="scrapy-bloom",
        color=colour_of("scrapy-bloom"),
    )
    axes.axhline(
        math.log2(1 / DEFAULT_ERROR_RATE) / math.log(2) / 8,
        color="gray",
        linestyle="--",
        label="least that any Bloom filter can take, log2(1/p) / ln 2 bits",
    )
    axes.set(xscale="log", xlabel="URLs", ylabel="bytes per URL")
    axes.set_ylim(bottom=0)


def findings(rows: Rows) -> list[str]:
    """Say whether the expectation lies in the interval of what was counted."""
    said = []
    for row in rows["losses"]:
        place = "within" if row["low"] <= row["expected_lost"] <= row["high"] else "outside"
        said.append(
            f"{row['items']:,} URLs: {row['expected_lost']:.2f} expected to be lost, {row['lost']}"
            f" lost; the expectation is {place} {row['low']:.2f} to {row['high']:.2f}."
        )
    return said


_STATE = (
    Column("items", "URLs", ","),
    Column("slices", "slices"),
)

PART = Part(
    name="long-run",
    title="A crawl that nobody planned: bytes and losses at the default settings",
    method="""\
100,000,000 different fingerprints are added to a filter of the default capacity, 1,000,000, at the
default error rate of 1e-6. A filter that has just grown has an empty half, which is touched all
over after one or two per cent more: that is the worst moment. Every fingerprint that is called seen
is lost; the expectation is what the stat `bloom/expected_lost` tells, and the interval the exact
95 % interval of a Poisson mean for the number that was counted (Garwood 1936).
""",
    packages=("scipy",),
    run=run,
    tables=(
        Table(
            "moments",
            "Bytes from 1 to 100 times the default capacity",
            (
                Column("moment", "moment"),
                *_STATE,
                Column("bytes", "MB", ",.1f", 1e6),
                Column("bytes_per_url", "bytes per URL", ".2f"),
                Column("grown", "process grew by, MB", ",.1f", 1e6),
            ),
        ),
        Table(
            "losses",
            "Pages lost",
            (
                *_STATE,
                *LOSSES,
            ),
        ),
    ),
    plots=(Plot("bytes", "Bytes per URL while a filter grows to 100 times its capacity", draw),),
    findings=findings,
    alone=False,
)
