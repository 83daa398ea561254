"""Crawls by one to eight workers on one Redis: pages a second, and who holds them up."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.harness import in_turn, spread
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.parts.shared_crawl import OURS, SCHEDULERS, SCRAPY_REDIS

if TYPE_CHECKING:
    from support.localredis import LocalRedis

    from bench.workers import Crawled, Workers

NAMES: Final = (OURS, SCRAPY_REDIS)


def compare(server: LocalRedis, count: int, pages: int, rounds: int) -> Iterable[Row]:
    """Crawl by so many workers; yield a row for each scheduler."""
    from bench.workers import GrowingSite, Workers

    crawls: dict[str, list[Crawled]] = {name: [] for name in NAMES}
    twice = dict.fromkeys(NAMES, 0)

    def crawl(workers: Workers, name: str, pages: int) -> Crawled:
        with GrowingSite() as site:
            crawled = workers.crawl_some(site, server, server.url, SCHEDULERS[name], pages)
            twice[name] += len(site.repeated)
        return crawled

    with ExitStack() as stack:
        workers = stack.enter_context(Workers(count))
        for name in NAMES:  # the first crawl of a process fills its caches
            crawl(workers, name, 20 * count)
        for number in range(rounds):
            for name in in_turn(NAMES, number):
                crawls[name].append(crawl(workers, name, pages))
    for name, each in crawls.items():
        yield {
            "workers": count,
            "name": name,
            "pages": pages,
            **spread("rate", [pages / one.seconds for one in each]),
            **spread("cpu", [one.cpu / pages for one in each]),
            **spread("server", [one.server / pages for one in each]),
            **spread("site", [one.site / pages for one in each]),
            "busy": median((one.cpu + one.server + one.site) / one.seconds for one in each),
            "server_share": median(one.server / one.seconds for one in each),
            "trips": median(one.trips / pages for one in each),
            "twice": twice[name],
        }


def run(scale: Scale) -> Rows:
    """Crawl."""
    pages, rounds = scale.of((300, 2), (20, 1))
    with redis_server.local_server() as server:
        rows = [
            row
            for count in scale.of((1, 2, 4, 8), (1, 2))
            for row in compare(server, count, pages, rounds)
        ]
        cores: Row = {"cores": len(os.sched_getaffinity(0))}
        return {
            "server": redis_server.described(server),
            "crawls": [row | cores for row in rows],
        }


def most(rows: Rows) -> Row:
    """Return the row of ours with the most workers."""
    return max((row for row in rows["crawls"] if row["name"] == OURS), key=_count)


def _count(row: Row) -> int:
    return int(row["workers"])


def findings(rows: Rows) -> list[str]:
    """Say who is the bottleneck, and where it would be with more cores."""
    last = most(rows)
    theirs = next(
        row
        for row in rows["crawls"]
        if (row["name"], row["workers"]) == (SCRAPY_REDIS, last["workers"])
    )
    whole = last["cpu"] + last["server"] + last["site"]
    return [
        (
            f"With {last['workers']} workers a page takes {whole * 1e3:.0f} ms of processor time:"
            f" {last['cpu'] / whole:.0%} of it in the workers, {last['site'] / whole:.0%} in the"
            f" site, {last['server'] / whole:.0%} in Redis. The processors are the bottleneck, by"
            f" what the workers do: {last['cores']} cores that do nothing else would carry"
            f" {last['cores'] / whole:.0f} pages a second, by however many workers."
        ),
        (
            f"Redis works {last['server'] * 1e3:.2f} ms for a page, a worker"
            f" {last['cpu'] * 1e3:.0f}: given cores enough, one core of Redis would hold up the"
            f" crawl at {1 / last['server']:,.0f} pages a second, with about"
            f" {last['cpu'] / last['server']:,.0f} workers. With scrapy-redis it would at"
            f" {1 / theirs['server']:,.0f}."
        ),
        (
            f"Leases, acknowledgements and looks cost each of {last['workers']} workers"
            f" {last['trips'] * last['rate'] / last['workers']:.1f} round trips a second, however"
            " fast the crawl is: the slower the pages, the more round trips for each."
        ),
    ]


WHO: Final = {
    "cpu": ("the workers", "#17a67a"),
    "site": ("the site", "#8c8c8c"),
    "server": ("Redis", "#d9534f"),
}
"""Whose processor time there is in a row, and its colour."""


def draw(axes: Any, rows: Rows) -> None:
    """Draw whose processor time a page takes."""
    each = [row for row in rows["crawls"] if row["name"] == OURS]
    below = [0.0] * len(each)
    for key, (label, colour) in WHO.items():
        heights = [row[key] * 1e3 for row in each]
        axes.bar(range(len(each)), heights, 0.6, bottom=below, label=label, color=colour)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_xticks(range(len(each)), [row["workers"] for row in each])
    axes.set(xlabel="workers", ylabel="ms of CPU per page")


PART = Part(
    name="shared-workers",
    title="One to eight workers",
    method="""\
So many Scrapy processes crawl the site of part `shared-crawl` together, 300 pages of it, and share
filter and queue in a Redis on the same machine. The clock runs from the moment that one of them has
parsed the front page until 300 more are parsed, by whomever. The processes stay the same through
all crawls and crawl once with each scheduler to warm up. CPU is that of all workers, of the process
of Redis, and of the process of the site; "cores busy" is their sum by the time that went by.
""",
    packages=(*redis_server.PACKAGES, "Scrapy", "Twisted"),
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "crawls",
            "Workers",
            (
                Column("workers", "workers"),
                Column("name", "scheduler"),
                Column("rate", "pages per second", ".1f", spread=True),
                Column("cpu", "ms CPU of workers per page", ".1f", 1e-3),
                Column("server", "of Redis", ".2f", 1e-3),
                Column("site", "of the site", ".2f", 1e-3),
                Column("busy", "cores busy", ".2f"),
                Column("server_share", "of these Redis", ".3f"),
                Column("trips", "round trips per page", ".2f"),
                Column("twice", "fetched twice"),
            ),
        ),
    ),
    plots=(
        Plot(
            "shared-workers",
            "Processor time for a page, of the workers, the site and Redis, by number of workers:"
            " Redis has the smallest share.",
            draw,
        ),
    ),
    findings=findings,
)
