"""Crawls of many hosts by worker processes: how fast, and how politely."""

from __future__ import annotations

import json
import random
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from bench.many_hosts import Hosts, ManyHosts, Request
from bench.process import PATIENCE, Process
from bench.redis_server import busy
from bench.way import Way

if TYPE_CHECKING:
    from support.localredis import LocalRedis

OURS: Final = "scrapy-bloom"
SCRAPY_REDIS: Final = "scrapy-redis"
JOB: Final = "Scrapy's own, a job directory"

SCHEDULERS: Final[Mapping[str, Mapping[str, object]]] = {
    OURS: {"ADDONS": {"scrapy_bloom.Addon": 500}},
    SCRAPY_REDIS: {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
    },
    JOB: {},
}


@dataclass(frozen=True)
class Crawl:
    """A crawl to be measured.

    Attributes:
        name: in the tables.
        workers: how many.
        hosts: what they crawl.
        delay: ``DOWNLOAD_DELAY``, with one request at a time for each host unless `settings` say
            otherwise; 0 for none.
        settings: further ones.
        way: what the spider does, besides visiting these hosts.
        settle: seconds after which measuring begins, once all workers are there.
        seconds: for which it is measured.
        joins: whether each second a worker is killed and another one joins.
    """

    name: str
    workers: int
    hosts: Hosts
    delay: float = 0.5
    settings: Mapping[str, object] = field(default_factory=dict)
    way: Mapping[str, object] = field(default_factory=dict)
    settle: float = 5.0
    seconds: float = 30.0
    joins: bool = False

    def job(self, scheduler: str, url: str, port: int, folder: str) -> dict[str, object]:
        """Return what a worker is to do."""
        paced = {"DOWNLOAD_DELAY": self.delay, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
        where = {"JOBDIR": folder} if scheduler == JOB else {"REDIS_URL": url}
        if scheduler == OURS:
            where = {"BLOOM_REDIS_URL": url}
        settings = {"DOWNLOAD_DELAY_JITTER": 0, **(paced if self.delay else {}), **where}
        way = {"hosts": self.hosts.count, "port": port, **self.way}
        return {
            "spider": asdict(Way(**way)),  # type: ignore[arg-type]
            "settings": {**SCHEDULERS[scheduler], **settings, **self.settings},
        }


@dataclass(frozen=True)
class Crawled:
    """What a crawl was like while it was measured.

    Attributes:
        seconds: for which it was.
        requests: by moment.
        trips: requests of the workers to Redis, a pipeline being one; None if some were killed.
        server: processor time of Redis in seconds.
    """

    seconds: float
    requests: Sequence[Request]
    trips: int | None
    server: float

    @property
    def pages(self) -> float:
        """Requests a second."""
        return len(self.requests) / self.seconds

    @property
    def busiest(self) -> float:
        """Requests a second to the host that got most."""
        return max(self.by_host.values(), default=0) / self.seconds

    @property
    def trips_per_page(self) -> float | None:
        """Requests to Redis for a page; None if unknown."""
        return None if self.trips is None else self.trips / max(1, len(self.requests))

    @property
    def server_per_page(self) -> float:
        """Seconds of Redis for a page."""
        return self.server / max(1, len(self.requests))

    @property
    def by_host(self) -> Counter[str]:
        """How many requests each host got."""
        return Counter(request.address for request in self.requests)

    def without(self, address: str) -> Crawled:
        """Return the same without the requests to one host."""
        others = [request for request in self.requests if request.address != address]
        return Crawled(self.seconds, others, self.trips, self.server)

    def short(self, delay: float) -> float:
        """Return the share of gaps between requests to a host that are below half the delay."""
        last: dict[str, float] = {}
        gaps = []
        for moment, address in self.requests:
            if address in last:
                gaps.append(moment - last[address])
            last[address] = moment
        return sum(gap < delay / 2 for gap in gaps) / max(1, len(gaps))

    def most_within(self, seconds: float) -> float:
        """Return the most requests a second to one host within any so many seconds."""
        moments = defaultdict(list)
        for moment, address in self.requests:
            moments[address].append(moment)
        spans = (
            bisect_right(each, first + seconds) - number
            for each in moments.values()
            for number, first in enumerate(each)
        )
        return max(spans, default=0) / seconds


class Worker(Process):
    """A process that crawls. Its first report comes when the spider is open.

    :param job: what it is to do.
    """

    def __init__(self, job: Mapping[str, object]) -> None:
        super().__init__("bench.polite_worker")
        self.tell(json.dumps(job))

    @property
    def trips(self) -> int:
        """How often it has sent something to Redis so far."""
        self.tell("report")
        return int(self.next_report()["trips"])

    def wait(self) -> int:
        """Wait until the crawl has ended by itself; return how many pages it has parsed."""
        pages = int(self.next_report()["pages"])
        self._process.wait(PATIENCE)
        return pages


class Team:
    """The workers of a crawl.

    :param job: what each is to do.
    """

    def __init__(self, job: Mapping[str, object]) -> None:
        self._job = job
        self.workers: list[Worker] = []

    def join(self, count: int) -> None:
        """Let more workers join, and wait until they have."""
        more = [Worker(self._job) for _ in range(count)]
        self.workers += more
        for worker in more:
            worker.next_report()

    def replace(self, chance: random.Random) -> None:
        """Kill a worker and let another one join, without waiting for it."""
        place = chance.randrange(len(self.workers))
        self.workers[place].kill()
        self.workers[place] = Worker(self._job)

    @property
    def trips(self) -> int:
        """How often they have sent something to Redis so far."""
        return sum(worker.trips for worker in self.workers)

    def kill(self) -> None:
        """Kill all."""
        for worker in self.workers:
            worker.kill()


@contextmanager
def begun(crawl: Crawl, scheduler: str, server: LocalRedis, site: ManyHosts) -> Iterator[Team]:
    """Begin a crawl; yield its workers, which have all begun.

    :param server: is emptied.
    """
    with ExitStack() as stack:
        client: Any = stack.enter_context(server.client())
        client.flushall()
        folder = stack.enter_context(TemporaryDirectory())
        team = Team(crawl.job(scheduler, server.url, site.port, folder))
        stack.callback(team.kill)
        team.join(crawl.workers)
        yield team


def measure(crawl: Crawl, scheduler: str, server: LocalRedis) -> Crawled:
    """Crawl, and return what the crawl was like once it had settled.

    :param server: is emptied.
    """
    with (
        ManyHosts(crawl.hosts) as site,
        begun(crawl, scheduler, server, site) as team,
        server.client() as client,
    ):
        time.sleep(crawl.settle)
        before = None if crawl.joins else team.trips
        start, used = time.monotonic(), busy(client)
        chance = random.Random(1)
        while crawl.joins and time.monotonic() < start + crawl.seconds - 1:
            team.replace(chance)
            time.sleep(1)
        time.sleep(max(0.0, start + crawl.seconds - time.monotonic()))
        end, used = time.monotonic(), busy(client) - used
        trips = None if before is None else team.trips - before
        requests = [request for request in site.requests if start <= request.moment <= end]
        return Crawled(end - start, requests, trips, used)
