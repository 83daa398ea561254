"""What must hold of our figures, each with its bound, and the figures that the docs begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.competitors import FASTBLOOM, OURS, RBLOOM, RBLOOM_QUICKEST, TEXTBOOK
from bench.part import Row
from bench.parts import shared_crawl
from bench.results import Result
from bench.schedulers import OURS as SCHEDULER
from bench.schedulers import SCRAPY as SCRAPY_SCHEDULER
from bench.scrapy_filters import DEFAULT as SAFE
from bench.scrapy_filters import SCRAPY

Results = Mapping[str, Result]


@dataclass(frozen=True)
class Claim:
    """One bound.

    Attributes:
        text: what is bounded.
        value: takes it from the results.
        bound: what it may be at most.
    """

    text: str
    value: Callable[[Results], float]
    bound: float

    def holds(self, results: Results) -> bool:
        """Return whether the results are within the bound."""
        return self.value(results) <= self.bound


def row(results: Results, part: str, table: str, **fields: object) -> Row:
    """Return the one row of a table that has these fields.

    :raises LookupError: if there is none, or more than one.
    """
    found = [
        row
        for row in results[part]["tables"][table]
        if all(row.get(key) == value for key, value in fields.items())
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {part}/{table} have {fields}")
    return dict(found[0])


LARGE = 10_000_000
DELAYS = (0.0, 0.0005, 0.005, 0.02)


def core(results: Results, name: str) -> float:
    """Return our time by that of another, for one check-and-add at 10,000,000 items."""
    return float(row(results, "core", "core", items=LARGE, name=name)["ratio"])


def slowest_request_seen(results: Results) -> float:
    """Return the highest ratio of `request_seen` to Scrapy's, over levels, links and places."""
    rows = results["request-seen"]["tables"]["seen"]
    return max(float(row["ratio"]) for row in rows if row["name"].startswith(OURS))


def shared(results: Results, delay: float) -> Row:
    """Return what a page of a crawl with its queue in Redis takes, so many seconds away."""
    return row(results, "shared-crawl", "crawls", name=shared_crawl.OURS, delay=delay)


def dearest_crawl(results: Results) -> float:
    """Return the highest ratio of our crawl's CPU to that of Scrapy's default, over the sites."""
    rows = results["frontier-crawl"]["tables"]["crawl"]
    return max(float(row["to_scrapy"]) for row in rows if row["name"] == SCHEDULER)


def killed(results: Results, name: str = SCHEDULER) -> Row:
    """Return what became of the crawls of a scheduler that were killed."""
    return row(results, "kills", "kills", name=name)


CLAIMS = (
    Claim(
        "one check-and-add at 10,000,000 items, to the textbook loop",
        lambda results: core(results, TEXTBOOK),
        0.35,
    ),
    Claim(
        "the same, to rbloom with the hash that it recommends for a filter that is stored",
        lambda results: core(results, RBLOOM),
        1.1,
    ),
    Claim(
        "bytes per URL at 1e-6, full to 1,000,000",
        lambda results: row(results, "core", "core", items=1_000_000, name=OURS)["bytes_per_item"],
        4.5,
    ),
    Claim(
        "`request_seen`, to Scrapy's own filter, the slowest level and links",
        slowest_request_seen,
        0.5,
    ),
    Claim(
        "growth of a crawler's memory at 5,000,000 URLs, to Scrapy's own filter",
        lambda results: row(results, "memory", "memory", name=SAFE)["ratio"],
        0.15,
    ),
    Claim(
        "CPU of a crawl with a job directory, to Scrapy's default queue and filter, any site",
        dearest_crawl,
        1.05,
    ),
    Claim(
        "round trips for a page with `scrapy_bloom.Scheduler` and Redis, 0 to 20 ms away, the most",
        lambda results: max(shared(results, delay)["trips"] for delay in DELAYS),
        0.5,
    ),
    Claim(
        "time of such a crawl with 5 ms on the way, to scrapy-redis's",
        lambda results: shared(results, 0.005)["times"],
        0.2,
    ),
    Claim(
        "pages and items that crawls with `scrapy_bloom.Scheduler` lose to kills",
        lambda results: killed(results)["lost"] + killed(results)["items_lost"],
        0,
    ),
    Claim(
        "pages that are fetched again for a kill, to those in flight",
        lambda results: killed(results)["again"] / killed(results)["under_way"],
        2,
    ),
)


def behind(results: Results) -> list[str]:
    """Return where we are slower than others, or than one might expect, in sentences."""
    at = {r["name"]: r["ratio"] for r in results["core"]["tables"]["core"] if r["items"] == LARGE}
    faster = ", ".join(f"{name} {ratio:.2f}" for name, ratio in at.items() if ratio > 1.001)
    start = {r["name"]: r["cpu"] * 1e3 for r in results["frontier-crawl"]["tables"]["ends"]}
    return [
        f"In the core, our time divided by that of the faster ones, at {LARGE:,} items: {faster}.",
        (
            f"Starting and ending a crawl takes our scheduler {start[SCHEDULER]:.0f} ms of CPU,"
            f" Scrapy's own {start[SCRAPY_SCHEDULER]:.0f}."
        ),
    ]


def short(results: Results) -> list[tuple[str, str, str, str]]:
    """Return the rows of the home page's table: what, ours, theirs, ratio."""
    seen = {"links": "of a real crawl", "job": "no"}
    ours = row(results, "request-seen", "seen", name=SAFE, **seen)
    theirs = row(results, "request-seen", "seen", name=SCRAPY, **seen)
    what = "`request_seen` of a fresh request"
    rows = [(what, _micros(ours), f"Scrapy's filter: {_micros(theirs)}", f"{ours['ratio']:.2f}")]
    what = f"check-and-add at {LARGE:,} items"
    for name in (TEXTBOOK, RBLOOM, RBLOOM_QUICKEST, FASTBLOOM):
        ours = row(results, "core", "core", items=LARGE, name=OURS)
        theirs = row(results, "core", "core", items=LARGE, name=name)
        rows.append((what, _micros(ours), f"{name}: {_micros(theirs)}", f"{theirs['ratio']:.2f}"))
    grown = [row(results, "memory", "memory", name=name) for name in (SAFE, SCRAPY)]
    mine, other = (f"{each['grown'] / 1e6:,.0f} MB" for each in grown)
    what = f"memory of a crawler at {grown[0]['urls']:,} URLs"
    rows.append((what, mine, f"Scrapy's filter: {other}", f"{grown[0]['ratio']:.2f}"))
    lost = [killed(results, name) for name in (SCHEDULER, SCRAPY_SCHEDULER)]
    mine, other = (f"{each['lost']:,} of {each['pages']:,}" for each in lost)
    rows.append(("pages lost by crawls that are killed", mine, f"Scrapy's scheduler: {other}", ""))
    near = shared(results, 0.0005)
    slow = row(results, "shared-crawl", "crawls", name=shared_crawl.SCRAPY_REDIS, delay=0.0005)
    what = "time for a page, Redis 0.5 ms away"
    mine, other = (f"{each['wall'] * 1e3:.0f} ms" for each in (near, slow))
    rows.append((what, mine, f"scrapy-redis: {other}", f"{near['times']:.2f}"))
    return rows


def _micros(found: Row) -> str:
    return f"{found['cpu'] * 1e6:.2f} µs"
