"""What all places of filters have in common, be it a job directory, a file or a key in Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from scrapy_bloom.errors import StateError
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.local.job import Identity

Marks = tuple[Identity, Callable[[Sequence[bytes]], list[bool]]]
"""What a filter belongs to, and what carries out a verb for a batch of fingerprints.

It returns for each, in order, whether the filter had it.
"""


def described(info: FilterInfo, identity: Identity, **more: object) -> dict[str, Any]:
    """Return what is known of a filter, without what is not. Its secret is not among it."""
    dates = {
        name: datetime.fromtimestamp(date).astimezone()
        for name, date in (("oldest", info.oldest), ("newest", info.newest))
        if date is not None
    }
    facts = {**asdict(identity), **asdict(info), **dates, **more}
    return {name: value for name, value in facts.items() if value not in ("", None, {})}


def occupied(name: str, found: str = "a filter") -> StateError:
    """Return the error that says that something is where nothing may be."""
    return StateError(
        f"{name}: found {found}, expected nothing. Nothing was changed. Choose another place, or"
        f" make room with 'scrapy bloom delete'."
    )


def without_requests(name: str) -> StateError:
    """Return the error that says that requests are asked for where none are kept."""
    return StateError(
        f"{name}: found a filter without requests, expected those of scrapy_bloom.Scheduler. The"
        f" queues of other schedulers are not read."
    )
