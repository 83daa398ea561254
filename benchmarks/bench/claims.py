"""What must hold of our figures, each with its bound, and the figures that the docs begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.competitors import FASTBLOOM, OURS, RBLOOM, RBLOOM_QUICKEST, TEXTBOOK
from bench.part import Row
from bench.parts import redis_large, shared_crawl, shared_server, window
from bench.parts.exact import EXACT
from bench.parts.reactor_stops import CLOSED, STORED
from bench.parts.redis_layouts import ours as layout_name
from bench.redis_filters import BF_MADD, PIPELINED
from bench.redis_filters import OURS_BATCHED as BATCHES
from bench.redis_filters import SCRAPY_REDIS as SADD
from bench.results import Result
from bench.revisits import OURS as WINDOWED
from bench.revisits import OURS_REDIS as WINDOWED_REDIS
from bench.schedulers import OURS as FRONTIER
from bench.scrapy_filters import DEFAULT as SAFE
from bench.scrapy_filters import SCRAPY

Results = Mapping[str, Result]


@dataclass(frozen=True)
class Claim:
    """One bound.

    Attributes:
        text: what is bounded.
        value: takes it from the results.
        side: "at most" or "at least".
        bound: inclusive.
    """

    text: str
    value: Callable[[Results], float]
    side: str
    bound: float

    def holds(self, results: Results) -> bool:
        """Return whether the results are on the right side."""
        value = self.value(results)
        return value <= self.bound if self.side == "at most" else value >= self.bound


def row(results: Results, part: str, table: str, **fields: object) -> Row:
    """Return the one row of a table that has these fields.

    :raises LookupError: if there is none, or more than one.
    """
    found = [
        row
        for row in results[part]["tables"][table]
        if all(row.get(key) == value for key, value in fields.items())
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {part}/{table} have {fields}")
    return dict(found[0])


LARGE = 10_000_000
SETS = layout_name("sets")
NEAR, FAR = "loopback", "loopback + 0.5 ms"
DELAYS = (0.0, 0.0005, 0.005, 0.02)


def core(results: Results, name: str) -> float:
    """Return our time by that of another, for one check-and-add at 10,000,000 items."""
    return float(row(results, "core", "core", items=LARGE, name=name)["ratio"])


def slowest_request_seen(results: Results) -> float:
    """Return the highest ratio of `request_seen` to Scrapy's, over levels, links and places."""
    rows = results["request-seen"]["tables"]["seen"]
    return max(float(row["ratio"]) for row in rows if row["name"].startswith(OURS))


def bytes_per_url(results: Results) -> float:
    """Return the bytes per URL of a filter of the default capacity that is full."""
    return float(row(results, "bytes", "full", name=OURS, items=1_000_000)["bytes_per_url"])


def cost_at_1e8(results: Results) -> float:
    """Return the time of a check at 1e8 items by that at 1e5."""
    return float(row(results, "growth", "growth", name=OURS, items=100_000_000)["ratio"])


def redis(results: Results, place: str, repeats: float, name: str = BATCHES) -> Row:
    """Return the rate of checks in Redis of a filter, our batches if none is named."""
    return row(results, "redis-rates", "rates", place=place, repeats=repeats, name=name)


def layouts(results: Results, name: str) -> Row:
    """Return the server's times for a URL in a layout of our filter, or in another one."""
    return row(results, "redis-layouts", "times", name=name, batch=500)


def shared(results: Results, delay: float) -> Row:
    """Return what a page of a crawl with its queue in Redis takes, so many seconds away."""
    return row(results, "shared-crawl", "crawls", name=shared_crawl.OURS, delay=delay)


def large(results: Results, layout: str) -> Row:
    """Return the figures of a filter in Redis with the most URLs."""
    rows = results["redis-large"]["tables"]["growth"]
    return max((r for r in rows if r["name"] == layout), key=lambda r: int(r["urls"]))


def queue(results: Results, pending: int) -> Row:
    """Return the times of our queue with so many pending requests."""
    return row(results, "frontier-queue", "queue", name=FRONTIER, pending=pending)


def dearest_crawl(results: Results, ratio: str, links: int = 1000) -> float:
    """Return the highest ratio of our crawl's CPU to another's, over the sites.

    :param links: the most links on a page of the sites that count.
    """
    rows = results["frontier-crawl"]["tables"]["crawl"]
    return max(float(r[ratio]) for r in rows if r["name"] == FRONTIER and r["links"] <= links)


def killed(results: Results) -> Row:
    """Return what became of our crawls that were killed."""
    return row(results, "kills", "kills", name=FRONTIER)


CLAIMS = (
    Claim(
        "one check-and-add at 10,000,000 items, to the textbook loop",
        lambda results: core(results, TEXTBOOK),
        "at most",
        0.35,
    ),
    Claim(
        "the same, to rbloom with the hash that it recommends for a filter that is stored",
        lambda results: core(results, RBLOOM),
        "at most",
        1.1,
    ),
    Claim("one check at 100,000,000 items, to one at 100,000", cost_at_1e8, "at most", 2),
    Claim("bytes per URL at 1e-6, full to 1,000,000", bytes_per_url, "at most", 4.5),
    Claim(
        "bytes per URL at the worst moment from there to 100 times that",
        lambda results: row(results, "long-run", "moments", moment="worst")["bytes_per_url"],
        "at most",
        10,
    ),
    Claim(
        "`request_seen`, to Scrapy's own filter, the slowest level and links",
        slowest_request_seen,
        "at most",
        0.5,
    ),
    Claim(
        "growth of a crawler's memory at 5,000,000 URLs, to Scrapy's own filter",
        lambda results: row(results, "memory", "memory", name=SAFE)["ratio"],
        "at most",
        0.15,
    ),
    Claim(
        "checks in Redis in batches of 100, loopback, half of them repeats, to scrapy-redis",
        lambda results: redis(results, NEAR, 0.5)["times"],
        "at least",
        5,
    ),
    Claim(
        "the same with 0.5 ms more on the way, no repeats",
        lambda results: redis(results, FAR, 0.0)["times"],
        "at least",
        20,
    ),
    Claim(
        "speed of the server for a new URL in batches of 500, layout `sets`, to `bitmap`",
        lambda results: layouts(results, SETS)["speed"],
        "at least",
        3,
    ),
    Claim(
        "checks a second of one core of Redis with 100,000,000 URLs in `sets`, one in ten new",
        lambda results: large(results, SETS)["sustained"],
        "at least",
        redis_large.IRLBOT,
    ),
    Claim(
        "round trips for a page with `scrapy_bloom.Scheduler` and Redis, 0 to 20 ms away, the most",
        lambda results: max(shared(results, delay)["trips"] for delay in DELAYS),
        "at most",
        0.5,
    ),
    Claim(
        "time of such a crawl with 5 ms on the way, to scrapy-redis's",
        lambda results: shared(results, 0.005)["times"],
        "at most",
        0.2,
    ),
    Claim(
        "the same with 0.5 ms on the way, to that of Scrapy's own scheduler in memory",
        lambda results: shared(results, 0.0005)["to_memory"],
        "at most",
        1.1,
    ),
    Claim(
        "processor time of the worker in that",
        lambda results: shared(results, 0.0005)["cpu_to_memory"],
        "at most",
        1.1,
    ),
    Claim(
        "pages that one to eight workers with it fetch twice",
        lambda results: sum(
            each["twice"]
            for each in results["shared-workers"]["tables"]["crawls"]
            if each["name"] == shared_crawl.OURS
        ),
        "at most",
        0,
    ),
    Claim(
        "pages and items that crawls with `scrapy_bloom.Scheduler` lose to kills",
        lambda results: killed(results)["lost"] + killed(results)["items_lost"],
        "at most",
        0,
    ),
    Claim(
        "URLs of a real site that such a crawl misses when it is killed ten times",
        lambda results: row(results, "real-site", "crawls", name=f"{FRONTIER}, killed")["missing"],
        "at most",
        0,
    ),
    Claim(
        "pages that are fetched again for a kill, to those under way",
        lambda results: killed(results)["again"] / killed(results)["under_way"],
        "at most",
        2,
    ),
    Claim(
        "push + pop + done with 1,000,000 pending requests, to Scrapy's queue of pickles",
        lambda results: queue(results, 1_000_000)["ratio"],
        "at most",
        1.2,
    ),
    Claim(
        "MB by which a crawler with 10,000,000 pending requests grows",
        lambda results: queue(results, LARGE)["memory"] / 1e6,
        "at most",
        50,
    ),
    Claim(
        "seconds in which a job with 10,000,000 pending requests opens",
        lambda results: queue(results, LARGE)["open"],
        "at most",
        1,
    ),
    Claim(
        "CPU of a crawl with a job directory, to Scrapy's default queue and filter, any site",
        lambda results: dearest_crawl(results, "to_scrapy"),
        "at most",
        1.05,
    ),
    Claim(
        "the same, to Scrapy's SQLite queue, sites with up to 20 links on a page",
        lambda results: dearest_crawl(results, "to_sqlite", 20),
        "at most",
        0.8,
    ),
    Claim(
        "push + pop + done without a job directory, to Scrapy's own scheduler",
        lambda results: row(results, "frontier-queue", "memory", name=FRONTIER)["cpu_ratio"],
        "at most",
        1.05,
    ),
    Claim(
        "new pages that the exact mode calls seen, of 10,000,000",
        lambda results: row(results, "exact", "exact", name=EXACT, items=LARGE)["lost"],
        "at most",
        0,
    ),
    Claim(
        "pages that crawls of 45 days with a window miss, or fetch again early",
        lambda results: sum(
            found["missed"] + found["early"]
            for found in results["window"]["tables"]["crawls"]
            if found["name"] in (WINDOWED, WINDOWED_REDIS)
        ),
        "at most",
        0,
    ),
    Claim(
        "ms by which a call is late at most while a filter for 100,000,000 URLs is stored",
        lambda results: max(
            row(results, "reactor-stops", "alone", name=name)["longest"] * 1e3
            for name in (STORED, CLOSED)
        ),
        "at most",
        50,
    ),
)


def behind(results: Results) -> list[str]:
    """Return where we are slower than others, or than one might expect, in sentences."""
    at = {r["name"]: r["ratio"] for r in results["core"]["tables"]["core"] if r["items"] == LARGE}
    faster = ", ".join(f"{name} {ratio:.2f}" for name, ratio in at.items() if ratio > 1.001)
    least = min(r["items"] for r in results["core"]["tables"]["core"])
    small = row(results, "core", "core", items=least, name=TEXTBOOK)["ratio"]
    new = redis(results, NEAR, 0.0)
    madd = [
        r
        for r in results["redis-rates"]["tables"]["rates"]
        if r["name"] == BF_MADD and (r["place"], r["repeats"]) == (NEAR, 0.0)
    ]
    trip = redis(results, NEAR, 0.0, SADD)["wall"] * 1e6
    piped = redis(results, NEAR, 0.0, PIPELINED)["times"]
    core_faster = (
        f"In the core, our time by that of those that are faster, at {LARGE:,} items: {faster}."
        " Part `core` says why."
    )
    core_small = (
        f"At {least:,} items, where all fits the processor's caches, our time is {small:.2f} of the"
        " textbook loop's."
    )
    near = (
        f"On loopback, where no check repeats, our batches make {new['times']:.1f} times as many"
        f" checks as scrapy-redis, whose round trip took {trip:.0f} µs in this run. A machine that"
        f" wakes its processes sooner leaves us less: the server works {new['server'] * 1e6:.1f} µs"
        f" for each new URL. SADD in pipelines, which nobody ships, comes to {piped:.1f}."
    )
    sets = layouts(results, SETS)
    in_sets = (
        f"The layout `sets` takes the server {sets['new'] * 1e6:.1f} µs for a new URL in batches of"
        f" 500: {sets['ratio']:.1f} times as long as RedisBloom's BF.MADD."
    )
    lines = [core_faster, core_small, near, in_sets, _with_a_window(results)]
    lines += [_dear_pages(results), *_with_a_queue(results)]
    if madd:
        lines.append(
            f"RedisBloom's BF.MADD makes {madd[0]['times'] / new['times']:.1f} times as many checks"
            " as our batches there: it needs a module in the server, and loses URLs with replies"
            " that are lost (part `redis-faults`)."
        )
    return lines


def _with_a_window(results: Results) -> str:
    sets, bitmap, exact = (
        row(results, "window", "steady", name=name, window=window.WITH)
        for name in (window.in_redis("sets"), window.in_redis("bitmap"), window.SORTED)
    )
    return (
        f"With `BLOOM_WINDOW` a new URL takes the server {sets['new'] * 1e6:.0f} µs in `sets`,"
        f" {bitmap['new'] * 1e6:.0f} in `bitmap`: nine generations are looked into. A sorted set"
        f" takes {exact['new'] * 1e6:.0f} µs, and {exact['bytes'] / sets['bytes']:.0f} times the"
        " memory (part `window`)."
    )


def _dear_pages(results: Results) -> str:
    ours = [r for r in results["frontier-crawl"]["tables"]["crawl"] if r["name"] == FRONTIER]
    most = max(ours, key=lambda r: float(r["links"]))
    start = {r["name"]: r["cpu"] * 1e3 for r in results["frontier-crawl"]["tables"]["ends"]}
    return (
        f"Where a page has {most['links']} links, a crawl takes {most['to_sqlite']:.2f} of the CPU"
        " of one with Scrapy's SQLite queue: there most of the time goes into parsing, which is the"
        " same for all. To start and to end takes our scheduler"
        f" {start[FRONTIER] - start[SCRAPY]:.0f} ms of CPU more than Scrapy's own."
    )


def _with_a_queue(results: Results) -> list[str]:
    by_hand = [
        row(results, "shared-server", "times", name=name, batch=500)["ratio"]
        for name in (SETS, layout_name("bitmap"))
    ]
    waits = row(results, "shared-server", "room", name=SETS, batch=500)["memory"]
    bitmap = large(results, layout_name("bitmap"))
    return [
        (
            "Mark, push, take and acknowledge take the server"
            f" {by_hand[0]:.1f} times as long in `sets`, {by_hand[1]:.1f} in `bitmap`, as SADD,"
            " ZADD and ZPOPMIN by hand, which lose requests with a killed worker (part"
            f" `{shared_server.PART.name}`). A request that waits takes {waits:.0f} bytes of the"
            " server's memory, as in every queue in Redis."
        ),
        (
            f"In `bitmap` one core of Redis sustains {bitmap['sustained']:,.0f} checks a second"
            f" with {bitmap['urls']:,} URLs; IRLbot made {redis_large.IRLBOT:,}."
        ),
    ]


def short(results: Results) -> list[tuple[str, str, str, str]]:
    """Return the rows of the home page's table: what, ours, theirs, ratio."""
    return [
        *_times(results),
        *_sizes(results),
        *_in_redis(results),
    ]


def _times(results: Results) -> list[tuple[str, str, str, str]]:
    rows = []
    seen = {"links": "of a real crawl", "job": "no"}
    ours = row(results, "request-seen", "seen", name=SAFE, **seen)
    theirs = row(results, "request-seen", "seen", name=SCRAPY, **seen)
    what = "`request_seen` of a fresh request"
    named = f"Scrapy's filter: {_micros(theirs)}"
    rows.append((what, _micros(ours), named, f"{ours['ratio']:.2f}"))
    what, shown = f"check-and-add at {LARGE:,} items", OURS
    for name in (TEXTBOOK, RBLOOM, RBLOOM_QUICKEST, FASTBLOOM):
        ours = row(results, "core", "core", items=LARGE, name=OURS)
        theirs = row(results, "core", "core", items=LARGE, name=name)
        first = (what, _micros(ours)) if shown else ("", "")
        rows.append((*first, f"{name}: {_micros(theirs)}", f"{theirs['ratio']:.2f}"))
        shown = ""
    return rows


def _sizes(results: Results) -> list[tuple[str, str, str, str]]:
    exact = next(r for r in results["bytes"]["tables"]["full"] if r["name"] != OURS)
    ours, theirs = bytes_per_url(results), exact["bytes_per_url"]
    rows = [
        (
            "bytes per URL at 1e-6, full to the capacity",
            f"{ours:.2f}",
            f"set of fingerprints: {theirs:.1f}",
            f"{ours / theirs:.2f}",
        )
    ]
    grown = [row(results, "memory", "memory", name=name) for name in (SAFE, SCRAPY)]
    mine, other = (f"{each['grown'] / 1e6:,.0f} MB" for each in grown)
    what = f"memory of a crawler at {grown[0]['urls']:,} URLs"
    rows.append((what, mine, f"Scrapy's filter: {other}", f"{grown[0]['ratio']:.2f}"))
    resumed = [
        row(results, "resume", "resume", name=name) for name in (OURS, f"{SCRAPY}, requests.seen")
    ]
    mine, other = (f"{each['open']:.2f} s" for each in resumed)
    ratio = resumed[0]["open"] / resumed[1]["open"]
    what = f"resuming a job of {resumed[0]['urls']:,} pages"
    rows.append((what, mine, f"Scrapy's filter: {other}", f"{ratio:.3f}"))
    return rows


def _in_redis(results: Results) -> list[tuple[str, str, str, str]]:
    rows = []
    for place, repeats in ((NEAR, 0.0), (NEAR, 0.5), (FAR, 0.0)):
        ours, theirs = (redis(results, place, repeats, name) for name in (BATCHES, SADD))
        rows.append(
            (
                f"checks in Redis per second, batches of 100, {place}, {repeats:.0%} repeats",
                f"{ours['rate']:,.0f}",
                f"scrapy-redis: {theirs['rate']:,.0f}",
                f"{ours['times']:.1f}",
            )
        )
    return rows


def _micros(found: Row) -> str:
    return f"{found['cpu'] * 1e6:.2f} µs"
