"""One crawl by two workers with each filter: seconds, pages fetched twice, pages lost.

Scrapy's own settings, scrapy-redis's scheduler and queue, a local site, and a network between
workers and Redis that adds to each round trip. The filters take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from example.localredis import LocalRedis
from example.localsite import LocalSite

from harness import setting, show
from slow_network import SlowNetwork

PROJECT = Path(__file__).resolve().parent.parent / "example_project"
FILTERS = {
    "scrapy-redis": "scrapy_redis.dupefilter.RFPDupeFilter",
    "scrapy-redis-bloomfilter": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter",
    "scrapy-bloom": "scrapy_bloom.BloomDupeFilter",
}
PATIENCE = 300


def crawl(dupefilter: str, pages: int, delay: float) -> dict[str, Any]:
    """Crawl the site once with two workers; return what the site counted."""
    with (
        LocalRedis() as server,
        SlowNetwork(server.port, delay) as network,
        LocalSite(pages=pages) as site,
        TemporaryDirectory() as folder,
    ):
        settings = {
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "SCHEDULER_PERSIST": "True",
            "DUPEFILTER_CLASS": dupefilter,
            "REDIS_URL": f"redis://127.0.0.1:{network.port}",
            "STAY_IDLE": "3",
            "ROBOTSTXT_OBEY": "False",
            "TELNETCONSOLE_ENABLED": "False",
            "BLOOMFILTER_BIT": "27",
        }
        command = [sys.executable, "-m", "scrapy", "crawl", "site", "-a", f"url={site.url}"]
        for name, value in settings.items():
            command += ["-s", f"{name}={value}"]
        environment = os.environ | {"SCRAPY_SETTINGS_MODULE": "example.settings"}
        begun = Event()
        site.when(1, begun.set)
        workers = []
        for number in range(2):
            stats_file = Path(folder) / f"{number}.json"
            workers.append(
                subprocess.Popen(
                    [*command, "-s", f"STATS_FILE={stats_file}"],
                    cwd=PROJECT,
                    env=environment,
                    stderr=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            )
        begun.wait(PATIENCE)
        start = last = time.monotonic()
        delivered = 0
        while any(worker.poll() is None for worker in workers):
            time.sleep(0.05)
            now = sum(site.hits.values())
            if now > delivered:
                delivered, last = now, time.monotonic()
        stats = [json.loads((Path(folder) / f"{number}.json").read_text()) for number in range(2)]
        return {
            "seconds": last - start,
            "fetched twice": len(site.repeated),
            "lost": len(site.missed),
            "trips": sum(each.get("bloom/redis/round_trips", 0) for each in stats),
            "checks": sum(each.get("bloom/checked", 0) for each in stats),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.0005, help="seconds of the network")
    arguments = parser.parse_args()
    print(setting("scrapy-bloom", "Scrapy", "redis", "scrapy-redis", "Scrapy-Redis-BloomFilter"))
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in FILTERS}
    for number in range(arguments.rounds):
        names = list(FILTERS)
        for name in reversed(names) if number % 2 else names:
            results[name].append(crawl(FILTERS[name], arguments.pages, arguments.delay))
    rows = []
    for name, each in results.items():
        values = {key: median(one[key] for one in each) for key in each[0]}
        spread = " to ".join(f"{edge(one['seconds'] for one in each):.1f}" for edge in (min, max))
        trips = f"{values['trips']:,.0f} of {values['checks']:,.0f}" if values["trips"] else ""
        rows.append(
            (
                name,
                f"{values['seconds']:.1f} ({spread})",
                f"{values['fetched twice']:g}",
                f"{values['lost']:g}",
                trips,
            )
        )
    show(
        f"two workers, {arguments.pages:,} pages, {arguments.delay * 1e3:g} ms added",
        ("", "seconds", "fetched twice", "lost", "trips of checks"),
        rows,
    )


if __name__ == "__main__":
    main()
