"""What all places of filters have in common, be it a job directory, a file or a key in Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import NamedTuple

from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.info import FilterInfo
from scrapy_bloom.local.job import Identity
from scrapy_bloom.options import write_span

Marks = tuple[Identity, Callable[[Sequence[bytes]], list[bool]]]
"""What a filter belongs to, and what asks, adds or forgets a batch.

It returns for each fingerprint, in order, whether the filter had it.
"""


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        level: ``good``, ``note`` for what is worth knowing, or ``bad``.
        what: what was looked at.
        found: what was found.
        advice: what to do; empty if there is nothing to do.
    """

    level: str
    what: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Contents:
    """A filter as a whole: its bits, and what they belong to.

    Attributes:
        identity: spider, fingerprinter and rules; an empty text for what is not known.
        filter: its bits.
        warnings: what whoever uses a copy should know, as sentences.
    """

    identity: Identity
    filter: LocalFilter = field(repr=False)
    warnings: Sequence[str] = ()


def described(
    target: str, kind: str, info: FilterInfo, identity: Identity, **more: object
) -> dict[str, object]:
    """Return what is known of a filter, without what is not. Its secret is not among it.

    :param more: what only some places know.
    """
    window = None if info.window is None else write_span(info.window)
    facts = {
        "target": target,
        "kind": kind,
        "spider": identity.spider,
        "items": info.items,
        "capacity": info.capacity,
        "fill_ratio": info.fill_ratio,
        "slices": info.slices,
        "bytes": info.bytes,
        "error_rate": info.error_rate,
        "error_rate_now": info.estimated_fp_rate,
        "expected_lost": info.expected_lost,
        "window": window,
        "generations": info.generations,
        "oldest_since": _date(info.oldest),
        "newest_since": _date(info.newest),
        "fingerprinter": identity.fingerprinter,
        "rules": dict(identity.made_by) or None,
        **more,
    }
    return {name: value for name, value in facts.items() if value not in ("", None)}


def requests_stay(name: str, count: int) -> list[str]:
    """Return what to say of a copy of a filter beside which requests wait, if any do."""
    text = (
        f"{name}: {count:,} requests wait there. Its filter calls their pages seen, but the"
        f" requests are not copied: a crawl with the copy alone would not fetch them."
    )
    return [text] if count else []


def missing(name: str) -> StateError:
    """Return the error that says that there is no filter."""
    return StateError(
        f"{name}: found no filter. Give the job directory of a crawl, a file that 'scrapy bloom"
        f" copy' has written, or the URL of a Redis server with # and the key of a filter there."
    )


def occupied(name: str, found: str = "a filter") -> StateError:
    """Return the error that says that something is where nothing may be."""
    return StateError(
        f"{name}: found {found}, expected none. Nothing was changed. Give another place, or make"
        f" room: 'scrapy bloom delete' removes a filter."
    )


def check_spider(identity: Identity) -> None:
    """Look whether a filter can be kept in a job directory.

    :raises SettingError: if nobody knows whose it is.
    """
    if not identity.spider:
        raise SettingError(
            "it is not known whose marks these are, and a job directory belongs to one spider:"
            " give its name with --spider, such as --spider books."
        )


def _date(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, tz=timezone.utc)
