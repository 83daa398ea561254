"""Where the time of our own check-and-add goes: its steps, timed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from struct import Struct

from bitarray import bitarray
from mmh3 import mmh3_x64_128_digest as digest

from bench.fingerprints import feed, stream, take
from bench.harness import Run, summed, take_turns
from bench.part import Row
from scrapy_bloom import LocalFilter
from scrapy_bloom.core.hashing import make_probe


@dataclass(frozen=True)
class Batch:
    """New items and what each step needs of them.

    Attributes:
        items: fingerprints.
        secret: the filter's key.
        digests: of each item, 32 bytes.
        unpack: makes numbers of these.
        places: of each item, its block and its positions.
        others: more fingerprints, as many.
        add: of the filter.
    """

    items: list[bytes]
    secret: bytes
    digests: list[bytes]
    unpack: Callable[[bytes], tuple[int, ...]]
    places: list[tuple[bitarray, list[int]]]
    others: list[bytes]
    add: Callable[[bytes], bool]


def loop(batch: Batch) -> None:
    """Do nothing."""
    for _ in batch.items:
        pass


def hashing(batch: Batch) -> None:
    """Make the digests."""
    secret = batch.secret
    for item in batch.items:
        keyed = secret + item
        digest(keyed) + digest(keyed, 1)


def numbers(batch: Batch) -> None:
    """Make numbers of them."""
    unpack = batch.unpack
    for made in batch.digests:
        [*unpack(made)]


def reading(batch: Batch) -> None:
    """Look at the bits."""
    for block, positions in batch.places:
        block[positions].all()


def writing(batch: Batch) -> None:
    """Set them."""
    for block, positions in batch.places:
        block[positions] = 1


def whole(batch: Batch) -> None:
    """Do all of it."""
    add = batch.add
    for item in batch.others:
        add(item)


STEPS: dict[str, tuple[str, Callable[[Batch], None]]] = {
    "loop": ("the loop around each", loop),
    "hash": ("the key in front, MurmurHash3 twice", hashing),
    "numbers": ("15 integers from 32 bytes, as a list", numbers),
    "read": ("read 14 bits of a block: are all set?", reading),
    "write": ("write 14 bits of a block that was just read", writing),
    "whole": ("add of a new item, whole", whole),
}


def measure(items: int, count: int, repeats: int) -> list[Row]:
    """Time the steps on a filter for so many items at 1e-6 that is half full."""
    seen = LocalFilter(items, 1e-6)
    feed(seen.add, stream(1), items // 2)
    fresh = stream(2)

    def prepare() -> Iterator[tuple[Run, int]]:
        batch = _batch(seen, fresh, count)
        for _, step in STEPS.values():
            yield partial(step, batch), count

    samples = take_turns({"steps": prepare}, repeats)["steps"]
    return [
        {"step": step, "what": what, **summed(part)}
        for (step, (what, _)), part in zip(STEPS.items(), samples, strict=True)
    ]


def _batch(seen: LocalFilter, fresh: Iterator[bytes], count: int) -> Batch:
    state = seen.state()
    blocks, secret, hashes = state.slices[0].blocks, state.secret, state.hashes
    probe = make_probe(secret, hashes, digests=True)
    items = take(fresh, count)
    return Batch(
        items,
        secret,
        [digest(secret + item) + digest(secret + item, 1) for item in items],
        Struct(f">{hashes}H{28 - 2 * hashes}xI").unpack,
        [(blocks[p.pop() * len(blocks) >> 32], p) for p in map(probe, items)],
        take(fresh, count),
        seen.add,
    )
