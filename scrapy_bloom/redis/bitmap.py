"""The layout ``bitmap``: the bits of a local filter, in strings of at most 4 MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from scrapy_bloom.core.growth import SliceSpec, filter_hashes, next_slice
from scrapy_bloom.core.hashing import PROBE_BYTES, make_hash
from scrapy_bloom.core.info import SliceCount, count_bits
from scrapy_bloom.core.sizing import BLOCK_BITS, BLOCK_BYTES
from scrapy_bloom.redis.layout import Layout, sampled

SEGMENT_BLOCKS: Final = 511
"""Blocks in a segment: just below 4 MiB, because the allocator gives 5 MiB to exactly 4 MiB."""

_FEW: Final = 4
"""How many positions of an item are read first. Most searches end there."""

_SAMPLE: Final = 1024
"""Most blocks of a slice that are counted: 8 MB. The fill ratio is exact to 0.1 % then."""


class BitmapLayout(Layout):
    """``BLOOM_REDIS_LAYOUT = "bitmap"``."""

    name = "bitmap"
    commands = ("setbit", "bitfield", "bitfield_ro", "bitcount")
    blocks_per_key = SEGMENT_BLOCKS

    def hashes(self, error_rate: float) -> int:
        """Return k, as a local filter has it."""
        return filter_hashes(error_rate)

    def next_slice(
        self, slices: Sequence[SliceSpec], capacity: int, error_rate: float, hashes: int
    ) -> SliceSpec:
        """Return the slice that a local filter would get."""
        return next_slice(slices, capacity, error_rate, hashes)

    def make_hash(self, secret: bytes, *, digests: bool) -> Callable[[bytes], bytes]:
        """Return the hash of a local filter."""
        return make_hash(secret, digests=digests)

    def words(self, hashes: int) -> Mapping[str, str]:
        """Return a variable for each position.

        With tables instead of variables the server would take a fifth more time.
        """
        names = [f"p{number}" for number in range(1, hashes + 1)]
        words = {
            "segment_blocks": str(SEGMENT_BLOCKS),
            "probe": ", ".join([*names, "h"]),
            "format": f"'>{'H' * hashes}{'x' * (PROBE_BYTES - 2 * hashes - 4)}I4'",
        }
        for group, some in {"few": names[:_FEW], "rest": names[_FEW:], "all": names}.items():
            words |= {
                group: ", ".join(some),
                f"{group}_offsets": ", ".join(f"base + {name}" for name in some),
                f"{group}_numbers": "'" + r"%d\0" * len(some) + "'",
                f"{group}_texts": "'" + "s" * len(some) + "'",
                f"get_{group}": ", ".join(f"'GET', 'u1', {name}" for name in some),
                f"set_{group}": ", ".join(f"'SET', 'u1', {name}, '1'" for name in some),
            }
        return words

    def ask(self, pipeline: Any, start: str, spec: SliceSpec) -> None:
        """Ask for the bits in a sample of the blocks."""
        for block in sampled(spec, _SAMPLE):
            segment, rest = divmod(block, SEGMENT_BLOCKS)
            first = rest * BLOCK_BYTES
            pipeline.bitcount(f"{start}{segment}", first, first + BLOCK_BYTES - 1)

    def count(self, spec: SliceSpec, items: int, answers: Sequence[int], hashes: int) -> SliceCount:
        """Return what is known of a slice, from the bits in its blocks."""
        return count_bits(spec, items, [ones / BLOCK_BITS for ones in answers], hashes)

    def memory(
        self,
        spec: SliceSpec,
        items: int,  # noqa: ARG002 - a segment has its full size at once
        made: Iterable[int],
    ) -> int:
        """Return the bytes of those segments that were made."""
        sizes = (min(SEGMENT_BLOCKS, spec.blocks - j * SEGMENT_BLOCKS) for j in made)
        return sum(blocks * BLOCK_BYTES + 1 for blocks in sizes)
