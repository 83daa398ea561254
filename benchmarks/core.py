"""One check-and-add in the core: ours, rbloom, pybloom-live and the textbook loop.

Each candidate is sized for 10,000,000 items at an error rate of 1e-6 and takes the same 20-byte
fingerprints: all of them once (new), then all of them again (repeated). The figure is the mean of
the two. rbloom is there with a hash that can be stored, in the way of its README (the first 16
bytes of a digest) with SHA-256 as there and with the faster MurmurHash3; with the fastest such hash
there is; and with Python's own hash(), which is another one in every process, so that nothing can
be stored or shared.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from hashlib import sha256

import mmh3
from bitarray import bitarray
from harness import setting, show, take_turns
from pybloom_live import BloomFilter
from rbloom import Bloom

from scrapy_bloom import LocalFilter

CAPACITY = 10_000_000
ERROR_RATE = 1e-6

Add = Callable[[bytes], object]


def ours() -> Add:
    """Return our add."""
    return LocalFilter(CAPACITY, ERROR_RATE).add


def ours_any_bytes() -> Add:
    """Return our add for fingerprints that are not SHA-1 digests."""
    return LocalFilter(CAPACITY, ERROR_RATE, digests=False).add


def rbloom(hash_of: Callable[[bytes], int] | None) -> Add:
    """Return a check-and-add on rbloom."""
    seen = Bloom(CAPACITY, ERROR_RATE, *([hash_of] if hash_of else []))

    def add(item: bytes) -> bool:
        if item in seen:
            return True
        seen.add(item)
        return False

    return add


def rbloom_sha256() -> Add:
    """Return rbloom with the hash of its README, less the pickling that bytes do not need."""
    return rbloom(lambda item: int.from_bytes(sha256(item).digest()[:16], "big", signed=True))


def rbloom_murmur3() -> Add:
    """Return rbloom with a digest of 16 bytes that is quicker to make."""
    digest = mmh3.mmh3_x64_128_digest
    return rbloom(lambda item: int.from_bytes(digest(item), "big", signed=True))


def rbloom_fastest() -> Add:
    """Return rbloom with a 128-bit integer straight from mmh3."""
    return rbloom(lambda item: mmh3.hash128(item, signed=True))


def rbloom_builtin() -> Add:
    """Return rbloom with Python's hash()."""
    return rbloom(None)


def pybloom() -> Add:
    """Return pybloom-live's add."""
    return BloomFilter(CAPACITY, ERROR_RATE).add


def textbook() -> Add:
    """Return the loop of the textbooks: k hashes modulo m in one bit array."""
    bits = bitarray(287_551_752)  # optimal m for 1e7 items at 1e-6, with k = 20
    size, hash_of = len(bits), mmh3.hash

    def add(item: bytes) -> bool:
        seen = True
        for seed in range(20):
            position = hash_of(item, seed) % size
            if not bits[position]:
                seen = False
                bits[position] = 1
        return seen

    return add


CANDIDATES = {
    "scrapy-bloom": ours,
    "scrapy-bloom, any bytes": ours_any_bytes,
    "rbloom, SHA-256": rbloom_sha256,
    "rbloom, mmh3 digest": rbloom_murmur3,
    "rbloom, mmh3.hash128": rbloom_fastest,
    "rbloom, hash(), not stored": rbloom_builtin,
    "pybloom-live": pybloom,
    "textbook loop": textbook,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    items = [os.urandom(20) for _ in range(arguments.items)]

    def prepare(make: Callable[[], Add]) -> Iterator[tuple[Callable[[], object], int]]:
        add = make()

        def run() -> None:
            for item in items:
                add(item)

        yield run, len(items)
        yield run, len(items)

    timings = take_turns(
        {name: lambda make=make: prepare(make) for name, make in CANDIDATES.items()},
        arguments.repeats,
    )
    base = {timing.name: timing.median for timing in timings}
    print(setting("mmh3", "bitarray", "rbloom", "pybloom-live"))
    show(
        f"One check-and-add, {len(items):,} items, median of {arguments.repeats}",
        ("candidate", "µs (fastest to slowest)", "ours / theirs"),
        [(t.name, t.micros(), f"{base['scrapy-bloom'] / t.median:.2f}") for t in timings],
    )


if __name__ == "__main__":
    main()
