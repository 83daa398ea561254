"""A job directory of Scrapy's own scheduler: its files, how they are read, and how a run ended.

Nothing here changes a file, and nothing is read whole.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from array import array
from collections.abc import Iterator
from contextlib import closing
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from scrapy_bloom.crawl.scrapy.downloads import slot_folder
from scrapy_bloom.errors import StateError

if TYPE_CHECKING:
    from scrapy_bloom.crawl.serialize import QueueKind

SCRAPYS_QUEUE: Final = "requests.queue"
SCRAPYS_MARKS: Final = "requests.seen"
STATE: Final = "spider.state"
"""Scrapy's file, and the key of our note with the spider's state at the last commit, pickled."""
ACTIVE: Final = "active.json"
"""The file in Scrapy's queue that names the others to be read; written at a clean stop."""

_SIZE: Final = struct.Struct(">L")  # beside each request in a queue: its size in bytes
_CHUNK: Final = 1 << 20
_DIGIT: Final = ord("0")


def why_unclean(folder: Path, *, by_times: bool = True) -> str:
    """Return the evidence that a crawl with Scrapy's own scheduler was killed; empty if none.

    After a kill, ``requests.seen`` has fingerprints of requests that are no longer in the queue. At
    a clean stop Scrapy writes the queue first, then the fingerprints, and the spider's state last.
    When a queue runs empty later, its file is removed at once, which changes the folder. What a
    killed run had queued is still there after a later clean stop, unnamed in ``active.json``.

    No evidence proves no clean stop: copying may lose the times of files, and a file that has lost
    as many requests as it was given, or a queue on SQLite, shows nothing else.

    :param by_times: whether the times of files count.
    :raises OSError: if a file cannot be read.
    """
    root, state = folder / SCRAPYS_QUEUE, folder / STATE
    if not (files := [*root.rglob("*")]):
        return ""
    for path in (root / ACTIVE, *([state] if by_times else ())):
        if not path.exists():
            return f"there is no {path}, which Scrapy writes when a spider has closed"
    for path in (root, *files, folder / SCRAPYS_MARKS) if by_times else ():
        late = path.exists() and path.stat().st_mtime_ns > state.stat().st_mtime_ns
        if late and path != root / ACTIVE:
            return f"{path} was written after {state}"
    try:
        named = {each for _, name in saved_queues(folder) for each in (name, f"{name}s")}
    except (ValueError, TypeError):  # reading the queues reports what is wrong
        return ""
    for path in queue_files(folder):
        queue = path.relative_to(root)
        if named.isdisjoint(each.as_posix() for each in (queue, *queue.parents)):
            return f"{path} holds requests, and {root / ACTIVE} does not name it"
    return ""


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
        if path.stat().st_size > _SIZE.size or any(path.read_bytes()):
            yield path


def saved_queues(folder: Path) -> Iterator[tuple[str | None, str]]:
    """Yield the queues that Scrapy would read: download slot, and path in the queue's folder.

    Start requests may be in another queue beside it, whose name ends in ``s``.

    :raises ValueError: if ``active.json`` is invalid.
    :raises TypeError: likewise.
    """
    path = folder / SCRAPYS_QUEUE / ACTIVE
    state: Any = json.loads(path.read_bytes()) if path.exists() else []
    slots = state if isinstance(state, dict) else {None: state}
    for slot, priorities in slots.items():
        before = "" if slot is None else slot_folder(slot) + "/"
        for priority in priorities:
            yield slot, f"{before}{int(priority)}"


def stored_requests(
    folder: Path, plain: QueueKind, start: QueueKind | None
) -> Iterator[tuple[str, str | None, bytes]]:
    """Yield what Scrapy would read when resuming: queue, download slot and bytes of each request.

    The oldest of each queue comes first.

    :param plain: the kind of queue that stored the requests.
    :param start: the kind that stored start requests; None if they are among the others.
    :raises StateError: if a queue is not whole, or of another kind.
    """
    path = folder / SCRAPYS_QUEUE / ACTIVE
    try:
        for slot, name in saved_queues(folder):
            for queue, kind in ((name, plain), (f"{name}s", start or plain)):
                path = folder / SCRAPYS_QUEUE / queue
                for body in read_queue(path, kind):
                    yield queue, slot, body
    except Exception as error:  # truncated files raise anything
        raise StateError(
            f"{path}: found a queue that cannot be read ({type(error).__name__}: {error}), expected"
            f" what Scrapy stores when a crawl stops cleanly. It was left as it is. Use the"
            f" settings of that crawl; or, if it was killed, crawl again in another JOBDIR."
        ) from error


def read_queue(path: Path, kind: QueueKind) -> Iterator[bytes]:
    """Yield the requests of one of Scrapy's queues, the oldest first.

    :param kind: the kind of queue that stored them.
    :raises Exception: any, if the queue is not whole, or of another kind.
    """
    if path.exists():
        read = {"LifoDiskQueue": _read_lifo, "FifoDiskQueue": _read_fifo}.get(kind.files)
        yield from (read or _read_sqlite)(path)


def _read_lifo(path: Path) -> Iterator[bytes]:
    """Each request is followed by its size: from the end, the end of each is found.

    The file begins with the number of requests.
    """
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        (count,) = _SIZE.unpack_from(data, 0)
        end, ends = len(data), array("Q")
        for _ in range(count):
            end -= _SIZE.size
            ends.append(end)
            end -= _SIZE.unpack_from(data, end)[0]
            if end < _SIZE.size:
                break
        if end != _SIZE.size:
            raise ValueError(f"it does not hold {count:,} requests, as it should")
        for end in reversed(ends):
            yield data[end - _SIZE.unpack_from(data, end)[0] : end]


def _read_fifo(path: Path) -> Iterator[bytes]:
    """Each request follows its size, in files of so many requests.

    A killed run has written what it pushed behind the last request that ``info.json`` counts.
    """
    info = json.loads((path / "info.json").read_bytes())
    number, position, offset = info["tail"]
    left = info["size"]
    while left:
        with (path / f"q{number:05d}").open("rb") as file:
            file.seek(offset)
            for _ in range(min(left, info["chunksize"] - position)):
                (size,) = _SIZE.unpack(file.read(_SIZE.size))
                request = file.read(size)
                if len(request) < size:
                    raise ValueError(f"it ends before its last {left:,} requests")
                yield request
                left -= 1
            if not left and file.read(1):
                raise ValueError("it holds more requests than its info.json counts")
        number, position, offset = number + 1, 0, 0
    behind = path / f"q{number:05d}"  # a full file is followed by an empty one
    if behind.exists() and behind.stat().st_size:
        raise ValueError("it holds more requests than its info.json counts")


def _read_sqlite(path: Path) -> Iterator[bytes]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        for (request,) in database.execute("SELECT item FROM queue ORDER BY id"):
            yield bytes(request)


def read_seen(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the fingerprints in a ``requests.seen``; a truncated last one is skipped.

    Scrapy 2.19 writes each as its length (2 bytes, big-endian) and its bytes; older versions write
    a line of hexadecimal digits. A job that lived through the upgrade has both. A length starts
    with a byte below "0", unless a fingerprint has 12,288 bytes.
    """
    while len(head := stream.read(2)) == 2:  # noqa: PLR2004
        if head[0] < _DIGIT:
            size = int.from_bytes(head, "big")
            mark = stream.read(size)
            if not mark or len(mark) < size:
                return
        else:
            line = head + stream.readline()
            try:
                mark = bytes.fromhex(line.decode())
            except ValueError:
                return
            if not line.endswith(b"\n"):
                return
        yield mark
