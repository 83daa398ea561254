"""Reads files only if they are regular ones, and writes files whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from scrapy_bloom.errors import StateError

# Each is missing on the systems that do not need it.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def open_regular(path: Path) -> BinaryIO | None:
    """Open a file of ours for reading; return None if there is none.

    Never follows a link and never waits for the other end of a FIFO.

    :raises StateError: if it is not a regular file or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_WAIT | _BINARY)
    except FileNotFoundError:
        return None
    except OSError as error:
        found = "a symbolic link" if path.is_symlink() else error.strerror
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
            os.fsync(file.fileno())
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def put_in_place(path: Path) -> None:
    """Give the file that :func:`write_beside` wrote its name.

    :raises OSError: if that cannot be; the old file is still there.
    """
    beside = _beside(path)
    try:
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file if it is there, so that it does not come back after a crash."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Bring what was written to a file to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the list of names in a folder to the disk."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _refused(path: Path, found: str | None) -> StateError:
    return StateError(
        f"{path}: found {found}, expected a regular file that this user can read. It was left as"
        f" it is: move it away, or choose another JOBDIR."
    )
