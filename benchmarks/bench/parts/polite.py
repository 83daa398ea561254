"""Crawls of many hosts by many workers: how fast, and how politely."""

from __future__ import annotations

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
HOSTS: Final = 20
WORKERS: Final = (1, 2, 4, 8)  # for those hosts: what the plot shows
CRAWLS: Final = ((4, 1), *((workers, HOSTS) for workers in WORKERS))
"""Workers and hosts. Those that need most of the machine come last."""


def run(scale: Scale) -> Rows:
    """Crawl."""
    rows: list[Row] = []
    with redis_server.local_server() as server:
        for workers, hosts in scale.of(CRAWLS, CRAWLS[1:2]):
            rows += compare(Crawl(workers, hosts, DELAY), server, scale)
        return {"server": redis_server.described(server), "pace": rows}


def compare(crawl: Crawl, server: LocalRedis, scale: Scale) -> list[Row]:
    """Crawl with each scheduler in turn; return a row for each."""
    crawl = scale.of(crawl, crawl.quick())
    crawls: dict[str, list[Crawled]] = {name: [] for name in BOTH}
    for number in range(scale.of(3, 1)):
        for name in in_turn(BOTH, number):
            crawls[name].append(measure(crawl, name, server))
    setting = {"workers": crawl.workers, "hosts": crawl.hosts}
    pace = {"possible": crawl.hosts / DELAY, "pace": 1 / DELAY}
    return [{**setting, "name": name, **pace, **_summed(crawls[name])} for name in BOTH]


def _summed(found: list[Crawled]) -> Row:
    """Return the medians of crawls."""
    return {
        **spread("pages", [crawled.pages for crawled in found]),
        "busiest": median(crawled.busiest for crawled in found),
        "short": median(crawled.short(DELAY) for crawled in found),
        "server": median(crawled.each(crawled.server) for crawled in found),
        "trips": median(crawled.each(crawled.trips) for crawled in found),
    }


def draw(axes: Any, rows: Rows) -> None:
    """Draw the requests to the busiest host against the number of workers."""
    for name in BOTH:
        own = [row for row in rows["pace"] if (row["name"], row["hosts"]) == (name, HOSTS)]
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
    axes.set(xlabel="workers", ylabel=f"requests a second to the busiest of {HOSTS} hosts")


PART = Part(
    name="polite",
    title="Many hosts, many workers",
    method=f"""\
A site of many hosts, 127.0.0.1 and up, in a process of its own notes when it is asked for a page.
Workers are Scrapy processes with 16 concurrent requests, one at a time for each host, and no
jitter. Every page links to ten new ones of its host. Once all workers have begun and
{Crawl.settle:g} s have passed, the site's requests are counted for {Crawl.seconds:g} s; the figures
are medians of three crawls. A pipeline is one call. Site, Redis and workers share two cores.

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
            f"With a delay of {DELAY:g} s",
            (
                Column("workers", "workers"),
                Column("hosts", "hosts"),
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
