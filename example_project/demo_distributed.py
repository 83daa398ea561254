"""Crawl a local site by three workers that share queue and filter in Redis, and kill one of them.

``make demo-distributed`` runs this. The exit status is 0 when no page was fetched twice and none
was missed but those whose requests the killed worker held, else 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final

from demo import CONSOLE, PATIENCE, PROJECT, DemoError
from rich.filesize import decimal
from rich.table import Table
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.extensions import EXTENSIONS
from support.localredis import LocalRedis
from support.localsite import LocalSite

WORKERS: Final = 3
HELD: Final = 8  # requests that one worker holds at a time: what a kill can lose


class Worker:
    """One ``scrapy crawl site`` on a shared queue.

    :param number: tells its files in `folder` from those of others.
    """

    def __init__(self, number: int, site: LocalSite, server: LocalRedis, folder: Path) -> None:
        self.log = folder / f"{number}.txt"
        self._stats = folder / f"{number}.json"
        settings = {
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "SCHEDULER_PERSIST": "True",
            "REDIS_URL": server.url,
            "EXTENSIONS": EXTENSIONS,
            "STAY_IDLE": "3",
            "STATS_FILE": str(self._stats),
            "CONCURRENT_REQUESTS": str(HELD),
        }
        command = [sys.executable, "-m", "scrapy", "crawl", "site", "-a", f"url={site.url}"]
        for name, value in settings.items():
            command += ["-s", f"{name}={value}"]
        command += ["--logfile", str(self.log), "--loglevel", "INFO"]
        environment = os.environ | {"SCRAPY_SETTINGS_MODULE": "example.settings"}
        self.process = subprocess.Popen(command, cwd=PROJECT, env=environment)

    def finish(self) -> dict[str, Any]:
        """Wait for the end of the crawl; return its stats.

        :raises DemoError: if it failed.
        """
        status = self.process.wait(PATIENCE)
        if status or not self._stats.exists():
            raise DemoError(f"A worker ended with status {status}:\n{self.log.read_text()[-3000:]}")
        stats: dict[str, Any] = json.loads(self._stats.read_text())
        return stats


def memory(server: LocalRedis, urls: Iterable[str]) -> tuple[int, int, int]:
    """Return how many URLs there are, and the bytes in Redis of the filter and of a set of them."""
    client = server.client()
    fingerprints = {fingerprint(Request(url)).hex() for url in urls}
    client.sadd("set", *fingerprints)
    names = list(client.scan_iter("site:bloom*"))
    of_filter = sum(client.memory_usage(name, samples=0) or 0 for name in names)
    return len(fingerprints), of_filter, client.memory_usage("set", samples=0) or 0


def demonstrate(site: LocalSite, server: LocalRedis, folder: Path) -> None:
    """Run the crawl and print what site and Redis counted.

    :raises DemoError: if a page was fetched twice, more were missed than the killed worker held, or
        a worker failed.
    """
    half, killed_at = Event(), site.pages // 2
    site.when(killed_at, half.set)
    CONSOLE.print(f"Serving a site of {site.pages:,} pages, and a private Redis: {server.url}")
    workers = [Worker(number, site, server, folder) for number in range(WORKERS)]
    try:
        if not half.wait(PATIENCE):
            raise DemoError("The crawl does not get on.")
        workers[0].process.kill()
        CONSOLE.print(f"At page {killed_at:,} one of {WORKERS} workers was killed with SIGKILL")
        stats = [worker.finish() for worker in workers[1:]]
    finally:
        for worker in workers:
            worker.process.kill()  # does nothing to a process that has ended
            worker.process.wait()
    report(site, server, stats)
    if site.repeated or len(site.missed) > 2 * HELD:
        raise DemoError(f"{len(site.repeated)} fetched twice, {len(site.missed)} missed")


def report(site: LocalSite, server: LocalRedis, stats: Sequence[dict[str, Any]]) -> None:
    """Print the table."""

    def total(name: str) -> int:
        return sum(each.get(name, 0) for each in stats)

    urls, of_filter, of_set = memory(server, site.urls)
    trips = total("bloom/redis/round_trips")
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("pages in the site", f"{site.pages:,}")
    table.add_row("pages fetched", f"{len(site.hits):,}")
    table.add_row("fetched twice", f"{len(site.repeated):,}")
    table.add_row("missed", f"{len(site.missed):,}", end_section=True)
    table.add_row("checks of the two that lived", f"{total('bloom/checked'):,}")
    table.add_row("of these answered locally", f"{total('bloom/redis/local'):,}")
    table.add_row(
        "round trips per page", f"{trips / total('item_scraped_count'):.2f}", end_section=True
    )
    table.add_row("URLs, redirects among them", f"{urls:,}")
    table.add_row("memory of the filter in Redis", decimal(of_filter))
    table.add_row("memory of a SADD set of them", decimal(of_set))
    CONSOLE.print(table)
    if site.missed:
        CONSOLE.print(
            "Missed pages: the killed worker held their requests. scrapy-redis takes a request from"
            " the queue before it is done, and no filter can bring it back."
        )


def main() -> int:
    """Run the demo in a temporary folder; return the exit status."""
    with (
        TemporaryDirectory(prefix="scrapy-bloom-demo-") as folder,
        LocalSite() as site,
        LocalRedis() as server,
    ):
        try:
            demonstrate(site, server, Path(folder))
        except (DemoError, subprocess.TimeoutExpired) as error:
            CONSOLE.print(f"FAILED: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
