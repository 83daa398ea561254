"""How the cost of a check grows with the number of items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.colours import colour_of, style_of
from bench.competitors import CANDIDATES, OURS, RBLOOM_QUICKEST
from bench.fingerprints import feed, stream, take
from bench.harness import Run, mean_of, summed, take_turns
from bench.intervals import LOSSES, poisson
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from scrapy_bloom import LocalFilter

ERROR_RATE = 1e-6
GROWN = "scrapy-bloom, grown from 1,000,000"


def run(scale: Scale) -> Rows:
    """Fill filters of every size, then time them in turn."""
    sizes = scale.of((100_000, 1_000_000, 10_000_000, 100_000_000), (10_000, 100_000))
    chunk, repeats = scale.of(20_000, 500), scale.of(7, 3)
    adds: dict[tuple[str, int], tuple[Any, Iterator[bytes]]] = {}
    sized = {items: LocalFilter(items, ERROR_RATE) for items in sizes}
    for items in sizes:
        adds[OURS, items] = sized[items].add, stream(1)
        quickest = CANDIDATES[RBLOOM_QUICKEST].make(items, ERROR_RATE)
        adds[RBLOOM_QUICKEST, items] = quickest.add, stream(1)
    start = scale.of(1_000_000, 10_000)
    for items in sizes[1:3]:
        adds[GROWN, items] = LocalFilter(start, ERROR_RATE).add, stream(1)
    lost = {}
    for (name, items), (add, source) in adds.items():
        lost[name, items] = feed(
            add, source, items - chunk * repeats if items > 2 * chunk * repeats else items // 2
        )
    losses = [loss(sized[items], lost[OURS, items]) for items in sizes]
    known = take(stream(1), min(chunk, sizes[0] // 4))

    def prepare(add: Any, source: Iterator[bytes]) -> Iterator[tuple[Run, int]]:
        fresh = take(source, min(chunk, sizes[0] // 20))

        def add_all(batch: list[bytes]) -> None:
            for item in batch:
                add(item)

        yield lambda: add_all(fresh), len(fresh)
        yield lambda: add_all(known), len(known)

    samples = take_turns(
        {f"{name}|{items}": lambda f=f: prepare(*f) for (name, items), f in adds.items()},  # type: ignore[misc]
        repeats,
    )
    rows: list[Row] = []
    for key, parts in samples.items():
        name, number = key.split("|")
        rows.append({"name": name, "items": int(number), **summed(mean_of(parts))})
    least = {row["name"]: row["cpu"] for row in rows if row["items"] == sizes[0]}
    least[GROWN] = least[OURS]
    grown = [row | {"ratio": row["cpu"] / least[row["name"]]} for row in rows]
    return {"growth": grown, "losses": losses}


def loss(seen: LocalFilter, lost: int) -> Row:
    """Return how many of the items that a filter was given were lost, counted and expected."""
    info = seen.info()
    told = {"items": info.items + lost, "expected_lost": info.expected_lost, "lost": lost}
    return told | poisson(lost)


def draw(axes: Any, rows: Rows) -> None:
    """Draw time against items."""
    names = list(dict.fromkeys(row["name"] for row in rows["growth"]))
    for name in names:
        line = sorted((row["items"], row) for row in rows["growth"] if row["name"] == name)
        axes.errorbar(
            [items for items, _ in line],
            [row["cpu"] * 1e6 for _, row in line],
            yerr=[
                [(row["cpu"] - row["cpu_low"]) * 1e6 for _, row in line],
                [(row["cpu_high"] - row["cpu"]) * 1e6 for _, row in line],
            ],
            marker="o",
            markersize=4,
            capsize=3,
            label=name,
            color=colour_of(name),
            linestyle=style_of(name, names),
        )
    axes.set(xscale="log", xlabel="items in the filter", ylabel="µs CPU for one check-and-add")
    axes.set_ylim(bottom=0)


PART = Part(
    name="growth",
    title="How the cost grows",
    method="""\
Filters made for 100,000 to 100,000,000 items at 1e-6, and filled to that: ours, and rbloom with the
quickest hash that can be stored; and one of ours of the default capacity that has grown instead.
All of them live in one process and are timed in turn, 5,000 new items and 20,000 repeated ones in
each round; the figure is the mean of new and repeated. Fingerprints that were called seen while
our filters were filled are pages that a crawl would lose: counted, expected, and the exact 95 %
interval of a Poisson mean for that count.
""",
    packages=("rbloom",),
    run=run,
    tables=(
        Table(
            "growth",
            "One check-and-add of filters of many sizes",
            (
                Column("name", "filter"),
                Column("items", "items", ","),
                Column("cpu", "µs CPU", ".2f", 1e-6, spread=True),
                Column("wall", "µs wall", ".2f", 1e-6),
                Column("ratio", "to the smallest", ".2f"),
            ),
        ),
        Table(
            "losses",
            "Pages lost where BLOOM_CAPACITY is what the crawl comes to",
            (
                Column("items", "URLs", ","),
                *LOSSES,
            ),
        ),
    ),
    plots=(
        Plot("growth", "Time of one check-and-add against the number of items in the filter", draw),
    ),
)
