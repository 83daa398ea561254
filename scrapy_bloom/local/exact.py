"""The exact list beside a filter: what the filter calls seen is looked up here."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from scrapy_bloom import file
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.hashing import SHA1_BYTES

LISTED_AT_ONCE: Final = 1_000
"""Fingerprints that a commit of a pass writes, at least."""

MOST_UNLISTED: Final = 1_000_000
"""A pass begins at this many marks at the latest: until then all are in memory, at some 160 bytes
each."""

_ENTRY_BYTES: Final = 16


class ExactFilter:
    """A filter, and a list of all its fingerprints, new ones in memory until a pass writes them.

    In memory they are in buckets by their first byte: each is sorted and written at once, so that a
    page of the table is written once for all its new entries.

    :param filter_: the filter.
    :param database: the file, whose table ``exact`` has the others.
    """

    def __init__(self, filter_: LocalFilter, database: sqlite3.Connection) -> None:
        self._filter, self._database = filter_, database
        self._unlisted: defaultdict[bytes, dict[bytes, int]] = defaultdict(dict)
        for id_, fingerprints in file.journal(database):  # no pass has written these yet
            for fingerprint in fingerprints:
                self._list(id_, fingerprint)

    def add(self, fingerprint: bytes) -> bool:
        """Add a fingerprint; return whether it was there before."""
        seen = self._filter.add(fingerprint)
        if seen and not self._is_listed(fingerprint):
            self._filter.add_to_newest(fingerprint)
            seen = False
        if not seen:
            self._list(self._filter.slices[-1].id, fingerprint)
        return seen

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether this let it through in the last `max_age` seconds; if not, add it."""
        seen = self._filter.add_aged(fingerprint, max_age)
        if not seen:
            self._list(self._filter.slices[-1].id, fingerprint)
        return seen

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make fingerprints eligible again; return for each whether it was there."""
        return self._filter.forget_many(fingerprints)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether a fingerprint was added. Changes nothing."""
        return fingerprint in self._filter and self._is_listed(fingerprint)

    def _list(self, id_: int, fingerprint: bytes) -> None:
        """List a fingerprint, under the number of its slice if that expires."""
        entry = self._entry(fingerprint)
        self._unlisted[entry[:1]][entry] = id_ if self._filter.window else 0

    def _is_listed(self, fingerprint: bytes) -> bool:
        entry = self._entry(fingerprint)
        if entry in self._unlisted.get(entry[:1], ()):
            return True
        homes = [slice_.id for slice_ in self._filter.slices] if self._filter.window else [0]
        query = "SELECT 1 FROM exact WHERE slice = ? AND fingerprint = ?"
        run = self._database.execute
        return any(run(query, (home, entry)).fetchone() for home in homes)

    def buckets(self) -> list[bytes]:
        """Return the buckets that are in memory."""
        return sorted(self._unlisted)

    def write(self, buckets: Iterable[bytes]) -> list[bytes]:
        """Write some of these buckets; return which. They stay in memory until :meth:`written`."""
        done, listed = [], 0
        for bucket in buckets:
            if listed >= LISTED_AT_ONCE:
                break
            entries = sorted((home, entry) for entry, home in self._unlisted[bucket].items())
            self._database.executemany("INSERT OR IGNORE INTO exact VALUES (?, ?)", entries)
            done.append(bucket)
            listed += len(entries)
        return done

    def written(self, buckets: Iterable[bytes]) -> None:
        """Drop buckets from memory: they were committed."""
        for bucket in buckets:
            del self._unlisted[bucket]

    def _entry(self, fingerprint: bytes) -> bytes:
        """Return a fingerprint's entry: of a digest, the first 128 bits."""
        whole = not self._filter.digests or len(fingerprint) != SHA1_BYTES
        return fingerprint if whole else fingerprint[:_ENTRY_BYTES]
