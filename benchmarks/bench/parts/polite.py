"""Crawls of many hosts by many workers: how fast, and how politely."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.harness import in_turn, spread
from bench.look import OUR_COLOUR, THEIR_COLOUR
from bench.many_hosts import Hosts, ManyHosts
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.polite_crawl import JOB, OURS, SCRAPY_REDIS, Crawl, Crawled, begun, measure

if TYPE_CHECKING:
    from support.localredis import LocalRedis

DELAY: Final = 0.5
BOTH: Final = (OURS, SCRAPY_REDIS)
SPAN: Final = 5.0
TAKE: Final = 16
SLOW: Final = "127.0.0.1"  # the host that answers late, where there is one
WORKERS: Final = (1, 2, 4, 8)  # in the plot; those with 1 and 4 are in the first table, too

ONE, ALONE, MANY, HUNDRED = (
    "4 workers, 1 host",
    "1 worker, 20 hosts",
    "4 workers, 20 hosts",
    "4 workers, 100 hosts",
)
PLAIN: Final = (ONE, ALONE, MANY, HUNDRED)
JITTER: Final = "4 workers, 20 hosts, jitter 0.5"
JOINING: Final = "4 workers, 20 hosts, one killed and one joining each second"
TEMPLATE: Final = "4 workers, 20 hosts, settings of `scrapy startproject`"
LATE: Final = "4 workers, 20 hosts, one more answers after 10 s"
BLOCKED: Final = "4 workers, 20 hosts, callbacks that block for 2 s"
PROXIES: Final = "1 worker, 1 host, 100 proxies"
THROTTLED: Final = {1: "1 worker, 8 hosts, AutoThrottle", 4: "4 workers, 8 hosts, AutoThrottle"}
FREE: Final = "4 workers, 1 host, no delay"
FREE_LATE: Final = "4 workers, 20 hosts, no delay, one answers after 2 s"
REPLAY: Final = "a replay of 2,000 pages out of the HTTP cache, delay 5 s"
END: Final = "300 pages of 20 hosts, delay 0.5 s"


@dataclass(frozen=True)
class Compared:
    """A crawl with some schedulers.

    Attributes:
        crawl: as measured.
        possible: pages a second at the configured pace; None if there is none.
        pace: requests a second to each host; 0 for as many as possible.
        schedulers: that crawl in turn.
        rounds: how often each does.
        view: what of the crawl is looked at.
    """

    crawl: Crawl
    possible: float | None = None
    pace: float = 1 / DELAY
    schedulers: tuple[str, ...] = BOTH
    rounds: int = 1
    view: Callable[[Crawled], Crawled] = lambda crawled: crawled


def paced() -> list[Compared]:
    """Return the crawls with a delay; those that need most of the machine come last."""
    many = Crawl(MANY, 4, Hosts(20), DELAY)
    template = {"ROBOTSTXT_OBEY": True, "DOWNLOAD_DELAY_JITTER": 0.5}
    late = Hosts(21, slow={SLOW: 10.0})
    blocking = {"blocks": 0.02, "block": 2.0}
    proxies = {"hosts": 1, "proxies": 100}
    return [
        Compared(replace(many, name=ONE, hosts=Hosts(1)), 2, rounds=3),
        Compared(replace(many, name=ALONE, workers=1), 40, schedulers=(*BOTH, JOB), rounds=3),
        Compared(many, 40, rounds=3),
        Compared(
            replace(many, name=JITTER, settings={"DOWNLOAD_DELAY_JITTER": 0.5}, seconds=180.0),
            40,
            schedulers=(OURS,),
        ),
        Compared(replace(many, name=TEMPLATE, delay=1.0, settings=template), 20, 1.0),
        Compared(
            replace(many, name=LATE, hosts=late),
            40,
            schedulers=(OURS,),
            view=lambda crawled: crawled.without(SLOW),
        ),
        Compared(
            Crawl(PROXIES, 1, Hosts(100), 1.0, way=proxies, settle=10.0), 100, 1.0, (OURS, JOB)
        ),
        *(throttled(workers) for workers in THROTTLED),
        Compared(replace(many, name=HUNDRED, hosts=Hosts(100)), 200, rounds=3),
        Compared(replace(many, name=JOINING, joins=True), 40, schedulers=(OURS,), rounds=3),
        Compared(replace(many, name=BLOCKED, delay=0.2, way=blocking), 100, 5.0, (OURS,)),
    ]


def throttled(workers: int) -> Compared:
    """Return a crawl with AutoThrottle of start requests that lead nowhere, after a minute."""
    crawl = Crawl(
        name=THROTTLED[workers],
        workers=workers,
        hosts=Hosts(8, wait=DELAY),
        delay=0.0,
        settings={"AUTOTHROTTLE_ENABLED": True, "DOWNLOAD_DELAY_JITTER": 0.5},
        way={"starts": 400, "follows": False},
        settle=60.0,
    )
    return Compared(crawl, 8 / DELAY, schedulers=(OURS,))


def unpaced() -> list[Compared]:
    """Return the crawls without a delay."""
    late = Hosts(20, slow={SLOW: 2.0})
    return [
        Compared(Crawl(FREE, 4, Hosts(1), 0.0), pace=0, rounds=3),
        Compared(Crawl(FREE_LATE, 4, late, 0.0), pace=0, rounds=3),
    ]


def compare(compared: Compared, server: LocalRedis, scale: Scale) -> list[Row]:
    """Crawl with each scheduler in turn; return a row for each."""
    crawl = compared.crawl
    if scale.quick:
        crawl = replace(crawl, workers=min(2, crawl.workers), settle=1.0, seconds=2.0)
    crawls: dict[str, list[Crawled]] = {name: [] for name in compared.schedulers}
    for number in range(scale.of(compared.rounds, 1)):
        for name in in_turn(list(crawls), number):
            crawls[name].append(compared.view(measure(crawl, name, server)))
    return [
        {
            "crawl": crawl.name,
            "name": name,
            "workers": crawl.workers,
            "possible": compared.possible,
            "pace": compared.pace or None,
            **_summed(found, compared.pace),
        }
        for name, found in crawls.items()
    ]


def _summed(found: list[Crawled], pace: float) -> Row:
    """Return the medians of crawls."""

    def middle(value: Callable[[Crawled], float | None]) -> float | None:
        values = [each for each in map(value, found) if each is not None]
        return median(values) if values else None

    return {
        **spread("pages", [crawled.pages for crawled in found]),
        "hosts": middle(lambda crawled: len(crawled.by_host)),
        "busiest": middle(lambda crawled: crawled.busiest),
        "most": middle(lambda crawled: crawled.most_within(SPAN)),
        "short": middle(lambda crawled: crawled.short(1 / pace)) if pace else None,
        "trips": middle(lambda crawled: crawled.trips_per_page),
        "server": middle(lambda crawled: crawled.server_per_page),
    }


def by_workers(rows: list[Row], server: LocalRedis, scale: Scale) -> list[Row]:
    """Crawl with more and more workers; return the rows that the plot shows.

    :param rows: crawls that have been measured.
    """
    rows = [row for row in rows if row["crawl"] in (ALONE, MANY) and row["name"] in BOTH]
    for workers in {*scale.of(WORKERS, WORKERS[:2])} - {row["workers"] for row in rows}:
        crawl = Crawl(f"{workers} workers, 20 hosts", workers, Hosts(20), DELAY)
        rows += compare(Compared(crawl, 40), server, scale)
    return sorted(rows, key=lambda row: (row["workers"], row["name"]))


def replayed(server: LocalRedis, scale: Scale) -> list[Row]:
    """Crawl out of Scrapy's HTTP cache, which a crawl in memory has filled."""
    with TemporaryDirectory() as cache:
        settings = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": cache}
        crawl = Crawl(REPLAY, 1, Hosts(20, pages=scale.of(100, 5)), 0.0, settings, {"stays": False})
        with ManyHosts(crawl.hosts) as site:
            whole(crawl, JOB, server, site)  # fills the cache
            late = replace(crawl, delay=5.0)
            return [whole(late, name, server, site) for name in (OURS, JOB)]


def ended(server: LocalRedis, scale: Scale) -> list[Row]:
    """Crawl a site of few pages to its end."""
    hosts = Hosts(20, pages=scale.of(15, 3))
    rows = []
    for name, workers in ((OURS, 4), (JOB, 1)):
        crawl = Crawl(END, workers, hosts, DELAY, way={"stays": False})
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


def long_queues(server: LocalRedis, scale: Scale) -> list[Row]:
    """Return what scripts take for long queues."""
    from bench import many_requests

    hosts, requests, calls = scale.of((200_000, 1_000_000, 300), (2_000, 10_000, 20))
    return [many_requests.measure(server, each, requests, TAKE, calls) for each in (hosts, 1)]


def run(scale: Scale) -> Rows:
    """Crawl."""
    with redis_server.local_server() as server:
        queues = long_queues(server, scale)
        whole_crawls = [*replayed(server, scale), *ended(server, scale)]
        paces: list[Row] = []
        for each in scale.of(paced(), paced()[1::3]):
            paces += compare(each, server, scale)
        workers = by_workers(paces, server, scale)
        free = [
            row
            for each in scale.of(unpaced(), unpaced()[:1])
            for row in compare(each, server, scale)
        ]
        return {
            "server": redis_server.described(server),
            "pace": paces,
            "free": free,
            "workers": workers,
            "whole": whole_crawls,
            "queues": queues,
        }


def draw(axes: Any, rows: Rows) -> None:
    """Draw the requests to the busiest host against the number of workers."""
    for name in BOTH:
        own = [row for row in rows["workers"] if row["name"] == name]
        axes.plot(
            [row["workers"] for row in own],
            [row["busiest"] for row in own],
            "o-",
            color=OUR_COLOUR if name == OURS else THEIR_COLOUR,
            label=name,
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
Workers are Scrapy processes with 16 concurrent requests; with a delay, one request at a time for
each host and no jitter, unless the table says otherwise. Every page links to ten new ones of its
host. Once all workers have begun and 5 s have passed, the site's requests are counted for 30 s
(180 with jitter); those for robots.txt are left out. Crawls that differ only in workers and hosts,
those whose workers are killed and those without a delay are medians of three. A pipeline is one
call. Site, Redis and workers share two cores.

Hosts get 1 / delay requests a second at the configured pace, all of them together that times their
number: this is possible. Gaps are those between two requests to a host, short ones are below half
of the delay. A proxy counts as a host. With AutoThrottle the hosts answer after {DELAY} s, so this
is the delay that it aims at; it is counted after a minute. Callbacks block at one page in 50.

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
                Column("possible", "possible"),
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
        Table(
            "queues",
            "Long queues: memory, and what the server takes for one call",
            (
                Column("hosts", "hosts", ","),
                Column("requests", "requests", ","),
                Column("bytes", "bytes a request", ".0f"),
                Column("take", f"ms to take {TAKE}", ".2f", 1e-3),
                Column("take_high", "at most", ".2f", 1e-3),
                Column("beat", "ms for a heartbeat", ".2f", 1e-3),
                Column("beat_high", "at most", ".2f", 1e-3),
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
