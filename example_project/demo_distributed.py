"""Crawl a local site by workers that share a queue and a pace in Redis; kill, freeze and add some.

``make demo-distributed`` runs this. Its last line is the verdict, by what the site has received: it
is passed if no page was missed and only those were fetched twice that the killed and the frozen
worker had in flight. Then the exit status is 0, else 1. How fast the machine is does not matter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final

from demo import PATIENCE, PROJECT, SCREEN, DemoError
from example.stats_file import EXTENSIONS
from scrapy import Request
from scrapy.utils.request import fingerprint
from testbed.in_flight import pages_of, taken_by
from testbed.localredis import LocalRedis
from testbed.localsite import LocalSite

PAGES: Final = 3000
PACE: Final = 100  # requests a second, of all workers together
REQUESTS: Final = 8  # that one worker sends at a time
LOOK: Final = 0.5  # seconds between looks at what a frozen worker has


class Worker:
    """One ``scrapy crawl site`` on a shared queue.

    :param number: tells its files in `folder` from those of others.
    """

    def __init__(self, number: int, site: LocalSite, server: LocalRedis, folder: Path) -> None:
        self.log = folder / f"{number}.txt"
        self._stats = folder / f"{number}.json"
        settings = {
            "BLOOM_REDIS_URL": server.url,
            "EXTENSIONS": EXTENSIONS,
            "STATS_FILE": str(self._stats),
            "CONCURRENT_REQUESTS": str(REQUESTS),
            "DOWNLOAD_SLOTS": json.dumps({site.HOST: {"delay": 1 / PACE, "jitter": 0}}),
        }
        command = [sys.executable, "-m", "scrapy", "crawl", "site", "-a", f"url={site.url}"]
        for name, value in settings.items():
            command += ["-s", f"{name}={value}"]
        command += ["--logfile", str(self.log), "--loglevel", "INFO"]
        environment = os.environ | {"SCRAPY_SETTINGS_MODULE": "example.settings"}
        self.process = subprocess.Popen(command, cwd=PROJECT, env=environment)

    def freeze(self) -> None:
        """Stop it, and wait until it stands still: from then on it sends nothing."""
        self.process.send_signal(SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

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
    names = [name for name in client.scan_iter("example:site:bloom*") if b"queue" not in name]
    of_filter = sum(client.memory_usage(name, samples=0) or 0 for name in names)
    return len(fingerprints), of_filter, client.memory_usage("set", samples=0) or 0


def wait_for_others(server: LocalRedis, worker: Worker) -> None:
    """Wait until the lease of a frozen worker is over, and others have what it had in flight.

    :raises DemoError: if that does not happen.
    """
    deadline = time.monotonic() + PATIENCE
    while taken_by(server, worker.process.pid):
        if time.monotonic() > deadline:
            raise DemoError("Nobody takes over what a frozen worker has in flight.")
        time.sleep(LOOK)


def demonstrate(site: LocalSite, server: LocalRedis, folder: Path) -> None:
    """Run the crawl and print what site and Redis counted.

    :raises DemoError: if a page was missed, or fetched twice without a reason, or a worker failed.
    """
    events = [Event() for _ in range(3)]
    for number, event in enumerate(events, 1):
        site.when(number * site.pages // 5, event.set)
    SCREEN.print(f"Serving a site of {site.pages:,} pages, and a private Redis: {server.url}")
    workers = [Worker(number, site, server, folder) for number in range(3)]
    try:
        wait(events[0])
        workers[0].process.kill()
        workers[0].process.wait()
        killed = pages_of(site, taken_by(server, workers[0].process.pid))
        SCREEN.print(f"At page {site.delivered:,} a worker was killed with SIGKILL")
        wait(events[1])
        workers[1].freeze()
        frozen = pages_of(site, taken_by(server, workers[1].process.pid))
        SCREEN.print(f"At page {site.delivered:,} another one was frozen")
        wait(events[2])
        workers.append(Worker(3, site, server, folder))
        SCREEN.print(f"At page {site.delivered:,} a fourth one was started")
        wait_for_others(server, workers[1])
        SCREEN.print(f"At page {site.delivered:,} the frozen one wakes up: its lease is over")
        workers[1].process.send_signal(SIGCONT)
        stats = [worker.finish() for worker in workers[1:]]
    finally:
        for worker in workers:
            worker.process.kill()  # does nothing to a process that has ended
            worker.process.wait()
    report(site, server, stats, killed, frozen)
    judge(site.pages, site.missed, set(site.repeated), killed | frozen)


def judge(pages: int, missed: set[int], twice: set[int], in_flight: set[int]) -> None:
    """Print the verdict.

    :param pages: how many the site has.
    :param missed: those that it was not asked for.
    :param twice: those that it was asked for more than once.
    :param in_flight: those that a worker had in flight when it was killed or frozen.
    :raises DemoError: if it is not passed.
    """
    if missed or not twice <= in_flight:
        raise DemoError(
            f"{len(missed):,} of {pages:,} pages missed, {len(twice - in_flight):,} fetched twice"
            f" for no reason: {sorted(twice - in_flight)[:10]}"
        )
    SCREEN.print("")
    SCREEN.print(
        f"PASSED: each of {pages:,} pages was fetched, {len(twice):,} of them twice, which the"
        f" killed and the frozen worker had in flight"
    )


def wait(event: Event) -> None:
    """Wait until the crawl has come to a point.

    :raises DemoError: if it does not.
    """
    if not event.wait(PATIENCE):
        raise DemoError("The crawl does not get on.")


def report(
    site: LocalSite,
    server: LocalRedis,
    stats: Sequence[dict[str, Any]],
    killed: set[int],
    frozen: set[int],
) -> None:
    """Print the table."""

    def total(name: str) -> int:
        return sum(each.get(name, 0) for each in stats)

    urls, of_filter, of_set = memory(server, site.urls)
    twice = set(site.repeated)
    trips = total("bloom/redis/round_trips")
    rows = {
        "pages in the site": f"{site.pages:,}",
        "pages fetched": f"{len(site.hits):,}",
        "missed": f"{len(site.missed):,}",
        "fetched twice": f"{len(twice):,}",
        "  because the killed worker was at it": f"{len(twice & killed):,}",
        "  because the frozen one was": f"{len(twice & frozen - killed):,}",
        "  for any other reason": f"{len(twice - killed - frozen):,}",
        "requests put back for those two": f"{total('bloom/queue/requeued'):,}",
        "round trips per page": f"{trips / total('item_scraped_count'):.2f}",
        "requests a second, as configured": f"{PACE:,}",
        "  in the median second": f"{median(site.per_second):,.0f}",
        "  in the busiest second": f"{max(site.per_second):,}",
        "URLs, redirects among them": f"{urls:,}",
        "memory of the filter in Redis": f"{of_filter / 1000:,.0f} kB",
        "memory of a SADD set of them": f"{of_set / 1000:,.0f} kB",
    }
    SCREEN.print("")
    SCREEN.table(*rows.items())


def main() -> int:
    """Run the demo in a temporary folder; return the exit status."""
    with (
        TemporaryDirectory(prefix="scrapy-bloom-demo-") as folder,
        LocalSite(pages=PAGES) as site,
        LocalRedis() as server,
    ):
        try:
            demonstrate(site, server, Path(folder))
        except (DemoError, subprocess.TimeoutExpired) as error:
            SCREEN.print(f"FAILED: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
