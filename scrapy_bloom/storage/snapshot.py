r"""The file format of a local filter at rest.

::

    magic      16 bytes   b"scrapy-bloom\r\n\x1a\n"
    version    u16        1
    length     u32        of the header
    crc32      u32        of version, length and header
    header     JSON, UTF-8: everything but the bits
    body       for each slice: a bitmap of the blocks that are stored, then those blocks
    crc32      u32        of the body

Numbers are big-endian. Magic, version, length and header checksum keep their place in every
version to come, so that any version can say of any other that it is whole, and newer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final
from zlib import crc32

from bitarray import bitarray

from scrapy_bloom._version import __version__
from scrapy_bloom.core.growth import SliceSpec
from scrapy_bloom.core.sizing import BLOCK_BITS, BLOCK_BYTES, MAX_HASHES
from scrapy_bloom.core.state import EMPTY, FilterState, Slice
from scrapy_bloom.errors import StateError
from scrapy_bloom.storage.files import open_regular, write_whole

MAGIC: Final = b"scrapy-bloom\r\n\x1a\n"
VERSION: Final = 1
_FRAME: Final = Struct(">HI")
_CRC: Final = Struct(">I")
_MAX_HEADER: Final = 1 << 20
_ONE: Final = bitarray("1", "big")


@dataclass(frozen=True)
class Identity:
    """What a filter belongs to: its marks mean nothing to another spider or fingerprinter.

    Attributes:
        spider: name of the spider.
        fingerprinter: import path of the class that makes the fingerprints.
        canonical: the rules that URLs were spelled by, and whose libraries'. They may change: some
            pages are then fetched again.
    """

    spider: str
    fingerprinter: str
    canonical: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """A filter as it was at a clean stop.

    Attributes:
        identity: what it belongs to.
        generation: how many clean stops the job has had.
        state: the filter.
    """

    identity: Identity
    generation: int
    state: FilterState


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot, whole or not at all.

    :raises OSError: if it cannot be written; an older one at `path` is still there.
    """
    write_whole(path, _chunks(snapshot))


def read_snapshot(path: Path, identity: Identity | None = None) -> Snapshot | None:
    """Read the snapshot at `path`; return None if there is none.

    :param identity: what it must belong to; None for anything.
    :raises StateError: if it is not ours, damaged, newer, or belongs to something other than
        `identity`. The file is not touched.
    """
    file = open_regular(path)
    if file is None:
        return None
    with file:
        try:
            snapshot = _read(file)
        except _UnusableError as found:
            raise StateError(f"{path}: {found}") from None
    if identity:
        _check_identity(path, snapshot.identity, identity)
    return snapshot


def _check_identity(path: Path, stored: Identity, wanted: Identity) -> None:
    for what, theirs, ours in (
        ("spider", stored.spider, wanted.spider),
        ("fingerprinter", stored.fingerprinter, wanted.fingerprinter),
    ):
        if theirs != ours:
            raise StateError(
                f"{path}: found the filter of {what} {theirs!r}, expected {what} {ours!r}: its"
                f" marks mean nothing here. It was left as it is. Choose another JOBDIR, or go"
                f" back to {theirs!r}, or delete the whole job directory to start afresh."
            )


class _UnusableError(Exception):
    """Says what was found, what was expected, and the way out."""

    def __init__(self, found: str, expected: str, way_out: str = "") -> None:
        super().__init__(
            f"found {found}, expected {expected}. It was left as it is."
            + (
                way_out
                or " Restore it from a copy, or delete the whole job directory and crawl again."
            )
        )


def _chunks(snapshot: Snapshot) -> Iterator[bytes]:
    state = snapshot.state
    header = json.dumps(
        {
            "written_by": f"scrapy-bloom {__version__}",
            "identity": asdict(snapshot.identity),
            "generation": snapshot.generation,
            "secret": state.secret.hex(),
            "hashes": state.hashes,
            "digests": state.digests,
            "block_bits": BLOCK_BITS,
            "slices": [{**asdict(slice_.spec), "items": slice_.items} for slice_ in state.slices],
        }
    ).encode()
    frame = _FRAME.pack(VERSION, len(header))
    yield MAGIC + frame + _CRC.pack(crc32(frame + header)) + header
    crc = 0
    for slice_ in state.slices:
        for chunk in _slice_chunks(slice_):
            crc = crc32(chunk, crc)
            yield chunk
    yield _CRC.pack(crc)


def _slice_chunks(slice_: Slice) -> Iterator[bytes]:
    yield bitarray([block is not EMPTY for block in slice_.blocks], "big").tobytes()
    for block in slice_.blocks:
        if block is not EMPTY:
            yield block.tobytes()


def _read(file: BinaryIO) -> Snapshot:
    header = _read_header(file)
    body = _Body(file)
    try:
        if header["block_bits"] != BLOCK_BITS or not 1 <= header["hashes"] <= MAX_HASHES:
            raise ValueError(f"{header['hashes']} positions in {header['block_bits']} bits")
        state = FilterState(
            secret=bytes.fromhex(header["secret"]),
            hashes=header["hashes"],
            digests=header["digests"],
            slices=[_read_slice(body, **fields) for fields in header["slices"]],
        )
        snapshot = Snapshot(Identity(**header["identity"]), header["generation"], state)
    except (KeyError, TypeError, ValueError) as error:
        raise _UnusableError(f"a header that makes no sense ({error!r})", "one of ours") from error
    body.check_end()
    return snapshot


def _read_header(file: BinaryIO) -> dict[str, Any]:
    start = file.read(len(MAGIC) + _FRAME.size + _CRC.size)
    if not start.startswith(MAGIC):
        found = "an empty file" if not start else f"a file that starts with {start[:16]!r}"
        raise _UnusableError(found, "a snapshot of scrapy-bloom")
    if len(start) < len(MAGIC) + _FRAME.size + _CRC.size:
        raise _UnusableError("a file that ends within its first 26 bytes", "a whole snapshot")
    frame = start[len(MAGIC) : -_CRC.size]
    version, length = _FRAME.unpack(frame)
    header = file.read(min(length, _MAX_HEADER))
    if crc32(frame + header) != _CRC.unpack(start[-_CRC.size :])[0]:
        raise _UnusableError("a header that does not match its checksum", "an undamaged snapshot")
    if version != VERSION:
        raise _UnusableError(
            f"format version {version}",
            f"version {VERSION}",
            " Use the scrapy-bloom that wrote it, or a newer one.",
        )
    fields = json.loads(header)
    if not isinstance(fields, dict):
        raise _UnusableError("a header that is no JSON object", "one of ours")
    return fields


class _Body:
    """The bytes between header and end, with their checksum as it builds up."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._crc = 0
        self._left = os.fstat(file.fileno()).st_size - file.tell() - _CRC.size

    def read(self, size: int) -> bytes:
        # Compared before it is asked for: a forged size must not ask for memory.
        if size > self._left:
            raise _UnusableError("a file that ends before its bits do", "a whole snapshot")
        self._left -= size
        chunk = self._file.read(size)
        self._crc = crc32(chunk, self._crc)
        return chunk

    def check_end(self) -> None:
        if self._left:
            raise _UnusableError(f"{self._left} bytes too many", "a whole snapshot")
        if self._file.read() != _CRC.pack(self._crc):
            raise _UnusableError("bits that do not match their checksum", "an undamaged snapshot")


def _read_slice(body: _Body, *, capacity: int, error_rate: float, blocks: int, items: int) -> Slice:
    stored = bitarray(endian="big")
    stored.frombytes(body.read((blocks + 7) // 8))
    touched = {}
    for number in stored[:blocks].search(_ONE):
        block = touched[number] = bitarray(endian="big")
        block.frombytes(body.read(BLOCK_BYTES))
    return Slice.of(SliceSpec(capacity, error_rate, blocks), items, touched)
