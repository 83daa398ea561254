"""How long a worker on Redis holds up its loop of events, in calm and while Redis is frozen."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter, sleep
from typing import Any, Final

from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.parts.reactor_stops import BETWEEN, EVERY, Watch, delays
from bench.parts.shared_crawl import MEMORY
from bench.parts.shared_kills import BESIDE, OURS, THEIRS
from bench.parts.shared_kills import SCHEDULERS as SHARED
from bench.redis_server import PACKAGES, TABLE, described, local_server
from bench.schedulers import QUIET
from bench.scrapy_filters import Settings

FROZEN: Final = 4.0
"""Seconds."""

PATIENCE: Final = 60.0
"""Seconds for one crawl. One that takes longer is killed, and the part ends with an error."""

CALM, STOPPED = "calm", "frozen in the middle"
SCHEDULERS: Final[dict[str, Settings]] = {
    MEMORY: {},
    **SHARED,
    BESIDE: {**SHARED[BESIDE], "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"},
}


def run(scale: Scale) -> Rows:
    """Crawl with each scheduler: in calm, then with Redis frozen in the middle."""
    pages, seconds = scale.of((1200, FROZEN), (100, 1.0))
    rows: list[Row] = []
    with local_server() as server:
        for name, settings in SCHEDULERS.items():
            for redis in (CALM,) if name == MEMORY else (CALM, STOPPED):
                server.client().flushall()
                in_redis = {"BLOOM_REDIS_URL": server.url, "REDIS_URL": server.url}
                chosen = settings if name == MEMORY else {**settings, **in_redis}
                frozen = seconds if redis == STOPPED else 0.0
                found = crawl_apart(chosen, pages, server.pid, frozen)
                rows.append({"name": name, "redis": redis, "pages": pages, **found})
        return {"stops": rows, "server": described(server)}


def crawl_apart(settings: Settings, pages: int, server: int, frozen: float) -> Row:
    """Crawl in a process of its own, which is killed if it takes too long.

    :param server: the process of the server.
    :param frozen: for how long that stands still when half of the pages are there, in seconds.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=crawl, args=(settings, pages, theirs), daemon=True)
    process.start()
    theirs.close()  # so that its end is seen here
    try:
        hear(ours)  # half of the pages are there
        if frozen:
            freeze(server, frozen)
        found: Row = hear(ours)
    finally:
        process.kill()
        process.join()
    return found


def hear(pipe: Connection) -> Any:
    """Return what the crawl says next.

    :raises TimeoutError: if it says nothing.
    """
    if not pipe.poll(PATIENCE):
        raise TimeoutError(f"the crawl said nothing for {PATIENCE:.0f} s")
    return pipe.recv()


def freeze(process: int, seconds: float) -> None:
    """Let a process stand still for so long."""
    os.kill(process, signal.SIGSTOP)
    try:
        sleep(seconds)
    finally:
        os.kill(process, signal.SIGCONT)


def crawl(settings: Settings, pages: int, tell: Connection) -> None:
    """Crawl in this process; say when half of the pages are there, and then what was measured."""
    from scrapy import signals
    from scrapy.crawler import CrawlerProcess

    from bench import inside

    process = CrawlerProcess({**QUIET, **inside.SETTINGS, **settings})
    crawler: Any = process.create_crawler(inside.Pages)
    watch = Watch(lambda: None)
    came = 0

    def count() -> None:
        nonlocal came
        came += 1
        if came == pages // 2:
            tell.send("half")

    crawler.signals.connect(watch.begin, signal=signals.spider_opened)
    crawler.signals.connect(count, signal=signals.response_received)
    crawler.signals.connect(watch.end, signal=signals.spider_closed)
    start = perf_counter()
    process.crawl(crawler, pages=pages)
    process.start()
    late, own = watch.late[BETWEEN], watch.own[BETWEEN]
    tell.send(
        {
            "seconds": perf_counter() - start,
            "fetched": len(crawler.spider.fetched),
            **delays(late, own),
        }
    )


def findings(rows: Rows) -> list[str]:
    """Say how we stand."""
    longest, own = (
        {(row["name"], row["redis"]): row[key] * 1e3 for row in rows["stops"]}
        for key in ("longest", "own_longest")
    )
    return [
        (
            f"In calm the longest stop is {longest[OURS, CALM]:,.0f} ms with ours,"
            f" {longest[BESIDE, CALM]:,.0f} ms with scrapy-redis and our filter,"
            f" {longest[THEIRS, CALM]:,.0f} ms with scrapy-redis, and {longest[MEMORY, CALM]:,.0f}"
            f" ms with Scrapy's own scheduler, which needs no Redis. Their longest own work is"
            f" {own[OURS, CALM]:,.0f}, {own[BESIDE, CALM]:,.0f}, {own[THEIRS, CALM]:,.0f} and"
            f" {own[MEMORY, CALM]:,.0f} ms."
        ),
        (
            f"While Redis is frozen for {FROZEN:.0f} s it is {longest[OURS, STOPPED]:,.0f} ms with"
            f" ours, {longest[BESIDE, STOPPED]:,.0f} ms with scrapy-redis and our filter, and"
            f" {longest[THEIRS, STOPPED]:,.0f} ms with scrapy-redis, which waits for each answer."
        ),
    ]


PART = Part(
    name="shared-stops",
    title="How long a worker's loop of events stands still for Redis",
    method=f"""\
One worker with its requests in Redis on the same machine. Something asks to be called
{EVERY * 1e3:.0f} ms after its last call; shown is how late it is called. Pages come from within the
crawler's process, 5 ms after they were asked for, 16 at a time. Then the same, and the process of
the server is stopped by SIGSTOP for {FROZEN:.0f} s when half of the pages are there. "Own work" is
how much of a delay the processor worked for the crawl's process.""",
    packages=("Scrapy", "Twisted", *PACKAGES[:2]),
    run=run,
    tables=(
        Table(
            "stops",
            "Delay of a call in a worker",
            (
                Column("name", "scheduler"),
                Column("redis", "Redis"),
                Column("pages", "pages", ","),
                Column("fetched", "fetched", ","),
                Column("seconds", "s wall", ".1f"),
                Column("calls", "calls", ","),
                Column("median", "ms late, median", ".1f", 1e-3),
                Column("longest", "longest", ",.0f", 1e-3),
                Column("own_longest", "longest own work", ".0f", 1e-3),
            ),
        ),
        TABLE,
    ),
    findings=findings,
    alone=True,
)
