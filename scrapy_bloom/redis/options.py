"""How a worker uses its filter in Redis. Needs no client library: settings are read without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import (
    OF_REDIS,
    ON_BACKEND_ERROR,
    REDIS_CACHE,
    REDIS_KEY,
    REDIS_SHARDS,
    REDIS_TIMEOUT,
    REDIS_WAIT,
    OnBackendError,
    Words,
    in_arguments,
    refusal,
)


@dataclass(frozen=True)
class RedisOptions:
    """How a worker uses its filter; workers of one filter may differ in all but key and shards.

    Attributes:
        key: key of the header; the names of all keys of the filter begin with it.
        shards: parts that the filter is spread over, 1 to 1024; a cluster can hold each elsewhere.
        cache: most fingerprints that the worker remembers by itself, about 120 bytes each; 0: none.
        on_error: what to do while Redis cannot be used; the value of a policy will do. ``auto`` is
            ``wait`` with a shared queue, else ``allow``, and reads as that.
        timeout: most seconds that Redis may hold up one check.
        wait: most seconds that one outage may hold up the crawl, under ``wait``.
        keep: whether the filter outlives the last worker that closes.
        shared_queue: whether the requests wait in Redis, too, for any worker. Then after a loss a
            worker reports only those pages again that it is told to be finished.
        stopped: asked while the crawl stands still for Redis: whether to wait no longer.
        words: names an option in messages, by default as the arguments above.
    """

    key: str = "bloom"  # a library has no spider to name it after
    shards: int = REDIS_SHARDS.default
    cache: int = REDIS_CACHE.default
    on_error: OnBackendError = ON_BACKEND_ERROR.default
    timeout: float = REDIS_TIMEOUT.default
    wait: float = REDIS_WAIT.default
    keep: bool = True
    shared_queue: bool = False
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
