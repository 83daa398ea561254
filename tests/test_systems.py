"""What differs on macOS and Windows, simulated where these tests run."""

import errno
import os
import sqlite3
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace

import pytest

from scrapy_bloom import StateError
from scrapy_bloom.frontier import file
from scrapy_bloom.storage import files
from scrapy_bloom.storage.snapshot import Identity
from scrapy_bloom.storage.store import JobStore


def write(path, text):
    files.write_whole(path, [text])


@pytest.fixture
def windows(monkeypatch):
    """Windows: links are not told, folders not opened, open files keep their names."""
    opened = os.open

    def open_(path, flags, mode=0o777, **options):
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, mode, **options)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(files, "_NO_FOLLOW", 0)
    monkeypatch.setattr(files, "_NO_WAIT", 0)
    monkeypatch.setattr(files, "_OPEN_FILES_STAY", True)


class Held:
    """Names of files that a reader has open: nobody can give them to others, until it lets go."""

    def __init__(self, monkeypatch, name):
        self.tries = 0
        self.held = {name}
        for what in ("replace", "unlink"):
            monkeypatch.setattr(Path, what, self.refusing(getattr(Path, what)))

    def refusing(self, change):
        def try_(path, *arguments, **options):
            target = Path(arguments[0]) if arguments else path
            if target.name in self.held:
                self.tries += 1
                raise PermissionError(errno.EACCES, "in use", str(target))
            return change(path, *arguments, **options)

        return try_


@pytest.fixture
def held(monkeypatch):
    return Held(monkeypatch, "state")


@pytest.mark.usefixtures("windows")
def test_a_file_that_somebody_reads_is_replaced_when_it_is_let_go(tmp_path, held, monkeypatch):
    path = tmp_path / "state"
    held.held.clear()
    write(path, b"old")
    held.held.add("state")
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            held.held.clear()

    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=wait))
    write(path, b"new")
    assert path.read_bytes() == b"new"
    assert held.tries == len(waits) == 3
    held.held.add("state")
    del waits[:]
    files.remove(path)
    assert not path.exists()
    assert len(waits) == 3


@pytest.mark.usefixtures("windows")
def test_a_file_that_stays_open_is_an_error_and_nothing_is_left_beside_it(
    tmp_path, held, monkeypatch
):
    path = tmp_path / "state"
    held.held.clear()
    write(path, b"old")
    held.held.add("state")
    clock = iter(range(1000))
    monkeypatch.setattr(
        files, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None)
    )
    with pytest.raises(PermissionError):
        write(path, b"new")
    assert held.tries == 2  # within two seconds of a clock that shows another one each time
    held.held.clear()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_elsewhere_nobody_is_waited_for(tmp_path, held, monkeypatch):
    monkeypatch.setattr(files, "_OPEN_FILES_STAY", False)
    with pytest.raises(PermissionError):
        write(tmp_path / "state", b"new")
    assert held.tries == 1


@pytest.mark.usefixtures("windows")
def test_a_job_is_stored_where_folders_cannot_be_opened(tmp_path):
    identity = Identity("spider", "fingerprinter", {})
    for known in (0, 1):
        store = JobStore(tmp_path / "job", identity)
        assert (b"a" * 20 in store.filter) is bool(known)
        store.filter.add(b"a" * 20)
        store.close()


@pytest.mark.usefixtures("windows")
def test_what_is_no_file_is_told_by_its_kind(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "elsewhere")
    with pytest.raises(StateError, match="found a folder, expected a regular file"):
        files.open_regular(tmp_path / "folder")
    with pytest.raises(StateError, match="found a symbolic link, expected a regular file"):
        files.open_regular(tmp_path / "link")
    assert files.open_regular(tmp_path / "nothing") is None


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders_is_no_error(tmp_path, monkeypatch, number):
    def sync(_):
        raise OSError(number, "cannot")

    monkeypatch.setattr(files, "sync", sync)
    files.sync_folder(tmp_path)


def test_a_disk_that_fails_is_an_error(tmp_path, monkeypatch):
    def sync(_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(files, "sync", sync)
    with pytest.raises(OSError, match="broken"):
        files.sync_folder(tmp_path)


@pytest.mark.parametrize("works", [True, False])
def test_macos_brings_files_to_the_disk_itself(tmp_path, monkeypatch, works):
    asked = []

    def fcntl(_, command):
        asked.append(command)
        if not works:
            raise OSError(errno.ENOTSUP, "cannot")

    monkeypatch.setattr(files, "_FULL_SYNC", 51)
    monkeypatch.setattr(files, "_fcntl", SimpleNamespace(fcntl=fcntl))
    monkeypatch.setattr(os, "fsync", lambda _: asked.append("fsync"))
    write(tmp_path / "state", b"new")
    each = [51] if works else [51, "fsync"]
    assert asked == [*each, *each]  # the file, and the folder


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        (
            PurePosixPath("/job/a b?c#d%e/x.sqlite"),
            "file:///job/a%20b%3Fc%23d%25e/x.sqlite?mode=ro",
        ),
        (PurePosixPath("/job/\udce9"), "file:///job/%E9?mode=ro"),
        (PureWindowsPath(r"C:\my job\x.sqlite"), "file:///C:/my%20job/x.sqlite?mode=ro"),
        (PureWindowsPath(r"\\host\share\x.sqlite"), "file:////host/share/x.sqlite?mode=ro"),
    ],
)
def test_a_path_becomes_a_uri(path, uri):
    assert files.sqlite_uri(path, "mode=ro") == uri


def test_sqlite_opens_strange_paths_by_their_uri(tmp_path):
    path = tmp_path / "a b?c#d%20é" / "requests.sqlite"
    path.parent.mkdir()
    file.create(path, lambda _: None)
    file.check(path)
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(files.sqlite_uri(tmp_path / "none", "mode=ro"), uri=True)


def test_a_commit_for_the_machine_asks_macos_for_the_disk_itself(tmp_path):
    path = tmp_path / "requests.sqlite"
    file.create(path, lambda _: None)
    for every_commit in (True, False):
        database = file.connect(path, every_commit=every_commit)
        assert database.execute("PRAGMA fullfsync").fetchone() == (int(every_commit),)
        database.close()
