"""What earlier runs left in a job directory, and whether the last one was killed."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from scrapy_bloom.storage import fields, queue_record, scrapy_queue, seen_file
from scrapy_bloom.storage.files import open_regular, write_whole
from scrapy_bloom.storage.snapshot import Head, Identity, Snapshot, read_head, read_snapshot

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
        why: what shows that a run without us was killed, where this is a note of that.
        run: number of the run, as the store of its requests notes it; 0 without a store.
    """

    pid: int
    host: str
    generation: int
    resumed: bool
    why: str = ""
    run: int = 0


@dataclass(frozen=True)
class Past:
    """What earlier runs left.

    Attributes:
        snapshot: the filter at the last clean stop.
        take_seen: whether the marks in Scrapy's own ``requests.seen`` may be taken over instead.
        killed: what shows that the last run was killed, in words; empty if it was not.
        resumed: whether that killed run had resumed an earlier one.
        queue_gone: whether the requests are gone that were stored with the snapshot.
        why: what shows it, if it ran without us.
    """

    snapshot: Snapshot | None
    take_seen: bool
    killed: str = ""
    resumed: bool = False
    queue_gone: bool = False
    why: str = ""

    @property
    def known(self) -> bool:
        """Whether there are marks to start with."""
        return self.snapshot is not None or self.take_seen

    def is_without_queue(self, folder: Path) -> bool:
        """Return whether there is a filter, and beside it no queue that was ever stored."""
        return self.snapshot is not None and scrapy_queue.is_gone(folder)


def read_past(folder: Path, identity: Identity) -> Past:
    """Read what earlier runs left in a job directory. Changes nothing.

    :raises StateError: if what is there is not ours, damaged, newer, or of another crawl.
    :raises OSError: if a file of Scrapy's queue cannot be read.
    """
    snapshot = read_snapshot(folder / SNAPSHOT, identity)
    gone = snapshot is not None and queue_record.is_lost(folder, snapshot.queue)
    marker = read_marker(folder)
    if marker and not is_outdated(marker, snapshot):
        # If that run did not believe Scrapy's own marks, no later run does.
        take_seen = not snapshot and marker.resumed and not seen_file.why_unclean(folder)
        return Past(snapshot, take_seen, _killed(folder, marker), marker.resumed, gone)
    if why := _why_killed_without_us(folder, snapshot):
        killed, resumed = _killed_without_us(folder, why), scrapy_queue.is_saved(folder)
        return Past(snapshot, False, killed, resumed, gone, why)  # noqa: FBT003
    return Past(snapshot, take_seen=not snapshot, queue_gone=gone)


def is_begun(folder: Path) -> bool:
    """Return whether an earlier run, ours or with Scrapy's own filter, has left anything."""
    return any((folder / name).exists() for name in (SNAPSHOT, MARKER, seen_file.NAME))


def note_kill(folder: Path) -> Marker | None:
    """Return the marker of a killed run, and make one if a run without us was killed.

    To be called before Scrapy opens its queue: when Scrapy closes that, even at the end of a
    refused crawl, the traces of a kill are gone. The caller has locked the job directory.

    :raises StateError: if the snapshot or the marker cannot be read.
    :raises OSError: if a file of the queue cannot be read, or the marker not be written.
    """
    marker, head = read_marker(folder), read_head(folder / SNAPSHOT)
    if (folder / REQUESTS).exists() or has_lost_requests(folder, head):
        return marker  # Scrapy's queue is not in use
    if head is None and seen_file.exists(folder):
        (folder / scrapy_queue.NAME).mkdir(exist_ok=True)  # as Scrapy does in a moment
    if marker and not is_outdated(marker, head):
        return marker
    if why := _why_killed_without_us(folder, head):
        generation = head.generation if head else 0
        return write_marker(folder, generation, resumed=head is not None, why=why)
    return marker


def has_lost_requests(folder: Path, stored: Snapshot | Head | None) -> bool:
    """Return whether ``requests.sqlite`` is gone, which a snapshot was stored beside.

    Where Scrapy's queue is still there, it was being taken over by a run that was killed.
    """
    if stored is None or not stored.journaled or (folder / REQUESTS).exists():
        return False
    return not scrapy_queue.is_to_be_read(folder)


def is_outdated(marker: Marker, stored: Snapshot | Head | None) -> bool:
    """Return whether the run of this marker has stored its filter, and so has stopped cleanly.

    Such a run was killed later, before it could remove the marker. Its queue is stored as well:
    Scrapy stores the queue before it closes the filter.
    """
    return stored is not None and stored.generation == marker.generation + 1


def _why_killed_without_us(folder: Path, stored: Snapshot | Head | None) -> str:
    """Return what shows that a run without us was the last one and was killed; empty if nothing."""
    if stored is None:
        return seen_file.why_unclean(folder)
    return queue_record.why_used(folder, stored.queue)


def _killed(folder: Path, marker: Marker) -> str:
    if marker.why:
        return _killed_without_us(folder, marker.why)
    killed = f"The last run in {folder} (process {marker.pid}) did not close cleanly"
    return killed + (", after it had resumed an earlier one." if marker.resumed else ".")


def _killed_without_us(folder: Path, why: str) -> str:
    return (
        f"The last run in {folder}, with Scrapy's own filter, did not close cleanly, or could not"
        f" store all of its requests: {why}."
    )


def write_marker(
    folder: Path, generation: int, *, resumed: bool, why: str = "", run: int = 0
) -> Marker:
    """Write the marker for a run of this process, or the note of a killed run without us.

    :raises OSError: if it cannot be written.
    """
    marker = Marker(os.getpid(), socket.gethostname(), generation, resumed, why, run)
    write_whole(folder / MARKER, [json.dumps(asdict(marker)).encode()])
    return marker


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
                why=fields.text(marker, "why") if "why" in marker else "",
                run=fields.integer(marker, "run", 0, 1 << 63) if "run" in marker else 0,
            )
        except ValueError:  # it is a marker all the same: assume the worse of the two cases
            return Marker(pid=0, host="", generation=-1, resumed=True)
