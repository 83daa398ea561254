"""What one check adds to the reactor, in calm and while Redis cannot be used."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request

from bench import redis_server
from bench.harness import in_turn
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.scrapy_filters import BLOOM, opened
from bench.slow_network import SlowNetwork

if TYPE_CHECKING:
    from support.localredis import LocalRedis

DELAY: Final = 0.0005
OURS: Final = "ours"
SCRAPY_REDIS: Final = "scrapy-redis"
HANGS: Final = "server hangs"
DOWN: Final = "server is down"

RequestSeen = Callable[[Request], object]


@contextmanager
def ours(url: str) -> Iterator[RequestSeen]:
    """Open our filter with its defaults."""
    with opened({**BLOOM, "BLOOM_REDIS_URL": url}) as request_seen:
        yield request_seen


@contextmanager
def scrapy_redis(url: str) -> Iterator[RequestSeen]:
    """Open scrapy-redis's filter as its scheduler does."""
    from scrapy_redis import connection, defaults
    from scrapy_redis.dupefilter import RFPDupeFilter

    with connection.get_redis(url=url, **defaults.REDIS_PARAMS) as client:
        yield RFPDupeFilter(client, "pages:dupefilter").request_seen


FILTERS: Final = {OURS: ours, SCRAPY_REDIS: scrapy_redis}


@dataclass
class Taken:
    """What checks took in one state.

    Attributes:
        seconds: of each.
        raised: how many raised.
    """

    seconds: list[float] = field(default_factory=list)
    raised: int = 0

    def time(self, request_seen: RequestSeen, count: int) -> None:
        """Check requests, the same ones every time."""
        import redis

        for number in range(count):
            request = Request(f"https://www.example.com/{number}")
            start = time.perf_counter()
            try:
                request_seen(request)
            except redis.RedisError:
                self.raised += 1
            self.seconds.append(time.perf_counter() - start)

    def row(self) -> Row:
        """Return the figures in seconds."""
        few = len(self.seconds) < 1000
        return {
            "checks": len(self.seconds),
            "median": median(self.seconds),
            "high": None if few else quantiles(self.seconds, n=1000)[-1],
            "longest": max(self.seconds),
            "raised": self.raised,
        }


class _Round:
    """One round on one server: every filter in every state."""

    def __init__(self, server: LocalRedis, taken: dict[tuple[str, str], Taken]) -> None:
        self._server = server
        self._taken = taken

    def calm(self, place: str, url: str, name: str, count: int) -> None:
        """Ask for new requests, and for the same again."""
        self._server.client().flushall()
        with FILTERS[name](url) as request_seen:
            for state in ("new", "repeated"):
                self._note(f"{place}, {state}", name, request_seen, count)

    def hanging(self, count: int) -> None:
        """Ask a server that takes no notice."""
        self._server.client().flushall()
        with ours(self._server.url) as request_seen:
            os.kill(self._server.pid, signal.SIGSTOP)
            try:
                self._note(HANGS, OURS, request_seen, count)
            finally:
                os.kill(self._server.pid, signal.SIGCONT)

    def down(self, name: str, count: int) -> None:
        """Ask a server that has crashed, and start it again."""
        with FILTERS[name](self._server.url) as request_seen:
            request_seen(Request("https://www.example.com/before"))
            self._server.kill()
            try:
                self._note(DOWN, name, request_seen, count)
            finally:
                self._server.start()

    def _note(self, state: str, name: str, request_seen: RequestSeen, count: int) -> None:
        self._taken.setdefault((state, name), Taken()).time(request_seen, count)


def run(scale: Scale) -> Rows:
    """Measure all states."""
    count = scale.of(5000, 1000)
    taken: dict[tuple[str, str], Taken] = {}
    with redis_server.local_server() as server, SlowNetwork(server.port, DELAY) as network:
        places: dict[str, Any] = {
            "loopback": (server.url, count),
            "loopback + 0.5 ms": (network.url, count // 5),
        }
        for number in range(scale.of(3, 1)):
            turn = _Round(server, taken)
            for place, (url, checks) in places.items():
                for name in in_turn(list(FILTERS), number):
                    turn.calm(place, url, name, checks)
            turn.hanging(count)
            turn.down(OURS, count)
            turn.down(SCRAPY_REDIS, 1)
        described = redis_server.described(server)
    rows = [{"state": state, "name": name, **each.row()} for (state, name), each in taken.items()]
    return {"server": described, "latency": rows}


def findings(rows: Rows) -> list[str]:
    """Say what a check costs in calm, and what an outage costs."""
    of = {(row["state"], row["name"]): row for row in rows["latency"]}
    hangs, down, theirs = of[HANGS, OURS], of[DOWN, OURS], of[DOWN, SCRAPY_REDIS]
    near, there = (of["loopback, new", name]["median"] for name in (OURS, SCRAPY_REDIS))
    again = of["loopback, repeated", OURS]["median"]
    return [
        (
            f"A new request costs {near * 1e6:.0f} µs on loopback, with scrapy-redis"
            f" {there * 1e6:.0f}: the server runs a script instead of one command. A repeated one"
            f" costs {again * 1e6:.1f} µs, because the worker knows it."
        ),
        (
            f"A server that hangs costs one check {hangs['longest']:.1f} s, which"
            f" BLOOM_REDIS_TIMEOUT bounds, a server that is down {down['longest'] * 1e3:.0f} ms;"
            f" the median of the checks meanwhile is {hangs['median'] * 1e6:.1f} µs. None raises."
        ),
        (
            f"Of {theirs['checks']} checks by scrapy-redis of a server that is down"
            f" {theirs['raised']} raise; Scrapy loses the request then."
        ),
    ]


PART = Part(
    name="redis-latency",
    title="What a check adds to the reactor",
    method="""\
Scrapy's scheduler waits for the filter, and the reactor with it. So here each call of
`request_seen` is timed by itself, the making of the fingerprint included. Filters have their
defaults and take turns. First all requests are new, then the same ones come again. The server hangs
when it is stopped (SIGSTOP), and is down when it was killed; the filters were opened before. We did
not wait for scrapy-redis at a server that hangs: its connection has a timeout of 30 s and tries
twice. The longest times in calm are the system's, which lets other programs run.
""",
    packages=(*redis_server.PACKAGES, "Scrapy"),
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "latency",
            "One check",
            (
                Column("state", "state"),
                Column("name", "filter"),
                Column("checks", "checks", ",d"),
                Column("median", "median µs", ",.1f", 1e-6),
                Column("high", "99.9 % µs", ",.0f", 1e-6),
                Column("longest", "longest µs", ",.0f", 1e-6),
                Column("raised", "raised"),
            ),
        ),
    ),
    findings=findings,
)
