"""The notes of a job: rows of the table ``meta``, by their keys, and what each must be."""

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
"""How many unparsed pages there were that are not kept."""

FEEDS: Final = "feeds"
"""Where the feeds ended to which this run appends, as JSON."""

HOLDS: Final = "holds "
"""How keys begin of hosts that are left alone, as JSON: slot -> date, seconds. A number follows."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes)


def _is_kind(value: object) -> bool:
    return value in (REQUESTS, FILTER)


def _is_identity(value: Any) -> bool:
    found = json.loads(value)
    made_by, texts = found.pop("made_by"), ("spider", "fingerprinter", "writer")
    return (
        isinstance(made_by, dict)
        and {*found} <= {*texts}
        and all(isinstance(found.get(name, ""), str) for name in texts)
        and {"spider", "fingerprinter"} <= {*found}
    )


def _has_numbers(value: Any, count: int) -> bool:
    """Return whether each value of an object in JSON is a list of so many numbers."""
    rows = json.loads(value).values()
    return all(len(row) == count and all(map(isfinite, row)) for row in rows)


_MUST_BE: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    **dict.fromkeys(
        (PID, RUNS, STORED, IN_FLIGHT, SEEN, DONE, NOT_KEPT),
        ("a number, not negative", _is_count),
    ),
    KIND: (f"{REQUESTS!r} or {FILTER!r}", _is_kind),
    IDENTITY: ("spider, fingerprinter and rules, in JSON", _is_identity),
    DIGEST: ("text", _is_text),
    STATE: ("bytes", _is_bytes),
    FEEDS: ("an inode, a size and a checksum of each file, in JSON", lambda v: _has_numbers(v, 3)),
    HOLDS: ("a date and seconds of each host, in JSON", lambda v: _has_numbers(v, 2)),
}
"""What the note of a key must be, and what says whether it is. Other notes are of the filter."""


def read_notes(database: sqlite3.Connection, bad: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the notes of a job.

    :param bad: gets what is wrong with notes that cannot be used, by key; they are left out then.
    :raises DamageError: if one cannot be used and `bad` is not given, or none can be read.
    """
    notes = {}
    for key, value in file.rows(database, "meta"):
        expected = _wrong(key, value)
        if not expected:
            notes[key] = value
        elif bad is None:
            raise file.DamageError(f"{key}: {shown(value)}, which must be {expected}")
        else:
            bad[key] = f"found {shown(value)}, expected {expected}"
    return notes


def _wrong(key: str, value: object) -> str:
    """Return what the note of a key must be, if it is not."""
    expected, check = _MUST_BE.get(HOLDS if key.startswith(HOLDS) else key, ("", None))
    try:
        return "" if check is None or check(value) else expected
    except STRANGE:
        return expected
