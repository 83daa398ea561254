"""Check-and-add in Redis per second: scrapy-redis, scrapy-redis-bloomfilter, BITFIELD, ours.

On loopback and through a network with a round trip more, with a share of repeats. Candidates take
turns; each round has fingerprints of its own, and every candidate starts it with an empty filter.
The server's time is its CPU time by INFO, reading and writing included. The fingerprints are made
beforehand.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha1
from statistics import median
from typing import Any, NamedTuple

import redis
from example.localredis import LocalRedis
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis_bloomfilter.bloomfilter import BloomFilter

from harness import setting, show
from scrapy_bloom import RedisFilter
from scrapy_bloom.probe import make_probe, new_secret
from slow_network import SlowNetwork

Check = Callable[[list[bytes]], object]
BATCH = 100


class Result(NamedTuple):
    """What one candidate took in one round."""

    seconds: float
    server_seconds: float


@contextmanager
def scrapy_redis(client: redis.Redis) -> Iterator[Check]:
    """One SADD of a hex fingerprint for each check."""
    dupefilter = RFPDupeFilter(client, "set")
    dupefilter.request_fingerprint = lambda fingerprint: fingerprint.hex()

    def check(fingerprints: list[bytes]) -> None:
        for fingerprint in fingerprints:
            dupefilter.request_seen(fingerprint)

    yield check


@contextmanager
def scrapy_redis_bloomfilter(client: redis.Redis) -> Iterator[Check]:
    """Its 6 GETBIT, and for a new one 6 SETBIT, in a row; 16 MB instead of its default 128."""
    bloom = BloomFilter(client, "bits", bit=27, hash_number=6)

    def check(fingerprints: list[bytes]) -> None:
        for fingerprint in fingerprints:
            text = fingerprint.hex()
            if not bloom.exists(text):
                bloom.insert(text)

    yield check


@contextmanager
def one_bitfield(client: redis.Redis) -> Iterator[Check]:
    """All bits of a probe in one BITFIELD for each check."""
    probe = make_probe(new_secret(), 14, digests=True)

    def check(fingerprints: list[bytes]) -> None:
        for fingerprint in fingerprints:
            *positions, h = probe(fingerprint)
            operations: list[Any] = []
            base = (h * 511 >> 32) * 65536
            for position in positions:
                operations += ("SET", "u1", base + position, 1)
            all(client.execute_command("BITFIELD", "bits", *operations))

    yield check


def ours(batch: int, cache: int) -> Callable[[redis.Redis], Any]:
    """Return ours, by one or by batches, with or without the worker's memory."""

    @contextmanager
    def opened(client: redis.Redis) -> Iterator[Check]:
        address = client.connection_pool.connection_kwargs
        seen = RedisFilter.from_url(
            f"redis://{address['host']}:{address['port']}", key="bloom", cache=cache
        )

        def one_by_one(fingerprints: list[bytes]) -> None:
            for fingerprint in fingerprints:
                seen.add(fingerprint)

        def by_batches(fingerprints: list[bytes]) -> None:
            for start in range(0, len(fingerprints), batch):
                seen.add_many(fingerprints[start : start + batch])

        yield one_by_one if batch == 1 else by_batches
        seen.close()

    return opened


CANDIDATES: dict[str, Callable[[redis.Redis], Any]] = {
    "scrapy-redis (SADD)": scrapy_redis,
    "scrapy-redis-bloomfilter": scrapy_redis_bloomfilter,
    "one BITFIELD": one_bitfield,
    "ours, one by one, no memory": ours(1, 0),
    "ours, one by one": ours(1, 100_000),
    "ours, batches of 100, no memory": ours(BATCH, 0),
    "ours, batches of 100": ours(BATCH, 100_000),
}


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


def busy(client: redis.Redis) -> float:
    """Return the seconds of CPU time that the server has used."""
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def measure(
    server: LocalRedis, port: int, counts: dict[str, int], repeats: float, rounds: int
) -> dict[str, list[Result]]:
    """Time every candidate once in each round."""
    admin = server.client()
    results: dict[str, list[Result]] = {name: [] for name in CANDIDATES}
    for number in range(rounds):
        names = list(CANDIDATES)
        if number % 2:
            names.reverse()
        for name in names:
            admin.flushall()
            client = redis.Redis("127.0.0.1", port)
            with CANDIDATES[name](client) as check:
                check(workload(20, 0, -1 - number))  # connects, loads the script
                checks = workload(counts[name], repeats, number)
                before = busy(admin)
                start = time.perf_counter()
                check(checks)
                took = time.perf_counter() - start
                server_took = busy(admin) - before
            client.close()
            results[name].append(Result(took / len(checks), server_took / len(checks)))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.0005, help="seconds of the slow network")
    arguments = parser.parse_args()
    print(setting("scrapy-bloom", "redis", "scrapy-redis", "Scrapy-Redis-BloomFilter"))
    with LocalRedis() as server, SlowNetwork(server.port, arguments.delay) as network:
        print("Redis", server.client().info("server")["redis_version"])
        for place, port in (("loopback", server.port), ("slow network", network.port)):
            slow = place != "loopback"
            for repeats in (0, 0.5, 0.9):
                counts = {
                    name: arguments.checks // (10 if slow and "batches" not in name else 1)
                    for name in CANDIDATES
                }
                results = measure(server, port, counts, repeats, arguments.rounds)
                base = median(each.seconds for each in results["scrapy-redis (SADD)"])
                rows = []
                for name, each in results.items():
                    seconds = median(one.seconds for one in each)
                    rows.append(
                        (
                            name,
                            f"{1 / seconds:,.0f}",
                            f"{base / seconds:.1f}",
                            f"{median(one.server_seconds for one in each) * 1e6:.1f}",
                        )
                    )
                added = f" + {arguments.delay * 1e3:g} ms" if slow else ""
                show(
                    f"loopback{added}, {repeats:.0%} repeats",
                    ("", "checks per second", "x scrapy-redis", "server µs per check"),
                    rows,
                )


if __name__ == "__main__":
    main()
