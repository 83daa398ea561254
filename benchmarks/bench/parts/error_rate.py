"""The error rate that comes out, against what was asked for and what theory tells."""

from __future__ import annotations

from itertools import islice
from math import prod

from bench.fingerprints import feed
from bench.keys import ANY_BYTES, CRAWL, KINDS
from bench.part import Column, Part, Row, Rows, Scale, Table
from scrapy_bloom import LocalFilter, sizing

CAPACITIES = {1e-2: 10_000, 1e-3: 20_000, 1e-4: 50_000, 1e-5: 50_000, 1e-6: 50_000}
LOADS = (0.5, 1, 10)
MOST = 400_000
CRAWLED = 4_500


def run(scale: Scale) -> Rows:
    """Fill a filter for every kind of keys and every rate; ask it at every load."""
    rows = []
    for rate, capacity in CAPACITIES.items():
        for kind in KINDS:
            size = CRAWLED if kind == CRAWL else scale.of(capacity, 2000)
            queries = min(scale.of(MOST, 10_000), round(400 / rate))
            rows += measure(kind, rate, size, queries)
    return {"errors": rows, "sums": [total(rows, rate) for rate in CAPACITIES]}


def measure(kind: str, rate: float, capacity: int, queries: int) -> list[Row]:
    """Return a row for each load."""
    from scipy.stats import binomtest

    seen = LocalFilter(capacity, rate, digests=kind != ANY_BYTES)
    members, items = KINDS[kind](0), 0
    strangers = list(islice(KINDS[kind](1), queries))
    rows = []
    for load in LOADS:
        feed(seen.add, members, round(load * capacity) - items)
        items = round(load * capacity)
        wrong = sum(map(seen.__contains__, strangers))
        interval = binomtest(wrong, len(strangers)).proportion_ci(0.95, method="wilson")
        told = seen.info().estimated_fp_rate
        rows.append(
            {
                "asked": rate,
                "kind": kind,
                "load": load,
                "items": items,
                "theory": theory(seen),
                "told": told,
                "queries": len(strangers),
                "wrong": wrong,
                "measured": wrong / len(strangers),
                "low": interval.low,
                "high": interval.high,
                "holds": "yes" if interval.low <= told <= interval.high else "no",
                "below": "yes" if interval.low <= rate else "no",
            }
        )
    return rows


def theory(seen: LocalFilter) -> float:
    """Return the rate by the formula of Putze, Sanders, Singler (2007) for each slice."""
    state = seen.state()
    slices = [(part.items, part.spec.blocks) for part in state.slices]
    rates = [sizing.false_positive_rate(n, blocks, state.hashes) for n, blocks in slices]
    return 1 - prod(1 - rate for rate in rates)


def total(rows: list[Row], rate: float) -> Row:
    """Return all errors of one rate together, and how likely a number so far off would be."""
    from scipy.stats import poisson

    of_rate = [row for row in rows if row["asked"] == rate]
    wrong = sum(row["wrong"] for row in of_rate)
    expected = sum(row["told"] * row["queries"] for row in of_rate)
    tails = poisson.cdf(wrong, expected), poisson.sf(wrong - 1, expected)
    return {
        "asked": rate,
        "intervals": len(of_rate),
        "hold": sum(row["holds"] == "yes" for row in of_rate),
        "queries": sum(row["queries"] for row in of_rate),
        "expected": expected,
        "wrong": wrong,
        "p": min(1.0, 2 * float(min(tails))),
    }


def findings(rows: Rows) -> list[str]:
    """Count the intervals that hold."""
    errors = rows["errors"]
    holds = sum(row["holds"] == "yes" for row in errors)
    above = sum(row["below"] == "no" for row in errors)
    said = (
        f"The 95 % interval of what was measured holds what the filter tells in {holds} of"
        f" {len(errors)} cases, where 95 % would be {0.95 * len(errors):.0f}; it lies above what"
        f" was asked in {above}."
    )
    return [said]


_RATES = tuple(Column(key, title, ".2e") for key, title in (("theory", "theory"), ("told", "told")))

PART = Part(
    name="error-rate",
    title="The error rate against theory",
    method="""\
Filters are asked about keys that were never added, at half their capacity, at their capacity, and
at ten times that, when they have grown. Keys are uniform fingerprints; URLs with normally or
exponentially distributed numbers; numbered hosts; pages of one host; numbers that nothing has
hashed before; bytes that are no digests; and the links of a real crawl, of which there are enough
for small filters only. "Theory" is the formula for blocked filters (Putze, Sanders, Singler 2007);
"told" is what the filter itself says, from its bits; the interval is Wilson's (1927).

A filter may grow for ever, and its error rate is for all of that time: the first slice spends a
fifth of it, so that at its capacity a filter errs 0.2 times as often as was asked. At most 400,000
keys are asked about; rates of 1e-5 and less cannot be told from none by that, only bounded, and for
these the sums over all kinds of keys and loads say more. The chance is that of a Poisson number as
far off as the one counted, on either side.
""",
    packages=("scipy",),
    run=run,
    tables=(
        Table(
            "sums",
            "All errors of each rate together",
            (
                Column("asked", "asked", "g"),
                Column("queries", "keys asked about", ","),
                Column("expected", "errors, expected", ",.1f"),
                Column("wrong", "errors, counted", ","),
                Column("p", "chance of that", ".2f"),
                Column("intervals", "cases"),
                Column("hold", "intervals that hold"),
            ),
        ),
        Table(
            "errors",
            "Share of new keys called seen",
            (
                Column("asked", "asked", "g"),
                Column("kind", "keys"),
                Column("load", "load", "g"),
                Column("items", "items", ","),
                *_RATES,
                Column("measured", "measured", ".2e"),
                Column("low", "95 %, from", ".1e"),
                Column("high", "to", ".1e"),
                Column("holds", "holds told"),
            ),
        ),
    ),
    findings=findings,
    alone=False,
)
