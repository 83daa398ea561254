"""The file that holds a filter, and in a job also the requests of the crawl: one SQLite database.

What is not ours, newer, or damaged is found out by reading only: such a file stays as it is.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

from bitarray import bitarray

from scrapy_bloom.errors import BloomError, StateError
from scrapy_bloom.filter.growth import SliceSpec
from scrapy_bloom.filter.state import FilterState, Slice

APPLICATION: Final = 0x626C6F6D  # "blom"; SQLite keeps it in the file's header
FORMAT: Final = 1

SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
-- One row. As the first table it is what each checkpoint writes first.
CREATE TABLE counters (commits INT, clean INT, request INT, slice INT, crc INT);
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
CREATE TABLE exact (slice INT, fingerprint BLOB, PRIMARY KEY (slice, fingerprint)) WITHOUT ROWID;
CREATE TABLE queues (id INTEGER PRIMARY KEY, path TEXT UNIQUE, slot TEXT, size INT, rows INT,
  crc INT);
CREATE TABLE requests (id INTEGER PRIMARY KEY, body BLOB, crc INT);  -- queue << 40 | number
"""

Value = str | int | float | bytes | None

_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_EXPECTED: Final = "a file of scrapy-bloom"
_WAY_OUT: Final = "It was left as it is: move it away, or choose another place."


class DamageError(sqlite3.DatabaseError):
    """What was read is not what was written, though SQLite finds nothing wrong."""


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open an existing file.

    :param mode: ``rw``; ``ro``; or ``immutable``, to read it without its log.
    """
    query = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
    uri = f"file:{quote(os.fsencode(path.absolute()))}?{query}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5, check_same_thread=False)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Have whatever reading a file raises refuse the file.

    SQLite may find nothing wrong with a page that is another table's: its values are anything then.

    :raises StateError: for an error that is none of ours.
    """
    try:
        yield
    except BloomError:
        raise
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise damaged(path, repr(error)) from error


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file of ours for reading, also beside a crawl or after a kill.

    :raises StateError: if the file is not ours, newer, or damaged; also for what is found out while
        reading.
    """
    check_header(path)
    # Without a log nobody writes, and SQLite need not be able to make files beside it.
    mode = "ro" if log_size(path) else "immutable"
    with refusing(path), closing(connect(path, mode)) as database:
        database.execute("BEGIN")  # all that is read is of one commit
        yield database


def create(path: Path) -> None:
    """Make a new file without a filter, whole or not at all.

    :raises StateError: if that cannot be.
    """
    if log_size(path):
        raise StateError(
            f"{path}-wal: found the log of a file that is gone, expected that file beside it. It"
            f" was left as it is: bring {path.name} back, or move the log away to start over."
        )
    beside = path.with_name(f"{path.name}.new")
    try:
        _make(beside)
        beside.replace(path)
    except (OSError, sqlite3.Error) as error:
        _remove(beside)
        raise unusable(path, error) from error


def save(path: Path, state: FilterState, notes: dict[str, Value]) -> None:
    """Write a filter to a file, whole or not at all; what was there is replaced.

    :param notes: further entries of ``meta``.
    :raises StateError: if that cannot be.
    """
    beside = path.with_name(f"{path.name}.new")
    try:
        _make(beside)
        with closing(connect(beside, "rw")) as database:
            database.execute("BEGIN")
            write_notes(database, {**filter_notes(state), **notes})
            write_counters(database, 0, 1, 1, state.next_id)
            database.executemany("INSERT INTO slices VALUES (?,?,?,?,?,?,?)", slice_rows(state))
            for slice_ in state.slices:
                write_blocks(database, ((slice_, index) for index in slice_.touched()))
            write_dated(database, "again", state.again)
            write_dated(database, "ages", state.ages)
            database.execute("COMMIT")
        beside.replace(path)
    except (OSError, sqlite3.Error) as error:
        _remove(beside)
        raise unusable(path, error) from error


def check_header(path: Path) -> None:
    """Look whether a file is ours, and not newer, without opening it as a database.

    :raises StateError: if it cannot be used.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise unusable(path, error) from error
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        found = f"a file that starts with {header[:16]!r}" if header else "an empty file"
        raise StateError(f"{path}: found {found}, expected {_EXPECTED}. {_WAY_OUT}")
    version = int.from_bytes(header[60:64], "big")
    if int.from_bytes(header[68:72], "big") != APPLICATION:
        raise StateError(
            f"{path}: found a database of another program, expected {_EXPECTED}. {_WAY_OUT}"
        )
    if version != FORMAT:
        raise StateError(
            f"{path}: found format {version}, expected format {FORMAT}. It was left as it is: use"
            f" the version of scrapy-bloom that wrote it."
        )


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


def rows(database: sqlite3.Connection, table: str, order: str = "1") -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table without their checksums.

    :raises DamageError: if one does not match its checksum.
    """
    yield from _checked(database, f"SELECT * FROM {table} ORDER BY {order}", table)  # noqa: S608


def _checked(database: sqlite3.Connection, asked: str, table: str) -> Iterator[tuple[Any, ...]]:
    for *row, checksum in database.execute(asked):
        if checksum != crc(*row):
            raise DamageError(f"a row of {table} does not match its checksum")
        yield tuple(row)


def read_counters(database: sqlite3.Connection) -> tuple[int, int, int, int]:
    """Return how many commits there were, whether the last run stopped cleanly, and next numbers.

    The latter are those of the next request and the next slice.
    """
    found = [*rows(database, "counters")]
    if len(found) != 1:
        raise DamageError(f"{len(found)} rows of counters")
    commits, clean, request, slice_ = found[0]
    return commits, clean, request, slice_


def read_filter(database: sqlite3.Connection, meta: dict[str, Any]) -> FilterState:
    """Return the filter as it was when its blocks were written; :func:`journal` has the rest.

    :param meta: all entries of that table.
    """
    try:
        state = FilterState(
            meta["secret"], meta["hashes"], bool(meta["digests"]), meta.get("window")
        )
    except KeyError as error:
        raise DamageError(f"no {error} in meta") from error
    state.next_id = read_counters(database)[3]
    for id_, since, capacity, rate, blocks, items in rows(database, "slices", "id"):
        slice_ = Slice(id_, since, SliceSpec(capacity, rate, blocks), items)
        first = id_ << 32
        asked = f"SELECT * FROM blocks WHERE id BETWEEN {first} AND {first + blocks - 1}"  # noqa: S608
        for number, bits in _checked(database, asked, "blocks"):
            block = bitarray(endian="big")
            block.frombytes(bits)
            slice_.blocks[number - first] = block
        state.slices.append(slice_)
    state.again = dict(rows(database, "again"))
    state.ages = dict(rows(database, "ages"))
    return state


def journal(database: sqlite3.Connection) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the marks since the blocks were last written, each row with the number of its slice."""
    for _, slice_, size, packed in rows(database, "marks", "id"):
        count = max(size, 1)
        yield slice_, [packed[at : at + size] for at in range(0, max(len(packed), 1), count)]


def filter_notes(state: FilterState) -> dict[str, Value]:
    """Return what ``meta`` says about a filter."""
    return {
        "secret": state.secret,
        "hashes": state.hashes,
        "digests": int(state.digests),
        "window": state.window,
    }


def slice_rows(state: FilterState) -> list[tuple[Any, ...]]:
    """Return the row of each slice."""
    found = []
    for one in state.slices:
        spec = one.spec
        row = one.id, float(one.since), spec.capacity, spec.error_rate, spec.blocks, one.items
        found.append((*row, crc(*row)))
    return found


def write_counters(
    database: sqlite3.Connection, commits: int, clean: int, request: int, slice_: int
) -> None:
    """Write what :func:`read_counters` returns."""
    row = commits, clean, request, slice_
    database.execute(
        "UPDATE counters SET (commits, clean, request, slice, crc) = (?,?,?,?,?)", (*row, crc(*row))
    )


def write_notes(database: sqlite3.Connection, notes: dict[str, Value]) -> None:
    """Write entries of ``meta``; None deletes one."""
    for key, value in notes.items():
        if value is None:
            database.execute("DELETE FROM meta WHERE key = ?", (key,))
        else:
            row = key, value, crc(key, value)
            database.execute("INSERT OR REPLACE INTO meta VALUES (?,?,?)", row)


def write_blocks(database: sqlite3.Connection, blocks: Iterable[tuple[Slice, int]]) -> None:
    """Write blocks, each given by its slice and its number there."""
    found = ((one.id << 32 | index, one.blocks[index].tobytes()) for one, index in blocks)
    database.executemany(
        "INSERT INTO blocks VALUES (?,?,?)"
        " ON CONFLICT (id) DO UPDATE SET bits = excluded.bits, crc = excluded.crc",
        ((*row, crc(*row)) for row in found),
    )


def write_dated(database: sqlite3.Connection, table: str, dated: dict[bytes, float]) -> None:
    """Write rows of ``again`` or ``ages``."""
    found = ((key, float(date)) for key, date in sorted(dated.items()))
    database.executemany(
        f"INSERT OR REPLACE INTO {table} VALUES (?,?,?)",  # noqa: S608
        ((*row, crc(*row)) for row in found),
    )


def damaged(path: Path, found: object) -> StateError:
    """Return the error that refuses a damaged file."""
    return StateError(
        f"{path}: found damage ({found}), expected an undamaged file of scrapy-bloom. It was left"
        f" as it is. Restore it and its -wal from a copy, or move it away to start over."
    )


def unusable(path: Path, error: OSError | sqlite3.Error) -> StateError:
    """Return the error that refuses a file that cannot be used."""
    if is_damage(error):
        return damaged(path, error)
    return StateError(
        f"{path}: {getattr(error, 'strerror', None) or error}. Expected a file that this user can"
        f" read and write, and room on the disk. What was there was left as it is."
    )


def is_damage(error: Exception) -> bool:
    """Return whether an error says that the file is damaged."""
    if isinstance(error, DamageError):
        return True
    # The code is there from Python 3.11.
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in {11, 26}  # SQLITE_CORRUPT, SQLITE_NOTADB
    return "malformed" in str(error) or "not a database" in str(error)


def _remove(path: Path) -> None:
    """Remove a file that could not be finished, and its journal."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)


def _make(path: Path) -> None:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        path.chmod(0o600)  # it holds the secret
        database.executescript(SCHEMA)
        row = 0, 1, 1, 1
        database.execute("INSERT INTO counters VALUES (?,?,?,?,?)", (*row, crc(*row)))
        database.commit()
