"""Crawls by worker processes that share queue and filter in Redis: how fast, and how politely."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from bench.many_hosts import ManyHosts, Request
from bench.redis_server import busy

if TYPE_CHECKING:
    from testbed.localredis import LocalRedis

OURS: Final = "scrapy-bloom"
SCRAPY_REDIS: Final = "scrapy-redis"
BESIDE: Final = "scrapy-redis with our filter"
BLOOMFILTER: Final = "scrapy-redis-bloomfilter"
MEMORY: Final = "Scrapy's own, in memory"

_THEIRS: Final = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "SCHEDULER_PERSIST": True}

SCHEDULERS: Final[Mapping[str, Mapping[str, object]]] = {
    OURS: {"ADDONS": {"scrapy_bloom.Addon": 500}},
    SCRAPY_REDIS: {**_THEIRS, "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
    BESIDE: {**_THEIRS, "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"},
    BLOOMFILTER: {
        **_THEIRS,
        "SCHEDULER": "scrapy_redis_bloomfilter.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter",
    },
    MEMORY: {},
}


@dataclass(frozen=True)
class Crawl:
    """A crawl to be measured.

    Attributes:
        workers: how many.
        hosts: how many they crawl.
        delay: ``DOWNLOAD_DELAY``, with one request at a time for each host; 0 for none.
        links: of a page.
        new: how many of these are new.
        settle: seconds after which measuring begins, once all workers are there.
        seconds: for which it is measured.
    """

    workers: int
    hosts: int
    delay: float
    links: int = 10
    new: int = 10
    settle: float = 3.0
    seconds: float = 15.0

    def quick(self) -> Crawl:
        """Return a crawl of a few seconds, to see that it works."""
        return replace(self, workers=min(2, self.workers), settle=1.0, seconds=2.0)

    def job(self, scheduler: str, url: str, port: int) -> dict[str, object]:
        """Return what a worker is to do."""
        most = {"DOWNLOAD_DELAY": self.delay, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
        if not self.delay:
            most = {"DOWNLOAD_DELAY": 0, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
        settings = {**SCHEDULERS[scheduler], **most, "DOWNLOAD_DELAY_JITTER": 0}
        if scheduler != MEMORY:
            settings["BLOOM_REDIS_URL" if scheduler == OURS else "REDIS_URL"] = url
        return {"hosts": self.hosts, "port": port, "settings": settings}


@dataclass(frozen=True)
class Crawled:
    """What a crawl was like while it was measured.

    Attributes:
        seconds: for which it was.
        requests: by moment.
        server: processor time of Redis in seconds.
        trips: requests of the workers to Redis, a pipeline being one.
        cpu: processor time of the workers in seconds.
    """

    seconds: float
    requests: Sequence[Request]
    server: float
    trips: float
    cpu: float

    @property
    def pages(self) -> float:
        """Requests a second."""
        return len(self.requests) / self.seconds

    @property
    def busiest(self) -> float:
        """Requests a second to the host that got most."""
        return max(self.by_host.values(), default=0) / self.seconds

    def each(self, value: float) -> float:
        """Return what a page has taken of a sum over all pages."""
        return value / max(1, len(self.requests))

    @property
    def by_host(self) -> Counter[str]:
        """How many requests each host got."""
        return Counter(request.host for request in self.requests)

    def short(self, delay: float) -> float:
        """Return the share of gaps between requests to a host that are below half the delay."""
        last: dict[str, float] = {}
        gaps = []
        for moment, host in self.requests:
            if host in last:
                gaps.append(moment - last[host])
            last[host] = moment
        return sum(gap < delay / 2 for gap in gaps) / max(1, len(gaps))


class Worker:
    """A process that crawls. Its first report comes when the spider is open.

    :param job: what it is to do.
    """

    def __init__(self, job: Mapping[str, object]) -> None:
        command = [sys.executable, "-m", "bench.fleet_worker"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._tell(json.dumps(job))

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def next_report(self) -> dict[str, float]:
        """Wait for a report."""
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))

    def report(self) -> dict[str, float]:
        """Ask for a report."""
        self._tell("report")
        return self.next_report()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()


def measure(crawl: Crawl, scheduler: str, server: LocalRedis, url: str = "") -> Crawled:
    """Crawl, and return what the crawl was like once it had settled.

    :param server: is emptied.
    :param url: of the server as the workers reach it, if not directly.
    """
    with ExitStack() as stack:
        client: Any = stack.enter_context(server.client())
        client.flushall()
        site = stack.enter_context(ManyHosts(crawl.hosts, crawl.links, crawl.new))
        job, workers = crawl.job(scheduler, url or server.url, site.port), []
        for _ in range(crawl.workers):
            workers.append(worker := Worker(job))
            stack.callback(worker.kill)
        for worker in workers:
            worker.next_report()
        time.sleep(crawl.settle)
        before = _summed(workers)
        start, used = time.monotonic(), busy(client)
        time.sleep(crawl.seconds)
        end, used = time.monotonic(), busy(client) - used
        requests = [request for request in site.requests if start <= request.moment <= end]
        taken = {key: value - before[key] for key, value in _summed(workers).items()}
        return Crawled(end - start, requests, used, **taken)


def _summed(workers: Sequence[Worker]) -> dict[str, float]:
    """Return the sums of what the workers report."""
    reports = [worker.report() for worker in workers]
    return {key: sum(report[key] for report in reports) for key in ("trips", "cpu")}
