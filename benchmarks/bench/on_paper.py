"""What a crawl of the size of the web would take, reckoned from our figures, not measured."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from math import ceil
from typing import Final

from bench.claims import SETS, large, row
from bench.parts.redis_layouts import ours
from bench.parts.shared_crawl import OURS
from bench.results import Result
from scrapy_bloom.options import DEFAULT_ERROR_RATE

DAY: Final = 86_400
DAYS: Final = 41
PAGES: Final = 6.4e9
URLS: Final = 41e9
LINKS: Final = 394e9
"""IRLbot's crawl (Lee, Leonard, Wang, Loguinov 2008): what it took, and what it found."""

FAST: Final = 1e9
"""Pages a day of a crawl that is faster than that."""

NODE: Final = 64e9
"""Bytes that a node of the cluster has for us."""


class Crawl:
    """A crawl of IRLbot's links at some speed, with our figures.

    :param pages: a second.

    Attributes:
        checks: a second.
        filter_cores: cores of Redis that mark.
        cores: cores of Redis that do all.
        worker_cores: cores that Scrapy takes.
        trips: round trips a second.
        log: bytes a second that go into append-only files.
    """

    def __init__(self, results: Mapping[str, Result], layout: str, pages: float) -> None:
        check = large(results, layout)
        way = row(results, "shared-server", "times", name=layout, batch=500)
        room = row(results, "shared-server", "room", name=layout, batch=500)
        page = row(results, "shared-crawl", "crawls", name=OURS, delay=0.0005)
        links, new = LINKS / PAGES, URLS / PAGES
        self.checks = pages * links
        known = self.checks - pages * new
        self.filter_cores = known * check["seen"] + pages * new * check["new"]
        self.cores = known * check["seen"] + pages * (new * way["push"] + way["take"])
        self.worker_cores = pages * page["cpu"]
        self.trips = pages * page["trips"]
        self.log = pages * (new * room["push"] + room["take"])


def section(results: Mapping[str, Result]) -> str:
    """Return the section of the page."""
    bitmap = ours("bitmap")
    waiting = row(results, "shared-server", "room", name=SETS, batch=500)["memory"]
    full = {name: large(results, name) for name in (SETS, bitmap)}
    filters = {name: URLS * each["memory"] / each["urls"] for name, each in full.items()}
    queue = (URLS - PAGES) * waiting
    speeds = {"IRLbot's": PAGES / DAYS / DAY, "a billion pages a day": FAST / DAY}
    crawls = {
        (speed, name): Crawl(results, name, pages)
        for speed, pages in speeds.items()
        for name in (SETS, bitmap)
    }
    head = "| what | " + " | ".join(f"{speed}, {name[6:]}" for speed, name in crawls) + " |"
    lines = [
        head,
        "| --- |" + " --- |" * len(crawls),
        _line("pages a second", [f"{speeds[speed]:,.0f}" for speed, _ in crawls]),
        _line("checks a second", [f"{each.checks:,.0f}" for each in crawls.values()]),
        _line(
            "checks a second that one core of Redis sustains",
            [f"{x.checks / x.filter_cores:,.0f}" for x in crawls.values()],
        ),
        _line("cores of Redis, filter alone", [f"{x.filter_cores:.1f}" for x in crawls.values()]),
        _line("cores of Redis, filter and queue", [f"{x.cores:.1f}" for x in crawls.values()]),
        _line("cores of Scrapy's workers", [f"{x.worker_cores:,.0f}" for x in crawls.values()]),
        _line("round trips a second", [f"{x.trips:,.0f}" for x in crawls.values()]),
        _line("append-only files, MB a second", [f"{x.log / 1e6:,.0f}" for x in crawls.values()]),
        _line("GB of the filter, full", [f"{filters[name] / 1e9:,.0f}" for _, name in crawls]),
        _line(
            f"nodes of {NODE / 1e9:.0f} GB for the filter",
            [f"{ceil(filters[name] / NODE)}" for _, name in crawls],
        ),
        _line("TB of requests that wait at the end", [f"{queue / 1e12:,.0f}"] * len(crawls)),
        _line(f"nodes of {NODE / 1e9:.0f} GB for these", [f"{ceil(queue / NODE):,}"] * len(crawls)),
    ]
    fast = crawls["a billion pages a day", SETS]
    text = f"""\
IRLbot took {PAGES / 1e9:g} billion pages in {DAYS} days and met {LINKS / 1e9:g} billion links to \
{URLS / 1e9:g} billion URLs: {LINKS / DAYS / DAY:,.0f} checks a second. What follows is reckoned \
from the figures of parts `redis-large`, `shared-server` and `shared-crawl`, with \
{LINKS / PAGES:.0f} links on a page, {URLS / PAGES:.1f} of them new. Nothing of it was measured at \
that size."""
    breaks = f"""\
The memory of the queue breaks first: at {waiting:.0f} bytes each, the {(URLS - PAGES) / 1e9:.0f} \
billion URLs that nobody has fetched when the crawl ends take {queue / filters[SETS]:.0f} times as \
much as the filter. A crawl of that size has to choose what it queues, or to queue on disks; the \
filter alone fits {ceil(filters[SETS] / NODE)} nodes. Second are the workers: \
{fast.worker_cores:,.0f} cores of Scrapy at a billion pages a day, where Redis needs \
{fast.cores:.0f}. Third, at that speed, is what is written down: {fast.log / 1e6:,.0f} MB a second \
of append-only files. With an error rate of 1 in {1 / DEFAULT_ERROR_RATE:,.0f} the filter is \
expected to lose up to {URLS * DEFAULT_ERROR_RATE:,.0f} pages. What we do not know: how the \
renewals of leases of so many workers add up, each of which watches all others."""
    blocks = ["## On paper: the size of the web", _fill(text), "\n".join(lines), _fill(breaks)]
    return "\n\n".join(blocks) + "\n"


def _fill(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False)


def _line(what: str, values: list[str]) -> str:
    return f"| {what} | {' | '.join(values)} |"
