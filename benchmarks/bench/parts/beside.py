"""The filter of a crawl by scrapy-redis's scheduler: its own, another Bloom filter, and ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.harness import in_turn, spread, time_it
from bench.in_redis import Candidates, Way, crawl_in_turn, pages_of, warm_up
from bench.part import Column, Part, Row, Rows, Scale, Table

if TYPE_CHECKING:
    from support.localredis import LocalRedis

    from bench.workers import Workers

OURS: Final = "scrapy-bloom"
THEIRS: Final = "scrapy-redis's own, SADD"
BLOOM: Final = "scrapy-redis-bloomfilter"

FILTERS: Final[Candidates] = {
    OURS: {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"},
    THEIRS: {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
    BLOOM: {
        "SCHEDULER": "scrapy_redis_bloomfilter.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter",
    },
}

SITE: Final = {"links": 17, "new": 4}


def ways(scale: Scale) -> list[Way]:
    """Return what is crawled: the more round trips and the farther, the less."""
    if scale.quick:
        near, far = (pages_of(FILTERS, *each) for each in ((20, 20, 20), (20, 10, 4)))
        return [Way(0.0, near), Way(0.005, far, workers=2)]
    near, far = (pages_of(FILTERS, *each) for each in ((400, 400, 400), (200, 40, 10)))
    return [
        Way(delay, pages, rounds, workers)
        for delay, pages, rounds in ((0.0, near, 5), (0.005, far, 3))
        for workers in (1, 4)
    ]


def compare(workers: Workers, server: LocalRedis, way: Way) -> list[Row]:
    """Crawl with every filter in turn; return a row for each."""
    crawls = crawl_in_turn(workers, server, FILTERS, way, SITE)
    rows = []
    for name, pages in way.pages.items():
        row: Row = {"workers": way.workers, "delay": way.delay, "name": name, "pages": pages}
        for key, field in (("cpu", "cpu"), ("server", "server"), ("wall", "seconds")):
            each = [getattr(crawl, field) / pages for crawl in crawls[name]]
            theirs = [getattr(crawl, field) / way.pages[THEIRS] for crawl in crawls[THEIRS]]
            row |= spread(key, each)
            row |= spread(f"{key}_ratio", [one / by for one, by in zip(each, theirs, strict=True)])
        rows.append(row | spread("trips", [crawl.trips / pages for crawl in crawls[name]]))
    return rows


def adds(server: LocalRedis, scale: Scale) -> list[Row]:
    """Add new fingerprints one by one from a program; return a row for each candidate."""
    from scrapy_bloom import RedisFilter

    client: Any = server.client()
    client.flushall()
    count, repeats = scale.of(20_000, 500), scale.of(5, 2)
    taken: dict[str, list[Row]] = {"RedisFilter.add": [], "SADD by redis-py": []}
    with RedisFilter.from_url(server.url, key="adds") as seen:
        calls: tuple[Callable[[bytes], object], ...] = (seen.add, partial(client.sadd, "set"))
        candidates = dict(zip(taken, calls, strict=True))
        for number in range(repeats):
            for name in in_turn(list(candidates), number):
                fingerprints = [token_bytes(20) for _ in range(count)]
                add = candidates[name]
                before = redis_server.busy(client)
                sample = time_it(lambda: [add(one) for one in fingerprints], count)  # noqa: B023
                server_cpu = (redis_server.busy(client) - before) / count
                taken[name].append({**sample._asdict(), "server": server_cpu})
    return [
        {"name": name}
        | spread("cpu", [each["cpu"] for each in rows])
        | spread("server", [each["server"] for each in rows])
        | spread("wall", [each["wall"] for each in rows])
        for name, rows in taken.items()
    ]


def run(scale: Scale) -> Rows:
    """Crawl."""
    from bench.workers import Workers

    rows: list[Row] = []
    with redis_server.local_server() as server:
        described = redis_server.described(server)
        alone = adds(server, scale)
        every = ways(scale)
        for number in sorted({way.workers for way in every}):
            with Workers(number) as workers:
                if not scale.quick:
                    warm_up(workers, server, FILTERS, SITE)
                for way in every:
                    if way.workers == number:
                        rows += compare(workers, server, way)
    return {"server": described, "crawls": rows, "adds": alone}


_MICRO: Final = 1e-6

PART = Part(
    name="beside",
    title="Our filter with scrapy-redis's scheduler",
    method=f"""\
One or four Scrapy processes with scrapy-redis's scheduler, its default queue and 16 requests at a
time crawl a local site with {SITE["links"]} links a page, {SITE["new"]} of them to new pages.
They differ in their duplicate filters: scrapy-redis's own, a set; scrapy-redis-bloomfilter with its
own scheduler, as its README says, and default size; and ours. They crawl in turns, and ratios are
taken within each turn. A proxy before Redis adds to each round trip in half of the crawls; those
with many round trips crawl fewer pages there. The clock runs from the moment that the front page is
parsed; a page counts when its callback has ended and the scheduler has taken all its links. Site,
proxy and Redis share two cores with the workers, whose CPU is the sum over all of them. The second
table is a program that adds new fingerprints one by one.""",
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
                Column("name", "filter"),
                Column("pages", "pages"),
                Column("cpu", "ms CPU of the workers", ".1f", 1e-3, spread=True),
                Column("cpu_ratio", "CPU, to scrapy-redis's own", ".2f"),
                Column("server", "µs CPU of Redis", ".0f", _MICRO, spread=True),
                Column("server_ratio", "CPU of Redis, to its own", ".2f"),
                Column("wall", "ms", ".1f", 1e-3, spread=True),
                Column("wall_ratio", "time, to its own", ".2f"),
                Column("trips", "round trips", ".1f"),
            ),
        ),
        Table(
            "adds",
            "One new fingerprint, from a program",
            (
                Column("name", "call"),
                Column("cpu", "µs CPU of the program", ".0f", _MICRO, spread=True),
                Column("server", "µs CPU of Redis", ".0f", _MICRO, spread=True),
                Column("wall", "µs", ".0f", _MICRO, spread=True),
            ),
        ),
    ),
)
