"""`scrapy bloom`, each verb by each fault: one line that says why, and nothing is changed."""

import sqlite3
import subprocess
import sys

import pytest
from support.contract import fingerprints
from support.filters import contents, everything_in, hexadecimal, seen
from support.jobs import kept_job, open_job, stored_job
from support.processes import environment
from support.waiting import PATIENCE
from testbed.localredis import keys

from scrapy_bloom import RedisFilter

URL = "http://example.com/"
BLOOM = (sys.executable, "-m", "scrapy", "bloom")

LOOKING = [
    "info {}",
    "top {}",
    f"why {{}} {URL}",
    "queue {}",
]
ADD, FORGET = f"add {{}} {URL} --spider books", f"forget {{}} {URL}"
CHANGING = [ADD, FORGET, "delete {} --yes"]
MAKING = ("add",)
"""Verbs that make a target where there is none."""


@pytest.fixture
def work_dir(tmp_path, monkeypatch):
    """An empty working directory, but for what is read."""
    monkeypatch.chdir(tmp_path)
    stored_job(tmp_path / "whole", fingerprints(50))
    return tmp_path


# What is there is nothing, none of ours, or cannot be read


def kept(work_dir, statement=None):
    folder = kept_job(work_dir / "kept", known=fingerprints(9), urls=[URL])
    if statement:
        in_database(folder / "bloom.sqlite", statement)


def in_database(path, statement):
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()


def filled(server, key, **fields):
    """Make a filter in Redis, and set fields of its header."""
    with RedisFilter.from_url(server.url, key=key) as filter_:
        filter_.add_many(fingerprints(90))
    if fields:
        server.client().hset(key, mapping=fields)


LOCAL = {
    "nowhere": lambda _: None,
    "text.bloom": lambda work_dir: (work_dir / "text.bloom").write_text("nothing of ours\n"),
    "empty.bloom": lambda work_dir: (work_dir / "empty.bloom").touch(),
    "theirs.bloom": lambda work_dir: in_database(work_dir / "theirs.bloom", "CREATE TABLE a (b)"),
    "cut.bloom": lambda work_dir: (work_dir / "cut.bloom").write_bytes(
        (work_dir / "whole" / "bloom.sqlite").read_bytes()[:9000]
    ),
    "kept": lambda work_dir: kept(work_dir, "PRAGMA user_version = 99"),  # is newer
}
SHARED = {
    "nothing": lambda *_: None,
    "text": lambda server, key: server.client().set(key, "x"),
    "newer": lambda server, key: filled(server, key, format=9),
    "damaged": lambda server, key: filled(server, key, slices="0:0:0"),
}


@pytest.mark.parametrize("fault", [*LOCAL, *SHARED])
def test_a_missing_or_unreadable_target_is_refused_by_every_verb(bloom, work_dir, server, fault):
    target = named = fault
    key = next(keys)
    if fault in LOCAL:
        LOCAL[fault](work_dir)
    else:
        target, named = f"{server.url}#{key}", key
        SHARED[fault](server, key)
    nothing = fault in ("nowhere", "nothing")
    before = contents(work_dir), everything_in(server, key)
    for line in (*LOOKING, *CHANGING):
        if nothing and line.startswith(MAKING):
            continue
        code, lines, errors = bloom(line.format(target, server=server.url))
        assert (code, lines, len(errors)) == (2, [], 1), (line, lines, errors)
        assert "found" in errors[0], (line, errors)
        assert ("found no" in errors[0]) is nothing, (line, errors)
        assert named in errors[0], (line, errors)
        assert (contents(work_dir), everything_in(server, key)) == before, line


@pytest.mark.usefixtures("work_dir")
def test_a_filter_whose_key_begins_with_another_is_not_deleted_with_it(bloom, server):
    key = next(keys)
    for number in (1, 2):
        filled(server, f"{key}:{number}")
    server.client().set(f"{key}:3", "not ours")
    before = everything_in(server)
    assert bloom(f"delete {server.url}#{key} --yes")[0] == 2
    filled(server, key)
    assert bloom(f"delete {server.url}#{key} --yes")[0] == 0
    left = everything_in(server)
    assert left.pop(key.encode())[b"program"] == b"scrapy-bloom"  # the note
    assert left == before


# Whoever asks may not, or there is no room, or the other side goes away


@pytest.mark.parametrize("line", ["add whole -", "add new - --spider books"])
def test_a_full_disk_leaves_what_was_there(bloom, work_dir, line):
    before = contents(work_dir)
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; ulimit -f 80; exec {' '.join(BLOOM)} {line}"],
        cwd=work_dir,
        env=environment(),
        input=hexadecimal(fingerprints(20_000, "b")).decode(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    left = contents(work_dir)
    left = {path: data for path, data in left.items() if data or path in before}
    left = {path: data for path, data in left.items() if "-" not in path.name}
    assert left == before  # beside a file there may be a log without a commit
    assert seen(bloom, "whole", [*fingerprints(50), *fingerprints(50, "b")]) == (
        [True] * 50 + [False] * 50
    )


# Jobs


def test_a_mark_by_hand_does_not_make_a_killed_run_a_clean_one(bloom, work_dir):
    kept(work_dir)
    for folder, requests in (("whole", False), ("kept", True)):
        open_job(work_dir / folder, requests=requests).abandon()
        assert bloom(f"add {folder} {URL}x")[0] == 0
        told = "\n".join(bloom(f"info {folder}")[1])
        assert "stopped cleanly" not in told
        assert bloom(f"why {folder} {URL}x")[0] == 0
