"""What a server takes for a long queue: the scripts of one worker, without a crawl."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.part import Row
from scrapy_bloom.crawl.pace import Pace
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.member import Entry, Taken
from scrapy_bloom.redis.plan import BATCH, Plan
from scrapy_bloom.redis.queue import SharedQueue
from scrapy_bloom.redis.worker import Worker
from scrapy_bloom.values import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE

if TYPE_CHECKING:
    from support.localredis import LocalRedis

PACE: Final = Pace(0.5, 0.5)
TIMEOUT: Final = 30.0
BODY: Final = 300  # bytes, about those of a plain request


def measure(server: LocalRedis, hosts: int, requests: int, take: int, calls: int) -> Row:
    """Fill a queue, and take from it; return bytes a request, and seconds of a take and a beat.

    :param server: is emptied.
    :param requests: of all hosts.
    :param take: how many a call takes.
    :param calls: how many are measured.
    """
    client: Any = server.client()
    client.flushall()
    plan = Plan(DEFAULT_CAPACITY, DEFAULT_ERROR_RATE, project="p", spider="s", order="lifo")
    queue = SharedQueue(Worker(Server(server.url), TIMEOUT), "many", plan)
    try:
        empty = client.info("memory")["used_memory"]
        _fill(queue, hosts, requests)
        size = client.info("memory")["used_memory"] - empty
        takes = list(_times(client, _taker(queue, take), calls))
        beats = list(_times(client, queue.shared.beat, calls))
    finally:
        queue.close()
    return {
        "hosts": hosts,
        "requests": requests,
        "bytes": size / requests,
        "take": median(takes),
        "take_high": max(takes),
        "beat": median(beats),
        "beat_high": max(beats),
    }


def _fill(queue: SharedQueue, hosts: int, requests: int) -> None:
    body = secrets.token_hex(BODY // 2).encode()
    for first in range(0, requests, BATCH):
        for number in range(first, min(requests, first + BATCH)):
            queue.offer(Entry("p", None, body, slot=b"www.host%d.example.com" % (number % hosts)))
        _exchange(queue, 0)


def _taker(queue: SharedQueue, want: int) -> Callable[[], None]:
    taken: list[Taken] = []

    def take() -> None:
        for each in taken:
            queue.end(each)
        taken[:] = _exchange(queue, want)

    return take


def _exchange(queue: SharedQueue, want: int) -> list[Taken]:
    call = queue.prepare(want, default=PACE)
    assert call is not None
    answer = queue.carry_out(call)
    queue.settle(call, answer)
    return [*answer.taken]


def _times(client: Any, call: Callable[[], object], calls: int) -> Iterator[float]:
    """Yield the seconds that the server's scripts take for each of some calls."""
    for _ in range(calls):
        before = _spent(client)
        call()
        yield _spent(client) - before


def _spent(client: Any) -> float:
    return float(client.info("commandstats")["cmdstat_evalsha"]["usec"]) * 1e-6
