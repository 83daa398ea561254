"""Looks into the SQLite file of a crawl, also while the crawl runs, and changes nothing.

SQLite's own ways to open a file for reading create files beside it or write to them. So the way is
chosen by what is there:

- Log and shared memory are there: a crawl runs, or was killed. Both are opened for reading only. A
  crawl that runs does not wait for a reader: only what a checkpoint may put back into the file ends
  where the reader is, until the reader has finished. What a killed crawl has left is read through
  without its shared memory.
- Neither is there: the crawl was closed, and the file is all.
- Only the log is there, of a job that was copied: file and log are copied to a temporary folder.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.errors import StateError
from scrapy_bloom.frontier import file
from scrapy_bloom.frontier.local import CLEAN, UNDER_WAY
from scrapy_bloom.frontier.opening import IDENTITY, WINDOW, window_of
from scrapy_bloom.frontier.requests import is_whole
from scrapy_bloom.frontier.store import NUMBER_BITS, Marks, check_row, unpacked
from scrapy_bloom.frontier.upkeep import GENERATION
from scrapy_bloom.frontier.waiting import WaitingRequest, readable
from scrapy_bloom.layers.exact import NOTE
from scrapy_bloom.storage import fields
from scrapy_bloom.storage.files import sqlite_uri
from scrapy_bloom.storage.snapshot import Identity

if TYPE_CHECKING:
    from typing_extensions import Self

_AT_ONCE: Final = 2_000  # rows of one look: about 10 ms in which a checkpoint ends early


@dataclass(frozen=True)
class StoreLook:
    """What the file of a crawl tells.

    Attributes:
        identity: what its marks belong to.
        generation: of the filter's snapshot that its journal goes on from.
        clean: whether the last run ended by itself. If not, one is on, or was killed.
        waiting: requests that are not done, including those under way.
        under_way: how many of them were under way at the last commit.
        journal: marks since the snapshot.
        withheld: fingerprints that are to be let through once.
        by_priority: how many wait with each of Scrapy's priorities, the highest first.
        exact: the note that names the exact lists; empty if there are none.
        window: seconds that its marks are kept; None for ever.
    """

    identity: Identity
    generation: int
    clean: bool
    waiting: int
    under_way: int
    journal: int
    withheld: frozenset[bytes] = field(repr=False)
    by_priority: dict[int, int]
    exact: str = ""
    window: float | None = None


class StoreReader:
    """Reads the file of one crawl. Use it in a ``with`` statement, and not for long.

    :param path: the file.
    :raises StateError: if there is none, or if it is not ours, newer, or damaged; in every method.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder: TemporaryDirectory[str] | None = None
        with self._explained():
            self._database = self._open()
        try:
            with self._explained():
                self._check()
        except BaseException:
            self.close()
            raise

    def look(self) -> StoreLook:
        """Return what the file tells, as of one commit."""
        with self._explained(), self._one_moment():
            noted = {}
            for key, value, checksum in self._all("SELECT key, value, checksum FROM meta"):
                check_row("note", checksum, key, value)
                noted[key] = value
            buckets = []
            rows = self._all("SELECT id, path, slot, size, checksum FROM buckets")
            for number, path, slot, size, checksum in rows:
                check_row("queue", checksum, number, path, slot, size)
                buckets.append((path, size))
            journal = self._all("SELECT coalesce(sum(length(fingerprints) / size), 0) FROM marks")[
                0
            ][0]
            rows = self._all("SELECT fingerprint, checksum FROM withheld")
            for fingerprint, checksum in rows:
                check_row("withheld mark", checksum, fingerprint)
            withheld = frozenset(fingerprint for fingerprint, _ in rows)
            clean = bool(int(noted[CLEAN]))
            by_priority: Counter[int] = Counter()
            for path, size in buckets:
                by_priority[_priority(path)] += size
            return StoreLook(
                _identity(noted[IDENTITY]),
                int(noted[GENERATION]),
                clean,
                sum(size for _, size in buckets),
                0 if clean else int(noted.get(UNDER_WAY) or 0),
                journal,
                withheld,
                dict(sorted(by_priority.items(), reverse=True)),
                str(noted.get(NOTE) or ""),
                window_of(noted.get(WINDOW)),
            )

    def marks(self) -> Iterator[Marks]:
        """Yield the marks since the filter's snapshot, oldest first.

        Read them before the snapshot: whatever a new snapshot takes over meanwhile is in it.
        """
        last = 0
        while rows := self._rows(
            "SELECT id, size, fingerprints, since, checksum FROM marks WHERE id > ?"
            " ORDER BY id LIMIT ?",
            last,
        ):
            for last, size, packed, since, checksum in rows:  # noqa: B007 - the last id counts
                with self._explained():
                    check_row("marks", checksum, size, packed, since)
                yield Marks(unpacked(size, packed), since)

    def ages(self) -> dict[bytes, float]:
        """Return when pages with a greatest age were last let through."""
        ages = {}
        with self._explained():
            for fingerprint, last, checksum in self._all("SELECT * FROM ages"):
                check_row("age", checksum, fingerprint, last)
                ages[fingerprint] = last
        return ages

    def requests(self, *, newest_first: bool) -> Iterator[WaitingRequest]:
        """Yield what waits, in the order of priorities and, within one, of the queues.

        Those under way are among them: only the process of the crawl knows which they are.

        :param newest_first: whether the queues are LIFO, Scrapy's default.
        """
        with self._explained():
            buckets = self._all("SELECT path, id FROM buckets")
        for path, number in sorted(buckets, key=lambda row: (-_priority(row[0]), row[0])):
            for _, body in self._bucket(number, newest_first=newest_first):
                yield readable(body, _priority(path))

    def check_whole(self) -> int:
        """Read all of the file; return how many requests do not match their checksum.

        :raises StateError: if more than single requests are damaged.
        """
        with self._explained(), self._one_moment():
            found = str(self._all("PRAGMA quick_check(1)")[0][0])
            if found != "ok":
                raise file.DamageError(found)
            unreadable = rows = 0
            for (body,) in self._database.execute("SELECT body FROM requests"):
                rows += 1
                unreadable += not is_whole(body)
            expected = self._all("SELECT coalesce(sum(size), 0) FROM buckets")[0][0]
            if rows != expected:
                raise file.DamageError(f"{rows:,} requests, but its queues count {expected:,}")
        for _ in self.marks():
            pass
        return unreadable

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._database.close()
        if self._folder:
            self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> sqlite3.Connection:
        path = self.path
        if not path.is_file():
            raise StateError(f"{path}: found no file, expected the requests of a crawl.")
        log, shared = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
        try:
            has_log = log.stat().st_size > 0
        except FileNotFoundError:
            has_log = False
        if shared.exists():
            return _connect(path, "readonly_shm=1")
        if not has_log:
            return _connect(path, "immutable=1")
        self._folder = TemporaryDirectory(prefix="scrapy-bloom-")
        copy = Path(self._folder.name) / path.name
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name(log.name))
        return _connect(copy, "")

    def _check(self) -> None:
        application = self._all("PRAGMA application_id")[0][0]
        version = self._all("PRAGMA user_version")[0][0]
        file.check_numbers(self.path, version, application)

    def _all(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.execute(statement, values).fetchall()

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._explained():
            return self._all(statement, *values, _AT_ONCE)

    def _bucket(self, number: int, *, newest_first: bool) -> Iterator[tuple[int, bytes]]:
        low, high = number << NUMBER_BITS, (number + 1) << NUMBER_BITS
        order = "DESC" if newest_first else "ASC"
        while rows := self._rows(
            f"SELECT id, body FROM requests WHERE id > ? AND id < ? ORDER BY id {order} LIMIT ?",  # noqa: S608
            low,
            high,
        ):
            yield from rows
            if newest_first:
                high = rows[-1][0]
            else:
                low = rows[-1][0]

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        self._database.execute("BEGIN")
        try:
            yield
        finally:
            self._database.execute("ROLLBACK")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise file.unusable(self.path, error) from error
        except OSError as error:
            raise StateError(f"{error.filename or self.path}: {error.strerror}.") from error
        except (KeyError, TypeError, ValueError) as error:
            raise file.damaged(self.path, f"notes that make no sense, {error!r}") from error


def _connect(path: Path, how: str) -> sqlite3.Connection:
    uri = sqlite_uri(path.absolute(), f"mode=ro&{how}")
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=1)


def _priority(path: str) -> int:
    """Return Scrapy's priority of the requests in a bucket; their queues are named by less it."""
    return -int(path.rpartition("/")[2].rstrip("s"))


def _identity(text: object) -> Identity:
    noted = fields.read_object(str(text).encode())
    return Identity(
        fields.text(noted, "spider"),
        fields.text(noted, "fingerprinter"),
        fields.object_(noted, "canonical"),
    )
