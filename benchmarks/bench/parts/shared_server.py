"""What a request costs the server that holds filter and queue, and its append-only file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.fingerprints import stream, take
from bench.harness import in_turn, spread
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.parts.redis_layouts import logged, ours
from bench.redis_dupefilters import reserve
from scrapy_bloom import RedisFilter
from scrapy_bloom.redis.connection import Target
from scrapy_bloom.redis.options import RedisOptions
from scrapy_bloom.redis.queue.base import Entry
from scrapy_bloom.redis.queue.shared import SharedQueue
from scrapy_bloom.registry import LAYOUTS

if TYPE_CHECKING:
    from support.localredis import LocalRedis

FILTER: Final = "bench"
QUEUE: Final = "bench:queue"
BATCHES: Final = (100, 500)
PORTION: Final = 16  # requests that are taken at once
BODY: Final = bytes(400)
SADD: Final = "SADD, ZADD; ZPOPMIN, pipelined"
BF_MADD: Final = "BF.MADD, ZADD; ZPOPMIN, pipelined"
SCRAPY_REDIS: Final = "scrapy-redis, one by one"

Push = Callable[[Sequence[bytes]], object]
"""Marks the fingerprints of a batch and queues a request for each of them."""


@dataclass(frozen=True)
class Way:
    """One way to share filter and queue.

    Attributes:
        push: as its type says.
        take: takes the next requests off the queue, and is done with those it took before; returns
            how many there were.
    """

    push: Push
    take: Callable[[], int]


Open = Callable[[int], AbstractContextManager[Way]]
"""Makes an empty filter for so many fingerprints, and an empty queue."""


def candidates(server: LocalRedis, client: Any) -> dict[str, Open]:
    """Return all ways."""
    found: dict[str, Open] = {ours(layout): partial(_ours, server, layout) for layout in LAYOUTS}
    if redis_server.has_redisbloom(server):
        found[BF_MADD] = partial(_pipelined, client, _bf_madd)
    found[SADD] = partial(_pipelined, client, _sadd)
    found[SCRAPY_REDIS] = partial(_scrapy_redis, client)
    return found


def body(fingerprint: bytes) -> bytes:
    """Return a request as bytes, about as long as one that Scrapy pickles."""
    return fingerprint + BODY[len(fingerprint) :]


@contextmanager
def _ours(server: LocalRedis, layout: str, capacity: int) -> Iterator[Way]:
    options = RedisOptions(key=FILTER, shared_queue=True, cache=0, layout=layout, timeout=60)
    with RedisFilter(Target(server.url), capacity=capacity, options=options) as seen:
        queue = SharedQueue(seen)
        done: list[Any] = []

        def take_some() -> int:
            nonlocal done
            taken = queue.take(PORTION, done)
            done = [each.ticket for each in taken]
            return len(taken)

        def push(batch: Sequence[bytes]) -> None:
            queue.offer([Entry(body(each), 0, each) for each in batch])

        yield Way(push, take_some)
        queue.close()


def _sadd(client: Any, batch: Sequence[bytes]) -> list[int]:
    pipeline = client.pipeline(transaction=False)
    for fingerprint in batch:
        pipeline.sadd(FILTER, fingerprint.hex())
    return list(pipeline.execute())


def _bf_madd(client: Any, batch: Sequence[bytes]) -> list[int]:
    return list(client.execute_command("BF.MADD", FILTER, *batch))


@contextmanager
def _pipelined(
    client: Any, mark: Callable[[Any, Sequence[bytes]], list[int]], capacity: int
) -> Iterator[Way]:
    if mark is _bf_madd:
        reserve(client, FILTER, capacity=capacity)

    def push(batch: Sequence[bytes]) -> None:
        new = zip(batch, mark(client, batch), strict=True)
        client.zadd(QUEUE, {body(each): 0 for each, added in new if added})

    yield Way(push, lambda: len(client.zpopmin(QUEUE, PORTION)))


@contextmanager
def _scrapy_redis(client: Any, capacity: int) -> Iterator[Way]:  # noqa: ARG001 - a set has room
    def push(batch: Sequence[bytes]) -> None:
        for fingerprint in batch:
            if client.sadd(FILTER, fingerprint.hex()):
                client.execute_command("ZADD", QUEUE, 0, body(fingerprint))

    def take_one() -> int:
        pipeline = client.pipeline()
        pipeline.multi()
        pipeline.zrange(QUEUE, 0, 0).zremrangebyrank(QUEUE, 0, 0)
        return int(pipeline.execute()[1])

    yield Way(push, take_one)


def times(client: Any, found: Mapping[str, Open], scale: Scale) -> Iterator[Row]:
    """Yield what the server works for each request."""
    count = scale.of(20_000, 2_000)
    for batch in BATCHES:
        pushed: dict[str, list[float]] = {name: [] for name in found}
        taken: dict[str, list[float]] = {name: [] for name in found}
        for number in range(scale.of(5, 1)):
            known = take(stream(number), count)
            for name in in_turn(list(found), number):
                client.flushall()
                with found[name](1_000_000) as way:
                    _push_all(way, [b"%20d" % number for number in range(batch)], batch)
                    _take_all(way)  # all scripts are loaded by now
                    before = redis_server.busy(client)
                    _push_all(way, known, batch)
                    between = redis_server.busy(client)
                    assert _take_all(way) == count
                    after = redis_server.busy(client)
                pushed[name].append((between - before) / count)
                taken[name].append((after - between) / count)
        for name in found:
            both = zip(pushed[name], taken[name], strict=True)
            base = zip(pushed[SADD], taken[SADD], strict=True)
            sums = [push + take for push, take in both]
            yield {
                "name": name,
                "batch": batch,
                **spread("push", pushed[name]),
                **spread("take", taken[name]),
                **spread("both", sums),
                **spread("ratio", [a / sum(b) for a, b in zip(sums, base, strict=True)]),
            }


def _push_all(way: Way, fingerprints: Sequence[bytes], batch: int) -> None:
    for start in range(0, len(fingerprints), batch):
        way.push(fingerprints[start : start + batch])


def _take_all(way: Way) -> int:
    taken = 0
    while some := way.take():
        taken += some
    return taken


def room(client: Any, found: Mapping[str, Open], scale: Scale) -> Iterator[Row]:
    """Yield what each request takes of the append-only file, and of memory while it waits."""
    count = scale.of(20_000, 2_000)
    known = take(stream(1), count)
    client.config_set("auto-aof-rewrite-percentage", 0)
    client.config_set("appendonly", "yes")
    for batch in BATCHES:
        for name, opened in found.items():
            client.flushall()
            with opened(1_000_000) as way:
                _push_all(way, known[:batch], batch)
                _take_all(way)
                held, before = -_used(client), logged(client)
                _push_all(way, known[batch:], batch)
                held, between = held + _used(client), logged(client)
                taken = _take_all(way)
                after = logged(client)
            yield {
                "name": name,
                "batch": batch,
                "push": (between - before) / taken,
                "take": (after - between) / taken,
                "memory": held / taken,
            }
    client.config_set("appendonly", "no")


def _used(client: Any) -> int:
    return int(client.info("memory")["used_memory_dataset"])


def run(scale: Scale) -> Rows:
    """Measure all."""
    with redis_server.local_server() as server, server.client() as client:
        found = candidates(server, client)
        return {
            "server": redis_server.described(server),
            "times": list(times(client, found, scale)),
            "room": list(room(client, found, scale)),
        }


def findings(rows: Rows) -> list[str]:
    """Compare the layouts with what keeps nothing for a killed worker."""
    found = {row["name"]: row for row in rows["times"] if row["batch"] == BATCHES[-1]}
    room = {row["name"]: row for row in rows["room"] if row["batch"] == BATCHES[-1]}
    said = [
        (
            f"In batches of {BATCHES[-1]}, mark and push take the server"
            f" {found[name]['push'] * 1e6:.1f} µs for a new URL in {name.split()[-1]}, take and"
            f" acknowledge {found[name]['take'] * 1e6:.1f}: one core carries"
            f" {1 / found[name]['both']:,.0f} requests a second all the way."
        )
        for name in map(ours, LAYOUTS)
    ]
    sets = found[ours("sets")]
    said.append(
        f"By hand, SADD and ZADD in pipelines take {found[SADD]['push'] * 1e6:.1f} µs, and ZPOPMIN"
        f" {found[SADD]['take'] * 1e6:.1f}: `sets` takes {sets['ratio']:.1f} times as much. It"
        " keeps what a worker has taken until that is done, and answers a repeated call as before;"
        " ZPOPMIN loses what a killed worker had."
    )
    said.append(
        f"scrapy-redis, which asks link by link, takes {found[SCRAPY_REDIS]['both'] * 1e6:.1f} µs:"
        f" {found[SCRAPY_REDIS]['both'] / sets['both']:.1f} times as much as `sets`."
    )
    said.append(
        f"The append-only file gets {room[ours('sets')]['push']:.0f} bytes in `sets` and"
        f" {room[ours('bitmap')]['push']:.0f} in `bitmap` for a URL that is pushed, {len(BODY)} of"
        f" them the request itself; {room[ours('sets')]['take']:.0f} more until it is done, as what"
        f" a worker takes is written down once more. A request that waits takes"
        f" {room[ours('sets')]['memory']:.0f} bytes of memory."
    )
    return said


PART = Part(
    name="shared-server",
    title="A request's way through the server",
    method=f"""\
20,000 new URLs, with requests of {len(BODY)} bytes, go into an empty queue and into a filter for
a million, in batches of 100 and 500; then all are taken, {PORTION} at a time, and each is
acknowledged with the next take. Times are the server's CPU time (INFO cpu), reading and writing
included. All take turns on one server, whose log and snapshots are off; five rounds, and a ratio is
taken within each. The append-only file is measured apart, by the size that INFO tells, and memory
by what INFO calls the data set. What the filter costs alone is in part `redis-layouts`.

- ours: the queue that `scrapy_bloom.Scheduler` uses, in each layout of the filter.
- by hand: BF.MADD or SADD in pipelines, then one ZADD of what was new, and ZPOPMIN of {PORTION}. A
  worker that is killed between the first two loses what was new, and afterwards what it has popped.
- scrapy-redis: the commands of its filter and its default queue, one by one.
""",
    packages=redis_server.PACKAGES,
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "times",
            "The server's time for one request",
            (
                Column("batch", "batch", "d"),
                Column("name", "filter and queue"),
                Column("push", "µs, mark and push", ".2f", 1e-6, spread=True),
                Column("take", "µs, take and acknowledge", ".2f", 1e-6, spread=True),
                Column("both", "µs, both", ".2f", 1e-6, spread=True),
                Column("ratio", "both, to SADD by hand", ".2f", spread=True),
            ),
        ),
        Table(
            "room",
            "The append-only file, and memory",
            (
                Column("batch", "batch", "d"),
                Column("name", "filter and queue"),
                Column("push", "bytes, mark and push", ".0f"),
                Column("take", "bytes, take and acknowledge", ".0f"),
                Column("memory", "bytes of memory while it waits", ".0f"),
            ),
        ),
    ),
    findings=findings,
)
