"""The error rate that comes out, against what was asked for and what theory tells."""

from __future__ import annotations

from itertools import islice
from math import ceil, floor, sqrt

from bench.fingerprints import feed
from bench.intervals import SHARE, poisson, theory, wilson
from bench.keys import ANY_BYTES, CRAWL, KINDS
from bench.part import Column, Part, Row, Rows, Scale, Table
from scrapy_bloom import LocalFilter

CAPACITIES = {1e-2: 10_000, 1e-3: 20_000, 1e-4: 50_000, 1e-5: 50_000, 1e-6: 50_000}
LOADS = (0.5, 1, 10)
MOST = 300_000
CRAWLED = 4_500


def run(scale: Scale) -> Rows:
    """Fill a filter for every kind of keys and every rate; ask it at every load."""
    rows = []
    for rate, capacity in CAPACITIES.items():
        for kind in KINDS:
            size = CRAWLED if kind == CRAWL else scale.of(capacity, 2000)
            queries = min(scale.of(MOST, 10_000), round(300 / rate))
            rows += measure(kind, rate, size, queries)
    return {"errors": rows, "sums": [total(rows, rate) for rate in CAPACITIES]}


def measure(kind: str, rate: float, capacity: int, queries: int) -> list[Row]:
    """Return a row for each load."""
    seen = LocalFilter(capacity, rate, digests=kind != ANY_BYTES)
    members, items = KINDS[kind](0), 0
    strangers = list(islice(KINDS[kind](1), queries * len(LOADS)))
    queries = len(strangers) // len(LOADS)
    rows = []
    for number, load in enumerate(LOADS):
        # Others at every load: an error would come back at the next one.
        asked = strangers[number * queries : (number + 1) * queries]
        feed(seen.add, members, round(load * capacity) - items)
        items = round(load * capacity)
        wrong = sum(map(seen.__contains__, asked))
        interval = wilson(wrong, queries)
        low, high = interval["low"], interval["high"]
        told = seen.info().estimated_fp_rate
        rows.append(
            {
                "asked": rate,
                "kind": kind,
                "load": load,
                "items": items,
                "theory": theory(seen),
                "told": told,
                "queries": queries,
                "wrong": wrong,
                "measured": wrong / queries,
                **interval,
                "holds": "yes" if low <= told <= high else "no",
                "below": "yes" if high < rate else "no" if low > rate else "open",
                "chance": coverage(told, queries),
            }
        )
    return rows


def coverage(rate: float, queries: int) -> float:
    """Return how likely it is that Wilson's 95 % interval holds the rate that is true.

    It does where the count is within 1.96 standard deviations of what is expected; of a small
    number of errors that is not 95 %.
    """
    from scipy.stats import binom, norm

    mean = rate * queries
    spread = norm.ppf(0.975) * sqrt(mean * (1 - rate))
    return float(
        binom.cdf(floor(mean + spread), queries, rate)
        - binom.cdf(ceil(mean - spread) - 1, queries, rate)
    )


def total(rows: list[Row], rate: float) -> Row:
    """Return all errors of one rate together, and how likely a number so far off would be."""
    from scipy.stats import poisson as distribution

    of_rate = [row for row in rows if row["asked"] == rate]
    wrong = sum(row["wrong"] for row in of_rate)
    expected = sum(row["told"] * row["queries"] for row in of_rate)
    tails = distribution.cdf(wrong, expected), distribution.sf(wrong - 1, expected)
    queries = sum(row["queries"] for row in of_rate)
    return {
        "asked": rate,
        "intervals": len(of_rate),
        "hold": sum(row["holds"] == "yes" for row in of_rate),
        "should": sum(row["chance"] for row in of_rate),
        "queries": queries,
        "expected": expected,
        "wrong": wrong,
        "p": min(1.0, 2 * float(min(tails))),
        "high": poisson(wrong)["high"] / queries,
    }


def findings(rows: Rows) -> list[str]:
    """Count the intervals that hold."""
    errors = rows["errors"]
    holds = sum(row["holds"] == "yes" for row in errors)
    should = sum(row["chance"] for row in errors)
    above = sum(row["below"] == "no" for row in errors)
    below = sum(row["below"] == "yes" for row in errors)
    said = (
        f"The 95 % interval of what was measured holds what the filter tells in {holds} of"
        f" {len(errors)} cases, where {should:.1f} are to be expected; it lies below what was"
        f" asked in {below} and above it in {above}. In the others too few keys can be asked about."
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
fifth of it, so that at its capacity a filter errs 0.2 times as often as was asked. At most 300,000
keys are asked about, others at every load; rates of 1e-5 and less cannot be told from none by that,
only bounded, and for these the sums over all kinds of keys and loads say more. The chance is that
of a Poisson number as far off as the one counted, on either side; "at most" is the upper end of its
exact 95 % interval. How many intervals are to be expected to hold follows from the binomial
distribution, as of rare errors more or less than 95 % do.
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
                Column("high", "all together at most", ".1e"),
                Column("intervals", "cases"),
                Column("hold", "intervals that hold"),
                Column("should", "to be expected", ".1f"),
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
                *SHARE,
                Column("holds", "holds told"),
                Column("below", "below asked"),
            ),
        ),
    ),
    findings=findings,
    alone=False,
)
