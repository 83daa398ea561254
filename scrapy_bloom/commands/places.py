"""What job directories, files and keys in Redis have in common as places of a filter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def described_delays(
    later: int, next_due: float | None, holds: Mapping[str, float]
) -> dict[str, Any]:
    """Return what must not be sent yet, for :func:`described`.

    :param later: how many requests wait for a time.
    :param next_due: when the first of them may be sent, in seconds since 1970.
    :param holds: hosts that are left alone, each until when; likewise.
    """
    if not later and not holds:
        return {}
    due = None if next_due is None else datetime.fromtimestamp(next_due).astimezone()
    hosts = {name: datetime.fromtimestamp(until).astimezone() for name, until in holds.items()}
    return {"later": later, "next_due": due, "holds": hosts}


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
