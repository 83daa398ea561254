"""What must hold of our figures, each with its bound, and the figures that the docs begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from bench.competitors import OURS, RBLOOM, SET, TEXTBOOK
from bench.fleet import BESIDE, SCRAPY_REDIS
from bench.fleet import OURS as FLEET
from bench.part import Row
from bench.parts import polite
from bench.parts.core import ITEMS
from bench.results import Result
from bench.schedulers import OURS as SCHEDULER
from bench.schedulers import SCRAPY as SCRAPY_SCHEDULER
from bench.scrapy_filters import DEFAULT as SAFE
from bench.scrapy_filters import SCRAPY

Results = Mapping[str, Result]


class Claim(NamedTuple):
    """What is bounded, what takes it from the results, and what it may be at most."""

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


def core(results: Results, name: str) -> float:
    """Return our time by that of another, for one check-and-add at 10,000,000 items."""
    return float(row(results, "core", "core", name=name)["ratio"])


def slowest_request_seen(results: Results) -> float:
    """Return the highest ratio of `request_seen` to Scrapy's, over levels."""
    rows = results["request-seen"]["tables"]["seen"]
    return max(float(row["ratio"]) for row in rows if row["name"].startswith(OURS))


def far(results: Results, name: str = FLEET) -> Row:
    """Return what a page takes with its queue in a Redis that is 5 ms away."""
    return row(results, "redis-crawl", "crawls", name=name, delay=0.005)


def most_trips(results: Results) -> float:
    """Return the most round trips for a page, over the crawls with our scheduler."""
    rows = results["redis-crawl"]["tables"]["crawls"]
    return max(float(row["trips"]) for row in rows if row["name"] == FLEET)


def paced(results: Results, hosts: int = polite.HOSTS, name: str = FLEET) -> Row:
    """Return what a crawl of four workers with a delay was like."""
    return row(results, "polite", "pace", workers=4, hosts=hosts, name=name)


def highest_paced(results: Results, above: str, below: str) -> float:
    """Return the highest ratio of two columns, over our crawls with a delay and up to 4 workers."""
    rows = results["polite"]["tables"]["pace"]
    own = [row for row in rows if row["name"] == FLEET and row["workers"] <= 4]
    return max(float(each[above] / each[below]) for each in own)


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
        0.5,
    ),
    Claim(
        "one check-and-add, compared with rbloom and its recommended hash for stored filters",
        lambda results: core(results, RBLOOM),
        1.1,
    ),
    Claim(
        "bytes per URL at 1e-6, full to 10,000,000",
        lambda results: row(results, "core", "core", name=OURS)["bytes_per_item"],
        4.5,
    ),
    Claim(
        "`request_seen`, to Scrapy's own filter, the slowest level",
        slowest_request_seen,
        0.5,
    ),
    Claim(
        "CPU of a crawl with a job directory, to Scrapy's default queue and filter, any site",
        dearest_crawl,
        1.1,
    ),
    Claim("round trips for a page with `scrapy_bloom.Scheduler` and Redis", most_trips, 0.5),
    Claim(
        "time of such a crawl with 5 ms on the way, to scrapy-redis's",
        lambda results: far(results)["seconds_ratio"],
        0.2,
    ),
    Claim(
        "possible pages for each page fetched at a pace that up to 4 workers share, any crawl",
        lambda results: highest_paced(results, "possible", "pages"),
        1.12,
    ),
    Claim(
        "requests to the busiest host in such crawls, to the configured pace",
        lambda results: highest_paced(results, "busiest", "pace"),
        1.1,
    ),
    Claim(
        "gaps between requests to a host below half of the delay, 4 workers, 20 hosts",
        lambda results: paced(results)["short"],
        0.03,
    ),
    Claim(
        "pages and items that crawls with `scrapy_bloom.Scheduler` lose to kills",
        lambda results: killed(results)["lost"] + killed(results)["items_lost"],
        0,
    ),
    Claim(
        "pages that crawls with `scrapy_bloom.Scheduler` lose to an outage of the site",
        lambda results: row(results, "outage", "outage", name=SCHEDULER)["lost"],
        0,
    ),
    Claim(
        "pages that are fetched again for a kill, of crawls with 16 requests at a time",
        lambda results: killed(results)["again_each"],
        32,
    ),
)


SAME = 1.001
"""A ratio up to which two are equally fast."""


def behind(results: Results) -> list[str]:
    """Return where we are slower than others, or than one might expect, in sentences."""
    rows = {r["name"]: r for r in results["core"]["tables"]["core"]}
    slower = {name: r["ratio"] for name, r in rows.items() if r["ratio"] > SAME}
    (first, ratio), *others = slower.items()
    faster = f"a Python {first.partition(',')[0]} is {ratio:.1f} times as fast as our filter"
    faster += "".join(f", and {name} {ratio:.1f} times" for name, ratio in others)
    crawls = results["redis-crawl"]["tables"]["crawls"]
    beside = [each["server_ratio"] for each in crawls if each["name"] == BESIDE]
    one = [paced(results, 1, name)["server"] * 1e6 for name in polite.BOTH]
    crawl = dearest_crawl(results)
    return [
        f"At {ITEMS / 1e6:.0f} million items {faster}.",
        (
            f"A full filter takes {rows[OURS]['bytes_per_item']:.2f} bytes a page,"
            f" a textbook Bloom filter {rows[TEXTBOOK]['bytes_per_item']:.2f}."
        ),
        *(
            f"With scrapy-redis's scheduler, our filter takes up to {ratio:.2f} times as much CPU"
            " of Redis as scrapy-redis's own."
            for ratio in (max(beside),)
            if ratio > SAME
        ),
        (
            f"Four workers that share one host at {1 / polite.DELAY:g} pages a second take"
            f" {one[0]:,.0f} µs of Redis a page, those of scrapy-redis {one[1]:,.0f}."
        ),
        *([f"A page with a job directory takes {crawl:.2f} times Scrapy's CPU."] * (crawl > SAME)),
        *(
            f"A page of {each['workers']} workers, Redis {each['delay'] * 1e3:g} ms away, takes"
            f" {each['seconds_ratio']:.2f} times as long as with scrapy-redis."
            for each in crawls
            if each["name"] == FLEET and each["seconds_ratio"] > SAME
        ),
    ]


def short(results: Results) -> list[tuple[str, str, str, str]]:
    """Return the figures that stand for all: what, ours, theirs, what is better."""
    lost = [killed(results, name) for name in (SCHEDULER, SCRAPY_SCHEDULER)]
    away = [row(results, "outage", "outage", name=n) for n in (SCHEDULER, SCRAPY_SCHEDULER)]
    full = [row(results, "core", "core", name=name) for name in (OURS, SET)]
    seen = [row(results, "request-seen", "seen", name=name) for name in (SAFE, SCRAPY)]
    crawled = [
        row(results, "frontier-crawl", "crawl", name=name, links=20)
        for name in (SCHEDULER, SCRAPY_SCHEDULER)
    ]
    hosts = [paced(results, name=name) for name in polite.BOTH]
    near = [far(results, name) for name in (FLEET, SCRAPY_REDIS)]
    return [
        (
            "pages lost by crawls that are killed",
            *_both(lost, _lost, "Scrapy's scheduler"),
            "less",
        ),
        (
            "pages lost by crawls of a site that is away for four seconds",
            *_both(away, _lost, "Scrapy's scheduler"),
            "less",
        ),
        (
            f"memory of a filter with {ITEMS:,} pages",
            *_both(
                full, lambda each: f"{each['bytes_per_item'] * ITEMS / 1e6:,.0f} MB", "Scrapy's set"
            ),
            "less",
        ),
        (
            "`request_seen` of a fresh request",
            *_both(seen, lambda each: f"{each['cpu'] * 1e6:.2f} µs", "Scrapy's filter"),
            "less",
        ),
        (
            "CPU for a page with 20 links, with a job directory, in alternating runs",
            *_both(crawled, lambda each: f"{each.get('to_scrapy', 1):.2f}", "Scrapy's scheduler"),
            "less",
        ),
        (
            "time for a page, Redis 5 ms away",
            *_both(near, lambda each: f"{each['seconds'] * 1e3:.0f} ms", "scrapy-redis"),
            "less",
        ),
        (
            f"requests/s to a host that is to get {hosts[0]['pace']:g}, 4 workers",
            *_both(hosts, lambda each: f"{each['busiest']:.2f}", "scrapy-redis"),
            f"{hosts[0]['pace']:.2f}",
        ),
    ]


def _both(pair: list[Row], show: Callable[[Row], str], other: str) -> tuple[str, str]:
    return show(pair[0]), f"{other}: {show(pair[1])}"


def _lost(row: Row) -> str:
    return f"{row['lost']:,} of {row['pages']:,}"
