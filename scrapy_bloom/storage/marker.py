"""The notes in a job directory: that a run is on, and how a run that has stopped left the queue.

Who finds the first one later knows that the run was killed.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from scrapy_bloom.storage import fields
from scrapy_bloom.storage.files import open_regular, write_whole
from scrapy_bloom.storage.snapshot import Head, Snapshot

SNAPSHOT: Final = "requests.bloom"
MARKER: Final = "requests.bloom.running"
STOPPED: Final = "requests.bloom.stopped"
"""Scrapy's queue at the last clean stop, where the filter is elsewhere."""
REQUESTS: Final = "requests.sqlite"
"""Requests and marks of a crawl with ``scrapy_bloom.Scheduler``."""
_MOST: Final = 1 << 16  # bytes of a marker


@dataclass(frozen=True)
class Marker:
    """A file in the job directory while a run is on. If a new run finds one, the last was killed.

    Attributes:
        pid: process of the run.
        host: machine of the run.
        generation: generation of the snapshot that it started from, 0 if from none.
        run: number of the run, as the store of its requests notes it; 0 without a store.
    """

    pid: int
    host: str
    generation: int
    run: int = 0


def has_lost_requests(folder: Path, stored: Snapshot | Head | None) -> bool:
    """Return whether ``requests.sqlite`` is gone, which a snapshot was stored beside."""
    return stored is not None and stored.journaled and not (folder / REQUESTS).exists()


def is_outdated(marker: Marker, stored: Snapshot | Head | None) -> bool:
    """Return whether the run of this marker has stored its filter, and so has stopped cleanly.

    Such a run was killed later, before it could remove the marker. Its queue is stored as well:
    Scrapy stores the queue before it closes the filter.
    """
    return stored is not None and stored.generation == marker.generation + 1


def write_marker(folder: Path, generation: int, *, run: int = 0) -> None:
    """Write the marker for a run of this process.

    :raises OSError: if it cannot be written.
    """
    marker = Marker(os.getpid(), socket.gethostname(), generation, run)
    write_whole(folder / MARKER, [json.dumps(asdict(marker)).encode()])


def write_stopped(folder: Path, queue: str) -> None:
    """Note how a run whose filter is elsewhere leaves Scrapy's queue.

    :param queue: what :func:`scrapy_queue.digest` returns.
    :raises OSError: if it cannot be written.
    """
    write_whole(folder / STOPPED, [json.dumps({"queue": queue}).encode()])


def read_stopped(folder: Path) -> str | None:
    """Return the queue as the note says, None if there is no note.

    :raises StateError: if it is not a regular file that can be read.
    """
    file = open_regular(folder / STOPPED)
    if file is None:
        return None
    with file:
        try:
            return fields.text(fields.read_object(file.read(_MOST)), "queue")
        except ValueError:
            return "damaged"  # and like no queue


def read_marker(folder: Path) -> Marker | None:
    """Return the marker in a job directory, None if there is none.

    :raises StateError: if it is not a regular file that can be read.
    """
    file = open_regular(folder / MARKER)
    if file is None:
        return None
    with file:
        try:
            marker = fields.read_object(file.read(_MOST))
            return Marker(
                pid=fields.integer(marker, "pid", 0, 1 << 63),
                host=fields.text(marker, "host"),
                generation=fields.integer(marker, "generation", 0, 1 << 63),
                run=fields.integer(marker, "run", 0, 1 << 63),
            )
        except ValueError:  # it is a marker all the same, and never an outdated one
            return Marker(pid=0, host="", generation=-2)
