"""A job directory of Scrapy's own scheduler: its files, and whether requests wait in them.

Nothing here changes a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SCRAPYS_QUEUE: Final = "requests.queue"
SCRAPYS_MARKS: Final = "requests.seen"
STATE: Final = "spider.state"
"""Scrapy's file, and the key of our entry with the spider's state at the last commit, pickled."""
ACTIVE: Final = "active.json"
"""The file in Scrapy's queue that names the others to be read; written at a clean stop."""

_HEAD: Final = 4  # bytes of a queue's file without requests, all of them 0
_CHUNK: Final = 1 << 20


def digest(folder: Path) -> str:
    """Return a digest that tells Scrapy's queue from any other that holds requests.

    It depends on contents, not on times, so a job directory may be copied; nor does it change when
    Scrapy opens the queue.

    :raises OSError: if a file cannot be read.
    """
    root, hashed = folder / SCRAPYS_QUEUE, hashlib.sha256()
    active = root / ACTIVE
    hashed.update(active.read_bytes() if waits_with_scrapy(folder) and active.exists() else b"")
    for path in queue_files(folder):
        hashed.update(path.relative_to(root).as_posix().encode("utf-8", "surrogateescape") + b"\0")
        with path.open("rb") as content:
            while chunk := content.read(_CHUNK):
                hashed.update(chunk)
    return hashed.hexdigest()


def waits_with_scrapy(folder: Path) -> bool:
    """Return whether requests are waiting in Scrapy's queue of a job.

    :raises OSError: if a file cannot be read.
    """
    active = folder / SCRAPYS_QUEUE / ACTIVE
    named = active.exists() and active.read_bytes().strip() not in (b"[]", b"{}")
    return named or any(queue_files(folder))


def queue_files(folder: Path) -> Iterator[Path]:
    """Yield the files in Scrapy's queue that hold requests; Scrapy leaves empty ones behind."""
    for path in sorted((folder / SCRAPYS_QUEUE).rglob("*")):
        if path.name == ACTIVE or not path.is_file():
            continue
        if path.stat().st_size > _HEAD or any(path.read_bytes()):
            yield path
