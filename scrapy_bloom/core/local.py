"""The filter in this process's own memory."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bitarray import bitarray
from bitarray.util import zeros

from scrapy_bloom.core import sizing
from scrapy_bloom.core.growth import SliceSpec, filter_hashes, next_slice, outgrown
from scrapy_bloom.core.hashing import make_probe, new_secret
from scrapy_bloom.core.info import FilterInfo, SliceCount, filter_info
from scrapy_bloom.options import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    read_capacity,
    read_error_rate,
)

logger = logging.getLogger(__name__)

EMPTY: Final = zeros(sizing.BLOCK_BITS, "big")
"""Stands for every block that no item has touched yet: a block takes memory when it is used."""


@dataclass(frozen=True)
class Slice:
    """One slice with its bits.

    Attributes:
        spec: its geometry.
        items: items added to it.
        blocks: `spec.blocks` bit arrays of 65,536 bits each, in Redis's bit order; untouched ones
            are :data:`EMPTY` itself.
    """

    spec: SliceSpec
    items: int
    blocks: list[bitarray]

    @classmethod
    def new(cls, spec: SliceSpec) -> Slice:
        """Return a slice without items."""
        return cls(spec, 0, [EMPTY] * spec.blocks)


@dataclass(frozen=True)
class FilterState:
    """All that a local filter is, apart from the plan for its future growth.

    Attributes:
        secret: the key of its probes, 16 bytes.
        hashes: k, positions per probe.
        digests: whether 20-byte fingerprints are taken as SHA-1 digests (see `probe`).
        slices: its slices, oldest first.
    """

    secret: bytes = field(repr=False)
    hashes: int
    digests: bool
    slices: Sequence[Slice]


class LocalFilter:
    """A Bloom filter in memory that grows without limit and keeps its error rate.

    >>> seen = LocalFilter(capacity=1000, error_rate=1e-6)
    >>> seen.add(b"one"), seen.add(b"one"), b"two" in seen
    (False, True, False)

    An add or a check takes time proportional to the number of slices, which grows with the
    logarithm of items / capacity. Not for several threads at once.

    :param capacity: items in the first slice, 1 to 10,000,000,000; each further slice doubles the
        total.
    :param error_rate: bound for the share of new items that are called seen, in total, from 1e-15
        to below 1.
    :param digests: whether fingerprints of 20 bytes are SHA-1 digests, as Scrapy's are. Say False
        where somebody else could choose their bytes: then all go through a slower hash.
    :raises SettingError: if `capacity` or `error_rate` is outside its range.
    """

    __slots__ = (
        "_blocks",
        "_capacity",
        "_error_rate",
        "_older",
        "_probe",
        "_room",
        "_state",
    )

    def __init__(
        self,
        capacity: int = DEFAULT_CAPACITY,
        error_rate: float = DEFAULT_ERROR_RATE,
        *,
        digests: bool = True,
    ) -> None:
        self._capacity = read_capacity("capacity", capacity)
        self._error_rate = read_error_rate("error_rate", error_rate)
        self._load(FilterState(new_secret(), filter_hashes(self._error_rate), digests, []))

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""
        positions = self._probe(fingerprint)
        h = positions.pop()
        blocks = self._blocks
        index = h * len(blocks) >> 32
        block = blocks[index]
        if block[positions].all():
            return True
        for older in self._older:
            block_there = older[h * len(older) >> 32]
            # One bit tells most of the new items: cheaper than k where k need not be set.
            if block_there[positions[0]] and block_there[positions].all():
                return True
        if not self._room:
            self._grow()
            blocks = self._blocks
            index = h * len(blocks) >> 32
            block = blocks[index]
        if block is EMPTY:
            block = blocks[index] = zeros(sizing.BLOCK_BITS, "big")
        block[positions] = 1
        self._room -= 1
        return False

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Add a batch; return for each, in order, whether it was there before."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added. Changes nothing."""
        positions = self._probe(fingerprint)
        h = positions.pop()
        return any(
            blocks[h * len(blocks) >> 32][positions].all()
            for blocks in (self._blocks, *self._older)
        )

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added. Changes nothing."""
        return [fingerprint in self for fingerprint in fingerprints]

    def info(self) -> FilterInfo:
        """Return the state of the filter now. Counts every bit: about 1 ms for each 4 MB."""
        state = self.state()
        counts = [SliceCount(part.spec, part.items, _fills(part.blocks)) for part in state.slices]
        return filter_info(
            [counts],
            state.hashes,
            error_rate=self._error_rate,
            memory=sum(_memory(part.blocks) for part in state.slices),
        )

    def clear(self) -> bool:
        """Forget everything; the filter is as it was when it was new. Returns True."""
        hashes = filter_hashes(self._error_rate)
        self._load(FilterState(new_secret(), hashes, self._state.digests, []))
        return True

    def close(self) -> None:
        """Do nothing: memory is all that this filter holds."""

    @property
    def secret(self) -> bytes:
        """The key of this filter's probes, 16 bytes: who knows it can make any page seem seen."""
        return self._state.secret

    def state(self) -> FilterState:
        """Return what the filter is made of, to be stored. The bits are shared, not copied."""
        *full, newest = self._state.slices
        items = newest.spec.capacity - self._room
        return FilterState(
            self._state.secret,
            self._state.hashes,
            self._state.digests,
            [*full, Slice(newest.spec, items, newest.blocks)],
        )

    def _load(self, state: FilterState) -> None:
        """Become the filter that `state` describes; one without slices gets its first."""
        slices = state.slices or [self._next(state)]
        self._state = FilterState(state.secret, state.hashes, state.digests, slices)
        self._probe = make_probe(state.secret, state.hashes, digests=state.digests)
        self._blocks = slices[-1].blocks
        self._room = slices[-1].spec.capacity - slices[-1].items
        # Newest first: each slice holds as many items as all older ones together.
        self._older = tuple(part.blocks for part in reversed(slices[:-1]))

    def _next(self, state: FilterState) -> Slice:
        specs = [part.spec for part in state.slices]
        return Slice.new(next_slice(specs, self._capacity, self._error_rate, state.hashes))

    def _grow(self) -> None:
        state = self.state()
        part = self._next(state)
        if len(state.slices) == 1:
            self._say_outgrown(state.slices[0].items)
        self._load(FilterState(state.secret, state.hashes, state.digests, [*state.slices, part]))

    def _say_outgrown(self, items: int) -> None:
        logger.warning("Bloom filter: %s", outgrown(items, self._error_rate))


def _fills(blocks: list[bitarray]) -> list[float]:
    return [0.0 if block is EMPTY else block.count() / sizing.BLOCK_BITS for block in blocks]


def _memory(blocks: list[bitarray]) -> int:
    touched = sum(sys.getsizeof(block) for block in blocks if block is not EMPTY)
    return sys.getsizeof(blocks) + touched
