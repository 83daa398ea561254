"""Check-and-add in Redis per second, on loopback and through a network."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha1
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench import redis_filters as filters
from bench import redis_server
from bench.colours import colour_of
from bench.harness import Sample, in_turn, spread, summed, time_it
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.redis_filters import Candidate
from bench.slow_network import SlowNetwork

if TYPE_CHECKING:
    from support.localredis import LocalRedis

DELAY: Final = 0.0005
SHARES: Final = (0.0, 0.5, 0.9)  # of repeats


@dataclass(frozen=True)
class Cell:
    """What is measured in one place with one share of repeats.

    Attributes:
        place: its name.
        url: of the server, as it is reached from there.
        repeats: share of the fingerprints that have come before.
        trips: how many round trips one candidate makes in one round.
        checks: at most how many checks.
    """

    place: str
    url: str
    repeats: float
    trips: int
    checks: int

    def count(self, candidate: Candidate) -> int:
        """Return how many checks a candidate makes in one round."""
        count = min(self.checks, round(self.trips / candidate.trips_each))
        return max(candidate.batch, count)


@dataclass(frozen=True)
class Taken:
    """What one candidate took in one round, for one check.

    Attributes:
        client: of the process that asks.
        server: seconds of the server's processor time.
    """

    client: Sample
    server: float


def workload(count: int, repeats: float, seed: int) -> list[bytes]:
    """Return fingerprints, a share of which have come before, at any distance."""
    chance = random.Random(seed)
    known: list[bytes] = []
    checks: list[bytes] = []
    for number in range(count):
        if known and chance.random() < repeats:
            checks.append(chance.choice(known))
        else:
            known.append(sha1(b"%d %d" % (seed, number), usedforsecurity=False).digest())
            checks.append(known[-1])
    return checks


def measure(
    client: Any, cell: Cell, candidates: Mapping[str, Candidate], rounds: int
) -> dict[str, list[Taken]]:
    """Let every candidate run once in each round, on an empty server."""
    taken: dict[str, list[Taken]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name in in_turn(list(candidates), number):
            client.flushall()
            taken[name].append(_measure_one(client, cell, candidates[name], number))
    return taken


def _measure_one(client: Any, cell: Cell, candidate: Candidate, number: int) -> Taken:
    checks = workload(cell.count(candidate), cell.repeats, number)
    with candidate.open(cell.url, "bench") as check:
        check(workload(20, 0, -1 - number))  # connects, makes the filter, loads the script
        before = redis_server.busy(client)
        sample = time_it(lambda: check(checks), len(checks))
        return Taken(sample, (redis_server.busy(client) - before) / len(checks))


def rows_of(cell: Cell, taken: Mapping[str, Sequence[Taken]]) -> Iterable[Row]:
    """Return a row for each candidate."""
    base = [each.client.wall for each in taken[filters.SCRAPY_REDIS]]
    for name, each in taken.items():
        samples = [one.client for one in each]
        ratios = [by / sample.wall for by, sample in zip(base, samples, strict=True)]
        yield {
            "place": cell.place,
            "repeats": cell.repeats,
            "name": name,
            "rate": 1 / median(sample.wall for sample in samples),
            **summed(samples),
            **spread("server", [one.server for one in each]),
            **spread("times", ratios),
        }


def cells(server: LocalRedis, network: SlowNetwork, scale: Scale) -> Iterable[Cell]:
    """Return all that is measured."""
    near = Cell("loopback", server.url, 0, scale.of(3000, 500), scale.of(10_000, 2000))
    far = replace(near, place="loopback + 0.5 ms", url=network.url, trips=scale.of(500, 100))
    for place in (near, far):
        for repeats in scale.of(SHARES, (0.5,)):
            yield replace(place, repeats=repeats)


def run(scale: Scale) -> Rows:
    """Measure everywhere."""
    with (
        redis_server.local_server() as server,
        SlowNetwork(server.port, DELAY) as network,
        server.client() as client,
    ):
        candidates = {
            each.name: each
            for each in filters.candidates(module=redis_server.has_redisbloom(server))
        }
        rows: list[Row] = []
        for cell in cells(server, network, scale):
            rows += rows_of(cell, measure(client, cell, candidates, scale.of(5, 3)))
        return {"server": redis_server.described(server), "rates": rows}


def findings(rows: Rows) -> list[str]:
    """Say how fast batches and single checks are, and where others are faster."""
    places = list(dict.fromkeys(row["place"] for row in rows["rates"]))
    fewest = min(row["repeats"] for row in rows["rates"])
    near = {
        row["name"]: row
        for row in rows["rates"]
        if (row["place"], row["repeats"]) == (places[0], fewest)
    }
    ours, single, sadd = (
        near[name] for name in (filters.OURS_BATCHED, filters.OURS, filters.PIPELINED)
    )
    asking, alone = near[filters.OURS_ASKING], near[filters.SCRAPY_REDIS]
    said = [
        f"In batches we make {_range(rows, place, filters.OURS_BATCHED)} times as many checks as"
        f" scrapy-redis does on {place}."
        for place in places
    ]
    said.append(
        f"A part of that is due to the batch alone: where {fewest:.0%} repeat on {places[0]}, SADD"
        f" in pipelines makes {sadd['times']:.1f} times as many checks as one by one, our batches"
        f" {ours['times']:.1f}. The server works {sadd['server'] * 1e6:.1f} µs for such a SADD and"
        f" {ours['server'] * 1e6:.1f} for one of our checks: a script in Lua sets a bit for each"
        f" hash, counts what is new and keeps the answer for a worker that did not get it. That is"
        f" the price of the memory (`redis-memory`) and of lost replies that cost nothing"
        f" (`redis-faults`)."
    )
    said.append(
        f"One by one, our check takes {asking['server'] / alone['server']:.1f} times the server's"
        f" time of a single SADD, and we make {single['times']:.2f} times as many checks where"
        f" {fewest:.0%} repeat. With more repeats the worker's own memory makes up for it:"
        f" {_range(rows, places[0], filters.OURS)} times on {places[0]},"
        f" {_range(rows, places[-1], filters.OURS)} on {places[-1]}."
    )
    if filters.BF_MADD in near:
        madd = near[filters.BF_MADD]
        said.append(
            f"RedisBloom in batches is {madd['times'] / ours['times']:.1f} times as fast as ours on"
            f" {places[0]} where {fewest:.0%} repeat, with {madd['server'] * 1e6:.1f} µs of the"
            f" server's time for each check: it is C inside the server. Ours runs on every Redis"
            f" and Valkey, and lost replies cost it nothing."
        )
    return said


def _range(rows: Rows, place: str, name: str) -> str:
    times = [row["times"] for row in rows["rates"] if (row["place"], row["name"]) == (place, name)]
    return f"{min(times):.1f}" + f" to {max(times):.1f}" * (len(times) > 1)


def draw(axes: Any, rows: Rows) -> None:
    """Draw the rates: a line for each filter, a shape for each place, full or not by repeats."""
    names = list(dict.fromkeys(row["name"] for row in rows["rates"]))
    places = list(dict.fromkeys(row["place"] for row in rows["rates"]))
    shares = sorted({row["repeats"] for row in rows["rates"]})
    fills = dict(zip(shares, ("none", "left", "full"), strict=False))
    for (place, shape), share in product(zip(places, "os", strict=False), shares):
        each = {
            row["name"]: row["rate"]
            for row in rows["rates"]
            if (row["place"], row["repeats"]) == (place, share)
        }
        look = {"marker": shape, "linestyle": "", "fillstyle": fills[share]}
        for height, name in enumerate(names):
            axes.plot([each[name]], [height], color=colour_of(name), **look)
        axes.plot([], [], color="gray", label=f"{place}, {share:.0%} repeats", **look)
    axes.set_xscale("log")
    axes.set_xlabel("checks per second")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


PART = Part(
    name="redis-rates",
    title="Checks in Redis per second",
    method="""\
One process checks and adds random fingerprints of 20 bytes, made beforehand, at a Redis server of
its own on the same machine: on loopback, and through a proxy that adds 0.5 ms to each round trip,
as a network within a data centre does. None, half or 90 % of the checks repeat an earlier one, at
any distance. All candidates use the same server, take turns, and start each round with an empty
one. "Server" is the server's CPU time (INFO cpu), reading and writing included; "times
scrapy-redis" is the rate divided by scrapy-redis's in the same round. All that follows is sized for
a million fingerprints, and where there is an error rate to choose, for 1e-6.

- scrapy-redis: its duplicate filter with its own connection, one SADD of a hex fingerprint for each
  check. The same SADD in pipelines of 100 is in nobody's package; it shows what batches alone give.
- scrapy-redis-bloomfilter: its duplicate filter, 6 GETBIT, and for a new one 6 SETBIT, one after
  the other. `BLOOMFILTER_BIT` is 27 (16 MB), which is enough for a million; the default of 30 only
  takes more memory.
- one BITFIELD: a duplicate filter of ten lines over scrapy-redis's that sets our 14 bits by one
  command.
- RedisBloom: BF.RESERVE with its defaults for growth, then BF.ADD of each fingerprint over
  scrapy-redis's duplicate filter, or BF.MADD of 100.
- ours: `RedisFilter.add`, and `add_many` of 100, with the defaults, and with no memory in the
  worker (`cache=0`), so that each check is one that Redis answers.
""",
    packages=redis_server.PACKAGES,
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "rates",
            "One check-and-add",
            (
                Column("place", "place"),
                Column("repeats", "repeats", ".0%"),
                Column("name", "filter"),
                Column("rate", "checks per second", ",.0f"),
                Column("times", "times scrapy-redis", ".2f", spread=True),
                Column("wall", "µs wall", ".1f", 1e-6, spread=True),
                Column("cpu", "µs CPU", ".1f", 1e-6),
                Column("server", "µs server", ".1f", 1e-6, spread=True),
            ),
        ),
    ),
    plots=(
        Plot(
            "redis-rates",
            "Checks per second of each filter on loopback and with 0.5 ms more, by share of"
            " repeats: batches stand far right of single checks.",
            draw,
        ),
    ),
    findings=findings,
)
