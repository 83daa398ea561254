"""The metadata of a job: rows of the table ``meta``, by their keys, and what each must be."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from scrapy_bloom import file
from scrapy_bloom.errors import STRANGE, shown
from scrapy_bloom.local.scrapys import STATE

KIND: Final = "kind"
"""What the file holds: :data:`REQUESTS` or :data:`FILTER`."""
REQUESTS: Final = "scheduler"
"""Requests and marks."""
FILTER: Final = "filter"
"""Marks; the requests are in Scrapy's queue."""

IDENTITY: Final = "identity"
"""What the marks belong to, as JSON."""

PID: Final = "pid"
"""The process of the last run."""

DIGEST: Final = "queue"
"""Scrapy's queue at the last clean stop, see :func:`~.scrapys.digest`."""

RUNS: Final = "runs"
"""How many runs have begun."""

STORED: Final = "stored"
"""How many requests were not done at the last commit: to count them takes seconds."""

IN_FLIGHT: Final = "in flight"
"""How many requests were in flight at the last commit."""

SEEN: Final = "seen"
"""How many links all runs have dropped, because they led to pages seen before."""

DONE: Final = "done"
"""How many pages are done."""

NOT_KEPT: Final = "not kept"
"""How many unparsed pages there were that are not stored."""

THROUGH: Final = "through"
"""Whether the last run has closed the file with all stored that its ``start()`` yields."""

DUE: Final = "due"
"""What is to be appended to local feeds, see :func:`~.feeds.pack_due`."""

PAUSES: Final = "paused "
"""How keys begin of hosts that are paused, as JSON: slot -> date, seconds. A number follows."""


def _is_identity(value: Any) -> bool:
    """Return whether it has a spider, a fingerprinter, rules, and at most a writer besides."""
    types = {name: type(each) for name, each in json.loads(value).items()}
    texts = dict.fromkeys(("spider", "fingerprinter", "writer"), str)
    return {"writer": str} | types == {"made_by": dict, **texts}


def _has_numbers(value: Any, count: int) -> bool:
    """Return whether each value of an object in JSON is a list of so many numbers."""
    rows = json.loads(value).values()
    return all(len(row) == count and all(map(isfinite, row)) for row in rows)


_MUST_BE: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    **dict.fromkeys(
        (PID, RUNS, STORED, IN_FLIGHT, SEEN, DONE, NOT_KEPT, THROUGH),
        ("a number, not negative", lambda v: isinstance(v, int) and v >= 0),
    ),
    KIND: (f"{REQUESTS!r} or {FILTER!r}", (REQUESTS, FILTER).__contains__),
    IDENTITY: ("spider, fingerprinter and rules, in JSON", _is_identity),
    DIGEST: ("text", lambda v: isinstance(v, str)),
    STATE: ("bytes", lambda v: isinstance(v, bytes)),
    DUE: ("sizes in JSON, and bytes", lambda v: _has_numbers(v.partition(b"\n")[0], 2)),
    PAUSES: ("a date and seconds of each host, in JSON", lambda v: _has_numbers(v, 2)),
}
"""What the value of a key must be, and what says whether it is."""
_ANYTHING: Final = "", lambda _: True
"""The same of other keys: they are the filter's, which checks them itself."""


def read_metadata(database: sqlite3.Connection) -> dict[str, Any]:
    """Return the metadata of a job.

    :raises DamageError: if an entry is not what it must be; the error names it.
    """
    metadata = dict[str, Any](file.rows(database, "meta"))
    for key, value in metadata.items():
        expected, is_right = _MUST_BE.get(PAUSES if key.startswith(PAUSES) else key, _ANYTHING)
        try:
            right = is_right(value)
        except STRANGE:
            right = False
        if not right:
            raise file.DamageError(f"{key}: {shown(value)}, which must be {expected}")
    return metadata
