"""Crawls of many hosts by many workers: how fast, and how politely."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.harness import in_turn, spread
from bench.many_hosts import Hosts, ManyHosts
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.polite_crawl import JOB, OURS, SCRAPY_REDIS, Crawl, Crawled, begun, measure

if TYPE_CHECKING:
    from support.localredis import LocalRedis

DELAY: Final = 0.5
BOTH: Final = (OURS, SCRAPY_REDIS)
SPAN: Final = 5.0
SLOW: Final = "127.0.0.1"  # the host that answers late, where there is one
WORKERS: Final = (1, 2, 4, 8)  # in the plot; those with 1 and 4 are in the first table, too

ONE, ALONE, MANY, HUNDRED = (
    "4 workers, 1 host",
    "1 worker, 20 hosts",
    "4 workers, 20 hosts",
    "4 workers, 100 hosts",
)
PLAIN: Final = (ONE, ALONE, MANY, HUNDRED)
JOINING: Final = "4 workers, 20 hosts, one killed and one joining each second"
FREE: Final = "4 workers, 1 host, no delay"
FREE_LATE: Final = "4 workers, 20 hosts, no delay, one answers after 2 s"
END: Final = "300 pages of 20 hosts, delay 0.5 s"


MANY_HOSTS: Final = Crawl(MANY, 4, Hosts(20), DELAY)
PACED: Final = (
    (replace(MANY_HOSTS, name=ONE, hosts=Hosts(1)), BOTH),
    (replace(MANY_HOSTS, name=ALONE, workers=1), (*BOTH, JOB)),
    (MANY_HOSTS, BOTH),
    (replace(MANY_HOSTS, name=HUNDRED, hosts=Hosts(100)), BOTH),
    (replace(MANY_HOSTS, name=JOINING, joins=True), (OURS,)),
)
"""The crawls with a delay, and the schedulers that crawl in turn; the dearest come last."""
UNPACED: Final = (
    Crawl(FREE, 4, Hosts(1), 0.0),
    Crawl(FREE_LATE, 4, Hosts(20, slow={SLOW: 2.0}), 0.0),
)
"""The crawls without a delay."""
ROUNDS: Final = 3


def compare(
    crawl: Crawl,
    server: LocalRedis,
    scale: Scale,
    schedulers: Sequence[str] = BOTH,
    rounds: int = ROUNDS,
) -> list[Row]:
    """Crawl with each scheduler in turn; return a row for each."""
    if scale.quick:
        crawl = replace(crawl, workers=min(2, crawl.workers), settle=1.0, seconds=2.0)
    crawls: dict[str, list[Crawled]] = {name: [] for name in schedulers}
    for number in range(scale.of(rounds, 1)):
        for name in in_turn(list(crawls), number):
            crawls[name].append(measure(crawl, name, server))
    return [
        {
            "crawl": crawl.name,
            "name": name,
            "workers": crawl.workers,
            "possible": crawl.hosts.count / crawl.delay if crawl.delay else None,
            "pace": 1 / crawl.delay if crawl.delay else None,
            **_summed(found, crawl.delay),
        }
        for name, found in crawls.items()
    ]


def _summed(found: list[Crawled], delay: float) -> Row:
    """Return the medians of crawls."""

    def middle(value: Callable[[Crawled], float | None]) -> float | None:
        values = [each for each in map(value, found) if each is not None]
        return median(values) if values else None

    return {
        **spread("pages", [crawled.pages for crawled in found]),
        "hosts": middle(lambda crawled: len(crawled.by_host)),
        "busiest": middle(lambda crawled: crawled.busiest),
        "most": middle(lambda crawled: crawled.most_within(SPAN)),
        "short": middle(lambda crawled: crawled.short(delay)) if delay else None,
        "trips": middle(
            lambda crawled: crawled.trips and crawled.trips / max(1, len(crawled.requests))
        ),
        "server": middle(lambda crawled: crawled.server / max(1, len(crawled.requests))),
    }


def by_workers(rows: list[Row], server: LocalRedis, scale: Scale) -> list[Row]:
    """Crawl with more and more workers; return the rows that the plot shows.

    :param rows: crawls that have been measured.
    """
    rows = [row for row in rows if row["crawl"] in (ALONE, MANY) and row["name"] in BOTH]
    for workers in {*scale.of(WORKERS, WORKERS[:2])} - {row["workers"] for row in rows}:
        crawl = Crawl(f"{workers} workers, 20 hosts", workers, Hosts(20), DELAY)
        rows += compare(crawl, server, scale, rounds=1)
    return sorted(rows, key=lambda row: (row["workers"], row["name"]))


def ended(server: LocalRedis, scale: Scale) -> list[Row]:
    """Crawl a site of few pages to its end."""
    hosts = Hosts(20, pages=scale.of(15, 3))
    rows = []
    for name, workers in ((OURS, 4), (JOB, 1)):
        crawl = Crawl(END, workers, hosts, DELAY, stays=False)
        with ManyHosts(hosts) as site:
            rows.append(whole(crawl, name, server, site))
    return rows


def whole(crawl: Crawl, name: str, server: LocalRedis, site: ManyHosts) -> Row:
    """Crawl until all workers have ended by themselves."""
    with begun(crawl, name, server, site) as team:
        start = time.monotonic()
        pages = sum(worker.wait() for worker in team.workers)
        end = time.monotonic()
    return {
        "crawl": crawl.name,
        "name": name,
        "workers": crawl.workers,
        "pages": pages,
        "seconds": end - start,
        "idle": end - last if (last := site.last_request) > start else None,
    }


def run(scale: Scale) -> Rows:
    """Crawl."""
    with redis_server.local_server() as server:
        whole_crawls = ended(server, scale)
        paces = [
            row
            for crawl, schedulers in scale.of(PACED, PACED[1:2])
            for row in compare(crawl, server, scale, schedulers)
        ]
        workers = by_workers(paces, server, scale)
        unpaced = scale.of(UNPACED, UNPACED[:1])
        free = [row for crawl in unpaced for row in compare(crawl, server, scale)]
        return {
            "server": redis_server.described(server),
            "pace": paces,
            "free": free,
            "workers": workers,
            "whole": whole_crawls,
        }


def draw(axes: Any, rows: Rows) -> None:
    """Draw the requests to the busiest host against the number of workers."""
    for name in BOTH:
        own = [row for row in rows["workers"] if row["name"] == name]
        axes.plot(
            [row["workers"] for row in own], [row["busiest"] for row in own], "o-", label=name
        )
    axes.axhline(1 / DELAY, linestyle="--", color="gray", label=f"DOWNLOAD_DELAY = {DELAY}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(WORKERS, [str(workers) for workers in WORKERS])
    axes.set_ylim(bottom=0)
    axes.set(xlabel="workers", ylabel="requests a second to the busiest of 20 hosts")


COMMON: Final = (
    Column("crawl", "crawl"),
    Column("name", "scheduler"),
    Column("pages", "pages/s", ".1f", spread=True),
)
COST: Final = (
    Column("trips", "calls a page", ".2f"),
    Column("server", "µs of the server a page", ".0f", 1e-6),
)

PART = Part(
    name="polite",
    title="Many hosts, many workers",
    method=f"""\
A site of many hosts, 127.0.0.1 and up, in a process of its own notes when it is asked for a page.
Workers are Scrapy processes with 16 concurrent requests; with a delay of {DELAY} s, one request at
a time for each host and no jitter. Every page links to ten new ones of its host. Once all workers
have begun and 5 s have passed, the site's requests are counted for 30 s. Figures are medians of
three crawls; with 2 and 8 workers of one. A pipeline is one call. Site, Redis and workers share two
cores.

Hosts get 1 / delay requests a second at the configured pace, all of them together that times their
number: this is possible. Gaps are those between two requests to a host, short ones are below half
of the delay.

- `scrapy-bloom` is the add-on at its defaults: filter and queue in Redis.
- `scrapy-redis` is its scheduler with its default queue and its own filter.
- A job directory is Scrapy's own scheduler, which has one worker.
""",
    packages=(*redis_server.PACKAGES, "Scrapy", "Twisted"),
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "pace",
            "With a delay",
            (
                *COMMON,
                Column("possible", "possible", "g"),
                Column("busiest", "busiest host, requests/s", ".2f"),
                Column("most", "in any 5 s", ".2f"),
                Column("pace", "configured", "g"),
                Column("short", "% short gaps", ".1f", 0.01),
                *COST,
            ),
        ),
        Table("free", "Without a delay", (*COMMON, Column("hosts", "hosts reached", "g"), *COST)),
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
        Table(
            "whole",
            "Whole crawls",
            (
                Column("crawl", "crawl"),
                Column("name", "scheduler"),
                Column("workers", "workers"),
                Column("pages", "pages", ","),
                Column("seconds", "s", ".1f"),
                Column("idle", "s from the last request to the end", ".1f"),
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
