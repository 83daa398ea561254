"""Hashing alone: what it takes to make a digest of one fingerprint."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator

from bench.harness import Run, summed, take_turns
from bench.part import Column, Part, Row, Rows, Scale, Table

Hash = Callable[[bytes], object]


def candidates() -> dict[str, tuple[int, Hash]]:
    """Return for each hash the bits it gives and how it is called."""
    import mmh3
    import xxhash

    keyed = hashlib.blake2b(key=b"k" * 16, digest_size=32).copy
    murmur = mmh3.mmh3_x64_128_digest

    def keyed_blake2b(item: bytes) -> bytes:
        hasher = keyed()
        hasher.update(item)
        return hasher.digest()

    return {
        "MD5": (128, lambda item: hashlib.md5(item, usedforsecurity=False).digest()),
        "SHA-1": (160, lambda item: hashlib.sha1(item, usedforsecurity=False).digest()),
        "SHA-256": (256, lambda item: hashlib.sha256(item).digest()),
        "BLAKE2b, 32 bytes": (256, lambda item: hashlib.blake2b(item, digest_size=32).digest()),
        "BLAKE2b, 32 bytes, keyed once and copied (ours, any bytes)": (256, keyed_blake2b),
        "MurmurHash3 (mmh3)": (128, murmur),
        "MurmurHash3 twice (ours, SHA-1 fingerprints)": (
            256,
            lambda item: murmur(item) + murmur(item, 1),
        ),
        "MurmurHash3, 20 times 32 bits (textbook)": (
            640,
            lambda item: [mmh3.hash(item, seed) for seed in range(20)],
        ),
        "XXH3 (xxhash)": (128, xxhash.xxh3_128_digest),
    }


def run(scale: Scale) -> Rows:
    """Time every hash on the same fingerprints."""
    items = [os.urandom(20) for _ in range(scale.of(200_000, 20_000))]

    def prepare(hash_of: Hash) -> Iterator[tuple[Run, int]]:
        def hash_all() -> None:
            for item in items:
                hash_of(item)

        yield hash_all, len(items)

    hashes = candidates()
    samples = take_turns(
        {name: lambda each=each: prepare(each) for name, (_, each) in hashes.items()},  # type: ignore[misc]
        scale.of(9, 3),
    )
    rows: list[Row] = [
        {"name": name, "bits": hashes[name][0], **summed(parts[0])}
        for name, parts in samples.items()
    ]
    return {"hashing": rows}


PART = Part(
    name="hashing",
    title="Hashing alone",
    method="""\
A random fingerprint of 20 bytes, as Scrapy's are, goes in, a digest comes out, called from Python.
Our probe needs 256 bits; the textbook filter takes k hashes of 32.
""",
    packages=("xxhash",),
    run=run,
    tables=(
        Table(
            "hashing",
            "One digest of 20 bytes",
            (
                Column("name", "hash"),
                Column("bits", "bits"),
                Column("cpu", "µs CPU", ".2f", 1e-6, spread=True),
                Column("wall", "µs wall", ".2f", 1e-6),
            ),
        ),
    ),
)
