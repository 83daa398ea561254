r"""The file format of a filter of the layout ``sets`` at rest, between one Redis and another.

As that of a local filter, see `frame`. The header has ``written_by``, ``identity``,
``layout``, ``error_rate``, ``digests`` and ``shards``. Each shard has its ``secret`` and its
``slices``. Each slice has ``capacity``, ``error_rate``, ``blocks`` (its buckets) and ``items``. The
header also has ``window``, in seconds, and each slice ``since``, when its generation began; both
are null without a window. The body has for each slice of each shard a bitmap of the buckets that
have numbers, one bit each, then these buckets in order: how many numbers, u32, and the numbers in
order, signed, of 32 bits, or of 64 if the slice is wide. The same filter gives the same bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from sys import byteorder
from typing import Any, BinaryIO, Final

from bitarray import bitarray
from bitarray.util import zeros

from scrapy_bloom._version import __version__
from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.core.hashing import SECRET_BYTES
from scrapy_bloom.core.numbers import NumbersSlice, NumbersState, number_bytes, pack
from scrapy_bloom.errors import StateError
from scrapy_bloom.options import LONGEST
from scrapy_bloom.storage import fields
from scrapy_bloom.storage.files import open_regular
from scrapy_bloom.storage.frame import U32, Body, UnusableError, framed, read_header
from scrapy_bloom.storage.snapshot import (
    LATEST,
    MOST_DATED,
    MOST_SHARDS,
    MOST_SLICES,
    Identity,
    identity_in,
)

_ONE: Final = bitarray("1", "big")
_ANY: Final = 1 << 63  # larger than any number of ours


@dataclass(frozen=True)
class NumbersFile:
    """What a file holds.

    Attributes:
        identity: what the filter belongs to.
        error_rate: bound for its total error rate.
        shards: the filter, mostly one shard.
        written_by: name and version of the program that wrote it; empty if it is not written yet.
    """

    identity: Identity
    error_rate: float
    shards: Sequence[NumbersState]
    written_by: str = ""


def chunks_of(content: NumbersFile) -> Iterator[bytes]:
    """Yield the bytes of the file, a bucket at a time."""
    header = {
        "written_by": f"scrapy-bloom {__version__}",
        "identity": asdict(content.identity),
        "layout": NumbersState.layout,
        "error_rate": content.error_rate,
        "digests": content.shards[0].digests,
        "window": content.shards[0].window,
        "shards": [
            {"secret": shard.secret.hex(), "slices": [*map(_listed, shard.slices)]}
            for shard in content.shards
        ],
    }
    body = (chunk for shard in content.shards for one in shard.slices for chunk in _chunks(one))
    return framed(header, body)


def read_numbers(path: Path) -> NumbersFile | None:
    """Read the file at `path`; return None if there is none.

    :raises StateError: if it is not ours, damaged, newer, or that of a local filter.
    """
    file = open_regular(path)
    if file is None:
        return None
    with file:
        try:
            return _read(file)
        except UnusableError as found:
            raise StateError(f"{path}: {found}") from None


def _listed(slice_: NumbersSlice) -> dict[str, Any]:
    return {**asdict(slice_.spec), "items": slice_.items, "since": slice_.since}


def _chunks(slice_: NumbersSlice) -> Iterator[bytes]:
    stored = zeros(slice_.spec.blocks, "big")
    for bucket in slice_.buckets:
        stored[bucket] = 1
    yield stored.tobytes()
    for bucket in stored.search(_ONE):
        numbers = slice_.buckets[bucket]
        yield U32.pack(len(numbers)) + _big_endian(numbers).tobytes()


def _big_endian(numbers: array[int]) -> array[int]:
    if byteorder == "little":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers


def _read(file: BinaryIO) -> NumbersFile:
    header = read_header(file)
    body = Body(file)
    try:
        if fields.text(header, "layout") != NumbersState.layout:
            raise ValueError(f"a layout of {header['layout']!r}")
        digests = fields.flag(header, "digests")
        window = fields.number_or_none(header, "window", 1, LONGEST)
        shards = fields.objects(header, "shards", MOST_SHARDS)
        if not shards:
            raise ValueError("there are no shards")
        content = NumbersFile(
            identity_in(header),
            fields.share(header, "error_rate"),
            [_read_shard(shard, body, window, digests=digests) for shard in shards],
            fields.text(header, "written_by"),
        )
    except ValueError as error:
        raise UnusableError(f"a header that makes no sense ({error})", "one of ours") from error
    body.check_end()
    return content


def _read_shard(
    shard: Mapping[str, Any], body: Body, window: float | None, *, digests: bool
) -> NumbersState:
    secret = bytes.fromhex(fields.text(shard, "secret"))
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes")
    slices = fields.objects(shard, "slices", MOST_SLICES if window is None else MOST_DATED)
    if not slices:
        raise ValueError("there are no slices")
    read = [_read_slice(slice_, body) for slice_ in slices]
    return NumbersState(secret, digests, read, window)


def _read_slice(slice_: Mapping[str, Any], body: Body) -> NumbersSlice:
    spec = SliceSpec(
        fields.integer(slice_, "capacity", 1, _ANY),
        fields.share(slice_, "error_rate"),
        fields.integer(slice_, "blocks", 1, _ANY),
    )
    stored = bitarray(endian="big")
    stored.frombytes(body.read((spec.blocks + 7) // 8))
    buckets = {}
    for bucket in stored[: spec.blocks].search(_ONE):
        count = U32.unpack(body.read(U32.size))[0]
        numbers = pack((), spec)
        numbers.frombytes(body.read(count * number_bytes(spec)))
        buckets[bucket] = _big_endian(numbers)
    since = fields.number_or_none(slice_, "since", 0, LATEST)
    found = NumbersSlice(spec, buckets, since)
    if found.items != fields.integer(slice_, "items", 0, _ANY):
        raise ValueError(f"{slice_['items']} items, but {found.items} numbers")
    return found
