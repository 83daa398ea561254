"""Crawls with filter and queue in Redis, near and far, beside Scrapy's own memory."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bench import redis_server
from bench.fleet import BESIDE, BLOOMFILTER, MEMORY, OURS, SCRAPY_REDIS, Crawl, Crawled, measure
from bench.harness import in_turn, spread
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.slow_network import SlowNetwork

if TYPE_CHECKING:
    from testbed.localredis import LocalRedis

LINKS: Final = 80
NEW: Final = 10
FAR: Final = 0.005
FAR_SECONDS: Final = 20.0
FEW: Final = (OURS, SCRAPY_REDIS, BESIDE)
ALL: Final = (*FEW, BLOOMFILTER, MEMORY)

WAYS: Final = ((1, 0.0, ALL), (1, FAR, FEW), (4, 0.0, FEW))
"""Workers, seconds added to each round trip, and what is compared."""


def run(scale: Scale) -> Rows:
    """Crawl."""
    crawl = Crawl(1, 1, 0.0, LINKS, NEW)
    crawl, rounds, rows = scale.of(crawl, crawl.quick()), scale.of(3, 1), []
    with redis_server.local_server() as server:
        for workers, delay, names in WAYS:
            seconds = scale.of(FAR_SECONDS, crawl.seconds) if delay else crawl.seconds
            each = replace(crawl, workers=workers, seconds=seconds)
            found = compare(each, delay, names, server, rounds)
            rows += [
                {"workers": workers, "delay": delay, "name": name, **summed(name, found)}
                for name in names
            ]
        return {"server": redis_server.described(server), "crawls": rows}


def compare(
    crawl: Crawl, delay: float, names: tuple[str, ...], server: LocalRedis, rounds: int
) -> dict[str, list[Crawled]]:
    """Crawl with every scheduler in turn."""
    found: dict[str, list[Crawled]] = {name: [] for name in names}
    with ExitStack() as stack:
        url = server.url
        if delay:
            url = stack.enter_context(SlowNetwork(server.port, delay)).url
        for number in range(rounds):
            for name in in_turn(names, number):
                found[name].append(measure(crawl, name, server, url))
    return found


def summed(name: str, found: dict[str, list[Crawled]]) -> Row:
    """Return the row of one scheduler; ratios are those of neighbours in time."""
    row: Row = {}
    for key in ("seconds", "cpu", "server", "trips"):
        ours, theirs = (
            [crawled.each(getattr(crawled, key)) for crawled in found[one]]
            for one in (name, SCRAPY_REDIS)
        )
        row |= spread(key, ours)
        row |= spread(f"{key}_ratio", [a / b for a, b in zip(ours, theirs, strict=True)])
    return row


PART = Part(
    name="redis-crawl",
    title="A crawl with its queue in Redis, near and far",
    method=f"""\
One or four Scrapy processes, 16 requests at a time each, crawl a local site with {LINKS} links a
page, {NEW} of them to new pages. For some crawls a proxy before Redis adds to each round trip. Once
{Crawl.settle:g} s have passed, the site's requests are counted for {Crawl.seconds:g} s, with the
proxy, where they come in bursts, for {FAR_SECONDS:g} s. The candidates crawl in turns, three times,
and ratios are taken within each turn. A pipeline is one round trip. Site, proxy and Redis share two
cores with the workers, whose CPU is the sum over all of them.

- `{OURS}` is the add-on at its defaults: filter and queue in Redis.
- `{SCRAPY_REDIS}` is its scheduler with its default queue and its own filter, a set.
- `{BESIDE}` is the same with `scrapy_bloom.BloomDupeFilter`.
- `{BLOOMFILTER}` has its own scheduler, as its README says, and its default size.
- Scrapy's own scheduler and filter, in memory, are a crawl without Redis.
""",
    packages=(*redis_server.PACKAGES, "scrapy-redis-bloomfilter", "Scrapy", "Twisted"),
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "crawls",
            "One page",
            (
                Column("workers", "workers"),
                Column("delay", "ms added", "g", 1e-3),
                Column("name", "scheduler"),
                Column("seconds", "ms", ".1f", 1e-3, spread=True),
                Column("seconds_ratio", "time, to scrapy-redis", ".2f"),
                Column("cpu", "ms CPU of the workers", ".1f", 1e-3, spread=True),
                Column("cpu_ratio", "CPU, to scrapy-redis", ".2f"),
                Column("server", "µs CPU of Redis", ".0f", 1e-6, spread=True),
                Column("server_ratio", "CPU of Redis, to scrapy-redis", ".2f"),
                Column("trips", "round trips", ".2f"),
            ),
        ),
    ),
)
