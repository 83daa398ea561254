"""A filter as rows of a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from itertools import chain
from typing import Any

from bitarray import bitarray

from scrapy_bloom import file
from scrapy_bloom.filter.dated import DatedSlices
from scrapy_bloom.filter.hashing import make_probe
from scrapy_bloom.filter.sizing import SliceSpec
from scrapy_bloom.filter.slices import Slice


def notes_of(filter_: DatedSlices) -> dict[str, file.Value]:
    """Return the entries of a filter for the table ``meta``."""
    names = "secret", "digests", "window", "capacity", "error_rate"
    return {name: getattr(filter_, name) for name in names} | {"digests": int(filter_.digests)}


def tables_of(filter_: DatedSlices) -> dict[str, Iterable[tuple[file.Value, ...]]]:
    """Return all rows of a file that has only a filter, by table."""
    meta = {"kind": "filter", **notes_of(filter_)}
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
