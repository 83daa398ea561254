"""How a worker uses its filter in Redis. Needs no client library: settings are read without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scrapy_bloom.errors import SettingError
from scrapy_bloom.redis.breaker import OnBackendError, read_policy

MAX_SHARDS: Final = 1024


@dataclass(frozen=True)
class RedisOptions:
    """How a worker uses its filter; workers of one filter may differ in all but key and shards.

    Attributes:
        key: key of the header; the names of all keys of the filter begin with it.
        shards: parts that the filter is spread over, 1 to 1024; a cluster can hold each elsewhere.
        cache: most fingerprints that the worker remembers by itself, about 120 bytes each; 0: none.
        on_error: what to do while Redis cannot be used; the value of a policy will do.
        timeout: most seconds that Redis may hold up one check.
        wait: most seconds that one outage may hold up the crawl, under ``wait``.
        keep: whether the filter outlives the last worker that closes.
    """

    key: str = "bloom"
    shards: int = 1
    cache: int = 100_000
    on_error: OnBackendError = OnBackendError.ALLOW
    timeout: float = 2.0
    wait: float = 30.0
    keep: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_error", read_policy("on_error", self.on_error))
        if not self.key:
            raise SettingError("BLOOM_REDIS_KEY is empty: give the name of a key.")
        if not 1 <= self.shards <= MAX_SHARDS:
            raise SettingError(
                f"BLOOM_REDIS_SHARDS = {self.shards!r}: give a number from 1 to {MAX_SHARDS}."
            )
        if self.shards > 1 and "{" in self.key:
            raise SettingError(
                f"BLOOM_REDIS_KEY = {self.key!r}: the part in braces would put all {self.shards}"
                f" shards on one node. Leave the braces out."
            )
