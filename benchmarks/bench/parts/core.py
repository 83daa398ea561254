"""One check-and-add, in everything that one could take instead of our filter."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import islice

from bench.competitors import CANDIDATES, OURS, Made
from bench.fingerprints import resident, stream, take
from bench.harness import Run, mean_of, spread, take_turns
from bench.part import Column, Part, Row, Rows, Scale, Table

ERROR_RATE = 1e-6
ITEMS = 10_000_000
SEED = 1


def fill(name: str, items: int, left: int) -> tuple[Made, Iterator[bytes], int]:
    """Make a candidate and add all but the last `left` of its items.

    :returns: the candidate, the source of its other items, and the bytes that the process grew by.
    """
    gc.collect()
    before = resident()
    made = CANDIDATES[name](items, ERROR_RATE)
    source = stream(SEED)
    for item in islice(source, items - left):
        made.add(item)
    return made, source, resident() - before


def measure(items: int, chunk: int, repeats: int) -> list[Row]:
    """Fill every candidate with so many items, in timed rounds at the end; return the rows."""
    filled = {name: fill(name, items, chunk * repeats) for name in CANDIDATES}
    known = take(stream(SEED), chunk)
    gc.collect()
    gc.freeze()  # or each repeat would begin with a walk through all that the sets hold

    def prepare(name: str) -> Iterator[tuple[Run, int]]:
        made, source, _ = filled[name]
        add, fresh = made.add, take(source, chunk)

        def add_all(batch: list[bytes]) -> None:
            for item in batch:
                add(item)

        yield lambda: add_all(fresh), chunk
        yield lambda: add_all(known), chunk

    samples = take_turns({name: lambda n=name: prepare(n) for name in filled}, repeats)  # type: ignore[misc]
    rows = [
        {
            "items": items,
            "name": name,
            **spread("cpu", mean_of(samples[name])),
            "bytes_per_item": (made.size() if made.size else grown) / items,
        }
        for name, (made, _, grown) in filled.items()
    ]
    gc.unfreeze()
    base = next(row["cpu"] for row in rows if row["name"] == OURS)
    return [row | {"ratio": base / row["cpu"]} for row in rows]


def run(scale: Scale) -> Rows:
    """Measure."""
    sizes = scale.of((ITEMS, 20_000, 9), (100_000, 5000, 3))
    return {"core": measure(*sizes)}


PART = Part(
    name="core",
    title="One check-and-add",
    method="""\
Random fingerprints of 20 bytes; each candidate is sized for that many items at an error rate of
1e-6, and filled. In 9 timed rounds the last 9 x 20,000 items are added and 20,000 old ones are
added again; the figure is the mean of both. The ratio is our CPU time by theirs. All candidates
live in one process, so the caches are equally cold for all.

Bytes per item are those of the bits, and for the set the growth of the process.

The set is what Scrapy keeps. The textbook loop has the optimal numbers of bits and hashes.
rbloom has the hash that its documentation recommends for filters that are stored, SHA-256, and the
fastest that can be stored. With the latter rbloom is faster than we are, and so is fastbloom-rs:
both are written in Rust.""",
    packages=("rbloom", "fastbloom-rs"),
    run=run,
    tables=(
        Table(
            "core",
            "One check-and-add at an error rate of 1e-6",
            (
                Column("items", "items", ","),
                Column("name", "candidate"),
                Column("cpu", "µs CPU", ".2f", 1e-6, spread=True),
                Column("ratio", "ours / theirs", ".2f"),
                Column("bytes_per_item", "bytes per item", ".2f"),
            ),
        ),
    ),
)
