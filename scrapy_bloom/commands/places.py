"""What job directories, files and keys in Redis have in common as places of a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from scrapy_bloom.errors import StateError
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.local.job import Identity

Marks = tuple[Identity, Callable[[Sequence[bytes]], list[bool]]]
"""A filter's identity, and a function that carries out a verb for a batch of fingerprints.

It returns for each, in order, whether the filter had it.
"""


def described(info: FilterInfo, identity: Identity, **more: object) -> dict[str, Any]:
    """Return a filter's facts as a dict, omitting unknown ones. Never includes the secret."""
    dates = {
        name: datetime.fromtimestamp(date).astimezone()
        for name, date in (("oldest", info.oldest), ("newest", info.newest))
        if date is not None
    }
    facts = {**asdict(identity), **asdict(info), **dates, **more}
    return {name: value for name, value in facts.items() if value not in ("", None, {})}


def occupied(name: str, contents: str = "a filter") -> StateError:
    """Return the error for a target that is not empty."""
    return StateError(
        f"{name}: found {contents}, expected nothing. Nothing was changed. Choose another place, or"
        f" make room with 'scrapy bloom delete'."
    )


def without_requests(name: str) -> StateError:
    """Return the error for a filter whose requests are kept elsewhere."""
    return StateError(
        f"{name}: found a filter without requests, expected those of scrapy_bloom.Scheduler. The"
        f" queues of other schedulers are not read."
    )
