"""Crawls of many hosts by many workers: how fast, and how politely."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.fleet import OURS, SCRAPY_REDIS, Crawl, Crawled, measure
from bench.harness import in_turn, spread
from bench.look import colour_of
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table

if TYPE_CHECKING:
    from testbed.localredis import LocalRedis

DELAY: Final = 0.5
BOTH: Final = (OURS, SCRAPY_REDIS)
WORKERS: Final = (1, 2, 4, 8)  # in the plot; those with 1 and 4 are in the first table, too

ONE, ALONE, MANY, HUNDRED = (
    "4 workers, 1 host",
    "1 worker, 20 hosts",
    "4 workers, 20 hosts",
    "4 workers, 100 hosts",
)
PLAIN: Final = (ONE, ALONE, MANY, HUNDRED)
JOINING: Final = "4 workers, 20 hosts, one killed and one joining each second"

CRAWLS: Final = {
    ONE: Crawl(4, 1, DELAY),
    ALONE: Crawl(1, 20, DELAY),
    MANY: Crawl(4, 20, DELAY),
    HUNDRED: Crawl(4, 100, DELAY),
    JOINING: Crawl(4, 20, DELAY, joins=True),
}
"""Those that need most of the machine come last."""


def compare(name: str, crawl: Crawl, server: LocalRedis, scale: Scale) -> list[Row]:
    """Crawl with each scheduler in turn; return a row for each."""
    if scale.quick:
        crawl = replace(crawl, workers=min(2, crawl.workers), settle=1.0, seconds=2.0)
    crawls: dict[str, list[Crawled]] = {each: [] for each in (BOTH[:1] if crawl.joins else BOTH)}
    for number in range(scale.of(3, 1)):
        for scheduler in in_turn(list(crawls), number):
            crawls[scheduler].append(measure(crawl, scheduler, server))
    pace = {"workers": crawl.workers, "possible": crawl.hosts / DELAY, "pace": 1 / DELAY}
    rows = [
        {"crawl": name, "name": scheduler, **pace, **_summed(found)}
        for scheduler, found in crawls.items()
    ]
    if not crawl.joins:
        for row, found in zip(rows, crawls.values(), strict=True):
            row["trips"] = median(crawled.each(crawled.trips) for crawled in found)
    return rows


def _summed(found: list[Crawled]) -> Row:
    """Return the medians of crawls."""
    return {
        **spread("pages", [crawled.pages for crawled in found]),
        "busiest": median(crawled.busiest for crawled in found),
        "short": median(crawled.short(DELAY) for crawled in found),
        "server": median(crawled.each(crawled.server) for crawled in found),
    }


def by_workers(rows: list[Row], server: LocalRedis, scale: Scale) -> list[Row]:
    """Crawl with more and more workers; return the rows that the plot shows.

    :param rows: crawls that have been measured.
    """
    rows = [row for row in rows if row["crawl"] in (ALONE, MANY)]
    for workers in {*scale.of(WORKERS, WORKERS[:2])} - {row["workers"] for row in rows}:
        rows += compare(f"{workers} workers, 20 hosts", Crawl(workers, 20, DELAY), server, scale)
    return sorted(rows, key=lambda row: (row["workers"], row["name"]))


def run(scale: Scale) -> Rows:
    """Crawl."""
    with redis_server.local_server() as server:
        paces: list[Row] = []
        for name, crawl in CRAWLS.items():
            if not scale.quick or name == ALONE:
                paces += compare(name, crawl, server, scale)
        workers = by_workers(paces, server, scale)
        return {"server": redis_server.described(server), "pace": paces, "workers": workers}


def draw(axes: Any, rows: Rows) -> None:
    """Draw the requests to the busiest host against the number of workers."""
    for name in BOTH:
        own = [row for row in rows["workers"] if row["name"] == name]
        axes.plot(
            [row["workers"] for row in own],
            [row["busiest"] for row in own],
            "o-",
            color=colour_of(name, OURS),
            label=name,
        )
    axes.axhline(1 / DELAY, linestyle="--", color="gray", label=f"DOWNLOAD_DELAY = {DELAY}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(WORKERS, [str(workers) for workers in WORKERS])
    axes.set_ylim(bottom=0)
    axes.set(xlabel="workers", ylabel="requests a second to the busiest of 20 hosts")


PART = Part(
    name="polite",
    title="Many hosts, many workers",
    method="""\
A site of many hosts, 127.0.0.1 and up, in a process of its own notes when it is asked for a page.
Workers are Scrapy processes with 16 concurrent requests, one at a time for each host, and no
jitter. Every page links to ten new ones of its host. Once all workers have begun and 5 s have
passed, the site's requests are counted for 30 s; the figures are medians of three crawls. A
pipeline is one call. Site, Redis and workers share two cores.

Hosts get 1 / delay requests a second at the configured pace, all of them together that times their
number: this is possible. Gaps are those between two requests to a host, short ones are below half
of the delay.

- `scrapy-bloom` is the add-on at its defaults: filter and queue in Redis.
- `scrapy-redis` is its scheduler with its default queue and its own filter.
""",
    packages=(*redis_server.PACKAGES, "Scrapy", "Twisted"),
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "pace",
            "With a delay",
            (
                Column("crawl", "crawl"),
                Column("name", "scheduler"),
                Column("pages", "pages/s", ".1f", spread=True),
                Column("possible", "possible"),
                Column("busiest", "busiest host, requests/s", ".2f"),
                Column("pace", "configured", "g"),
                Column("short", "% short gaps", ".1f", 0.01),
                Column("trips", "calls a page", ".2f"),
                Column("server", "µs of the server a page", ".0f", 1e-6),
            ),
        ),
        Table(
            "workers",
            "More and more workers, 20 hosts, delay 0.5 s",
            (
                Column("workers", "workers"),
                Column("name", "scheduler"),
                Column("busiest", "busiest host, requests/s", ".2f"),
                Column("pages", "pages/s", ".1f"),
            ),
        ),
    ),
    plots=(
        Plot(
            "polite",
            "Requests a second to the busiest host against the number of workers: ours stays at the"
            " configured pace, scrapy-redis's grows with the workers",
            draw,
        ),
    ),
)
