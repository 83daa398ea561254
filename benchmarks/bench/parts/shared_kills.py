"""Workers on one Redis that are killed again and again: pages lost, and pages fetched again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic
from typing import Any

from bench.axes import bars_of_kills
from bench.harness import in_turn
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.redis_server import PACKAGES
from bench.scrapy_filters import Settings

LINKS = 8
KILLS = 10
PATIENCE = 180.0
"""Seconds for the next pages, and for the end."""

OURS = "scrapy-bloom"
BESIDE = "scrapy-redis, our filter"
THEIRS = "scrapy-redis"

Worker = subprocess.Popen[bytes]

_SCRAPY_REDIS: Settings = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
}
SCHEDULERS: dict[str, Settings] = {
    OURS: {"SCHEDULER": "scrapy_bloom.Scheduler"},
    BESIDE: _SCRAPY_REDIS,
    THEIRS: {**_SCRAPY_REDIS, "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
}


def run(scale: Scale) -> Rows:
    """Kill workers of many crawls with each scheduler, in turn."""
    pages, kills = scale.of((1000, KILLS), (150, 1))
    found: dict[str, list[Row]] = {name: [] for name in SCHEDULERS}
    for number in range(scale.of(10, 1)):
        for name in in_turn(list(SCHEDULERS), number):
            workers = 3 + number % 4
            found[name].append(crawl(SCHEDULERS[name], pages, kills, workers, number))
    return {"kills": [summed(name, crawls) for name, crawls in found.items()]}


def crawl(settings: Settings, pages: int, kills: int, workers: int, seed: int) -> Row:
    """Crawl a site by workers that are killed at random moments, and replaced."""
    from support.localredis import LocalRedis
    from support.localsite import SteadySite
    from support.taken import pages_of, taken_by

    dice = Random(seed)
    under_way, killed = set[int](), 0
    with (
        TemporaryDirectory() as folder,
        LocalRedis() as server,
        SteadySite(pages=pages, links=LINKS, seed=seed) as site,
        ExitStack() as processes,
    ):
        in_redis = {"BLOOM_REDIS_URL": server.url, "REDIS_URL": server.url}
        start = partial(begin, site.url, {**settings, **in_redis}, Path(folder), processes)
        running = [start() for _ in range(workers)]
        for _ in range(kills):
            reached = Event()
            site.when(site.delivered + dice.randint(1, 2 * pages // (kills + 1)), reached.set)
            alive = wait_for(reached, running)
            if not alive:
                break
            victim = dice.choice(alive)
            victim.kill()
            victim.wait()
            killed += 1
            under_way |= pages_of(site, taken_by(server, victim.pid))
            running[running.index(victim)] = start()
        for worker in running:
            worker.wait(PATIENCE)
        return {
            "pages": pages,
            "workers": workers,
            "kills": killed,
            "lost": len(site.missed),
            "again": sum(hits - 1 for hits in site.repeated.values()),
            "under_way": len(under_way),
            "unexplained": len(set(site.repeated) - under_way),
        }


def begin(url: str, settings: Settings, folder: Path, processes: ExitStack) -> Worker:
    """Start a worker, which ends with `processes` at the latest."""
    from support import localsite

    program = Path(localsite.__file__).with_name("programs") / "redis_worker.py"
    chosen = {"CONCURRENT_REQUESTS_PER_DOMAIN": 16, "LOG_LEVEL": "ERROR", **settings}
    command = [sys.executable, str(program), url, str(folder / "stats"), json.dumps(chosen)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    worker = processes.enter_context(subprocess.Popen(command, cwd=folder, env=environment))
    processes.callback(worker.kill)
    return worker


def wait_for(reached: Event, workers: Sequence[Worker]) -> list[Worker]:
    """Wait for something, or for the end of all workers; return those that have not ended."""
    deadline = monotonic() + PATIENCE
    while True:
        happened = reached.wait(0.05)
        alive = [worker for worker in workers if worker.poll() is None]
        if happened or not alive:
            return alive
        assert monotonic() < deadline, "the workers stand still"


def summed(name: str, crawls: list[Row]) -> Row:
    """Return one row for all crawls with a scheduler."""
    row: Row = {"name": name, "crawls": len(crawls)}
    for key in ("pages", "kills", "lost", "again", "under_way", "unexplained"):
        row[key] = sum(crawl[key] for crawl in crawls)
    row["incomplete"] = sum(1 for crawl in crawls if crawl["lost"])
    if name != OURS:  # it notes nowhere what it has under way
        row["under_way"] = row["unexplained"] = None
    return row


def draw(axes: Any, rows: Rows) -> None:
    """Draw what became of the pages as bars, a group for each scheduler."""
    bars_of_kills(
        axes,
        rows["kills"],
        {
            "lost": lambda row: float(row["lost"] / row["kills"]),
            "fetched again": lambda row: float(row["again"] / row["kills"]),
        },
    )
    axes.set(ylabel="pages for each kill")


def findings(rows: Rows) -> list[str]:
    """Say what the kills cost whom."""
    ours, *others = rows["kills"]
    theirs = "; ".join(
        f"{row['name']} {row['lost']:,} of {row['pages']:,} pages over {row['kills']} kills, in"
        f" {row['incomplete']} of {row['crawls']} crawls"
        for row in others
    )
    return [
        (
            f"{ours['kills']} kills of workers cost our crawls {ours['lost']} of"
            f" {ours['pages']:,} pages. Lost by the others: {theirs}."
        ),
        (
            f"With ours {ours['again']:,} pages were fetched again, where the killed workers had"
            f" {ours['under_way']:,} under way or ready; {ours['unexplained']} of the others."
        ),
    ]


PART = Part(
    name="shared-kills",
    title="Workers that are killed",
    method=f"""\
A site of 1,000 pages with {LINKS} links each is crawled by 3 to 6 workers on one Redis. After a
random number of pages one of them is killed by SIGKILL and another one is started, {KILLS} times in
each crawl; then all run to their end. The schedulers take turns, each with the same sites and the
same dice. What is lost is known to the site, which counts its answers. No page of this site
redirects to itself.

Ours is `scrapy_bloom.Scheduler`. scrapy-redis runs with its own filter, and with ours. What a
killed worker of ours had is read from Redis after the kill: pages that it was fetching, that it had
ready, and that it had done in the last fifth of a second.""",
    packages=("Scrapy", *PACKAGES[:2]),
    run=run,
    tables=(
        Table(
            "kills",
            "Killed workers",
            (
                Column("name", "scheduler"),
                Column("crawls", "crawls"),
                Column("kills", "kills", ","),
                Column("pages", "pages", ","),
                Column("lost", "pages lost", ","),
                Column("incomplete", "crawls with losses"),
                Column("again", "fetched again", ","),
                Column("under_way", "that killed workers had", ","),
                Column("unexplained", "fetched again, of others", ","),
            ),
        ),
    ),
    plots=(
        Plot(
            "shared-kills",
            "Pages lost and fetched again for each kill of a worker: ours loses none",
            draw,
        ),
    ),
    findings=findings,
    alone=False,
)
