"""The error rate as a function of n, m and k and while a filter grows: curves with points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import exp
from typing import Any

from bench.colours import colour_of
from bench.fingerprints import feed, stream, take
from bench.intervals import SHARE, theory, wilson
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from scrapy_bloom import LocalFilter
from scrapy_bloom.core import sizing
from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.core.hashing import new_secret
from scrapy_bloom.core.state import FilterState, Slice

ITEMS, BLOCKS, HASHES = 50_000, 8, 7
MEMBERS, STRANGERS = 1, 2  # seeds


def fixed_filter(blocks: int, hashes: int) -> LocalFilter:
    """Return a filter of so many blocks and hashes that never grows."""
    endless = Slice.new(SliceSpec(10**12, 0.5, blocks))
    return LocalFilter.from_state(FilterState(new_secret(), hashes, digests=True, slices=[endless]))


def run(scale: Scale) -> Rows:
    """Measure points on every curve."""
    points = [
        *(("n", n, n, BLOCKS, HASHES) for n in range(10_000, 120_001, scale.of(10_000, 50_000))),
        *(("m", blocks, ITEMS, blocks, HASHES) for blocks in range(4, 17, scale.of(1, 6))),
        *(("k", k, ITEMS, BLOCKS, k) for k in range(1, 15, scale.of(1, 6))),
    ]
    rows = [point(*each, most=scale.of(300_000, 10_000)) for each in points]
    return {"curves": rows, "growth": grow(scale)}


def point(of: str, x: int, items: int, blocks: int, hashes: int, *, most: int) -> Row:
    """Fill a filter and ask it."""
    seen = fixed_filter(blocks, hashes)
    feed(seen.add, stream(MEMBERS), items)
    expected = sizing.false_positive_rate(items, blocks, hashes)
    classic = (1 - exp(-hashes * items / (blocks * sizing.BLOCK_BITS))) ** hashes
    row: Row = {"of": of, "x": x, "items": items, "bits": blocks * sizing.BLOCK_BITS}
    row |= {"hashes": hashes, "theory": expected, "classic": classic}
    return row | asked(seen, stream(STRANGERS), min(most, round(300 / expected)))


def asked(seen: LocalFilter, strangers: Iterator[bytes], queries: int) -> Row:
    """Ask a filter about the next so many keys that it does not hold."""
    wrong = sum(map(seen.__contains__, islice(strangers, queries)))
    told = {"queries": queries, "wrong": wrong, "measured": wrong / queries}
    return told | wilson(wrong, queries)


def grow(scale: Scale) -> list[Row]:
    """Let a filter grow to 32 times its capacity, and ask it on the way."""
    capacity, rate = scale.of(100_000, 2000), 1e-2
    seen, source, items = LocalFilter(capacity, rate), stream(MEMBERS), 0
    strangers = stream(STRANGERS)
    rows: list[Row] = []
    for part in range(1, 18):
        moment = round(capacity * 2 ** ((part - 2) / 3))
        for fingerprint in take(source, moment - items):
            seen.add(fingerprint)
        items = moment
        row: Row = {"items": items, "load": items / capacity, "rate": rate}
        row |= {"theory": theory(seen), "slices": seen.info().slices}
        rows.append(row | asked(seen, strangers, scale.of(60_000, 5000)))
    return rows


def _points(axes: Any, x: list[float], rows: list[Row], label: str) -> None:
    axes.errorbar(
        x,
        [row["measured"] for row in rows],
        yerr=[
            [row["measured"] - row["low"] for row in rows],
            [row["high"] - row["measured"] for row in rows],
        ],
        fmt="o",
        markersize=3,
        capsize=2,
        label=label,
        color=colour_of("scrapy-bloom"),
    )


def draw_of(of: str, xlabel: str, x_of: Callable[[Row], float]) -> Callable[[Any, Rows], None]:
    """Return what draws one curve."""

    def draw(axes: Any, rows: Rows) -> None:
        chosen = [row for row in rows["curves"] if row["of"] == of]
        x = [x_of(row) for row in chosen]
        axes.plot(x, [r["theory"] for r in chosen], color="gray", label="theory, blocks of 64 Kbit")
        axes.plot(
            x,
            [r["classic"] for r in chosen],
            "--",
            color="gray",
            label="theory, one block, (1-e^(-kn/m))^k",
        )
        _points(axes, x, chosen, "measured, 95 %")
        axes.set(yscale="log", xlabel=xlabel, ylabel="share of new keys called seen")

    return draw


def draw_growth(axes: Any, rows: Rows) -> None:
    """Draw the rate of a filter that grows."""
    growth = list(rows["growth"])
    x = [row["load"] for row in growth]
    axes.axhline(growth[0]["rate"], color="gray", linestyle=":", label="asked")
    axes.plot(x, [row["theory"] for row in growth], color="gray", label="theory")
    _points(axes, x, growth, "measured, 95 %")
    axes.set(xscale="log", xlabel="items / capacity", ylabel="share of new keys called seen")
    axes.set_ylim(bottom=0)


def findings(rows: Rows) -> list[str]:
    """Count the points whose interval holds the curve."""
    every = [*rows["curves"], *rows["growth"]]
    holds = sum(row["low"] <= row["theory"] <= row["high"] for row in every)
    highest = max(row["measured"] / row["rate"] for row in rows["growth"])
    return [
        f"The 95 % interval of {holds} of {len(every)} points holds the curve.",
        f"The filter that grows never errs more than {highest:.2f} times as often as was asked.",
    ]


_RATE = (Column("theory", "theory", ".2e"), *SHARE)

PART = Part(
    name="curves",
    title="The error rate as a function of n, m and k",
    method=f"""\
Filters of {BLOCKS} blocks (m = {BLOCKS * sizing.BLOCK_BITS:,} bits) with k = {HASHES} and
n = {ITEMS:,} items that do not grow; one of the three is changed at a time. The curve is the
formula for blocked filters (Putze, Sanders, Singler 2007), beside the one for filters of a single
block (Bloom 1970), from which blocks of 64 Kbit differ little; the points are shares of up to
300,000 keys that were never added, with Wilson's 95 % intervals. The last curve is a filter of
100,000 items at an error rate of 0.01 that grows to 32 times that.
""",
    packages=("scipy", "matplotlib"),
    run=run,
    tables=(
        Table(
            "curves",
            "Points on the curves",
            (
                Column("of", "varied"),
                Column("items", "n", ","),
                Column("bits", "m", ","),
                Column("hashes", "k"),
                *_RATE,
            ),
        ),
        Table(
            "growth",
            "A filter that grows, asked for 0.01",
            (Column("load", "items / capacity", ".2f"), Column("slices", "slices"), *_RATE),
        ),
    ),
    plots=(
        Plot(
            "rate-n",
            "Error rate against the number of items: the measured points lie on the curve",
            draw_of("n", "n, items", lambda row: float(row["items"])),
        ),
        Plot(
            "rate-m",
            "Error rate against the bits for each item: the measured points lie on the curve",
            draw_of(
                "m", "m / n, bits for each item", lambda row: float(row["bits"] / row["items"])
            ),
        ),
        Plot(
            "rate-k",
            "Error rate against the number of hashes: the measured points lie on the curve",
            draw_of("k", "k, bits set for each item", lambda row: float(row["hashes"])),
        ),
        Plot(
            "rate-growth",
            "Error rate of a filter that grows: it stays below the rate that was asked",
            draw_growth,
        ),
    ),
    findings=findings,
    alone=False,
)
