"""Where local feeds end: it is noted with each commit, and after a kill they are cut back to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, NamedTuple, Protocol
from zlib import crc32

_LAST: Final = 4096  # bytes that tell whether a file still has what it had

WRITING: Final = -1
"""In place of a size: this crawl is writing to the file."""

SHARED: Final = -2
"""In place of a size: others write to the file, too, so that nothing tells whose its end is."""


class End(NamedTuple):
    """Where a file ended at some time.

    Attributes:
        inode: which file it was.
        size: how many bytes it had.
        crc: of the last 4 KB of these.
    """

    inode: int
    size: int
    crc: int


class Notes(Protocol):
    """Keeps where local feeds end.

    Attributes:
        ends: where each file ended, by path, when its items were last written out. The next commit
            writes it.
    """

    ends: Mapping[str, End]

    def note_opened(self, path: str, end: End) -> None:
        """Write at once where a file ends to which items are about to be appended.

        :raises OSError: if that cannot be written.
        """

    def note_left(self, path: str, size: int, *, writing: bool = False) -> None:
        """Note at once which size a file has, before and after an item is written to it.

        If it is not what was left after the last one, somebody else writes to the file.

        :param writing: whether an item is about to be written.
        :raises OSError: if that cannot be written.
        """


def end_of(path: str) -> End | None:
    """Return where a file ends; None if there is none, or it is a pipe or a device."""
    try:
        if not Path(path).is_file():  # opening a pipe may wait
            return None
        with Path(path).open("rb") as file:
            found = os.fstat(file.fileno())
            return End(found.st_ino, found.st_size, _crc(file, found.st_size))
    except OSError:
        return None


def cut_back(path: Path, end: End, left: int, saved: Path) -> int:
    """Cut a file back to where it ended. What is cut off is appended to another one.

    :param left: the size that the crawl has left it with: see :meth:`Notes.note_left`. If that is
        less than it had at its end, it is from before a power failure, and tells nothing.
    :returns: how many bytes that were.
    :raises ValueError: if it is another file by now, has not what it had, or something that the
        crawl has not written. It is left as it is.
    :raises OSError: if it cannot be read or written; likewise.
    """
    if not path.is_file():
        raise ValueError("there is no file")
    with path.open("rb+") as file:
        found = os.fstat(file.fileno())
        if found.st_ino != end.inode:
            raise ValueError("there is another file")
        if found.st_size < end.size or _crc(file, end.size) != end.crc:
            raise ValueError("it was changed")
        if found.st_size > end.size:
            if left == SHARED or end.size <= left != found.st_size:
                raise ValueError("others write to it, too")
            saved.parent.mkdir(exist_ok=True)
            file.seek(end.size)
            with saved.open("ab") as copy:
                shutil.copyfileobj(file, copy)
                copy.flush()
                os.fsync(copy.fileno())
            file.truncate(end.size)
            os.fsync(file.fileno())  # or a power failure may bring it back once it is forgotten
    return found.st_size - end.size


def _crc(file: IO[bytes], size: int) -> int:
    """Return the checksum of the last bytes before some place."""
    start = max(0, size - _LAST)
    file.seek(start)
    return crc32(file.read(size - start))
