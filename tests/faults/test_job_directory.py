"""What is done to a job directory under a crawl, or between two: links, moves, a second writer."""

import errno
import fcntl
import os
import shutil
from contextlib import suppress

import pytest
from scrapy import Request
from support.crawling import messages
from support.jobs import NAME, kept_job, open_job, stored
from support.waiting import until
from testbed.localsite import LocalSite

from scrapy_bloom import LocalFilter
from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.project import Project
from scrapy_bloom.errors import JobInUseError, StateError

MARKS = [bytes([n]) * 20 for n in range(10)]
URLS = [f"http://example.com/{n}" for n in range(3)]


def write(job, mark):
    """Let a crawl mark a page and store a request, in one commit."""
    store = job.store
    store.filter.add(mark)
    store.push(store.queue("0", None), stored(Request("http://example.com/more")))
    store.commit()


# A link in place of the file


@pytest.fixture
def linked(tmp_path):
    """A job whose file is on a larger disk, and a link to it in its place."""
    folder = kept_job(tmp_path / "job", known=MARKS[:1], urls=URLS)
    (tmp_path / "larger").mkdir()
    shutil.move(folder / NAME, tmp_path / "larger" / NAME)
    (folder / NAME).symlink_to(tmp_path / "larger" / NAME)
    return folder


def test_a_job_with_a_link_to_its_file_resumes_after_a_kill(linked, tmp_path):
    run = open_job(linked, requests=True)
    write(run, MARKS[1])
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "larger", killed, ignore=shutil.ignore_patterns("*-shm"))
    run.abandon()
    (linked / NAME).unlink()
    (linked / NAME).symlink_to(os.path.relpath(killed / NAME, linked))
    assert LocalTarget(linked, Project({})).info()["account"]["waiting"] == 4
    assert LocalFilter.load(linked / NAME).contains_many(MARKS[:3]) == [True, True, False]
    run = open_job(linked, requests=True)
    assert (run.killed, run.restored, len(run.store)) == (True, 2, 4)
    assert run.close()
    assert (linked / NAME).is_symlink()
    assert {path.name for path in killed.iterdir()} == {NAME, "bloom.lock"}


def test_a_job_is_locked_whether_it_is_opened_by_its_link_or_not(linked, tmp_path):
    run = open_job(linked, requests=True)
    for folder in (linked, tmp_path / "larger"):
        with pytest.raises(JobInUseError):
            open_job(folder, requests=True)
    run.abandon()


# Another process


def test_of_two_that_write_the_first_to_see_the_other_ends(job, caplog):
    """Somebody has deleted the lock, or it locks nothing there."""
    first = open_job(job, requests=True)
    write(first, MARKS[0])
    (job / "bloom.lock").unlink()
    second = open_job(job, requests=True)
    with pytest.raises(JobInUseError, match="found 3 commits, expected 2: another process"):
        write(first, MARKS[1])
    assert not first.close()
    assert "another process writes to it as well" in messages(caplog)[-1]
    write(second, MARKS[2])
    assert second.close()
    last = open_job(job, requests=True)
    assert [mark in last.store.filter for mark in MARKS[:3]] == [True, False, True]
    assert (last.killed, len(last.store)) == (False, 2)
    assert last.close()


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_second_crawl_is_refused_where_the_file_system_does_not_lock(job, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    run = open_job(job, requests=True)
    with pytest.raises(JobInUseError):
        open_job(job, requests=True)
    assert run.close()
    assert open_job(job, requests=True).close()


# The directory


@pytest.mark.parametrize("kind", ["moved", "deleted", "replaced"])
def test_a_job_directory_that_goes_away_is_noticed(job, tmp_path, kind):
    run, found = open_job(job, requests=True), "no file"
    write(run, MARKS[0])
    job.rename(tmp_path / "other")
    if kind == "deleted":
        shutil.rmtree(tmp_path / "other")
    elif kind == "replaced":
        kept_job(job)
        found = "another file"
    with pytest.raises(StateError, match=f"{job / NAME}: found {found}, expected the one"):
        write(run, MARKS[1])
    assert not run.close()
    if kind == "moved":
        run = open_job(tmp_path / "other", requests=True)
        assert (run.restored, len(run.store)) == (1, 1)
        assert run.close()


def move(job):
    job.rename(job.parent / "elsewhere")


def write_beside(job):
    def opened():
        with suppress(JobInUseError):  # if the crawl has committed meanwhile
            return open_job(job, spider="follower", requests=True)

    (job / "bloom.lock").unlink()
    until(opened).abandon()


@pytest.mark.server
@pytest.mark.parametrize(
    ("harm", "reason", "said"),
    [
        (move, "bloom_bad_state", "found no file, expected the one that this crawl has opened"),
        (write_beside, "bloom_job_in_use", "another process writes to it as well"),
    ],
)
def test_a_crawl_that_can_store_nothing_more_says_so_and_ends(project, harm, reason, said):
    with LocalSite(pages=400, links=6) as site:
        run = project.crawl(site, SCHEDULER="scrapy_bloom.Scheduler", LOG_LEVEL="INFO")
        site.when(40, lambda: harm(project.job))
        assert run.end() == 1
    assert run.reason == reason
    assert said in run.log
    assert "requests waiting, " not in run.log
    assert "Traceback" not in run.log
    assert run.stat("bloom/not_stored") == 1
