"""A filter as rows of a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from itertools import chain
from math import expm1, inf
from typing import Any

from bitarray import bitarray

from scrapy_bloom import file
from scrapy_bloom.filter.dated import DatedSlices
from scrapy_bloom.filter.hashing import make_probe
from scrapy_bloom.filter.info import FilterInfo, filter_info
from scrapy_bloom.filter.sizing import BLOCK_BYTES, PARTS, SliceSpec, next_slice
from scrapy_bloom.filter.slices import Slice


def metadata_of(filter_: DatedSlices) -> dict[str, file.Value]:
    """Return the entries of a filter for the table ``meta``."""
    names = "secret", "digests", "window", "capacity", "error_rate"
    return {name: getattr(filter_, name) for name in names} | {"digests": int(filter_.digests)}


def tables_of(filter_: DatedSlices) -> dict[str, Iterable[tuple[file.Value, ...]]]:
    """Return all rows of a file that has only a filter, by table."""
    meta = {"kind": "filter", **metadata_of(filter_)}
    blocks = (each.block_rows(each.touched()) for each in filter_.slices)
    return {
        "meta": ((key, value) for key, value in meta.items() if value is not None),
        "slices": slice_rows(filter_),
        "blocks": chain.from_iterable(blocks),
        "again": sorted(filter_.again.items()),
        "ages": sorted(filter_.ages.items()),
    }


def slice_rows(filter_: DatedSlices) -> list[tuple[int, float, int, float, int, int]]:
    """Return the rows of a filter's slices."""
    return [(each.id, each.since, *astuple(each.spec), each.items) for each in filter_.slices]


def read_filter(filter_: DatedSlices, database: sqlite3.Connection, meta: Mapping[str, Any]) -> int:
    """Make a filter the one that is stored in a file; return how many marks its journal has.

    Capacity and error rate stay.

    :param meta: all entries of the table of that name.
    """
    slices = []
    for id_, since, capacity, rate, blocks, items in file.rows(database, "slices"):
        slice_ = Slice(id_, since, SliceSpec(capacity, rate, blocks), items)
        first = id_ << 32
        own = f"WHERE id BETWEEN {first} AND {first + blocks - 1}"
        for number, bits in file.rows(database, "blocks", own):
            block = bitarray(endian="big")
            block.frombytes(bits)
            slice_.blocks[number - first] = block
        slices.append(slice_)
    filter_.window, filter_.digests = meta.get("window"), bool(meta["digests"])
    filter_.again = dict(file.rows(database, "again"))
    filter_.ages = dict(file.rows(database, "ages"))
    filter_.adopt(meta["secret"], slices, file.read_counters(database).slice)
    live, count = {slice_.id: slice_ for slice_ in filter_.slices}, 0
    probe = make_probe(filter_.secret, digests=filter_.digests)
    for id_, fingerprints in file.journal(database):
        count += len(fingerprints)
        if id_ in live:  # else it has expired; items were counted when first added
            for fingerprint in fingerprints:
                live[id_].put(probe(fingerprint))
    return count


class StoredFilter:
    """A filter in a file, of which only what is asked for is read.

    :param meta: all entries of the table of that name.
    :param now: in seconds since 1970.

    Attributes:
        forgotten: how many fingerprints are let through once although they are marked.
    """

    def __init__(self, database: sqlite3.Connection, meta: Mapping[str, Any], now: float) -> None:
        self._database, self._meta = database, meta
        window = meta.get("window")
        oldest = -inf if window is None else now - window * (1 + 1 / PARTS)
        slices = {  # by number: date, geometry, items
            id_: (since, SliceSpec(capacity, rate, blocks), items)
            for id_, since, capacity, rate, blocks, items in file.rows(database, "slices")
        }
        live = {id_: slice_ for id_, slice_ in slices.items() if slice_[0] > oldest}
        first = next_slice([], meta["capacity"], meta["error_rate"])  # the next crawl begins it
        self._slices = live or {0: (now, first, 0)}
        query = "SELECT count(*) FROM again WHERE since > ?"
        (self.forgotten,) = database.execute(query, (oldest,)).fetchone()

    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added."""
        probe = make_probe(self._meta["secret"], digests=bool(self._meta["digests"]))
        found = {each for each in {*fingerprints} if self._has(probe(each))}
        missing = {*fingerprints} - found
        for id_, marked in file.journal(self._database) if missing else ():
            if id_ in self._slices:
                found |= missing.intersection(marked)
        return [each in found and not self._is_forgotten(each) for each in fingerprints]

    def _has(self, probe: list[int]) -> bool:
        """Return whether the bits of a fingerprint are set; those of the journal are not yet."""
        *positions, h = probe
        for id_, (_, spec, _) in self._slices.items():
            number = id_ << 32 | h * spec.blocks >> 32
            for _, bits in file.rows(self._database, "blocks", f"WHERE id = {number}"):
                block = bitarray(endian="big")
                block.frombytes(bits)
                if block[positions].all():
                    return True
        return False

    def _is_forgotten(self, fingerprint: bytes) -> bool:
        row = f"WHERE fingerprint = x'{fingerprint.hex()}'"
        return any(file.rows(self._database, "again", row))

    def info(self) -> FilterInfo:
        """Return the state of the filter."""
        slices = [(spec, items) for _, spec, items in self._slices.values()]
        # How many blocks hold items: all others take no memory.
        used = sum(-each.blocks * expm1(-items / each.blocks) for each, items in slices)
        return filter_info(
            slices,
            capacity=self._meta["capacity"],
            error_rate=self._meta["error_rate"],
            memory=round(used) * BLOCK_BYTES,
            forgotten=self.forgotten,
            window=self._meta.get("window"),
            dates=[since for since, _, _ in self._slices.values()],
        )
