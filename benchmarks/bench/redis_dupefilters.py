"""Two filters that nobody ships and anybody can write: scrapy-redis's with another command."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import redis
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom.core.hashing import make_probe

ERROR_RATE: Final = 1e-6
CAPACITY: Final = 1_000_000
_HASHES: Final = 14
_BLOCKS: Final = 511  # just below 4 MiB, enough for a million fingerprints at 1e-6
_SECRET: Final = b"the same for all"


class BitfieldDupeFilter(RFPDupeFilter):  # type: ignore[misc]
    """Sets all bits of a fingerprint by one BITFIELD, which answers what they were."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._probe = make_probe(_SECRET, _HASHES, digests=True)

    def request_seen(self, request: Any) -> bool:
        """Return whether all bits were set before."""
        *positions, h = self._probe(bytes.fromhex(self.request_fingerprint(request)))
        block = (h * _BLOCKS >> 32) << 16
        operations: list[Any] = []
        for position in positions:
            operations += ("SET", "u1", block + position, 1)
        return all(self.server.execute_command("BITFIELD", self.key, *operations))


class RedisBloomDupeFilter(RFPDupeFilter):  # type: ignore[misc]
    """Asks the RedisBloom module."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        reserve(self.server, self.key)

    def request_seen(self, request: Any) -> bool:
        """Return whether the fingerprint was there before."""
        return not self.server.execute_command(
            "BF.ADD", self.key, self.request_fingerprint(request)
        )


def reserve(
    server: Any, key: str, error_rate: float = ERROR_RATE, capacity: int = CAPACITY
) -> None:
    """Make a filter of RedisBloom, unless another worker was quicker."""
    with suppress(redis.ResponseError):
        server.execute_command("BF.RESERVE", key, error_rate, capacity)
