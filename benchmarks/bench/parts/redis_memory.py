"""What a million URLs take in Redis, by MEMORY USAGE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import expm1
from typing import TYPE_CHECKING, Any, Final

from bench import redis_server
from bench.fingerprints import stream, take
from bench.part import Column, Part, Row, Rows, Scale, Table
from scrapy_bloom import RedisFilter

if TYPE_CHECKING:
    from support.localredis import LocalRedis

KEY: Final = "bench"
RATES: Final = (1e-4, 1e-6)
GROWN: Final = 10  # times its capacity
STEP: Final = 500

Add = Callable[[Sequence[bytes]], int]
"""Adds new fingerprints; returns how many were called seen."""


def candidates(server: LocalRedis, client: Any, count: int) -> Iterator[tuple[Row, Add]]:
    """Yield for each way to keep them what it is, and how it adds."""
    yield {"name": "scrapy-redis (set of hex)"}, partial(_add_to_set, client)
    for rate in RATES:
        for capacity in (count, count // GROWN):
            seen = RedisFilter.from_url(
                server.url, key=KEY, capacity=capacity, error_rate=rate, cache=0
            )
            yield _row("ours", capacity, count, rate), partial(_add_to_ours, seen)
            seen.close()
    if redis_server.has_redisbloom(server):
        from bench.redis_dupefilters import reserve

        for rate in RATES:
            for capacity in (count, count // GROWN):
                reserve(client, KEY, rate, capacity)
                yield _row("RedisBloom", capacity, count, rate), partial(_add_by_madd, client)


def _row(name: str, capacity: int, count: int, rate: float) -> Row:
    growth = f", grown {GROWN} times" if capacity < count else ""
    return {"name": name + growth, "error_rate": rate}


def _add_to_set(client: Any, new: Sequence[bytes]) -> int:
    return len(new) - int(client.sadd(KEY, *(each.hex() for each in new)))


def _add_to_ours(seen: RedisFilter, new: Sequence[bytes]) -> int:
    return sum(seen.add_many(new))


def _add_by_madd(client: Any, new: Sequence[bytes]) -> int:
    return sum(not added for added in client.execute_command("BF.MADD", KEY, *new))


def usage(client: Any) -> int:
    """Return the bytes of all keys."""
    return sum(client.memory_usage(name, samples=0) or 0 for name in client.scan_iter())


def fill(server: LocalRedis, client: Any, count: int) -> Iterator[Row]:
    """Fill each and weigh it."""
    known = take(stream(1), count)
    for row, add in candidates(server, client, count):
        seen = sum(add(known[start : start + STEP]) for start in range(0, count, STEP))
        yield {**row, "urls": count, "bytes": usage(client) / count, "seen": seen}
        client.flushall()


def bitmap(client: Any) -> Iterator[Row]:
    """Yield what scrapy-redis-bloomfilter's bitmap takes, which has one size for any crawl.

    The chance that a new URL is called seen is that all its bits are set by those of n others, k of
    each in m bits: (1 - e^(-kn/m))^k. It has fewer good hashes than it is set to have: one of them
    adds up the characters of the fingerprint, finds few bits, and always finds them set.
    """
    from scrapy_redis_bloomfilter.bloomfilter import BloomFilter

    bloom = BloomFilter(client, KEY)
    client.setbit(KEY, bloom.m - 1, 1)
    taken = usage(client)
    client.flushall()
    some = [each.hex() for each in take(stream(1), 20_000)]
    different = [len({each.hash(text) for text in some}) for each in bloom.maps]
    good = sum(found > 0.9 * len(some) for found in different)
    for urls in (10**6, 10**7, 10**8):
        yield {
            "urls": urls,
            "bytes": taken / urls,
            "hashes": len(different),
            "good": good,
            "fewest": min(different),
            "designed": _expected(urls, bloom.m, len(different)),
            "expected": _expected(urls, bloom.m, good),
        }


def _expected(urls: int, bits: int, hashes: int) -> float:
    return (-expm1(-hashes * urls / bits)) ** hashes


def run(scale: Scale) -> Rows:
    """Weigh all."""
    with redis_server.local_server() as server, server.client() as client:
        return {
            "server": redis_server.described(server),
            "memory": list(fill(server, client, scale.of(1_000_000, 50_000))),
            "bitmap": list(bitmap(client)),
        }


def findings(rows: Rows) -> list[str]:
    """Compare with a set and with RedisBloom, and tell what a fixed bitmap means."""
    by_set, *others = rows["memory"]
    of = {(row["name"], row["error_rate"]): row["bytes"] for row in others}
    said = [
        f"At {rate:g} a URL takes {of['ours', rate]:.1f} bytes where a set takes"
        f" {by_set['bytes']:.0f}: {by_set['bytes'] / of['ours', rate]:.0f} times less; once"
        f" the filter has grown to {GROWN} times its capacity"
        f" {of[f'ours, grown {GROWN} times', rate]:.1f}."
        for rate in RATES
    ]
    if ("RedisBloom", RATES[0]) in of:
        said += [
            f"RedisBloom takes {of['RedisBloom', rate]:.1f} bytes at {rate:g}, and"
            f" {of[f'RedisBloom, grown {GROWN} times', rate]:.1f} grown: it uses as many hashes as"
            f" take the least space, we use fewer, which is faster."
            for rate in RATES
        ]
    first = rows["bitmap"][0]
    said.append(
        f"scrapy-redis-bloomfilter takes {first['bytes'] * first['urls'] / 1e6:.0f} MB from its"
        f" first URL on and never grows. Of its {first['hashes']} hashes {first['good']} spread:"
        f" the worst gives {first['fewest']} different bits for 20,000 fingerprints."
    )
    return said


PART = Part(
    name="redis-memory",
    title="Memory in Redis",
    method="""\
Different URLs go in as random fingerprints, in batches; then MEMORY USAGE is summed up over all
keys of the server, headers and the allocator's rounding included. MB per million URLs are bytes per
URL. Our filter and RedisBloom's (BF.RESERVE) are made once for as many as come, and once for a
tenth of them, so that they have to grow, each with the defaults of its growth. "Called seen" counts
new URLs that a crawl would have lost. scrapy-redis-bloomfilter's bitmap is made in its default
size; what it may be expected to lose is arithmetic, with the number of hashes it is set to have and
with that of those which spread.
""",
    packages=redis_server.PACKAGES,
    run=run,
    tables=(
        redis_server.TABLE,
        Table(
            "memory",
            "A million URLs",
            (
                Column("name", "kept in"),
                Column("error_rate", "error rate", "g"),
                Column("bytes", "MB per million URLs", ".2f"),
                Column("urls", "URLs", ",d"),
                Column("seen", "called seen", ",d"),
            ),
        ),
        Table(
            "bitmap",
            "scrapy-redis-bloomfilter at its default size",
            (
                Column("urls", "URLs", ",d"),
                Column("bytes", "MB per million URLs", ".2f"),
                Column("designed", "expected error rate as designed", ".1e"),
                Column("expected", "with the hashes that spread", ".1e"),
            ),
        ),
    ),
    findings=findings,
    alone=False,
)
