"""What earlier runs left in a job directory, and whether the last one was killed."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from scrapy_bloom.storage import fields, scrapy_queue, seen_file
from scrapy_bloom.storage.files import open_regular, write_whole
from scrapy_bloom.storage.snapshot import Identity, Snapshot, read_snapshot

SNAPSHOT: Final = "requests.bloom"
MARKER: Final = "requests.bloom.running"
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
        resumed: whether it started with marks of an earlier run.
        queue_gone: whether it was refused because the stored queue had been deleted.
    """

    pid: int
    host: str
    generation: int
    resumed: bool
    queue_gone: bool = False


@dataclass(frozen=True)
class Past:
    """What earlier runs left.

    Attributes:
        snapshot: the filter at the last clean stop.
        take_seen: whether the marks in Scrapy's own ``requests.seen`` may be taken over instead.
        killed: what shows that the last run was killed, in words; empty if it was not.
        resumed: whether that killed run had resumed an earlier one.
        queue_gone: whether somebody has deleted the queue that was stored with the snapshot.
    """

    snapshot: Snapshot | None
    take_seen: bool
    killed: str = ""
    resumed: bool = False
    queue_gone: bool = False


def read_past(folder: Path, identity: Identity) -> Past:
    """Read what earlier runs left in a job directory. Changes nothing.

    :raises StateError: if what is there is not ours, damaged, newer, or of another crawl.
    :raises OSError: if a file of Scrapy's queue cannot be read.
    """
    snapshot = read_snapshot(folder / SNAPSHOT, identity)
    marker = read_marker(folder)
    why = "" if snapshot else seen_file.why_unclean(folder)
    take_seen = not snapshot and not why
    gone = snapshot is not None and scrapy_queue.is_gone(folder)
    if marker and not is_outdated(marker, snapshot):
        if marker.queue_gone:  # Scrapy has stored an empty queue at the end of the refused run
            gone = snapshot is not None and scrapy_queue.is_empty(folder)
            killed = f"The filter in {folder} has lost its {scrapy_queue.NAME}."
            return Past(snapshot, take_seen, killed, resumed=True, queue_gone=gone)
        killed = f"The last run in {folder} (process {marker.pid}) did not close cleanly"
        killed += ", after it had resumed an earlier one." if marker.resumed else "."
        # If that run did not believe Scrapy's own marks, no later run does.
        take_seen = take_seen and marker.resumed
        return Past(snapshot, take_seen, killed, marker.resumed, gone)
    if snapshot:
        why = seen_file.why_killed_since(folder)
    elif not why and seen_file.exists(folder):
        why = scrapy_queue.why_stale(folder)
    if why:
        take_seen = False
        killed = (
            f"The last run in {folder}, with Scrapy's own filter, did not close cleanly: {why}."
        )
        return Past(snapshot, take_seen, killed, scrapy_queue.is_saved(folder), gone)
    return Past(snapshot, take_seen, queue_gone=gone)


def is_outdated(marker: Marker, snapshot: Snapshot | None) -> bool:
    """Return whether the run of this marker has stored its filter, and so has stopped cleanly.

    Such a run was killed later, before it could remove the marker. Its queue is stored as well:
    Scrapy stores the queue before it closes the filter.
    """
    return snapshot is not None and snapshot.generation == marker.generation + 1


def write_marker(folder: Path, generation: int, *, resumed: bool, queue_gone: bool = False) -> None:
    """Write the marker for a run of this process.

    :raises OSError: if it cannot be written.
    """
    marker = Marker(os.getpid(), socket.gethostname(), generation, resumed, queue_gone)
    write_whole(folder / MARKER, [json.dumps(asdict(marker)).encode()])


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
                resumed=fields.flag(marker, "resumed"),
                queue_gone="queue_gone" in marker and fields.flag(marker, "queue_gone"),
            )
        except ValueError:  # it is a marker all the same: assume the worse of the two cases
            return Marker(pid=0, host="", generation=-1, resumed=True)
