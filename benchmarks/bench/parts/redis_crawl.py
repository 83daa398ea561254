"""Crawls by two workers that share queue and filter in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.axes import in_ms, over_distances
from bench.colours import colour_of, hatch_of
from bench.harness import in_turn, spread
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.slow_network import SlowNetwork

if TYPE_CHECKING:
    from support.localredis import LocalRedis

    from bench.workers import Crawled, TimedSite, Workers


@dataclass(frozen=True)
class Filter:
    """One way to filter.

    Attributes:
        dupefilter: ``DUPEFILTER_CLASS``.
        commands: of Redis that its checks send.
        module: whether the server needs RedisBloom.
    """

    dupefilter: str
    commands: tuple[str, ...]
    module: bool = False


SCRAPY_REDIS: Final = "scrapy-redis"
BLOOMFILTER: Final = "scrapy-redis-bloomfilter"
OURS: Final = "ours"
FILTERS: Final = {
    SCRAPY_REDIS: Filter("scrapy_redis.dupefilter.RFPDupeFilter", ("sadd",)),
    BLOOMFILTER: Filter("scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter", ("getbit", "setbit")),
    "one BITFIELD": Filter("bench.redis_dupefilters.BitfieldDupeFilter", ("bitfield",)),
    "RedisBloom": Filter("bench.redis_dupefilters.RedisBloomDupeFilter", ("bf.add",), module=True),
    OURS: Filter("scrapy_bloom.BloomDupeFilter", ("evalsha",)),
}
REDIRECTED: Final = (SCRAPY_REDIS, OURS)
SETTINGS: Final = {"BLOOMFILTER_BIT": 27}  # 16 MB are enough here; 128 MB take longer to make


@dataclass(frozen=True)
class Way:
    """How far Redis is, and how much is crawled over that distance.

    Attributes:
        delay: seconds added to a round trip.
        pages: of the site.
        rounds: how often.
    """

    delay: float
    pages: int
    rounds: int


def ways(scale: Scale) -> Sequence[Way]:
    """Return what is crawled: the farther, the less."""
    if scale.quick:
        return [Way(0.0005, 30, 1)]
    return [Way(0.0, 300, 2), Way(0.0005, 150, 2), Way(0.005, 40, 2)]


def compare(
    workers: Workers, server: LocalRedis, way: Way, filters: Mapping[str, Filter]
) -> list[Row]:
    """Crawl by every filter in turn; return a row for each."""
    from bench.workers import StraightSite

    crawls: dict[str, list[tuple[Crawled, TimedSite]]] = {name: [] for name in filters}
    with ExitStack() as stack:
        url = server.url
        if way.delay:
            url = stack.enter_context(SlowNetwork(server.port, way.delay)).url
        for number in range(way.rounds):
            for name in in_turn(list(filters), number):
                settings = {**SETTINGS, "DUPEFILTER_CLASS": filters[name].dupefilter}
                with StraightSite(pages=way.pages) as site:
                    crawls[name].append((workers.crawl(site, server, url, settings), site))
    base = [crawled.seconds for crawled, _ in crawls[SCRAPY_REDIS]]
    return [
        {
            "delay": way.delay,
            "name": name,
            "pages": way.pages,
            "crawls": way.rounds,
            **_summed([crawled for crawled, _ in each], filters[name].commands, way.pages),
            **spread("times", [one.seconds / by for (one, _), by in zip(each, base, strict=True)]),
            "twice": sum(len(site.repeated) for _, site in each),
            "lost": sum(len(site.missed) for _, site in each),
        }
        for name, each in crawls.items()
    ]


def _summed(crawls: Sequence[Crawled], commands: Sequence[str], pages: int) -> Row:
    return {
        **spread("wall", [each.seconds / pages for each in crawls]),
        **spread("cpu", [each.cpu / pages for each in crawls]),
        **spread("server", [each.server / pages for each in crawls]),
        "trips": mean(sum(each.calls.get(name, 0) for name in commands) for each in crawls) / pages,
    }


def redirected(workers: Workers, server: LocalRedis, name: str, pages: int) -> Row:
    """Crawl a site some pages of which redirect to themselves; tell why pages were lost."""
    from bench.workers import TimedSite

    with TimedSite(pages=pages) as site:
        settings = {**SETTINGS, "DUPEFILTER_CLASS": FILTERS[name].dupefilter}
        workers.crawl(site, server, server.url, settings)
    linked = {page for fetched in site.hits for page in _targets(site, fetched)}
    own = {page for page in site.missed & linked if _returns(site, page)}
    return {
        "name": name,
        "pages": pages,
        "returning": sum(_returns(site, page) for page in range(pages)),
        "fetched": len(site.hits),
        "lost_returning": len(own),
        "lost_behind": len(site.missed - linked),
        "lost": len(site.missed & linked - own),
        "twice": len(site.repeated),
    }


def _targets(site: TimedSite, page: int) -> set[int | None]:
    """Return the pages that the links on a page lead to."""
    return {_target(site, href.partition("#")[0]) for href in site.hrefs(page)}


def _target(site: TimedSite, href: str) -> int | None:
    answer = site.answer(href)
    return _target(site, answer.location) if answer.location else answer.page


def _returns(site: TimedSite, page: int) -> bool:
    """Return whether a page redirects to itself, or to itself with its parameters reordered."""
    from support.localsite import Kind

    return site.kind(page) in (Kind.BOUNCE, Kind.ORDERED)


def run(scale: Scale) -> Rows:
    """Crawl."""
    from bench.workers import Workers

    with redis_server.local_server() as server, Workers(2) as workers:
        module = redis_server.has_redisbloom(server)
        filters = {name: each for name, each in FILTERS.items() if module or not each.module}
        if not scale.quick:  # the first crawl of a process fills its caches
            compare(workers, server, Way(0.0, 100, 1), filters)
        return {
            "server": redis_server.described(server),
            "crawls": [
                row for way in ways(scale) for row in compare(workers, server, way, filters)
            ],
            "redirects": [
                redirected(workers, server, name, scale.of(300, 30))
                for name in scale.of((*REDIRECTED, BLOOMFILTER), REDIRECTED)
            ],
        }


def findings(rows: Rows) -> list[str]:
    """Say what the filter does to a crawl, near and far, and which pages it costs."""
    cell = {(row["delay"], row["name"]): row for row in rows["crawls"]}
    said = []
    for delay in dict.fromkeys(row["delay"] for row in rows["crawls"]):
        ours, theirs = cell[delay, OURS], cell[delay, SCRAPY_REDIS]
        said.append(
            f"With {in_ms(delay)} added a crawl takes {ours['times']:.2f} times as long with our"
            f" filter as with scrapy-redis's, {ours['cpu'] / theirs['cpu']:.2f} times the workers'"
            f" CPU and {ours['server'] / theirs['server']:.2f} times that of Redis: checks make"
            f" {ours['trips']:.1f} round trips for a page instead of {theirs['trips']:.1f}."
        )
    twice = {
        name: sum(row["twice"] for row in rows["crawls"] if row["name"] == name) for name in FILTERS
    }
    found = [f"{name} {count}" for name, count in twice.items() if count]
    said.append(f"Pages fetched twice: {', '.join(found) if found else 'none'}.")
    of = {row["name"]: row for row in rows["redirects"]}
    said.append(
        f"Of {of[OURS]['returning']} pages that redirect to themselves scrapy-redis loses"
        f" {of[SCRAPY_REDIS]['lost_returning']}: its filter takes the second request of the chain"
        f" for a duplicate. Ours loses {of[OURS]['lost_returning']}."
    )
    return said


def draw(axes: Any, rows: Rows) -> None:
    """Draw the time for a page over the distance, a group of bars for each distance."""
    delays = list(dict.fromkeys(row["delay"] for row in rows["crawls"]))
    names = list(dict.fromkeys(row["name"] for row in rows["crawls"]))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        each = [row for row in rows["crawls"] if row["name"] == name]
        heights = [row["wall"] * 1e3 for row in each]
        edges = [
            [(row["wall"] - row["wall_low"]) * 1e3 for row in each],
            [(row["wall_high"] - row["wall"]) * 1e3 for row in each],
        ]
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(each))]
        axes.bar(
            places,
            heights,
            width,
            yerr=edges,
            label=name,
            color=colour_of(name),
            hatch=hatch_of(name, names),
            edgecolor="white",
            linewidth=0,
            ecolor="gray",
        )
    over_distances(axes, delays)


PART = Part(
    name="redis-crawl",
    title="Crawls by two workers",
    method="""\
Two Scrapy processes with scrapy-redis's scheduler and its default queue, in Redis like the filter,
crawl a local site whose pages have 20 links each. Scrapy's settings are the defaults, but for 16
requests to the site at a time. Between workers and Redis lies a proxy that adds to each round trip;
without addition, none. The workers stay the same processes throughout and crawl once to warm up.
The clock runs from the moment that both are ready to the last page; an idle worker looks for work
ten times a second instead of every five seconds. Site and Redis share the two cores with the
workers, and each page that is fetched costs the queue two round trips more, with every filter. CPU
is that of both workers. Round trips are those of the filter, counted by Redis.

scrapy-redis-bloomfilter has a bitmap of 16 MB (`BLOOMFILTER_BIT` 27); one BITFIELD and RedisBloom's
BF.ADD are duplicate filters of ten lines over scrapy-redis's. Ours has its defaults.

On that site no page redirects to itself, so that all filters find the same work. The last table is
about a site where some do, to set a cookie or to sort parameters, as in the tests; there, "behind"
are pages that only lost pages link to.
""",
    packages=(*redis_server.PACKAGES, "Scrapy", "Twisted"),
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "crawls",
            "Crawls",
            (
                Column("delay", "ms added", "g", 1e-3),
                Column("name", "filter"),
                Column("pages", "pages"),
                Column("wall", "ms per page", ".1f", 1e-3, spread=True),
                Column("times", "times scrapy-redis's", ".2f"),
                Column("cpu", "ms CPU per page", ".1f", 1e-3),
                Column("server", "ms of Redis per page", ".2f", 1e-3),
                Column("trips", "round trips per page", ".1f"),
                Column("twice", "fetched twice"),
                Column("lost", "lost"),
            ),
        ),
        Table(
            "redirects",
            "A site some pages of which redirect to themselves",
            (
                Column("name", "filter"),
                Column("pages", "pages"),
                Column("returning", "of these to themselves"),
                Column("fetched", "fetched"),
                Column("lost_returning", "lost: redirected to themselves"),
                Column("lost_behind", "lost: behind these"),
                Column("lost", "lost otherwise"),
                Column("twice", "fetched twice"),
            ),
        ),
    ),
    plots=(
        Plot(
            "redis-crawl",
            "Milliseconds per page of a crawl by two workers, by filter and added round-trip time:"
            " the farther Redis is, the more round trips cost.",
            draw,
        ),
    ),
    findings=findings,
)
