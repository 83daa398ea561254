"""What a commit has for local feeds. It is written to them after it, by the next run if need be."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scrapy_bloom.errors import StateError

logger = logging.getLogger(__name__)

LEFT_OVER: Final = "feeds"
"""Name of a folder in a job directory: what could not be appended to feeds that were changed."""

NOTHING: Final = b"{}\n"
"""The record if nothing is due."""

_OTHERS: Final = 1 << 24  # bytes that others may append between a commit and our own bytes


def pack_due(due: Mapping[str, tuple[int, bytes]]) -> bytes:
    """Return the record for a commit of what is due: see :meth:`.LocalFiles.collect_due`.

    It is a line of JSON, path -> size before, bytes that follow; and these.
    """
    sizes = {path: (offset, len(data)) for path, (offset, data) in due.items()}
    return b"\n".join((json.dumps(sizes).encode(), b"".join(data for _, data in due.values())))


def unpack_due(packed: bytes) -> dict[str, tuple[int, bytes]]:
    """Return what is due, by such a record."""
    head, _, data = packed.partition(b"\n")
    due = {}
    for path, (offset, size) in json.loads(head).items():
        due[path], data = (offset, data[:size]), data[size:]
    return due


def complete_feeds(folder: Path, packed: bytes) -> None:
    """Append to feeds what the last commit has for them, as far as they lack it.

    :param folder: the job directory.
    :param packed: the record of that commit.
    :raises StateError: if that cannot be written.
    """
    for name, (offset, data) in unpack_due(packed).items():
        path = Path(name).absolute()
        try:
            count = complete(path, offset, data, folder / LEFT_OVER)
        except OSError as error:
            raise StateError(
                f"The feed {path} lacks items of pages that are done, and cannot be written"
                f" ({error}). Start the crawl again once it can be: nothing is lost."
            ) from error
        if count:
            logger.info(
                "Appended %s bytes to %s: the last run ended before it could.", f"{count:,}", path
            )


def complete(path: Path, offset: int, data: bytes, folder: Path) -> int:
    """Append to a file what it lacks of some bytes; return how many these are.

    :param offset: the size of the file before they came. If it is less by now, somebody has moved
        the file away or changed it, perhaps with them. Then they are written to a file in `folder`.
    :raises OSError: if it cannot be read or written.
    """
    size = path.stat().st_size if path.is_file() else 0
    if offset > size or (path.exists() and not path.is_file()):
        logger.warning(
            "The feed %s is not as the last run left it: if the last %s bytes are missing, they"
            " are in %s.",
            path,
            f"{len(data):,}",
            folder / path.name,
        )
        path, offset = folder / path.name, 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(offset)
        missing = missing_in(file.read(len(data) + _OTHERS), data)
        file.write(missing)
        file.flush()
        os.fsync(file.fileno())
    return len(missing)


def missing_in(has: bytes, data: bytes) -> bytes:
    """Return what is to be appended to a file so that it has some bytes.

    :param has: what the file has from where it ended before they came. Others may have appended to
        it, too, even behind a part of them. Then what is there as whole lines counts.
    """
    newline = b"\n" if data.endswith(b"\n") else b""  # of each item; a binary format has none
    if newline + data in newline + has:
        return b""
    if data.startswith(has):
        return data[len(has) :]
    same = next(at for at, byte in enumerate(data) if byte != has[at])
    rest = data[data.rfind(b"\n", 0, same) + 1 if newline else 0 :]
    if newline + rest in has:  # the run after that was killed, too
        return b""
    return rest if has.endswith(newline) else newline + rest
