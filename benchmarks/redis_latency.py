"""What one check adds to the reactor: request_seen's time, in calm and while Redis is down."""

from __future__ import annotations

import argparse
import os
import signal
import time
from statistics import median, quantiles

from example.localredis import LocalRedis
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from harness import setting, show
from scrapy_bloom import BloomDupeFilter
from slow_network import SlowNetwork


class Pages(Spider):
    """A spider to belong to."""

    name = "pages"


def times(dupefilter: BloomDupeFilter, tag: str, count: int) -> list[float]:
    """Return the seconds of each of `count` checks of new requests."""
    requests = [Request(f"https://www.example.com/{tag}/{number}") for number in range(count)]
    took = []
    for request in requests:
        start = time.perf_counter()
        dupefilter.request_seen(request)
        took.append(time.perf_counter() - start)
    return took


def row(name: str, took: list[float]) -> tuple[str, ...]:
    """Return the figures of one state in microseconds."""
    high = quantiles(took, n=1000)[-1]
    return name, f"{median(took) * 1e6:,.0f}", f"{high * 1e6:,.0f}", f"{max(took) * 1e6:,.0f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=10_000)
    parser.add_argument("--delay", type=float, default=0.0005, help="seconds of the slow network")
    arguments = parser.parse_args()
    print(setting("scrapy-bloom", "Scrapy", "redis"))
    rows = []
    with LocalRedis() as server, SlowNetwork(server.port, arguments.delay) as network:
        for place, port in (("loopback", server.port), ("slow network", network.port)):
            settings = {"BLOOM_REDIS_URL": f"redis://127.0.0.1:{port}", "BLOOM_REDIS_KEY": place}
            dupefilter = BloomDupeFilter.from_crawler(get_crawler(Pages, settings))
            dupefilter.open()
            count = arguments.checks // (5 if place == "slow network" else 1)
            rows.append(row(f"{place}, calm, new requests", times(dupefilter, "new", count)))
            rows.append(row(f"{place}, calm, repeats", times(dupefilter, "new", count)))
            if place == "loopback":
                os.kill(server.pid, signal.SIGSTOP)
                rows.append(row("server hangs", times(dupefilter, "hangs", count)))
                os.kill(server.pid, signal.SIGCONT)
            else:
                server.kill()
                rows.append(row("server down", times(dupefilter, "down", count)))
            dupefilter.close("finished")
    show(
        "request_seen, microseconds; BLOOM_REDIS_TIMEOUT is 2 s",
        ("", "median", "99.9 %", "longest"),
        rows,
    )


if __name__ == "__main__":
    main()
