"""A hundred million URLs in one server: memory, the cost of a check, and how long Redis stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import expm1
from threading import Event, Thread
from time import clock_gettime, perf_counter
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.apart import apart
from bench.fingerprints import stream, take
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.parts.redis_layouts import ours
from scrapy_bloom import RedisFilter
from scrapy_bloom.core.sizing import BLOCK_BITS
from scrapy_bloom.redis.bitmap import SEGMENT_BLOCKS
from scrapy_bloom.registry import LAYOUTS

if TYPE_CHECKING:
    from support.localredis import LocalRedis
    from support.stored import StoredFilter

KEY: Final = "bench"
STRETCH: Final = 100_000
"""New URLs that are added to measure what each of them costs."""

IRLBOT: Final = 111_000
"""Checks a second: 394e9 links in 41 days (Lee, Leonard, Wang, Loguinov 2008)."""

NEW_SHARE: Final = 41 / 394
"""Of these, new."""


@dataclass(frozen=True)
class Filter:
    """A filter in Redis, without a memory in the worker.

    Attributes:
        url: of the server where it is.
        layout: of it.
        capacity: of it.
    """

    url: str
    layout: str
    capacity: int

    def open(self) -> RedisFilter:
        """Open it."""
        return RedisFilter.from_url(
            self.url,
            key=KEY,
            capacity=self.capacity,
            layout=self.layout,
            cache=0,
            timeout=60,
        )

    def add(self, seed: int, count: int) -> tuple[int, float]:
        """Add so many fingerprints; return how many were called seen, and how long that took."""
        source, found, start = stream(seed), 0, perf_counter()
        with self.open() as seen:
            for first in range(0, count, _PIECE):
                found += sum(seen.add_many(take(source, min(_PIECE, count - first))))
        return found, perf_counter() - start

    def client(self) -> Any:
        """Return a client of its server."""
        from redis import Redis

        return Redis.from_url(self.url, socket_timeout=60)


_PIECE: Final = 5_000


class Drawing(ABC):
    """Fills a filter directly, with what the keyed hash makes of fingerprints: random bits."""

    def __init__(self, filled: Filter) -> None:
        from numpy.random import default_rng

        self._filter = filled
        self._random: Any = default_rng(1)

    def fill(self, urls: int) -> None:
        """Bring the filter to so many URLs."""
        from support.stored import StoredFilter

        with self._filter.open() as seen:
            more = urls - seen.info().items
        with self._filter.client() as client:
            self._draw(client, StoredFilter(client, KEY), urls, more)
            client.hset(KEY, "filled", urls)

    @abstractmethod
    def _draw(self, client: Any, stored: StoredFilter, urls: int, more: int) -> None:
        """Write what so many URLs write, of which there are all but `more`."""


class Bits(Drawing):
    """For the layout ``bitmap``: as many bits of each segment are set as so many URLs set."""

    def _draw(self, client: Any, stored: StoredFilter, urls: int, more: int) -> None:  # noqa: ARG002
        import numpy as np

        [spec] = stored.slices
        density = -expm1(-stored.hashes * urls / (spec.blocks * BLOCK_BITS))
        for number, first in enumerate(range(0, spec.blocks, SEGMENT_BLOCKS)):
            count = min(SEGMENT_BLOCKS, spec.blocks - first) * BLOCK_BITS
            drawn = self._random.integers(0, 1 << 16, count, np.uint16)
            bits = np.packbits(drawn < density * (1 << 16))
            client.set(stored.segment(0, number), bits.tobytes() + b"\x80")
            client.hset(KEY, f"m:0.{number}", 1)


class Numbers(Drawing):
    """For the layout ``sets``: each bucket gets its share of numbers."""

    def _draw(self, client: Any, stored: StoredFilter, urls: int, more: int) -> None:  # noqa: ARG002
        import numpy as np

        [spec] = stored.slices
        sizes = self._random.poisson(more / spec.blocks, spec.blocks)
        for first in range(0, spec.blocks, _CHUNK):
            some = sizes[first : first + _CHUNK]
            pipeline = client.pipeline(transaction=False)
            for bucket, size in enumerate(some.tolist(), first):
                if size:
                    numbers = self._random.integers(-(2**31), 2**31, size).tolist()
                    pipeline.sadd(stored.segment(0, bucket), 0, *numbers)
            field = f"m:0.{first // _CHUNK}"
            made = int.from_bytes(client.hget(KEY, field) or b"", "little")
            made |= int.from_bytes(np.packbits(some > 0, bitorder="little"), "little")
            pipeline.hset(KEY, field, made.to_bytes(_CHUNK // 8, "little"))
            pipeline.execute()


_CHUNK: Final = 1024
"""Buckets whose signs of life are in one field of the header."""


FILL: Final[Mapping[str, Callable[[Filter], Drawing]]] = {
    "bitmap": Bits,
    "sets": Numbers,
}


class Questions:
    """Asks the server all the time how it is, on a connection of its own.

    Attributes:
        times: seconds that each answer took.
        work: seconds of processor time that the server used until it answered.
    """

    def __init__(self, server: LocalRedis, client: Any) -> None:
        self._clock = ~server.pid << 3 | 2  # processor time of that process, see clock_getres(2)
        self._client = client
        self._over = Event()
        self.times: list[float] = []
        self.work: list[float] = []

    def ask(self) -> None:
        """Ask until it is over."""
        while not self._over.wait(_BETWEEN):
            self.ask_once()

    def ask_once(self) -> None:
        """Ask, and note what that took."""
        start, worked = perf_counter(), clock_gettime(self._clock)
        answered = redis_server.busy(self._client)
        self.times.append(perf_counter() - start)
        self.work.append(answered - worked)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask meanwhile."""
        thread = Thread(target=self.ask)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


_BETWEEN: Final = 0.002  # seconds between two of them


def grow(
    server: LocalRedis, client: Any, layout: str, moments: list[int], stretch: int
) -> Iterator[Row]:
    """Fill an empty filter; yield what was found at each moment."""
    client.flushall()
    empty = int(client.info("memory")["used_memory"])
    filled = Filter(server.url, layout, moments[-1])
    way = FILL[layout](filled)
    for number, moment in enumerate(moments, 1):
        way.fill(moment - 2 * stretch)
        before = redis_server.busy(client)
        lost, wall = apart(filled.add, 2 * number, stretch)
        between = redis_server.busy(client)
        apart(filled.add, 2 * number, stretch)
        after = redis_server.busy(client)
        new, seen = (between - before) / stretch, (after - between) / stretch
        with server.client() as other:
            questions = Questions(server, other)
            with questions.asking():
                apart(filled.add, 2 * number + 1, stretch)
        used = int(client.info("memory")["used_memory"]) - empty
        times = sorted(questions.times)
        yield {
            "name": ours(layout),
            "urls": moment,
            "memory": used,
            "bytes_per_url": used / moment,
            "new": new,
            "seen": seen,
            "sustained": 1 / (NEW_SHARE * new + (1 - NEW_SHARE) * seen),
            "rate": stretch / wall,
            "usual": times[len(times) // 2],
            "late": times[len(times) * 999 // 1000],
            "stop": times[-1],
            "work": max(questions.work),
            "lost": lost,
        }


def run(scale: Scale) -> Rows:
    """Fill a filter of each layout."""
    moments = scale.of([1_000_000, 10_000_000, 100_000_000], [20_000, 40_000])
    stretch = scale.of(STRETCH, 10_000)
    with redis_server.local_server() as server, server.client() as client:
        rows = [row for layout in LAYOUTS for row in grow(server, client, layout, moments, stretch)]
        return {"server": redis_server.described(server), "growth": rows}


def findings(rows: Rows) -> list[str]:
    """Say what the last moment has shown of each layout."""
    largest = max(row["urls"] for row in rows["growth"])
    return [
        (
            f"{row['urls']:,} URLs in `{row['name'].split()[-1]}` take"
            f" {row['memory'] / 1e6:,.0f} MB of one server. A check takes it"
            f" {row['new'] * 1e6:.1f} µs if the URL is new and {row['seen'] * 1e6:.1f} if not. With"
            f" one in ten new, as IRLbot met them, one core sustains {row['sustained']:,.0f} checks"
            f" a second; IRLbot made {IRLBOT:,}. The longest that it worked before it answered"
            f" somebody else was {max(r['work'] for r in _of(rows, row['name'])) * 1e3:.0f} ms."
        )
        for row in rows["growth"]
        if row["urls"] == largest
    ]


def _of(rows: Rows, name: str) -> list[Row]:
    return [row for row in rows["growth"] if row["name"] == name]


COLOURS: Final = {"bitmap": "#17a67a", "sets": "#3f8ae0"}


def draw(axes: Any, rows: Rows) -> None:
    """Draw the cost of a check over the number of URLs."""
    for layout in LAYOUTS:
        each = _of(rows, ours(layout))
        for key, style in (("new", "-"), ("seen", "--")):
            axes.plot(
                [row["urls"] for row in each],
                [row[key] * 1e6 for row in each],
                style,
                marker="o",
                label=f"{ours(layout)}, {key}",
                color=COLOURS[layout],
            )
    axes.set(xscale="log", xlabel="URLs in the filter", ylabel="µs of the server's CPU")
    axes.set_ylim(bottom=0)


PART = Part(
    name="redis-large",
    title="A hundred million URLs in one server",
    method=f"""\
A filter that is sized for 100,000,000 URLs at 1e-6 fills up, and is looked at on the way:
{STRETCH:,} new URLs are added by one worker, in batches of 500 and with no memory in the worker,
and then the same once more. Times are the server's CPU time (INFO cpu). What one core sustains is
reckoned from both, with one new URL in ten, as IRLbot found them: 41 of 394 billion links. To add
all URLs in this way would take an hour. So between these moments the filter is filled directly with
what the keyed hash makes of fingerprints: the segments of `bitmap` with random bits, as many as so
many URLs set, and the buckets of `sets` with random numbers. Memory is what INFO calls used,
without what the empty server used.

As many new ones follow. Meanwhile somebody asks INFO cpu on a connection of its own, waits for the
answer and then {_BETWEEN * 1e3:.0f} ms: the longest answer is the longest stop. It has in it what
waiting for one of the two cores adds. So what the server worked until it answered is shown, too:
that is how long it would have stopped on a core of its own. Log and snapshots are off.
""",
    packages=redis_server.PACKAGES,
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "growth",
            "As the filter fills",
            (
                Column("urls", "URLs", ",d"),
                Column("name", "filter"),
                Column("memory", "MB", ",.0f", 1e6),
                Column("bytes_per_url", "bytes per URL", ".1f"),
                Column("new", "µs, new", ".2f", 1e-6),
                Column("seen", "µs, seen", ".2f", 1e-6),
                Column("sustained", "checks a second, one core", ",.0f"),
                Column("rate", "added a second", ",.0f"),
                Column("usual", "answer, ms, median", ".1f", 1e-3),
                Column("late", "99.9 %", ".1f", 1e-3),
                Column("stop", "longest", ".1f", 1e-3),
                Column("work", "longest, ms CPU of the server", ".1f", 1e-3),
                Column("lost", "of the new, called seen", ",d"),
            ),
        ),
    ),
    plots=(
        Plot(
            "redis-large",
            "The server's time for one check against the number of URLs in the filter, by layout.",
            draw,
        ),
    ),
    findings=findings,
)
