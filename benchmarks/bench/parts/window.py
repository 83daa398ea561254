"""What it costs to forget by time, and what others fetch who do the same job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.fingerprints import stream, take
from bench.harness import in_turn, spread
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.revisits import DAY, NAMES, START, WINDOW, Archive, Run, as_argument
from scrapy_bloom import LocalFilter, RedisFilter, WindowedFilter
from scrapy_bloom.core.growth import PARTS, generation_life
from scrapy_bloom.registry import LAYOUTS

if TYPE_CHECKING:
    from support.localredis import LocalRedis

BATCH: Final = 500
RATE: Final = 1e-6
POOR: Final = 1e-3
WITHOUT, WITH = "no", "30 days"
LOCAL: Final = "in memory"
SORTED: Final = "Redis, sorted set"
PATIENCE: Final = 120  # seconds for one crawl, which takes a few


def in_redis(layout: str) -> str:
    """Return the name of our filter in a layout."""
    return f"Redis, {layout}"


@dataclass
class Subject:
    """What remembers pages.

    Attributes:
        name: what it is.
        window: whether it forgets.
        add: adds a batch.
        memory: returns the bytes that it takes.
        held: returns how many pages it has.
        busy: returns the seconds that were worked for it.
        wrong: returns how many of some new fingerprints it has; None if that cannot be.
    """

    name: str
    window: str
    add: Callable[[Sequence[bytes]], object]
    memory: Callable[[], float]
    held: Callable[[], int]
    busy: Callable[[], float]
    wrong: Callable[[Sequence[bytes]], int] | None = None


class Clock:
    """A clock that is set by hand, here and on the server."""

    def __init__(self, set_server: Callable[[float], object]) -> None:
        self.now = float(START)
        self._set_server = set_server

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self._set_server(self.now)


def subjects(
    stack: ExitStack,
    server: LocalRedis,
    client: Any,
    clock: Clock,
    pages: int,
    error_rate: float,
) -> Iterator[Subject]:
    """Yield filters for so many pages in a window, without a window and with one."""
    held = pages + pages // PARTS
    for window in (WITHOUT, WITH):
        size = pages if window == WITH else held
        local = (
            WindowedFilter(WINDOW, size, error_rate, clock=clock)
            if window == WITH
            else LocalFilter(size, error_rate)
        )
        yield _ours(LOCAL, window, local, partial(_bytes, local), process_time)
        for layout in LAYOUTS:
            key = f"{layout} {window} {error_rate}"
            shared = RedisFilter.from_url(
                server.url,
                key=key,
                capacity=size,
                error_rate=error_rate,
                layout=layout,
                cache=0,
                timeout=60,
                window=WINDOW if window == WITH else None,
            )
            yield _ours(
                in_redis(layout),
                window,
                stack.enter_context(shared),
                partial(_usage, client, key),
                partial(redis_server.busy, client),
            )


def _bytes(local: LocalFilter) -> float:
    return local.info().bytes


def _ours(
    name: str, window: str, seen: Any, memory: Callable[[], float], busy: Callable[[], float]
) -> Subject:
    return Subject(
        name,
        window,
        seen.add_many,
        memory,
        lambda: int(seen.info().items),
        busy,
        lambda others: sum(seen.contains_many(others)),
    )


def sorted_set(client: Any, clock: Clock) -> Subject:
    """Return a sorted set with the time of each fingerprint."""
    key = "sorted"

    def add(batch: Sequence[bytes]) -> None:
        with client.pipeline(transaction=False) as calls:
            calls.zremrangebyscore(key, "-inf", clock.now - WINDOW)
            for fingerprint in batch:
                calls.zadd(key, {fingerprint: clock.now}, nx=True)
            calls.execute()

    return Subject(
        SORTED,
        WITH,
        add,
        partial(_usage, client, key),
        lambda: int(client.zcard(key)),
        partial(redis_server.busy, client),
    )


def _usage(client: Any, key: str) -> float:
    keys = client.scan_iter(match=f"*{key}*", count=1000)
    return float(sum(client.memory_usage(name, samples=0) or 0 for name in keys))


def fill(found: Sequence[Subject], clock: Clock, pages: int) -> list[bytes]:
    """Have pages come evenly for more than two windows; return those of the last window.

    What forgets nothing gets only as many as a window holds at its largest.
    """
    source, parts = stream(1), 2 * PARTS + 2
    kept: list[list[bytes]] = []
    for part in range(parts):
        some = take(source, pages // PARTS)
        for subject in found:
            if subject.window == WITH or part >= parts - PARTS - 1:
                _add(subject, some)
        kept.append(some)
        if part < parts - 1:
            clock.advance(generation_life(WINDOW) / (PARTS + 1))
    return [one for some in kept[-PARTS:] for one in some]


def _add(subject: Subject, fingerprints: Sequence[bytes]) -> None:
    for start in range(0, len(fingerprints), BATCH):
        subject.add(fingerprints[start : start + BATCH])


def _timed(subject: Subject, fingerprints: Sequence[bytes]) -> float:
    before = subject.busy()
    _add(subject, fingerprints)
    return (subject.busy() - before) / len(fingerprints)


def steady(
    stack: ExitStack, server: LocalRedis, client: Any, clock: Clock, scale: Scale
) -> Iterator[Row]:
    """Yield what a page costs when as many are forgotten as come."""
    pages, asked, rounds = scale.of(400_000, 16_000), scale.of(20_000, 1_000), scale.of(5, 2)
    found = [*subjects(stack, server, client, clock, pages, RATE), sorted_set(client, clock)]
    known = fill(found, clock, pages)
    memory = {id(subject): subject.memory() / subject.held() for subject in found}
    held = {id(subject): subject.held() for subject in found}
    times: dict[int, list[tuple[float, float]]] = {id(subject): [] for subject in found}
    source = stream(2)
    for number in range(rounds):
        old = known[number * asked : (number + 1) * asked]
        new = take(source, asked)
        for place in in_turn([str(place) for place in range(len(found))], number):
            subject = found[int(place)]
            times[id(subject)].append((_timed(subject, old), _timed(subject, new)))
    wrong = errors(stack, server, client, clock, scale)
    for subject in found:
        seen, fresh = zip(*times[id(subject)], strict=True)
        yield {
            "name": subject.name,
            "window": subject.window,
            "held": held[id(subject)],
            "bytes": memory[id(subject)],
            **spread("seen", seen),
            **spread("new", fresh),
            "wrong": wrong.get((subject.name, subject.window), 0.0),
        }


def errors(
    stack: ExitStack, server: LocalRedis, client: Any, clock: Clock, scale: Scale
) -> dict[tuple[str, str], float]:
    """Return the share of new fingerprints that poorer filters in their steady state have."""
    pages = scale.of(80_000, 8_000)
    found = list(subjects(stack, server, client, clock, pages, POOR))
    fill(found, clock, pages)
    others = take(stream(99), scale.of(300_000, 10_000))
    return {
        (subject.name, subject.window): subject.wrong(others) / len(others)
        for subject in found
        if subject.wrong
    }


def crawls(server: LocalRedis, client: Any, scale: Scale) -> Iterator[Row]:
    """Yield what is fetched of a site that is crawled every few days."""
    sites: Any = import_module("support.sites")  # not typed
    begin, more = scale.of((600, 40), (60, 10))
    days = scale.of(range(0, 46, 5), (0, 35))
    for name in NAMES:
        client.flushall()
        archive, begun = Archive(begin), perf_counter()
        before, cpu = redis_server.busy(client), 0.0
        with TemporaryDirectory() as folder, sites.Pages(archive) as site:
            for day in days:
                archive.now = START + day * DAY
                archive.articles += more
                cpu += _crawl(Run(name, site.url, archive.now, folder, server.url, begin))
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
            size = sum(path.stat().st_size for path in files)
        overdue = archive.now - generation_life(WINDOW)
        yield {
            "name": name,
            "articles": archive.articles,
            "fetched": sum(map(len, archive.fetched.values())),
            "lists": sum(archive.lists.values()),
            "missed": archive.articles - len(archive.fetched),
            "overdue": sum(times[-1] <= overdue for times in archive.fetched.values()),
            "early": sum(
                later - earlier < WINDOW
                for times in archive.fetched.values()
                for earlier, later in pairwise(times)
            ),
            "bytes": size + _usage(client, ""),
            "cpu": cpu,
            "server": redis_server.busy(client) - before,
            "wall": perf_counter() - begun,
        }


def _crawl(run: Run) -> float:
    """Crawl once in a process of its own; return its processor time.

    :raises RuntimeError: if it fails. What hangs is ended.
    """
    done = subprocess.run(
        [sys.executable, "-m", "bench.revisits", as_argument(run)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ,
        check=False,
    )
    if done.returncode or "Traceback" in done.stderr:
        raise RuntimeError(f"{run}: {done.stderr[-3000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["cpu"])


def run(scale: Scale) -> Rows:
    """Measure all."""
    internals: Any = import_module("support.internals")  # not typed
    with redis_server.local_server() as server, server.client() as client:
        with internals.clock_of_redis(client, START) as set_server, ExitStack() as stack:
            rows = list(steady(stack, server, client, Clock(set_server), scale))
        return {
            "server": redis_server.described(server),
            "steady": rows,
            "crawls": list(crawls(server, client, scale)),
        }


def findings(rows: Rows) -> list[str]:
    """Compare a window with none, and with what others do."""
    of = {(row["name"], row["window"]): row for row in rows["steady"]}
    said = []
    for name in (LOCAL, *map(in_redis, LAYOUTS)):
        plain, windowed = of[name, WITHOUT], of[name, WITH]
        said.append(
            f"{name.capitalize()}: with a window a page takes {windowed['bytes']:.1f} bytes instead"
            f" of {plain['bytes']:.1f}, a new one {windowed['new'] * 1e6:.1f} µs instead of"
            f" {plain['new'] * 1e6:.1f}, and one that is seen {windowed['seen'] * 1e6:.1f} instead"
            f" of {plain['seen'] * 1e6:.1f}."
        )
    exact = of[SORTED, WITH]
    said.append(
        f"A sorted set forgets to the second and makes no errors. It takes {exact['bytes']:.0f}"
        f" bytes for a page and {exact['new'] * 1e6:.1f} µs of the server for a new one."
    )
    return said + [
        f"{row['name']}: {row['missed']} of {row['articles']:,} articles missed,"
        f" {row['overdue']} not fetched again though their time is over."
        for row in rows["crawls"]
    ]


PART = Part(
    name="window",
    title="Forgetting by time",
    method="""\
**As many pages forgotten as come.** Pages come evenly for more than two windows of 30 days: 400,000
in each window, in batches of 500. Time is set, here and in the scripts of the server. A filter
without a window gets as many pages as one with a window holds at most, an eighth more than come in
a window. Then 20,000 pages that are seen and as many new ones are timed, five rounds in turn:
processor time of this process, or of the server (INFO cpu). Bytes are those of the bits, or MEMORY
USAGE. The error rate is 1e-6; errors are counted with 1e-3, in filters of a fifth of the size. The
sorted set has the time of each fingerprint as its score: ZADD NX, and ZREMRANGEBYSCORE before each
batch.

**Crawls of 45 days.** A local site has 640 articles at first. It is crawled every five days, time
is set, and each time there are 40 articles more. Lists are read in each run. An article is to be
fetched once, and once more when that was 30 days ago. "Overdue" are articles that were not fetched
again though it was 9/8 of 30 days ago. Each run is a process. The sorted set is a duplicate filter
of a few lines. scrapy-deltafetch and scrapy-crawl-once keep what they have met for ever. Both are
older than Scrapy's asynchronous output; so they get a method that hands it to them in one piece,
and scrapy-crawl-once the function of Scrapy that it imports and that is gone. Bytes are those of
the files, or of the keys in Redis, at the end.
""",
    packages=("Scrapy", "redis", "scrapy-deltafetch", "scrapy-crawl-once"),
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "steady",
            "As many pages forgotten as come",
            (
                Column("name", "kept"),
                Column("window", "window"),
                Column("held", "pages held", ","),
                Column("bytes", "bytes per page", ".2f"),
                Column("seen", "µs, seen", ".2f", 1e-6, spread=True),
                Column("new", "µs, new", ".2f", 1e-6, spread=True),
                Column("wrong", "errors at 1e-3", ".1e"),
            ),
        ),
        Table(
            "crawls",
            "Crawls of 45 days",
            (
                Column("name", "what remembers"),
                Column("fetched", "articles fetched", ","),
                Column("lists", "lists fetched", ","),
                Column("missed", "missed", ","),
                Column("early", "fetched again early", ","),
                Column("overdue", "overdue at the end", ","),
                Column("bytes", "bytes kept", ",.0f"),
                Column("cpu", "CPU of the crawls, s", ".1f"),
                Column("server", "of Redis, s", ".2f"),
                Column("wall", "wall, s", ".0f"),
            ),
        ),
    ),
    findings=findings,
)
