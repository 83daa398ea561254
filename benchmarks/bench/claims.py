"""What must hold of our figures, each with its bound, and the figures that the docs begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.competitors import OURS, RBLOOM, TEXTBOOK
from bench.part import Row
from bench.parts import polite, shared_crawl
from bench.polite_crawl import JOB
from bench.polite_crawl import OURS as POLITE
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
DELAYS = (0.0005, 0.005, 0.02)


def core(results: Results, name: str) -> float:
    """Return our time by that of another, for one check-and-add at 10,000,000 items."""
    return float(row(results, "core", "core", items=LARGE, name=name)["ratio"])


def slowest_request_seen(results: Results) -> float:
    """Return the highest ratio of `request_seen` to Scrapy's, over levels."""
    rows = results["request-seen"]["tables"]["seen"]
    return max(float(row["ratio"]) for row in rows if row["name"].startswith(OURS))


def shared(results: Results, delay: float) -> Row:
    """Return what a page of a crawl with its queue in Redis takes, so many seconds away."""
    return row(results, "shared-crawl", "crawls", name=shared_crawl.OURS, delay=delay)


def paced(results: Results, crawl: str, name: str = POLITE) -> Row:
    """Return what a crawl with a delay was like."""
    return row(results, "polite", "pace", crawl=crawl, name=name)


def slowest_paced(results: Results) -> float:
    """Return the highest ratio of possible to fetched pages, over the plain crawls with a delay."""
    found = [paced(results, crawl) for crawl in polite.PLAIN]
    return max(float(each["possible"] / each["pages"]) for each in found)


def most_to_a_host(results: Results) -> float:
    """Return the highest ratio of the busiest host's requests to the pace, over these crawls."""
    found = [paced(results, crawl) for crawl in polite.PLAIN]
    return max(float(each["busiest"] / each["pace"]) for each in found)


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
        "one check-and-add, compared with rbloom and its recommended hash for stored filters",
        lambda results: core(results, RBLOOM),
        1.1,
    ),
    Claim(
        "bytes per URL at 1e-6, full to 10,000,000",
        lambda results: row(results, "core", "core", items=LARGE, name=OURS)["bytes_per_item"],
        4.5,
    ),
    Claim(
        "`request_seen`, to Scrapy's own filter, the slowest level",
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
        "round trips for a page with `scrapy_bloom.Scheduler` and Redis 0.5 to 20 ms away",
        lambda results: max(shared(results, delay)["trips"] for delay in DELAYS),
        0.5,
    ),
    Claim(
        "time of such a crawl with 5 ms on the way, to scrapy-redis's",
        lambda results: shared(results, 0.005)["times"],
        0.2,
    ),
    Claim(
        "possible pages for each page fetched at a pace that up to 4 workers share, any crawl",
        slowest_paced,
        1.12,
    ),
    Claim(
        "requests to the busiest host in such crawls, to the configured pace",
        most_to_a_host,
        1.1,
    ),
    Claim(
        "gaps between requests to a host below half of the delay, 4 workers, 20 hosts",
        lambda results: paced(results, polite.MANY)["short"],
        0.03,
    ),
    Claim(
        "calls to Redis for a page, 4 workers, 20 hosts",
        lambda results: paced(results, polite.MANY)["trips"],
        0.5,
    ),
    Claim(
        "the same share of gaps while each second a worker is killed and one joins",
        lambda results: paced(results, polite.JOINING)["short"],
        0.05,
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
        "pages that are fetched again for a kill, to those in flight",
        lambda results: killed(results)["again"] / killed(results)["under_way"],
        2,
    ),
)


SAME = 1.001
"""A ratio up to which two are equally fast."""


def behind(results: Results) -> list[str]:
    """Return where we are slower than others, or than one might expect, in sentences."""
    rows = {r["name"]: r for r in results["core"]["tables"]["core"] if r["items"] == LARGE}
    slower = {name: r["ratio"] for name, r in rows.items() if r["ratio"] > SAME}
    (first, ratio), *others = slower.items()
    faster = f"a Python {first.partition(',')[0]} is {ratio:.1f} times as fast as our filter"
    faster += "".join(f", and {name} {ratio:.1f} times" for name, ratio in others)
    start = {r["name"]: r["cpu"] * 1e3 for r in results["frontier-crawl"]["tables"]["ends"]}
    add, sadd = (r["wall"] * 1e6 for r in results["beside"]["tables"]["adds"])
    beside = [r["server_ratio"] for r in results["beside"]["tables"]["crawls"] if r["name"] == OURS]
    one = [paced(results, polite.ONE, name)["server"] * 1e6 for name in polite.BOTH]
    ends = [
        row(results, "polite", "whole", crawl=polite.END, name=n)["idle"] for n in (POLITE, JOB)
    ]
    classes = results["urls"]["tables"]["classes"]
    made, kind = max((float(each["safe"]), each["kind"]) for each in classes)
    crawl = dearest_crawl(results)
    return [
        f"At {LARGE / 1e6:.0f} million items {faster}.",
        (
            f"A full filter takes {rows[OURS]['bytes_per_item']:.2f} bytes a page,"
            f" a textbook Bloom filter {rows[TEXTBOOK]['bytes_per_item']:.2f}."
        ),
        (
            f"Starting and stopping costs {start[SCHEDULER]:.0f} ms of CPU"
            f" (Scrapy: {start[SCRAPY_SCHEDULER]:.0f})."
        ),
        f"`RedisFilter.add` takes {add:.0f} µs, a plain `SADD` by redis-py {sadd:.0f}.",
        (
            "With scrapy-redis's scheduler, our filter takes up to"
            f" {max(beside):.2f} times as much CPU of Redis as scrapy-redis's own."
        ),
        (
            f"Four workers that share one host at {1 / polite.DELAY:g} pages a second take"
            f" {one[0]:,.0f} µs of Redis a page, those of scrapy-redis {one[1]:,.0f}."
        ),
        (
            f"A shared crawl ends {ends[0]:.1f} s after its last request, one of Scrapy's own"
            f" scheduler {ends[1]:.1f} s."
        ),
        *(
            text
            for text, ratio in (
                (f"A page with a job directory takes {crawl:.2f} times Scrapy's CPU.", crawl),
                (f"A fingerprint of URLs with {kind} takes {made:.2f} times Scrapy's.", made),
            )
            if ratio > SAME
        ),
    ]


def short(results: Results) -> list[tuple[str, str, str, str]]:
    """Return the figures that stand for all: what, ours, theirs, what is better."""
    lost = [killed(results, name) for name in (SCHEDULER, SCRAPY_SCHEDULER)]
    away = [row(results, "outage", "outage", name=n) for n in (SCHEDULER, SCRAPY_SCHEDULER)]
    grown = [row(results, "memory", "memory", name=name) for name in (SAFE, SCRAPY)]
    seen = [row(results, "request-seen", "seen", name=name) for name in (SAFE, SCRAPY)]
    crawled = [
        row(results, "frontier-crawl", "crawl", name=name, links=20)
        for name in (SCHEDULER, SCRAPY_SCHEDULER)
    ]
    hosts = [paced(results, polite.MANY, name) for name in polite.BOTH]
    near = [
        row(results, "shared-crawl", "crawls", name=name, delay=0.005)
        for name in (shared_crawl.OURS, shared_crawl.SCRAPY_REDIS)
    ]
    return [
        (
            "pages lost by crawls that are killed",
            *_both(
                lost, lambda each: f"{each['lost']:,} of {each['pages']:,}", "Scrapy's scheduler"
            ),
            "less",
        ),
        (
            "pages lost by crawls of a site that is away for four seconds",
            *_both(
                away, lambda each: f"{each['lost']:,} of {each['pages']:,}", "Scrapy's scheduler"
            ),
            "less",
        ),
        (
            f"memory of a crawler at {grown[0]['urls']:,} URLs",
            *_both(grown, lambda each: f"{each['grown'] / 1e6:,.0f} MB", "Scrapy's filter"),
            "less",
        ),
        (
            "`request_seen` of a fresh request",
            *_both(seen, lambda each: f"{each['cpu'] * 1e6:.2f} µs", "Scrapy's filter"),
            "less",
        ),
        (
            "CPU for a page with 20 links, with a job directory",
            *_both(crawled, lambda each: f"{each['cpu'] * 1e3:.1f} ms", "Scrapy's scheduler"),
            "less",
        ),
        (
            "time for a page, Redis 5 ms away",
            *_both(near, lambda each: f"{each['wall'] * 1e3:.0f} ms", "scrapy-redis"),
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
