"""Bytes for each URL: full to the capacity, and on the way to a hundred times that."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

from bench.fingerprints import feed, resident, stream, take
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table

ERROR_RATE = 1e-6


def run(scale: Scale) -> Rows:
    """Fill filters and ask them what they take."""
    from scrapy_bloom import LocalFilter

    sizes = scale.of((100_000, 1_000_000, 10_000_000), (100_000, 300_000))
    full: list[Row] = []
    for items in sizes:
        seen = LocalFilter(items, ERROR_RATE)
        feed(seen.add, stream(1), items)
        full.append({"items": items, "bytes_per_url": seen.info().bytes / items})
    tracemalloc.start()
    known = set(take(stream(1), sizes[1]))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    full.append({"items": sizes[1], "name": "set of 20-byte fingerprints"})
    full[-1]["bytes_per_url"] = size / len(known)
    for row in full:
        row.setdefault("name", "scrapy-bloom")
    return {"full": full, **grow(scale.of(1_000_000, 20_000), scale.of(100, 10))}


def grow(capacity: int, times: int) -> dict[str, list[Row]]:
    """Fill a filter far over its capacity; ask often, and just after each growth."""
    from scrapy_bloom import LocalFilter

    growths = [capacity << i for i in range(times.bit_length())]
    moments = {
        round(items * part) for items in growths for part in (1, 1.005, 1.01, 1.02, 1.2, 1.5)
    }
    moments = {moment for moment in moments if moment < times * capacity} | {times * capacity}
    before = resident()
    seen, source, items = LocalFilter(capacity, ERROR_RATE), stream(1), 0
    way: list[Row] = []
    for moment in sorted(moments):
        feed(seen.add, source, moment - items)
        items = moment
        info = seen.info()
        way.append(
            {
                "items": items,
                "slices": info.slices,
                "bytes": info.bytes,
                "bytes_per_url": info.bytes / items,
            }
        )
    worst = max(way, key=lambda row: float(row["bytes_per_url"]))
    last = way[-1]
    summary: list[Row] = [
        {"moment": "full to the capacity", **next(r for r in way if r["items"] == capacity)},
        {"moment": "worst", **worst},
        {"moment": "at the end", **last, "grown": resident() - before},
    ]
    return {"way": way, "moments": summary}


def draw(axes: Any, rows: Rows) -> None:
    """Draw bytes per URL against URLs."""
    way = rows["way"]
    axes.plot([r["items"] for r in way], [r["bytes_per_url"] for r in way], label="scrapy-bloom")
    axes.axhline(
        math.log2(1 / ERROR_RATE) / math.log(2) / 8,
        color="gray",
        linestyle="--",
        label="least that a Bloom filter can take, log2(1/p) / ln 2 bits",
    )
    exact = next(r["bytes_per_url"] for r in rows["full"] if r["name"] != "scrapy-bloom")
    axes.axhline(exact, color="tab:red", label="set of 20-byte fingerprints")
    axes.set(xscale="log", yscale="log", xlabel="URLs", ylabel="bytes per URL")
    axes.set_yticks([4, 6, 10, 20, 40, 80], ["4", "6", "10", "20", "40", "80"])
    axes.legend()


PART = Part(
    name="bytes",
    title="Bytes per URL",
    method="""\
An error rate of 1e-6. The filter's bytes are those that `info()` tells, bookkeeping included; the
growth of the process stands beside them at the end. A filter that has just grown has an empty half,
which is touched all over after one or two per cent more: that is the worst moment.
""",
    packages=(),
    run=run,
    tables=(
        Table(
            "full",
            "Full to the capacity",
            (
                Column("name", "what"),
                Column("items", "URLs", ","),
                Column("bytes_per_url", "bytes per URL", ".2f"),
            ),
        ),
        Table(
            "moments",
            "From 1 to 100 times the default capacity",
            (
                Column("moment", "moment"),
                Column("items", "URLs", ","),
                Column("slices", "slices"),
                Column("bytes", "MB", ",.1f", 1e6),
                Column("bytes_per_url", "bytes per URL", ".2f"),
                Column("grown", "process grew by, MB", ",.1f", 1e6),
            ),
        ),
    ),
    plots=(Plot("bytes", "Bytes per URL while a filter grows to 100 times its capacity", draw),),
    alone=False,
)
