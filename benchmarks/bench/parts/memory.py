"""What a crawler's memory grows by while millions of requests pass its duplicate filter."""

from __future__ import annotations

import gc
from typing import Any

from bench.apart import apart
from bench.fingerprints import resident
from bench.look import OUR_COLOUR, THEIR_COLOUR
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.scrapy_filters import DEFAULT, FILTERS, PACKAGES, SCRAPY

SAMPLES = 20


def run(scale: Scale) -> Rows:
    """Let requests pass each filter, in a process of its own."""
    urls = scale.of(5_000_000, 20_000)
    grown = {name: apart(grow, name, urls) for name in (SCRAPY, DEFAULT)}
    whole = grown[SCRAPY][-1]["grown"] / urls
    memory: list[Row] = []
    for name, way in grown.items():
        each = way[-1]["grown"] / urls
        last: Row = {"name": name, "urls": urls, "grown": way[-1]["grown"]}
        memory.append({**last, "bytes_per_url": each, "ratio": each / whole})
    way = [{"name": name, **row} for name, rows in grown.items() for row in rows]
    return {"memory": memory, "way": way}


def grow(name: str, urls: int) -> list[Row]:
    """Check so many requests; return what the process had grown by on the way."""
    from scrapy import Request

    from bench.scrapy_filters import opened

    way: list[Row] = []
    with opened(FILTERS[name]) as request_seen:
        request_seen(Request("https://www.example.com/"))
        gc.collect()
        before = resident()
        for part in range(SAMPLES):
            for number in range(part * urls // SAMPLES, (part + 1) * urls // SAMPLES):
                request_seen(Request(f"https://www.example.com/page/{number}"))
            way.append({"urls": (part + 1) * urls // SAMPLES, "grown": resident() - before})
    return way


def draw(axes: Any, rows: Rows) -> None:
    """Draw memory against URLs."""
    for name in (SCRAPY, DEFAULT):
        way = [row for row in rows["way"] if row["name"] == name]
        axes.plot(
            [0] + [r["urls"] / 1e6 for r in way],
            [0] + [r["grown"] / 1e6 for r in way],
            color=THEIR_COLOUR if name == SCRAPY else OUR_COLOUR,
            label=name.partition(",")[0],  # no other setting of ours is in this plot
        )
    axes.set(xlabel="million URLs", ylabel="MB that the process has grown by")
    axes.set_ylim(bottom=0)


PART = Part(
    name="memory",
    title="Memory of a crawler",
    method="""\
Requests for 5,000,000 different URLs are made, checked and dropped. The figure is the growth of the
process's resident memory after the first check. Our filter grows from its default capacity.""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "memory",
            "Growth of the process",
            (
                Column("name", "filter"),
                Column("urls", "URLs", ","),
                Column("grown", "MB", ",.1f", 1e6),
                Column("bytes_per_url", "bytes per URL", ".1f"),
                Column("ratio", "to Scrapy's, per URL", ".3f"),
            ),
        ),
    ),
    plots=(
        Plot("memory", "What the process has grown by against the URLs that it has checked", draw),
    ),
)
