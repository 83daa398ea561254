"""Bytes for each URL in a filter that is full to its capacity."""

from __future__ import annotations

import tracemalloc

from bench.fingerprints import feed, stream, take
from bench.part import Column, Part, Row, Rows, Scale, Table

ERROR_RATE = 1e-6


def run(scale: Scale) -> Rows:
    """Fill filters and ask them what they take."""
    from scrapy_bloom import LocalFilter

    sizes = scale.of((100_000, 1_000_000), (20_000, 100_000))
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
    return {"full": full}


PART = Part(
    name="bytes",
    title="Bytes per URL of a full filter",
    method="""\
An error rate of 1e-6. The filter's bytes are those that `info()` tells, bookkeeping included; those
of the set are what Python has allocated for it and what is in it. How many bytes a filter takes
while it grows is in part `long-run`.
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
    ),
    alone=False,
)
