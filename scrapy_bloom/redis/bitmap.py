"""The layout ``bitmap``: the bits of a local filter, in strings of at most 4 MiB."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scrapy_bloom.core.growth import SliceSpec, filter_hashes, next_slice
from scrapy_bloom.core.hashing import PROBE_BYTES, make_hash
from scrapy_bloom.redis.layout import Layout

SEGMENT_BLOCKS: Final = 511
"""Blocks in a segment: just below 4 MiB, because the allocator gives 5 MiB to exactly 4 MiB."""

_FEW: Final = 4
"""How many positions of an item are read first. Most searches end there."""


class BitmapLayout(Layout):
    """``BLOOM_REDIS_LAYOUT = "bitmap"``."""

    name = "bitmap"
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
