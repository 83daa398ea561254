"""What a key holds: what its workers agree on, its slices, and the probes of fingerprints."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil
from typing import Final, NamedTuple

from scrapy_bloom.errors import STRANGE, StateError
from scrapy_bloom.filter.hashing import SECRET_BYTES, make_hash
from scrapy_bloom.filter.info import FilterInfo, filter_info
from scrapy_bloom.filter.sizing import (
    BLOCK_BYTES,
    MOST_GENERATIONS,
    SliceSpec,
    blocks_for,
    generation_capacity,
    generation_rate,
    next_share,
)

BATCH: Final = 500
"""Most entries in one call: about 4 ms of the server's time.

Slices are sized for this many items more than their capacity, so that no batch has to be split.
"""

KEY_BLOCKS: Final = 511
"""Blocks in one key: just below 4 MiB, because the allocator takes 5 MiB for exactly 4 MiB."""

_MAY_DIFFER: Final = ("capacity", "canonical", "writer")


class SliceRow(NamedTuple):
    """A slice as the header lists it.

    Attributes:
        capacity: items it is sized for.
        error_rate: its false-positive rate when it holds that many.
        blocks: its size in blocks of 64 Kbit.
        keys: how many keys it has once all exist.
        number: the number in the names of its keys; never reused.
        since: when its generation began, in seconds since 1970, by the server's clock.
        items: marks in it.
        again: how many of these count as absent, because they were forgotten.
    """

    capacity: int
    error_rate: float
    blocks: int
    keys: int
    number: int = 0
    since: float = 0.0
    items: int = 0
    again: int = 0

    @property
    def spec(self) -> SliceSpec:
        """Its geometry."""
        return SliceSpec(self.capacity, self.error_rate, self.blocks)


def read_slices(text: bytes) -> list[SliceRow]:
    """Return the slices that the header's field lists, oldest first.

    :raises ValueError: if it cannot be read.
    """
    slices = []
    for row in text.decode().split():
        if row.count(":") != len(SliceRow._fields) - 1:
            raise ValueError(
                f"expected {' '.join(SliceRow._fields)} of each slice; found {row!r:.80}"
            )
        capacity, rate, blocks, keys, number, since, items, again = row.split(":")
        sizes = int(capacity), float(rate), int(blocks), int(keys)
        slices.append(SliceRow(*sizes, int(number), float(since), int(items), int(again)))
    return slices


@dataclass(frozen=True)
class Plan:
    """What all workers of a key must agree on, except `capacity`, `canonical` and `writer`.

    Attributes:
        capacity: items that are expected in it.
        error_rate: bound for its total error rate.
        digests: whether 20-byte fingerprints are SHA-1 digests.
        fingerprinter: what makes the fingerprints.
        canonical: the canonicalization rules applied before that, as JSON.
        window: seconds that a mark is kept, at least; 0 for no limit.
        project: whose requests are stored here; empty, like what follows, if none are.
        spider: likewise.
        order: ``lifo`` or ``fifo``.
        writer: class of the spider that created it, and digests of its arguments; see
            :func:`~scrapy_bloom.crawl.whose.writer_of`.
    """

    capacity: int
    error_rate: float
    digests: bool = True
    fingerprinter: str = ""
    canonical: str = "{}"
    window: float = 0.0
    project: str = ""
    spider: str = ""
    order: str = ""
    writer: str = ""

    @classmethod
    def read(cls, text: bytes) -> tuple[Plan, bytes]:
        """Return a plan and the filter's secret from the header's field.

        :raises StateError: if it is not one of ours.
        """
        try:
            stored = json.loads(text)
            secret = bytes.fromhex(stored.pop("secret"))
            if len(secret) == SECRET_BYTES:
                return cls(**stored), secret
        except STRANGE:
            pass
        known = ", ".join(field.name for field in fields(cls))
        raise StateError(f"expected a secret, {known}; found {text!r:.200}")

    def write(self, secret: bytes) -> str:
        """Return the plan as the header stores it."""
        return json.dumps({**asdict(self), "secret": secret.hex()}, sort_keys=True)

    def differences(self, stored: Plan) -> str:
        """Describe where `stored` differs and may not: attribute, its value, then ours."""
        mine, theirs = asdict(self), asdict(stored)
        return "; ".join(
            f"{name} {theirs[name]!r}, not {mine[name]!r}"
            for name in mine
            if name not in _MAY_DIFFER and mine[name] != theirs[name]
        )

    def hash(self, secret: bytes) -> Callable[[bytes], bytes]:
        """Return the function that makes a fingerprint's probe."""
        return make_hash(secret, digests=self.digests)

    def next(self, slices: Sequence[SliceRow], *, due: bool = False) -> SliceRow:
        """Return the geometry of the slice to add to `slices`.

        :param due: whether it begins a generation.
        """
        capacity, rate = self.capacity, self.error_rate
        generation = [row.spec for row in slices]
        if self.window and slices:
            newest = None if due else slices[-1].since
            others = [row for row in slices if row.since != newest]
            capacity = generation_capacity(sum(row.items for row in others), capacity)
            rate = generation_rate([row.spec for row in others], rate)
            generation = [row.spec for row in slices if row.since == newest]
        elif self.window:
            rate /= MOST_GENERATIONS
        items, share = next_share(generation, capacity, rate)
        blocks = blocks_for(items + BATCH, share)
        return SliceRow(items, share, blocks, ceil(blocks / KEY_BLOCKS))

    def info(self, slices: Sequence[SliceRow]) -> FilterInfo:
        """Return the state of a filter with these slices, computed from the items in them."""
        return filter_info(
            [(slice_.spec, slice_.items) for slice_ in slices],
            capacity=self.capacity,
            error_rate=self.error_rate,
            memory=sum(slice_.blocks for slice_ in slices) * BLOCK_BYTES,
            forgotten=sum(slice_.again for slice_ in slices),
            window=self.window or None,
            dates=[slice_.since for slice_ in slices],
        )


def geometry(spec: SliceRow) -> str:
    """Return the size of a slice as the header stores it."""
    return f"{spec.capacity}:{spec.error_rate!r}:{spec.blocks}:{spec.keys}"
