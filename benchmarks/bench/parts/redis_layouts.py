"""What a new URL costs the server in each layout of our filter, and what a million of them take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.fingerprints import stream, take
from bench.harness import in_turn, spread
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.redis_dupefilters import reserve
from scrapy_bloom import RedisFilter
from scrapy_bloom.registry import LAYOUTS

if TYPE_CHECKING:
    from support.localredis import LocalRedis

KEY: Final = "bench"
BATCHES: Final = (100, 500)
SADD: Final = "SADD of one member each, pipelined"
BF_MADD: Final = "RedisBloom, BF.MADD"

Add = Callable[[Sequence[bytes]], object]
"""Adds a batch of fingerprints."""

Open = Callable[[int], AbstractContextManager[Add]]
"""Makes an empty filter for so many fingerprints."""


def ours(layout: str) -> str:
    """Return the name of our filter in a layout."""
    return f"ours, {layout}"


def candidates(server: LocalRedis, client: Any) -> dict[str, Open]:
    """Return all ways to add."""
    found: dict[str, Open] = {ours(layout): _ours(server, layout) for layout in LAYOUTS}
    if redis_server.has_redisbloom(server):
        found[BF_MADD] = _bf_madd(client)
    return found | {SADD: _sadd(client)}


def _ours(server: LocalRedis, layout: str) -> Open:
    @contextmanager
    def opened(capacity: int) -> Iterator[Add]:
        with RedisFilter.from_url(
            server.url, key=KEY, capacity=capacity, layout=layout, cache=0, timeout=60
        ) as seen:
            yield seen.add_many

    return opened


def _bf_madd(client: Any) -> Open:
    @contextmanager
    def opened(capacity: int) -> Iterator[Add]:
        reserve(client, KEY, capacity=capacity)
        yield lambda batch: client.execute_command("BF.MADD", KEY, *batch)

    return opened


def _sadd(client: Any) -> Open:
    def add(batch: Sequence[bytes]) -> None:
        pipeline = client.pipeline(transaction=False)
        for fingerprint in batch:
            pipeline.sadd(KEY, fingerprint.hex())
        pipeline.execute()

    @contextmanager
    def opened(capacity: int) -> Iterator[Add]:  # noqa: ARG001 - a set has room for all
        yield add

    return opened


def add_all(add: Add, fingerprints: Sequence[bytes], batch: int) -> None:
    """Add fingerprints by batches."""
    for start in range(0, len(fingerprints), batch):
        add(fingerprints[start : start + batch])


def times(client: Any, found: Mapping[str, Open], scale: Scale) -> Iterator[Row]:
    """Yield what the server works for a new URL and for one that it has."""
    count = scale.of(100_000, 10_000)
    for batch in BATCHES:
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
        for number in range(scale.of(5, 3)):
            known = take(stream(number), count)
            for name in in_turn(list(found), number):
                client.flushall()
                with found[name](count) as add:
                    add([b"%20d" % number for number in range(batch)])  # loads the script
                    taken[name].append(
                        (_busy(client, add, known, batch), _busy(client, add, known, batch))
                    )
        best = taken[BF_MADD if BF_MADD in taken else SADD]
        for name, each in taken.items():
            yield {
                "name": name,
                "batch": batch,
                **spread("new", [new for new, _ in each]),
                **spread("seen", [seen for _, seen in each]),
                **spread("ratio", [a / b for (a, _), (b, _) in zip(each, best, strict=True)]),
                **spread(
                    "speed",
                    [
                        bitmap / own
                        for (bitmap, _), (own, _) in zip(taken[ours("bitmap")], each, strict=True)
                    ],
                ),
            }


def _busy(client: Any, add: Add, fingerprints: Sequence[bytes], batch: int) -> float:
    before = redis_server.busy(client)
    add_all(add, fingerprints, batch)
    return (redis_server.busy(client) - before) / len(fingerprints)


def log(client: Any, found: Mapping[str, Open], scale: Scale) -> Iterator[Row]:
    """Yield what the append-only file takes for a new URL."""
    count = scale.of(100_000, 10_000)
    known = take(stream(1), count)
    client.config_set("auto-aof-rewrite-percentage", 0)
    client.config_set("appendonly", "yes")
    for batch in BATCHES:
        for name, opened in found.items():
            client.flushall()
            with opened(count) as add:
                add(known[:1])
                before = logged(client)
                add_all(add, known[1:], batch)
                taken = (logged(client) - before) / (count - 1)
            yield {"name": name, "batch": batch, "bytes": taken}
    client.config_set("appendonly", "no")


def logged(client: Any) -> int:
    """Return the bytes of the log, when all is written that was done."""
    client.ping()
    told = client.info("persistence")
    return int(told["aof_current_size"]) + int(told["aof_buffer_length"])


def memory(client: Any, found: Mapping[str, Open], scale: Scale) -> Iterator[Row]:
    """Yield what the server's memory takes for a filter that is filled little by little."""
    count = scale.of(1_000_000, 40_000)
    known = take(stream(2), count)
    for name, opened in found.items():
        client.flushall()
        before = _used(client)
        row: Row = {"name": name, "urls": count}
        with opened(count) as add:
            for part, (start, end) in {
                "quarter": (0, count // 4),
                "half": (count // 4, count // 2),
                "full": (count // 2, count),
            }.items():
                add_all(add, known[start:end], BATCHES[-1])
                row[part] = (_used(client) - before) / end
        yield row


def _used(client: Any) -> int:
    return int(client.info("memory")["used_memory_dataset"]) + int(
        client.memory_stats()["db.0"]["overhead.hashtable.main"] if client.dbsize() else 0
    )


def run(scale: Scale) -> Rows:
    """Measure all."""
    with redis_server.local_server() as server, server.client() as client:
        found = candidates(server, client)
        return {
            "server": redis_server.described(server),
            "times": list(times(client, found, scale)),
            "log": list(log(client, found, scale)),
            "memory": list(memory(client, found, scale)),
        }


def findings(rows: Rows) -> list[str]:
    """Compare the layouts with each other and with RedisBloom."""
    largest = {row["name"]: row for row in rows["times"] if row["batch"] == BATCHES[-1]}
    sets, bitmap = largest[ours("sets")], largest[ours("bitmap")]
    logged = {row["name"]: row["bytes"] for row in rows["log"] if row["batch"] == BATCHES[-1]}
    held = {row["name"]: row for row in rows["memory"]}
    said = [
        (
            f"In batches of {BATCHES[-1]} a new URL takes the server {sets['new'] * 1e6:.1f} µs in"
            f" `sets` and {bitmap['new'] * 1e6:.1f} in `bitmap`: {sets['speed']:.1f} times the"
            f" speed. One that is there already takes {sets['seen'] * 1e6:.1f} and"
            f" {bitmap['seen'] * 1e6:.1f}."
        ),
        (
            f"The append-only file gets {logged[ours('sets')]:.0f} bytes for it in `sets`,"
            f" {logged[ours('bitmap')]:.0f} in `bitmap`, and {logged[SADD]:.0f} by SADD."
        ),
        (
            f"A full filter takes {held[ours('sets')]['full']:.1f} bytes for each URL in `sets`"
            f" and {held[ours('bitmap')]['full']:.1f} in `bitmap`; one that is full to a quarter"
            f" {held[ours('sets')]['quarter']:.1f} and {held[ours('bitmap')]['quarter']:.1f}."
        ),
    ]
    if BF_MADD in largest:
        said.append(
            f"RedisBloom takes {largest[BF_MADD]['new'] * 1e6:.1f} µs: `sets` takes"
            f" {sets['ratio']:.1f} times as long, in a script that counts, grows, and keeps its"
            f" answer for a worker that did not get it."
        )
    return said


PART = Part(
    name="redis-layouts",
    title="Layouts of the filter in Redis",
    method="""\
100,000 random fingerprints of 20 bytes go into an empty filter that is sized for as many, in
batches of 100 and 500, and then once more. Times are the server's CPU time (INFO cpu), reading and
writing included. All take turns on one server, whose log and snapshots are off; five rounds, and a
ratio is taken within each round. The append-only file is measured apart, by the size that INFO
tells. Memory is what INFO memory calls the data set, and the server's table of keys: a filter for a
million URLs that is filled to a quarter, to a half, and to the full. Error rates are 1e-6.

- ours: `RedisFilter.add_many` in each layout, with no memory in the worker (`cache=0`).
- RedisBloom: BF.RESERVE, then BF.MADD.
- SADD: a set of hex fingerprints as scrapy-redis keeps it, in pipelines.
""",
    packages=redis_server.PACKAGES,
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "times",
            "The server's time for one URL",
            (
                Column("batch", "batch", "d"),
                Column("name", "filter"),
                Column("new", "µs, new", ".2f", 1e-6, spread=True),
                Column("seen", "µs, seen", ".2f", 1e-6, spread=True),
                Column("ratio", "new, to BF.MADD", ".2f", spread=True),
                Column("speed", "speed, to bitmap", ".2f", spread=True),
            ),
        ),
        Table(
            "log",
            "The append-only file",
            (
                Column("batch", "batch", "d"),
                Column("name", "filter"),
                Column("bytes", "bytes for a new URL", ".0f"),
            ),
        ),
        Table(
            "memory",
            "Memory",
            (
                Column("name", "filter"),
                Column("quarter", "bytes per URL, a quarter full", ".1f"),
                Column("half", "half full", ".1f"),
                Column("full", "full", ".1f"),
                Column("urls", "URLs when full", ",d"),
            ),
        ),
    ),
    findings=findings,
)
