r"""An exact list of fingerprints in a file: written once, looked up one at a time.

::

    magic      16 bytes   b"scrapy-bloom\r\n\x1a\x02"
    version    u16        1
    check      8 bytes    tells whether the key is the one that the entries were spread with
    count      u64        of the entries
    crc32      u32        of version, check, count and index
    index      u32 each   65,537 numbers: how many entries stand before each bucket, and the count
    entries    20 bytes   each a fingerprint, in the order of the buckets

Numbers are big-endian. The bucket of a fingerprint is the first 16 bits of a keyed hash: nobody who
does not know the key can make one bucket large. Within a bucket there is no order, so that several
lists become one by putting their buckets side by side.

What is 20 bytes long is compared as it is, everything else by its BLAKE2b of 20 bytes. A damaged
entry is not found, and its page counts as new.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from itertools import accumulate, compress
from operator import add, ne
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, BinaryIO, Final
from zlib import crc32

from scrapy_bloom.core.hashing import PROBE_BYTES, make_hash
from scrapy_bloom.errors import StateError
from scrapy_bloom.storage.files import open_regular, write_whole

if TYPE_CHECKING:
    from typing_extensions import Self

ENTRY: Final = 20

_MAGIC: Final = b"scrapy-bloom\r\n\x1a\x02"
_VERSION: Final = 1
_HEAD: Final = Struct(">H8sQ")
_U32: Final = Struct(">I")
_BUCKETS: Final = 1 << 16
_INDEX: Final = 4 * (_BUCKETS + 1)
_START: Final = len(_MAGIC) + _HEAD.size + _U32.size + _INDEX


def count_in(path: Path) -> int:
    """Return how many entries a list has, by the size of its file; 0 if there is no such file."""
    try:
        return max(0, path.stat().st_size - _START) // ENTRY
    except FileNotFoundError:
        return 0


def entry_of(fingerprint: bytes) -> bytes:
    """Return what stands for a fingerprint in a list."""
    if len(fingerprint) == ENTRY:
        return fingerprint
    return blake2b(fingerprint, digest_size=ENTRY).digest()


class ExactKey:
    """Spreads fingerprints over the buckets of lists.

    :param secret: the key of the filter that the lists belong to.
    :param digests: as for the filter.

    Attributes:
        check: 8 bytes that tell this key from others, and nothing else of it.
    """

    def __init__(self, secret: bytes, *, digests: bool) -> None:
        hash_ = make_hash(secret, digests=digests, size=PROBE_BYTES // 2)
        self.check = blake2b(b"exact", key=secret, digest_size=8).digest()
        self.bucket: Callable[[bytes], int] = lambda one: int.from_bytes(hash_(one)[:2], "big")


class ExactFile:
    """A list that is there.

    :param path: the file.
    :param key: what its entries were spread with.
    :raises StateError: if it is not such a list, or not whole. It is left as it is.

    Attributes:
        path: the file.
        count: how many entries it has.
        index: how many stand before each bucket, and the count.
    """

    def __init__(self, path: Path, key: ExactKey) -> None:
        self.path = path
        self._key = key
        file = open_regular(path)
        if file is None:
            raise _unusable(path, "no file")
        self._file: BinaryIO = file
        try:
            self.count, self.index = self._read_head()
        except BaseException:
            file.close()
            raise

    def __contains__(self, fingerprint: bytes) -> bool:
        bucket = self._key.bucket(fingerprint)
        entry, entries = entry_of(fingerprint), self.entries(bucket)
        at = entries.find(entry)
        while at % ENTRY and at > 0:  # where two others meet
            at = entries.find(entry, at + 1)
        return at >= 0

    def entries(self, bucket: int) -> bytes:
        """Return the entries of a bucket, side by side."""
        first, end = self.index[bucket], self.index[bucket + 1]
        if first == end:
            return b""
        self._file.seek(_START + first * ENTRY)
        return self._file.read((end - first) * ENTRY)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_head(self) -> tuple[int, array[int]]:
        head = self._file.read(_START)
        if len(head) < _START or not head.startswith(_MAGIC):
            raise _unusable(self.path, f"a file that starts with {head[:16]!r}")
        frame = head[len(_MAGIC) : len(_MAGIC) + _HEAD.size]
        version, check, count = _HEAD.unpack(frame)
        crc = _U32.unpack(head[-_INDEX - _U32.size : -_INDEX])[0]
        index = _numbers(head[-_INDEX:])
        if crc32(frame + head[-_INDEX:]) != crc:
            raise _unusable(self.path, "a header that does not match its checksum")
        if version != _VERSION:
            raise StateError(
                f"{self.path}: found format version {version}, expected version {_VERSION}. It was"
                f" left as it is. Use the scrapy-bloom that wrote it, or a newer one."
            )
        if check != self._key.check:
            raise _unusable(self.path, "a list that belongs to another filter")
        size = os.fstat(self._file.fileno()).st_size
        if size != _START + count * ENTRY or index[-1] != count:
            raise _unusable(self.path, f"{size:,} bytes for {count:,} entries")
        return count, index


def write_exact(
    path: Path, key: ExactKey, fingerprints: Iterable[bytes], merged: Sequence[Path] = ()
) -> int:
    """Write a list of fingerprints, and of all entries of other lists; return how many there are.

    :param merged: files of those lists. They stay.
    :raises OSError: if it cannot be written. Nothing of it is left then.
    :raises StateError: if one of the others is damaged.
    """
    new: dict[int, bytearray] = {}
    for fingerprint in fingerprints:
        new.setdefault(key.bucket(fingerprint), bytearray()).extend(entry_of(fingerprint))
    with ExitStack() as stack:
        lists = [stack.enter_context(ExactFile(other, key)) for other in merged]
        sizes = [0] * _BUCKETS
        for bucket, entries in new.items():
            sizes[bucket] = len(entries) // ENTRY
        index = array("I", accumulate(sizes, initial=0))
        for one in lists:
            index = array("I", map(add, index, one.index))
        filled = compress(range(_BUCKETS), map(ne, index, index[1:]))

        def chunks() -> Iterator[bytes]:
            frame = _HEAD.pack(_VERSION, key.check, index[-1])
            stored = _bytes(index)
            yield _MAGIC + frame + _U32.pack(crc32(frame + stored)) + stored
            for bucket in filled:  # of a short list that is a small part
                yield b"".join([new.get(bucket, b""), *(one.entries(bucket) for one in lists)])

        write_whole(path, chunks())
    return index[-1]


def _numbers(stored: bytes) -> array[int]:
    numbers = array("I")
    numbers.frombytes(stored)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _bytes(numbers: array[int]) -> bytes:
    copy = array("I", numbers)
    if sys.byteorder == "little":
        copy.byteswap()
    return copy.tobytes()


def _unusable(path: Path, found: str) -> StateError:
    return StateError(
        f"{path}: found {found}, expected the exact list of a filter's marks. It was left as it is."
        f" Restore the job directory from a copy; or take BLOOM_EXACT out once, and the crawl goes"
        f" on with the filter alone."
    )
