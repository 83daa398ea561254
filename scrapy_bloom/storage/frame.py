r"""Around the bytes of every filter at rest: what they are, which version, and if they are whole.

::

    magic      16 bytes   b"scrapy-bloom\r\n\x1a\n"
    version    u16        1
    length     u32        of the header
    crc32      u32        of version, length and header
    header     JSON, UTF-8
    body
    crc32      u32        of the body

Numbers are big-endian. Magic, version, length and header checksum keep their place in every version
to come, so that any version can say of any other that it is whole, and newer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final
from zlib import crc32

from scrapy_bloom.storage import fields

MAGIC: Final = b"scrapy-bloom\r\n\x1a\n"
VERSION: Final = 1
U32: Final = Struct(">I")
_FRAME: Final = Struct(">HI")
_START: Final = len(MAGIC) + _FRAME.size + U32.size


class UnusableError(Exception):
    """Says what was found, what was expected, and the way out."""

    def __init__(self, found: str, expected: str, way_out: str = "") -> None:
        super().__init__(
            f"found {found}, expected {expected}. It was left as it is."
            + (
                way_out
                or " Restore it from a copy, or delete the whole job directory and crawl again."
            )
        )


def framed(header: Mapping[str, Any], body: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a file."""
    text = json.dumps(header).encode()
    frame = _FRAME.pack(VERSION, len(text))
    yield MAGIC + frame + U32.pack(crc32(frame + text)) + text
    crc = 0
    for chunk in body:
        crc = crc32(chunk, crc)
        yield chunk
    yield U32.pack(crc)


def layout_at(path: Path) -> str:
    """Return the layout of the filter in a file of ours; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return str(read_header(file).get("layout", ""))
    except (OSError, UnusableError):
        return ""


def read_header(file: BinaryIO) -> dict[str, Any]:
    """Return the header.

    :raises UnusableError: if the file is not ours, of another version, or its header damaged.
    """
    start = file.read(_START)
    if not start.startswith(MAGIC):
        found = "an empty file" if not start else f"a file that starts with {start[:16]!r}"
        raise UnusableError(found, "a snapshot of scrapy-bloom")
    if len(start) < _START:
        raise UnusableError(f"a file that ends within its first {_START} bytes", "a whole snapshot")
    frame = start[len(MAGIC) : -U32.size]
    version, length = _FRAME.unpack(frame)
    # A forged length must not ask for memory.
    header = file.read(min(length, os.fstat(file.fileno()).st_size))
    if crc32(frame + header) != U32.unpack(start[-U32.size :])[0]:
        raise UnusableError("a header that does not match its checksum", "an undamaged snapshot")
    if version != VERSION:
        raise UnusableError(
            f"format version {version}",
            f"version {VERSION}",
            " Use the scrapy-bloom that wrote it, or a newer one.",
        )
    try:
        return fields.read_object(header)
    except ValueError as error:
        raise UnusableError(f"a header that makes no sense ({error})", "one of ours") from error


class Body:
    """The bytes between header and end, with their checksum as it builds up."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._crc = 0
        self._left = os.fstat(file.fileno()).st_size - file.tell() - U32.size

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes.

        :raises UnusableError: if there are not so many.
        """
        # Compared before it is asked for: a forged size must not ask for memory.
        if size > self._left:
            raise UnusableError("a file that ends before its bits do", "a whole snapshot")
        self._left -= size
        chunk = self._file.read(size)
        self._crc = crc32(chunk, self._crc)
        return chunk

    def check_end(self) -> None:
        """Look whether that was all, and whether it is what was written.

        :raises UnusableError: if not.
        """
        if self._left:
            raise UnusableError(f"{self._left} bytes too many", "a whole snapshot")
        if self._file.read() != U32.pack(self._crc):
            raise UnusableError("bits that do not match their checksum", "an undamaged snapshot")
