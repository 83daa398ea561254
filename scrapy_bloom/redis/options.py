"""How a worker uses its filter in Redis. This module works without the client library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import (
    OF_REDIS,
    ON_BACKEND_ERROR,
    REDIS_KEY,
    REDIS_LAYOUT,
    REDIS_SHARDS,
    REDIS_TIMEOUT,
    OnBackendError,
    Words,
    in_arguments,
    refusal,
)
from scrapy_bloom.redis import pace

CACHE: Final = 100_000
"""Fingerprints that a worker remembers to answer repeats without a round trip: 12 MB at most."""


@dataclass(frozen=True)
class RedisOptions:
    """How a worker uses its filter.

    Workers of one filter may differ in all but key, shards and layout.

    Attributes:
        key: key of the header; the names of all keys of the filter begin with it.
        shards: parts that the filter is spread over, 1 to 1024. A cluster can keep each on another
            node.
        layout: how the filter is stored: ``bitmap`` or ``sets``.
        cache: how many fingerprints the worker remembers itself, about 120 bytes each; 0 for none.
        on_error: what to do while Redis cannot be used, as a policy or its value. ``auto`` becomes
            ``wait`` with a shared queue, else ``allow``.
        timeout: most seconds that Redis may hold up one check.
        wait: most seconds that one outage may hold up the crawl, under ``wait``.
        keep: whether the filter outlives the last worker that closes.
        shared_queue: whether the requests wait in Redis as well, for any worker.
        beside: whether the crawl uses the request queue beside the filter. One that does not is
            refused where requests wait in it. None if that is not known: nobody looks then.
        stopped: called while the crawl waits for Redis; returns whether to stop waiting.
        words: names an option in messages, by default as the arguments above.
    """

    key: str = "bloom"  # without Scrapy there is no spider to name it after
    shards: int = REDIS_SHARDS.default
    layout: str = REDIS_LAYOUT.default
    cache: int = CACHE
    on_error: OnBackendError = ON_BACKEND_ERROR.default
    timeout: float = REDIS_TIMEOUT.default
    wait: float = field(default_factory=lambda: pace.WAIT)
    keep: bool = True
    shared_queue: bool = False
    beside: bool | None = None
    stopped: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)
    words: Words = field(default=in_arguments, repr=False, compare=False)

    def __post_init__(self) -> None:
        for option in OF_REDIS:
            value = option.read(self.words(option), getattr(self, option.argument))
            object.__setattr__(self, option.argument, value)
        if self.on_error is OnBackendError.AUTO:
            policy = OnBackendError.WAIT if self.shared_queue else OnBackendError.ALLOW
            object.__setattr__(self, "on_error", policy)
        if not self.key:
            raise SettingError(f"{self.words(REDIS_KEY)} is empty: give the name of a key.")
        if self.shards > 1 and "{" in self.key:
            raise refusal(
                self.words(REDIS_KEY),
                self.key,
                f"the part in braces would put all {self.shards} shards on one node. Leave the"
                f" braces out.",
            )
