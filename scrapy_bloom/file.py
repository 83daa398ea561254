"""The file that holds a filter and, in a job, also the crawl's requests: one SQLite database.

Files that are damaged, of another format, or not ours are only read, and stay as they are.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from zlib import crc32

from scrapy_bloom.errors import STRANGE, BloomError, StateError
from scrapy_bloom.values import encodable

APPLICATION: Final = 0x626C6F6D  # "blom"; SQLite keeps it in the file's header
FORMAT: Final = 10
"""Each change of what is written has a number of its own. Files of no other are read."""

SCHEMA: Final = f"""
BEGIN;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
-- Row 1 is `Counters`, and the first number of row 2 the tally. As the first table it is what each
-- checkpoint writes first.
CREATE TABLE counters (id INTEGER PRIMARY KEY, commits INT, clean INT, request INT, slice INT,
  crc INT);
CREATE TABLE meta (key TEXT PRIMARY KEY, value, crc INT) WITHOUT ROWID;
CREATE TABLE slices (
    id INTEGER PRIMARY KEY, since REAL, capacity INT, rate REAL, blocks INT, items INT, crc INT
);
-- slice << 32 | block; touched ones only
CREATE TABLE blocks (id INTEGER PRIMARY KEY, bits BLOB, crc INT);
-- The journal: marks since their blocks were last written. Those of a row have one size.
CREATE TABLE marks (id INTEGER PRIMARY KEY, slice INT, size INT, packed BLOB, crc INT);
CREATE TABLE again (fingerprint BLOB PRIMARY KEY, since REAL, crc INT) WITHOUT ROWID;
CREATE TABLE ages (fingerprint BLOB PRIMARY KEY, last REAL, crc INT) WITHOUT ROWID;
CREATE TABLE queues (id INTEGER PRIMARY KEY, path TEXT UNIQUE, slot TEXT, crc INT);
CREATE TABLE requests (id INTEGER PRIMARY KEY, body BLOB, crc INT);  -- queue << 40 | number
-- What has failed, or is unparsed. `way` is JSON: marks of where redirects led, in hexadecimal.
CREATE TABLE failed (id INTEGER PRIMARY KEY, run INT, kind TEXT, message TEXT, date REAL, tries INT,
  unparsed INT, way TEXT, body BLOB, crc INT);
-- Start requests that are not filtered: where each was last, in `requests` or `failed`; if it is
-- there no more it is done.
CREATE TABLE starts (id BLOB PRIMARY KEY, row INT, crc INT) WITHOUT ROWID;
"""

# Squares: a sum of the numbers themselves would often be right by chance. None is 0.
_NUMBER: Final = "(id + (id >> 40) & 0x3fffffff)"
_WEIGHT: Final = f"1 + ({_NUMBER} * {_NUMBER} & 0xffffffff)"

Value = str | int | float | bytes | None

_MAGIC: Final = b"SQLite format 3\0"


class DamageError(sqlite3.DatabaseError):
    """What was read is not what was written, although SQLite finds nothing wrong."""


class Counters(NamedTuple):
    """The first row of the table of that name.

    Attributes:
        commits: number of commits so far.
        clean: whether the last run stopped cleanly.
        request: the number of the next request.
        slice: the number of the next slice.
    """

    commits: int = 0
    clean: int = 1
    request: int = 1
    slice: int = 1


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open an existing file.

    :param mode: ``rw``; ``ro``; or ``immutable``, to read it without its log.
    """
    if mode == "ro" and not (log_size(path) or path.with_name(f"{path.name}-shm").exists()):
        mode = "immutable"  # no writer, and SQLite need not create files beside it
    query = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
    uri = f"file:{quote(os.fsencode(path.absolute()))}?{query}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5, check_same_thread=False)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn whatever using a file raises into a refusal of the file.

    SQLite may accept a page that belongs to another table; its values can then be anything.

    :raises StateError: for any error that is not one of ours.
    """
    try:
        yield
    except BloomError:
        raise
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from error
    except STRANGE as error:
        raise damaged(path, repr(error)) from error


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file of ours for reading, even during a crawl or after a kill.

    :raises StateError: if the file is not ours, of another format, or damaged, even if that only
        shows while reading.
    """
    check_header(path)
    with refusing(path), closing(connect(path, "ro")) as database:
        database.execute("BEGIN")  # everything read is from one commit
        yield database


def write(
    path: Path,
    tables: Mapping[str, Iterable[tuple[Value, ...]]] = MappingProxyType({}),
    *,
    next_slice: int = 1,
) -> None:
    """Create a file in one transaction, atomically; what was there is replaced.

    :param tables: the initial rows.
    :param next_slice: the number of the next slice.
    :raises StateError: if that fails, or a log is there.
    """
    check_no_log(path)
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.unlink(missing_ok=True)
        with closing(sqlite3.connect(beside, isolation_level=None)) as database:
            beside.chmod(0o600)  # it holds the secret
            database.executescript(SCHEMA)
            for table, entries in tables.items():
                put(database, table, entries)
            put_counters(database, Counters(slice=next_slice), tally(database))
            database.execute("COMMIT")
        beside.replace(path)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
            path.with_name(f"{beside.name}-journal").unlink(missing_ok=True)
        raise unusable(path, error) from error


def check_no_log(path: Path) -> None:
    """Check that a file that is to be created or replaced has no log: it would be applied to it.

    :raises StateError: if there is one.
    """
    if log_size(path):
        raise StateError(
            f"{path}-wal: found a log that belongs to another file, expected none. It was left as"
            f" it is: restore {path.name} if it is gone, close any program that reads it, or move"
            f" the log away to start over."
        )


def check_header(path: Path) -> None:
    """Check that a file is ours, and of this format, without opening it as a database.

    :raises StateError: if it cannot be used.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise StateError(f"{path}: found nothing, expected a file of scrapy-bloom.") from None
    except OSError as error:
        raise unusable(path, error) from error
    if not header.startswith(_MAGIC) or header[68:72] != APPLICATION.to_bytes(4, "big"):
        other = "a database of another program" if header.startswith(_MAGIC) else repr(header[:16])
        raise StateError(
            f"{path}: found {other}, expected a file of scrapy-bloom. It was left as it is: move it"
            f" away, or choose another place."
        )
    version = int.from_bytes(header[60:64], "big")
    if version != FORMAT:
        raise StateError(
            f"{path}: found format {version}, expected format {FORMAT}. It was left as it is: use"
            f" the version of scrapy-bloom that wrote it."
        )


def followed(path: Path) -> Path:
    """Return where a file is, if the path is a link to it: SQLite keeps its log there.

    Whatever is opened by a path that a user has named is opened by this one.
    """
    return path.resolve() if path.is_symlink() else path


def log_size(path: Path) -> int:
    """Return the size in bytes of the log beside a file; 0 if there is none."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except OSError:
        return 0


def crc(*values: Value) -> int:
    """Return the checksum of a row."""
    checksum = 0
    for value in values:
        checksum = crc32(value if isinstance(value, bytes) else repr(value).encode(), checksum)
    return checksum


def rows(database: sqlite3.Connection, table: str, rest: str = "") -> Iterator[tuple[Any, ...]]:
    """Yield rows of a table, ordered by their keys, without their checksums.

    :param rest: the rest of the query, such as a condition.
    :raises DamageError: if one does not match its checksum.
    """
    for *row, checksum in database.execute(f"SELECT * FROM {table} {rest} ORDER BY 1"):
        if checksum != crc(*row):
            raise DamageError(f"a row of {table} does not match its checksum")
        yield tuple(row)


def put(database: sqlite3.Connection, table: str, entries: Iterable[tuple[Value, ...]]) -> None:
    """Write rows with their checksums, replacing rows with the same keys.

    Halves of characters become question marks: a row that cannot be written would be in the way of
    each commit to come.
    """
    if not (checked := [(*row, crc(*row)) for row in entries]):
        return
    into = f"INSERT OR REPLACE INTO {table} VALUES ({','.join('?' * len(checked[0]))})"
    try:
        database.executemany(into, checked)
    except UnicodeEncodeError:
        whole = ([encodable(v) if isinstance(v, str) else v for v in row] for *row, _ in checked)
        database.executemany(into, [(*row, crc(*row)) for row in whole])


def read_counters(database: sqlite3.Connection) -> Counters:
    """Return the counters.

    :raises ValueError: if there are none.
    """
    ((_, *counters),) = rows(database, "counters", "WHERE id = 1")
    return Counters(*counters)


def put_counters(database: sqlite3.Connection, counters: Counters, tally: int) -> None:
    """Write the counters, and with them the tally."""
    put(database, "counters", [(1, *counters), (2, tally, 0, 0, 0)])


def tally(database: sqlite3.Connection) -> int:
    """Return a checksum of which requests there are, and of all that is in `queues` and `again`.

    A row that is missing there, or in `failed`, loses a page. Rows missing elsewhere, or older than
    their :class:`Counters`, only cause pages to be fetched again.
    """
    parts = (_WEIGHT, "requests"), (_WEIGHT, "failed"), ("crc", "queues"), ("crc", "again")
    return sum(
        database.execute(f"SELECT ifnull(sum({what}), 0) FROM {table}").fetchone()[0]
        for what, table in parts
    )


def weight(row: int) -> int:
    """Return what a request adds to the tally, wherever it is."""
    return 1 + ((number := row + (row >> 40) & 0x3FFFFFFF) * number & 0xFFFFFFFF)


def check_tally(database: sqlite3.Connection) -> int:
    """Return the tally.

    If a checkpoint was interrupted and its log is gone, some pages of the file are from its last
    commit, among them the counters, and others are older.

    :raises DamageError: if it is not that of the last commit.
    """
    found = tally(database)
    ((_, stored, *_),) = rows(database, "counters", "WHERE id = 2")
    if stored != found:
        raise DamageError("requests or forgotten pages are not those of the last commit")
    return found


def journal(database: sqlite3.Connection) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the marks made since the blocks were last written, each row with its slice's number."""
    for _, slice_, size, packed in rows(database, "marks"):
        count = max(size, 1)
        yield slice_, [packed[at : at + size] for at in range(0, max(len(packed), 1), count)]


def damaged(path: Path, damage: object) -> StateError:
    """Return the error for a damaged file."""
    return StateError(
        f"{path}: found damage ({damage}), expected an undamaged file of scrapy-bloom. It was left"
        f" as it is. Restore it and its -wal from a copy, or move it away to start over."
    )


def unusable(path: Path, error: OSError | sqlite3.Error) -> StateError:
    """Return the error for a file that cannot be used, or its folder."""
    if not isinstance(error, (OSError, sqlite3.OperationalError)):  # a full disk, a lock
        return damaged(path, error)
    return StateError(
        f"{getattr(error, 'filename', None) or path}: {getattr(error, 'strerror', None) or error}."
        f" This path must be readable and writable, with free disk space. Nothing was changed."
    )
