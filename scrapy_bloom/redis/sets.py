"""The layout ``sets``: the items of a filter are numbers in many small sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from scrapy_bloom.core.buckets import (
    MOST_NUMBERS,
    bucket_bytes,
    count_numbers,
    next_bucket_slice,
)
from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.core.hashing import PROBE_BYTES, make_hash
from scrapy_bloom.core.info import SliceCount
from scrapy_bloom.redis.connection import TOO_FEW_NUMBERS
from scrapy_bloom.redis.layout import Layout, sampled

_SAMPLE: Final = 4096
"""Most buckets of a slice that are counted. The fill ratio is exact to 0.1 % then."""


class SetsLayout(Layout):
    """``BLOOM_REDIS_LAYOUT = "sets"``."""

    name = "sets"
    commands = ("sadd", "smismember", "srem", "scard", "object|encoding")
    blocks_per_key = 1
    removes = True

    def hashes(self, error_rate: float) -> int:  # noqa: ARG002 - the slices tell what it needs
        """Return 1: an item is one number."""
        return 1

    def next_slice(
        self,
        slices: Sequence[SliceSpec],
        capacity: int,
        error_rate: float,
        hashes: int,  # noqa: ARG002 - always 1
    ) -> SliceSpec:
        """Return a slice of buckets."""
        return next_bucket_slice(slices, capacity, error_rate)

    def make_hash(self, secret: bytes, *, digests: bool) -> Callable[[bytes], bytes]:
        """Return a hash of 16 bytes: 4 for the bucket, 4 or 8 for the number."""
        return make_hash(secret, digests=digests, size=PROBE_BYTES // 2)

    def words(self, hashes: int) -> Mapping[str, str]:  # noqa: ARG002 - always 1
        """Return the parts of a probe: the halves of the bucket's hash, then the number's."""
        return {
            "probe": "high, low, code, more",
            "format": "'>HHi4I4xxxx'",
            "most_numbers": str(MOST_NUMBERS),
            "too_few": TOO_FEW_NUMBERS,
        }

    def ask(self, pipeline: Any, start: str, spec: SliceSpec) -> None:
        """Ask for the sizes of a sample of the buckets."""
        for bucket in sampled(spec, _SAMPLE):
            pipeline.scard(f"{start}{bucket}")

    def count(
        self,
        spec: SliceSpec,
        items: int,
        answers: Sequence[int],
        hashes: int,  # noqa: ARG002 - always 1
    ) -> SliceCount:
        """Return what is known of a slice, from the sizes of the buckets."""
        return count_numbers(spec, items, [max(0, size - 1) for size in answers])

    def memory(
        self,
        spec: SliceSpec,
        items: int,
        made: Iterable[int],  # noqa: ARG002 - those are many buckets each
    ) -> int:
        """Return about what the buckets take that were made."""
        return bucket_bytes(spec, items)
