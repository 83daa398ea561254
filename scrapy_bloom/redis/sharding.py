"""How a filter is spread over shards: their keys, their share of it, and who has a fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, sqrt
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")


def shard_key(key: str, number: int) -> str:
    """Return the key of a shard's header, from the key of the filter."""
    return f"{key}:{number}" if number else key


def shard_capacity(capacity: int, shards: int) -> int:
    """Return the capacity of one shard, with some to spare: items fall on the shards by chance."""
    mean = capacity / shards
    return capacity if shards == 1 else ceil(mean + 4 * sqrt(mean))


def picker(shards: Sequence[T]) -> Callable[[bytes], T]:
    """Return a function that finds the shard of a fingerprint."""
    count = len(shards)
    if count == 1:
        only = shards[0]
        return lambda _: only
    return lambda fingerprint: shards[crc32(fingerprint) * count >> 32]


def ask_each(
    pick: Callable[[bytes], T],
    fingerprints: Sequence[bytes],
    ask: Callable[[T, list[bytes]], list[bool]],
) -> list[bool]:
    """Ask each shard about its fingerprints; return the answers in their order.

    :param fingerprints: may repeat.
    """
    parts: dict[T, list[bytes]] = {}
    for fingerprint in fingerprints:
        parts.setdefault(pick(fingerprint), []).append(fingerprint)
    answers: dict[bytes, bool] = {}
    for shard, part in parts.items():
        answers.update(zip(part, ask(shard, part), strict=True))
    return [answers[fingerprint] for fingerprint in fingerprints]
