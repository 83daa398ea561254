"""Check-and-add of one fingerprint, in everything that one could take instead of our filter.

Each candidate is made for a number of items at an error rate and gives a function that adds a
fingerprint and returns whether it was there. What is imported is imported when it is made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scrapy_bloom import LocalFilter

Add = Callable[[bytes], object]


@dataclass(frozen=True)
class Made:
    """A candidate, ready.

    Attributes:
        add: checks and adds.
        size: its bytes now, where it can tell; else None, and the process's growth has to.
    """

    add: Add
    size: Callable[[], int] | None = None


def ours(items: int, rate: float) -> Made:
    """Make our filter for Scrapy's fingerprints."""
    seen = LocalFilter(items, rate)
    return Made(seen.add, lambda: seen.info().bytes)


def raw_set(_items: int, _rate: float) -> Made:
    """Make a set of the fingerprints as they are, as Scrapy's filter keeps them."""
    seen: set[bytes] = set()

    def add(item: bytes) -> bool:
        if item in seen:
            return True
        seen.add(item)
        return False

    return Made(add)


def textbook(items: int, rate: float) -> Made:
    """Make the loop of the textbooks: k hashes modulo m in one bit array, m and k optimal."""
    import mmh3
    from bitarray import bitarray

    size = math.ceil(-items * math.log(rate) / math.log(2) ** 2)
    hashes = round(size / items * math.log(2))
    bits, hash_of = bitarray(size), mmh3.hash

    def add(item: bytes) -> bool:
        seen = True
        for seed in range(hashes):
            position = hash_of(item, seed) % size
            if not bits[position]:
                seen = False
                bits[position] = 1
        return seen

    return Made(add, lambda: size // 8)


def rbloom(hash_of: Callable[[], Callable[[bytes], int]]) -> Callable[[int, float], Made]:
    """Return a maker of rbloom's filter with a hash."""

    def make(items: int, rate: float) -> Made:
        from rbloom import Bloom

        seen = Bloom(items, rate, hash_of())

        def add(item: bytes) -> bool:
            if item in seen:
                return True
            seen.add(item)
            return False

        return Made(add, lambda: int(seen.size_in_bits) // 8)

    return make


def sha256_hash() -> Callable[[bytes], int]:
    """Return the hash of rbloom's documentation, less the pickling that bytes do not need."""
    sha256, number = hashlib.sha256, int.from_bytes
    return lambda item: number(sha256(item).digest()[:16], "big", signed=True)


def murmur3_number() -> Callable[[bytes], int]:
    """Return the quickest hash that can be stored: a number of 128 bits straight from mmh3."""
    import mmh3

    hash128 = mmh3.hash128
    return lambda item: hash128(item, signed=True)


def fastbloom(items: int, rate: float) -> Made:
    """Make fastbloom-rs's filter."""
    from fastbloom_rs import BloomFilter

    seen = BloomFilter(items, rate)
    return Made(seen.add_if_not_contains, lambda: len(seen.get_bytes()))


OURS = "scrapy-bloom"
SET = "set of fingerprints, 20 bytes"
TEXTBOOK = "textbook loop"
RBLOOM = "rbloom, SHA-256"
RBLOOM_QUICKEST = "rbloom, mmh3.hash128"
FASTBLOOM = "fastbloom-rs"

CANDIDATES: Final[dict[str, Callable[[int, float], Made]]] = {
    OURS: ours,
    SET: raw_set,
    TEXTBOOK: textbook,
    RBLOOM: rbloom(sha256_hash),
    RBLOOM_QUICKEST: rbloom(murmur3_number),
    FASTBLOOM: fastbloom,
}
"""What makes each candidate for a number of items and an error rate, by its name in the tables."""
