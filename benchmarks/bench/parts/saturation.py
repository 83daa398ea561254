"""How many pages a second one Redis server carries, and how much memory a waiting request takes."""

from __future__ import annotations

import hashlib
import os
import random
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.part import Column, Part, Row, Rows, Scale, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.redis.member import Taken
    from scrapy_bloom.redis.queue import SharedQueue

LINKS: Final = 10  # of each page
NEW: Final = 2  # of them
TAKE: Final = 16  # requests that a worker asks for at once
BODY: Final = os.urandom(150).hex().encode()  # as long as that of a plain request
KEY: Final = "bench:bloom"
HOSTS: Final = (1, 20, 1000)
WORKERS: Final = 3


def run(scale: Scale) -> Rows:
    """Drive a server by workers that do nothing else, and fill another one."""
    rows: list[Row] = []
    for hosts in HOSTS:
        with redis_server.local_server() as server:
            rows.append({"hosts": hosts, **_drive(server.url, hosts, scale.of(20.0, 1.0))})
    with redis_server.local_server() as server:
        memory = _fill(server, scale.of(500_000, 5_000))
        described = redis_server.described(server)
    return {"saturation": rows, "waiting": [memory], "server": described}


def _queue(url: str) -> SharedQueue:
    from scrapy_bloom.redis.client import Server
    from scrapy_bloom.redis.plan import Plan
    from scrapy_bloom.redis.queue import SharedQueue
    from scrapy_bloom.redis.worker import Worker

    plan = Plan(10_000_000, 1e-6, project="bench", spider="bench", order="lifo pickle")
    return SharedQueue(Worker(Server(url), 60.0), KEY, plan)


def _call(queue: SharedQueue, want: int) -> Sequence[Taken]:
    call = queue.prepare(want, look=True)
    assert call is not None
    answer = queue.carry_out(call)
    queue.settle(call, answer)
    return answer.taken


def _offer(queue: SharedQueue, number: int, hosts: int) -> None:
    from scrapy_bloom.redis.member import Entry

    mark = hashlib.sha1(b"%d" % number, usedforsecurity=False).digest()
    queue.offer(Entry("f", mark, BODY, slot=b"www.host%d.example" % (number % hosts)))


def work(url: str, hosts: int, seconds: float, first: int) -> int:
    """Be a worker for some time; return how many pages it has done.

    :param first: where the numbers of its new pages begin.
    """
    queue, pages, chance = _queue(url), 0, random.Random(first)
    number = first
    for number in range(first, first + 400):
        _offer(queue, number, hosts)
    until = time.monotonic() + seconds
    taken: Sequence[Taken] = ()
    while time.monotonic() < until:
        for request in taken:
            for link in range(LINKS):
                number += link < NEW
                _offer(queue, number if link < NEW else chance.randint(first, number), hosts)
            queue.end(request)
        pages += len(taken)
        taken = _call(queue, TAKE)
    queue.close()
    return pages


def _drive(url: str, hosts: int, seconds: float) -> Row:
    import redis

    client: Any = redis.Redis.from_url(url)
    before, began = redis_server.busy(client), time.monotonic()
    with get_context("spawn").Pool(WORKERS) as pool:
        jobs = [(url, hosts, seconds, 10**9 * worker) for worker in range(WORKERS)]
        pages = sum(pool.starmap(work, jobs))
    lasted, used = time.monotonic() - began, redis_server.busy(client) - before
    return {
        "pages": pages / seconds,
        "server": used / pages,
        "busy": used / min(lasted, seconds),
        "most": pages / used,
    }


def _fill(server: Any, requests: int) -> Row:
    client, queue = server.client(), _queue(server.url)
    for number in range(requests):
        _offer(queue, number, requests // 5)
        if queue.offering >= TAKE * LINKS:
            _call(queue, 0)
    while queue.offering:
        _call(queue, 0)
    kept = sum(
        client.memory_usage(name, samples=0) or 0
        for name in client.scan_iter("*")
        if name.endswith((b":queue", b":turns"))
    )
    queue.close()
    return {"requests": requests, "body": len(BODY), "bytes": kept / requests}


PART = Part(
    name="saturation",
    title="What one Redis carries",
    method="""\
Three processes do what workers say to Redis and nothing else: take 16 requests, report them as
done, and offer ten links for each, two of them new. Pages have no delay. The server's processor
time for a page says how many pages a second it would carry with a whole core. Memory: requests of
300 bytes, five for each host.""",
    packages=redis_server.PACKAGES,
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "saturation",
            "Pages a second",
            (
                Column("hosts", "hosts", ","),
                Column("pages", "pages a second", ",.0f"),
                Column("server", "server, µs a page", ".1f", 1e-6),
                Column("busy", "share of a core", ".0%"),
                Column("most", "pages a second with a whole core", ",.0f"),
            ),
        ),
        Table(
            "waiting",
            "Memory of a waiting request",
            (
                Column("requests", "requests", ","),
                Column("body", "bytes of each", ","),
                Column("bytes", "bytes in Redis", ",.0f"),
            ),
        ),
    ),
)
