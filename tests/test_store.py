"""One job directory: one crawl at a time, clean stops, kills, and what is said about them."""

import os
import threading
from dataclasses import replace

import pytest
from support.contract import fingerprints
from support.jobs import IDENTITY, abandon, everything_in, open_job, stored_job
from support.processes import run_line, run_program

from scrapy_bloom.errors import JobInUseError, StateError

KNOWN = fingerprints(500)


def test_a_first_run_starts_empty_and_says_nothing(tmp_path, caplog):
    job = open_job(tmp_path / "not" / "there")
    assert (job.restored, job.restored_from) == (0, "")
    assert not caplog.records


def test_a_clean_stop_leaves_a_snapshot_and_no_marker(tmp_path, caplog):
    stored_job(tmp_path, KNOWN)
    assert set(everything_in(tmp_path)) == {"requests.bloom"}
    job = open_job(tmp_path)
    assert (job.restored, job.restored_from) == (500, "requests.bloom")
    assert not caplog.records


def test_nothing_is_written_of_marks_while_a_run_is_on(tmp_path):
    path = stored_job(tmp_path, KNOWN)
    before = path.read_bytes()
    job = open_job(tmp_path)
    job.filter.add_many(fingerprints(5000, "more"))
    assert path.read_bytes() == before
    assert set(everything_in(tmp_path)) == {"requests.bloom", "requests.bloom.running"}


@pytest.mark.parametrize("known", [[], KNOWN])
def test_after_a_kill_it_does_not_open_where_nothing_was_put_aside(tmp_path, known):
    if known:
        stored_job(tmp_path, known)
    abandon(open_job(tmp_path))
    before = everything_in(tmp_path)
    for _ in range(2):
        with pytest.raises(StateError, match=rf"{os.getpid()} on .* was killed, and Scrapy"):
            open_job(tmp_path)
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{}",
        b"\xff\xff",
        b'{"pid": 1',
        b"[1, 2]",
        b"[" * 100_000,
        bytes(4_000_000),
        b'{"pid": 1, "host": "", "generation": "x"}',
        b'{"pid": 1, "host": "", "generation": null}',
        b'{"pid": 1, "host": "", "generation": 1e999}',
        b'{"pid": null, "host": "", "generation": 0}',
        b'{"pid": 1, "host": "", "generation": 0, "run": "x"}',
    ],
)
def test_a_damaged_marker_is_a_marker(tmp_path, damage):
    stored_job(tmp_path, KNOWN)
    (tmp_path / "requests.bloom.running").write_bytes(damage)
    with pytest.raises(StateError, match="the last run was killed"):
        open_job(tmp_path)


def test_new_sizes_between_runs_are_no_mismatch(tmp_path):
    stored_job(tmp_path, fingerprints(1500), capacity=1000, error_rate=1e-6)
    job = open_job(tmp_path, capacity=50_000, error_rate=1e-4)
    assert (job.restored, job.filter.info().slices) == (1500, 2)
    old = job.filter.state().slices
    job.filter.add_many(fingerprints(1000, "more"))
    grown = job.filter.state().slices
    assert [part.spec for part in grown[:2]] == [part.spec for part in old]
    assert grown[2].spec.capacity == 50_000
    assert all(job.filter.contains_many(fingerprints(1500)))
    job.close()
    assert open_job(tmp_path, capacity=10).filter.info().slices == 3


def test_a_second_crawl_is_refused_and_told_the_holders_pid(tmp_path):
    job = open_job(tmp_path)
    line = "import sys, pathlib; from support.jobs import *; open_job(pathlib.Path(sys.argv[1]))"
    said = run_line(line, tmp_path).stderr
    assert f"JobInUseError: {tmp_path}: process {os.getpid()} on " in said
    assert "another JOBDIR" in said
    job.close()
    open_job(tmp_path).close()


def test_a_second_spider_of_a_process_is_told_of_the_first_one(tmp_path):
    job = open_job(tmp_path)
    other_way = tmp_path / "." / ".." / tmp_path.name
    with pytest.raises(JobInUseError) as error:
        open_job(other_way, replace(IDENTITY, spider="authors"))
    assert str(error.value) == (
        f"{other_way}: spider 'books' of this process is using this job directory. Only one crawl"
        f" at a time can use it. Give each spider its own JOBDIR."
    )
    job.close()
    open_job(tmp_path).close()


def test_a_crawl_in_another_process_is_refused(tmp_path):
    code = (
        "import sys; from pathlib import Path; from support.jobs import open_job;"
        "open_job(Path(sys.argv[1]))"
    )
    job = open_job(tmp_path)
    result = run_line(code, tmp_path)
    assert "JobInUseError" in result.stderr
    assert f"process {os.getpid()}" in result.stderr
    job.filter.add_many(KNOWN)
    job.close()
    assert open_job(tmp_path).restored == 500


def test_closing_in_another_thread_gives_the_lock_back(tmp_path):
    job = open_job(tmp_path)
    thread = threading.Thread(target=job.close)
    thread.start()
    thread.join()
    open_job(tmp_path).close()


def test_a_fork_stores_nothing_and_takes_nothing_away(tmp_path):
    result = run_program("fork_with_a_job", tmp_path)
    assert result.stdout.split("\n")[:2] == ["still ours", "stored"], result.stderr
    assert "this process is a fork of that one" in result.stderr


def test_a_job_that_was_refused_is_free_again(tmp_path):
    path = stored_job(tmp_path, KNOWN)
    good = path.read_bytes()
    path.write_bytes(b"damaged")
    with pytest.raises(StateError):
        open_job(tmp_path)
    path.write_bytes(good)
    assert open_job(tmp_path).restored == 500


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "job").write_bytes(b"")
    with pytest.raises(StateError, match="job"):
        open_job(tmp_path / "job")


def test_marks_of_any_fingerprints_stay_apart_from_digests(tmp_path):
    stored_job(tmp_path, [b"one"], digests=False)
    assert open_job(tmp_path, digests=True).filter.state().digests is False


def test_growth_is_told_for_a_restored_filter_too(tmp_path):
    stored_job(tmp_path, KNOWN, capacity=500)
    told = []
    open_job(tmp_path, on_growth=told.append).filter.add_many(fingerprints(10, "more"))
    assert told == [500]
