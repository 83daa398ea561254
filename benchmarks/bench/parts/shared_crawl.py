"""Crawls by one worker with filter and queue in Redis, near and far, beside Scrapy's own memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench import redis_server
from bench.harness import spread
from bench.in_redis import Candidates, Way, crawl_in_turn, pages_of, warm_up
from bench.part import Column, Part, Row, Rows, Scale, Table

if TYPE_CHECKING:
    from support.localredis import LocalRedis

    from bench.workers import Workers

OURS: Final = "scrapy-bloom"
MEMORY: Final = "Scrapy's own, in memory"
SCRAPY_REDIS: Final = "scrapy-redis"

SCHEDULERS: Final[Candidates] = {
    OURS: {"SCHEDULER": "scrapy_bloom.Scheduler"},
    MEMORY: {
        "SCHEDULER": "scrapy.core.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
    },
    SCRAPY_REDIS: {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
}


SITE: Final = {"links": 80, "new": 10}
ONCE: Final = (SCRAPY_REDIS,)
"""What crawls in the first round only."""


def ways(scale: Scale) -> list[Way]:
    """Return what is crawled: the more round trips and the farther, the less."""
    if scale.quick:
        return [Way(0.0005, dict.fromkeys(SCHEDULERS, 20))]
    return [
        Way(0.0005, pages_of(SCHEDULERS, 300, 300, 80), 3),
        Way(0.005, pages_of(SCHEDULERS, 300, 300, 20), 3),
        Way(0.02, pages_of(SCHEDULERS, 300, 300, 6)),
    ]


def compare(worker: Workers, server: LocalRedis, way: Way) -> list[Row]:
    """Crawl with every scheduler in turn; return a row for each."""
    crawls = crawl_in_turn(worker, server, SCHEDULERS, way, SITE, ONCE)
    walls = {
        name: [each.seconds / way.pages[name] for each in found] for name, found in crawls.items()
    }
    return [
        {
            "delay": way.delay,
            "name": name,
            "pages": pages,
            "crawls": len(crawls[name]),
            **spread("wall", walls[name]),
            **_ratio("times", walls[name], walls[SCRAPY_REDIS]),
            **_ratio("to_memory", walls[name], walls[MEMORY]),
            **spread("cpu", [each.cpu / pages for each in crawls[name]]),
            **_ratio(
                "cpu_to_memory",
                [each.cpu / pages for each in crawls[name]],
                [each.cpu / way.pages[MEMORY] for each in crawls[MEMORY]],
            ),
            **spread("server", [each.server / pages for each in crawls[name]]),
            **spread("trips", [each.trips / pages for each in crawls[name]]),
        }
        for name, pages in way.pages.items()
    ]


def _ratio(key: str, ours: list[float], theirs: list[float]) -> Row:
    """Return the ratios of paired crawls; one that was made once stands for each round."""
    if len(theirs) < len(ours):
        theirs = theirs * len(ours)
    return spread(key, [one / by for one, by in zip(ours, theirs, strict=False)])


def run(scale: Scale) -> Rows:
    """Crawl."""
    from bench.workers import Workers

    with redis_server.local_server() as server, Workers(1) as worker:
        if not scale.quick:
            warm_up(worker, server, SCHEDULERS, SITE)
        return {
            "server": redis_server.described(server),
            "crawls": [row for way in ways(scale) for row in compare(worker, server, way)],
        }


PART = Part(
    name="shared-crawl",
    title="A crawl with its queue in Redis, near and far",
    method="""\
One Scrapy process with default settings, but 16 requests at a time, crawls a local site with 80
links a page on average, ten of them to new pages. A proxy before Redis adds to each round trip. The
process crawls once with each scheduler to warm up. The clock runs from the moment that the front
page is parsed; a page counts when its callback has ended and the scheduler has taken all its links.
The first two candidates crawl in turns, and their ratio is taken within each turn; scrapy-redis,
with many round trips, crawls fewer pages, once. A pipeline is one round trip. Site, proxy and Redis
share two cores with the worker.

- `scrapy_bloom.Scheduler` with its defaults: filter and queue in Redis.
- Scrapy's own scheduler and filter, in memory: a crawl without Redis.
- scrapy-redis's scheduler with its default queue and its own filter.""",
    packages=(*redis_server.PACKAGES, "Scrapy", "Twisted"),
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "crawls",
            "One worker",
            (
                Column("delay", "ms added", "g", 1e-3),
                Column("name", "scheduler"),
                Column("pages", "pages"),
                Column("wall", "ms per page", ".1f", 1e-3, spread=True),
                Column("times", "times scrapy-redis's", ".2f"),
                Column("cpu", "ms CPU per page", ".1f", 1e-3),
                Column("cpu_to_memory", "CPU, times Scrapy's own", ".2f", spread=True),
                Column("trips", "round trips per page", ".2f"),
            ),
        ),
    ),
)
