"""Reads files only if they are regular ones, and writes files whole or not at all.

What differs between Linux, macOS and Windows is here, so that nobody else need know it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from scrapy_bloom.errors import StateError

try:
    import fcntl
except ImportError:  # Windows
    _fcntl: Any = None
else:
    _fcntl = fcntl

# Each is missing on the systems that do not need it.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_FULL_SYNC = getattr(_fcntl, "F_FULLFSYNC", None)

_CANNOT: Final = {errno.EINVAL, errno.ENOTSUP}  # that is what a file system answers to fsync

_OPEN_FILES_STAY = os.name == "nt"  # a file that somebody has open keeps its name
_PATIENCE: Final = 2.0  # seconds for which whoever has it open may go on reading
_STEP: Final = 0.02


def open_regular(path: Path) -> BinaryIO | None:
    """Open a file of ours for reading; return None if there is none.

    Never follows a link and never waits for the other end of a FIFO.

    :raises StateError: if it is not a regular file or cannot be read.
    """
    if not _NO_FOLLOW and path.is_symlink():
        raise _refused(path, "a symbolic link")
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_WAIT | _BINARY)
    except FileNotFoundError:
        return None
    except OSError as error:
        found = "a folder" if path.is_dir() else error.strerror
        found = "a symbolic link" if path.is_symlink() else found
        raise _refused(path, found) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refused(path, "a folder" if path.is_dir() else "a FIFO, socket or device")
    return open(descriptor, "rb")  # noqa: PTH123 - a descriptor has no Path


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace a file at once: after a crash it is the old file or the new one, never a mixture.

    The bytes are written to a file beside it and brought to the disk; then that file takes the
    name. Only its owner can read the file. The caller must be the only writer.

    :raises OSError: if that fails, for example because the disk is full. The old file is still
        there then, and nothing of the new one.
    """
    write_beside(path, chunks)
    put_in_place(path)


def write_beside(path: Path, chunks: Iterable[bytes]) -> None:
    """Write what shall be in a file to one beside it, down to the disk.

    :raises OSError: as :func:`write_whole` does.
    """
    beside = _beside(path)
    beside.unlink(missing_ok=True)  # of a process that was killed while it wrote
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _BINARY
    try:
        with open(os.open(beside, flags, 0o600), "wb") as file:  # noqa: PTH123 - as above
            file.writelines(chunks)
            file.flush()
            sync(file.fileno())
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def put_in_place(path: Path) -> None:
    """Give the file that :func:`write_beside` wrote its name.

    :raises OSError: if that cannot be; the old file is still there.
    """
    beside = _beside(path)
    try:
        replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def remove(path: Path) -> None:
    """Remove a file if it is there, so that it does not come back after a crash."""
    _patiently(lambda: path.unlink(missing_ok=True))
    sync_folder(path.parent)


def replace(source: Path, target: Path) -> None:
    """Give a file the name of another one, which is gone then, so that a crash changes nothing.

    :raises OSError: if that cannot be.
    """
    _patiently(lambda: source.replace(target))
    sync_folder(target.parent)


def sync_file(path: Path) -> None:
    """Bring what was written to a file to the disk."""
    with path.open("rb+") as file:
        sync(file.fileno())


def sync(descriptor: int) -> None:
    """Bring what was written to an open file to the disk.

    ``fsync`` of macOS leaves it in the memory of the disk, which a power failure takes.
    """
    if _FULL_SYNC is not None:
        with suppress(OSError):  # not every file system can
            _fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Bring the list of names in a folder to the disk, where folders can be opened.

    Windows cannot, and some network file systems cannot sync one. The names are safe there all the
    same, or nothing can be done.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        sync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(descriptor)


def sqlite_uri(path: PurePath, query: str) -> str:
    """Return what SQLite opens an absolute path by, with the parameters of `query`."""
    name = path.as_posix()
    # A drive stands behind a slash, and a share of another machine behind an empty host.
    rooted = name if name.startswith("/") else f"/{name}"
    return f"file://{quote(os.fsencode(rooted), safe='/:')}?{query}"


def _patiently(change: Callable[[], object]) -> None:
    """Change a name; on Windows wait for those who have the file open: a reader, a virus scanner.

    :raises OSError: what `change` raises, there only after :data:`_PATIENCE` seconds.
    """
    until = time.monotonic() + (_PATIENCE if _OPEN_FILES_STAY else 0)
    while True:
        try:
            change()
        except PermissionError:  # noqa: PERF203 - mostly there is one round
            if time.monotonic() >= until:
                raise
            time.sleep(_STEP)
        else:
            return


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _refused(path: Path, found: str | None) -> StateError:
    return StateError(
        f"{path}: found {found}, expected a regular file that this user can read. It was left as"
        f" it is: move it away, or choose another JOBDIR."
    )
