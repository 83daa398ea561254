"""The SQLite file of a crawl: how it is made, recognised, opened and refused.

A new file is built under another name and then takes its own, so a file that is there is whole.
What is not ours, newer or damaged is found out by reading only: such a file stays as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from struct import Struct
from typing import Final

from scrapy_bloom.errors import StateError
from scrapy_bloom.storage.files import open_regular, replace, sqlite_uri, sync_file

FORMAT: Final = 1
APPLICATION: Final = 0x626C6F6D  # "blom"; SQLite keeps it in the file's header

_MAGIC: Final = b"SQLite format 3\0"
_HEADER: Final = Struct(">60x I 4x I 28x")  # format version and application, see "fileformat2"
_EXPECTED: Final = "the requests of a crawl with scrapy_bloom.Scheduler"
_WAY_OUT: Final = "It was left as it is: move it away, or choose another JOBDIR."
_CHECKED_WHOLE: Final = 64 << 20
"""Up to this size, in bytes, a file is read through when it is opened: about 0.3 s."""

_SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE meta (key TEXT PRIMARY KEY, value, checksum INTEGER) WITHOUT ROWID;
CREATE TABLE buckets (
    id INTEGER PRIMARY KEY, path TEXT UNIQUE, slot TEXT, size INTEGER, checksum INTEGER
);
CREATE TABLE requests (id INTEGER PRIMARY KEY, body BLOB);
CREATE TABLE marks (
    id INTEGER PRIMARY KEY, size INTEGER, fingerprints BLOB, since REAL, checksum INTEGER
);
CREATE TABLE ages (fingerprint BLOB PRIMARY KEY, last REAL, checksum INTEGER) WITHOUT ROWID;
CREATE TABLE withheld (fingerprint BLOB PRIMARY KEY, checksum INTEGER) WITHOUT ROWID;
"""


class DamageError(sqlite3.DatabaseError):
    """What was read is not what was written, though SQLite finds nothing wrong."""


def connect(path: Path, *, every_commit: bool) -> sqlite3.Connection:
    """Open a file that was checked for writing. No other crawl uses its job directory.

    :param every_commit: whether each commit goes to the disk itself. Otherwise a power failure
        takes the crawl back to an earlier commit, a whole one.
    :raises StateError: if the file cannot be written, say. It is left as it is.
    """
    try:
        database = _open(path, "rw")
        # Checkpoints are made beside the crawl, see `checkpoint`.
        database.execute("PRAGMA journal_mode = WAL").close()
        database.execute("PRAGMA wal_autocheckpoint = 0").close()
        database.execute(f"PRAGMA synchronous = {'FULL' if every_commit else 'NORMAL'}").close()
        # As storage.files.sync does: on macOS only this reaches the disk itself.
        database.execute(f"PRAGMA fullfsync = {int(every_commit)}").close()
        database.execute("PRAGMA cache_size = -16000").close()  # kB
        # SQLite opens a file that it may not write, too: so a write is tried, and taken back.
        for statement in ("BEGIN IMMEDIATE", f"PRAGMA user_version = {FORMAT}", "ROLLBACK"):
            database.execute(statement).close()
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    return database


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open the file for reading.

    :raises StateError: if the file is not ours, newer, or damaged. It is left as it is.
    """
    check(path)
    try:
        return _open(path, "ro")
    except sqlite3.Error as error:
        raise unusable(path, error) from error


def close_as_it_is(path: Path, database: sqlite3.Connection) -> None:
    """Close a connection and leave file and log as they are.

    The last connection that is closed brings the log into the file, unless it may only read.
    """
    with suppress(sqlite3.Error), closing(_open(path, "ro")) as reader:
        reader.execute("SELECT count(*) FROM meta").close()
        database.close()
    database.close()


def create(path: Path, fill: Callable[[Path], None]) -> None:
    """Make the file, whole or not at all.

    :param fill: is given the path at which the new file lies, to put in it what it starts with.
    :raises StateError: if the disk is full, say.
    :raises OSError: likewise.
    """
    beside = path.with_name(path.name + ".new")
    for leftover in (beside, *_logs(beside), *_logs(path)):
        leftover.unlink(missing_ok=True)
    try:
        database = sqlite3.connect(beside)
        try:
            database.executescript(_SCHEMA)
        finally:
            database.close()
        beside.chmod(0o600)
        fill(beside)
        sync_file(beside)
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    replace(beside, path)


def check(path: Path) -> None:
    """Look at the file without touching it.

    :raises StateError: if it cannot be used.
    """
    file = open_regular(path)
    if file is None:
        raise StateError(f"{path}: found no file, expected the requests of a crawl.")
    with file:
        header = file.read(_HEADER.size)
        size = file.seek(0, 2)
    _check_header(path, header)
    try:
        database = _open(path, "ro")
        try:
            if size <= _CHECKED_WHOLE:
                found = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if found != "ok":
                    raise damaged(path, found)
            database.execute("SELECT count(*) FROM meta").fetchone()
        finally:
            database.close()
    except sqlite3.Error as error:
        raise unusable(path, error) from error


def checkpoint(path: Path) -> bool:
    """Bring all commits from the log into the file and to the disk; return whether all are there.

    Works beside the crawl, in any thread: neither holds up the other.

    :raises sqlite3.Error: if the disk is full, say. Nothing is lost.
    """
    database = _open(path, "rw")
    try:
        database.execute("PRAGMA synchronous = NORMAL").close()
        database.execute("PRAGMA checkpoint_fullfsync = 1").close()
        busy, frames, done = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    finally:
        database.close()
    return not busy and frames == done


def damaged(path: Path, found: object) -> StateError:
    """Return the error that refuses a damaged file."""
    return StateError(
        f"{path}: found damage ({found}), expected an undamaged file of scrapy-bloom. It was left"
        f" as it is. Restore the job directory from a copy, or delete the whole job directory and"
        f" crawl again."
    )


def unusable(path: Path, error: sqlite3.Error) -> StateError:
    """Return the error that refuses a file that SQLite cannot use."""
    if is_damage(error):
        return damaged(path, error)
    return StateError(
        f"{path}: {error}. Expected a file that this user can read and write, and room on the disk."
        f" It was left as it is."
    )


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error says that the file is damaged."""
    if isinstance(error, DamageError):
        return True
    # The code is there from Python 3.11.
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in {11, 26}  # SQLITE_CORRUPT, SQLITE_NOTADB
    return "malformed" in str(error) or "not a database" in str(error)


def _check_header(path: Path, header: bytes) -> None:
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        found = "an empty file" if not header else f"a file that starts with {header[:16]!r}"
        raise StateError(f"{path}: found {found}, expected {_EXPECTED}. {_WAY_OUT}")
    check_numbers(path, *_HEADER.unpack(header))


def check_numbers(path: Path, version: int, application: int) -> None:
    """Look whether the file is ours, and not newer.

    :param version: the number of the format in its header.
    :param application: the number of the program there.
    :raises StateError: if it cannot be used.
    """
    if application != APPLICATION:
        raise StateError(f"{path}: found a database of others, expected {_EXPECTED}. {_WAY_OUT}")
    if version != FORMAT:
        raise StateError(
            f"{path}: found format version {version}, expected version {FORMAT}. It was left"
            f" as it is. Use the scrapy-bloom that wrote it, or a newer one."
        )


def _open(path: Path, mode: str) -> sqlite3.Connection:
    # The URI is what opens a file without creating it, and read only.
    uri = sqlite_uri(path.absolute(), f"mode={mode}")
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=1, check_same_thread=False)


def _logs(path: Path) -> list[Path]:
    """Return the files that SQLite keeps beside a database."""
    return [path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal")]
