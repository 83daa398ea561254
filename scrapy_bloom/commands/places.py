"""What all places of filters have in common, be it a job directory, a file or a key in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from scrapy_bloom.errors import StateError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.local.job import Identity

Marks = tuple[Identity, Callable[[Sequence[bytes]], list[bool]]]
"""What a filter belongs to, and what asks, adds or forgets a batch.

It returns for each fingerprint, in order, whether the filter had it.
"""


@dataclass(frozen=True)
class Contents:
    """A filter as a whole, and the requests beside it.

    Attributes:
        identity: spider, fingerprinter and rules; an empty text for what is not known.
        filter: its bits; whoever takes them may change them.
        requests: priority and bytes of each request that is not done, in the order in which they
            were queued; None if none are kept there.
    """

    identity: Identity
    filter: LocalFilter = field(repr=False)
    requests: Iterable[tuple[int, bytes]] | None = None


def described(info: FilterInfo, identity: Identity, **more: object) -> dict[str, Any]:
    """Return what is known of a filter, without what is not. Its secret is not among it."""
    dates = {
        name: datetime.fromtimestamp(date).astimezone()
        for name, date in (("oldest", info.oldest), ("newest", info.newest))
        if date is not None
    }
    facts = {**asdict(identity), **asdict(info), **dates, **more}
    return {name: value for name, value in facts.items() if value not in ("", None, {})}


def missing(name: str, last: str = "", others: Iterable[str] = ()) -> StateError:
    """Return the error that says that there is no filter.

    :param last: the part of the name that may be wrong.
    :param others: what is there in its place.
    """
    close = get_close_matches(last, {*others} - {last}, n=1)
    return StateError(f"{name}: found no filter{f'. Did you mean {close[0]}?' if close else '.'}")


def occupied(name: str, found: str = "a filter") -> StateError:
    """Return the error that says that something is where nothing may be."""
    return StateError(
        f"{name}: found {found}, expected nothing. Nothing was changed. Choose another place, or"
        f" make room with 'scrapy bloom delete'."
    )
