"""A filter as it lies in Redis, by plain commands; docs/reference/redis.md says how it lies."""

from __future__ import annotations

from typing import Any

from scrapy_bloom.core.growth import SliceSpec


class StoredFilter:
    """The filter of one shard under a key."""

    def __init__(self, client: Any, key: str) -> None:
        self._client = client
        self.header = fields = client.hgetall(key)
        self.secret = fields[b"secret"]
        self.hashes = int(fields[b"hashes"])
        self.slices = []
        for each in fields[b"slices"].decode().split():
            capacity, error_rate, blocks = each.split(":")
            self.slices.append(SliceSpec(int(capacity), float(error_rate), int(blocks)))
        self._prefix = f"{key}:{{{key}}}:{fields[b'epoch'].decode()}:"

    def segment(self, slice_: int, number: int) -> str:
        """Return the name of a segment's key."""
        return f"{self._prefix}{slice_}.{number}"

    @property
    def memory(self) -> int:
        """Bytes that its segments take in the server, bookkeeping included."""
        names = self._client.keys(f"{self._prefix}*")
        return sum(self._client.memory_usage(name, samples=0) for name in names)
