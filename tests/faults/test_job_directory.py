"""What is done to a job directory under a crawl, or between two: links, moves, a second writer."""

import errno
import fcntl
import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from queuelib.queue import LifoDiskQueue
from scrapy import Request
from scrapy.exceptions import CloseSpider
from scrapy.utils.test import get_crawler
from support.crawling import messages
from support.filters import contents
from support.jobs import NAME, SPIDER, kept_job, open_job, stored, stored_job
from support.waiting import until
from testbed.localsite import LocalSite

from scrapy_bloom import BloomDupeFilter, LocalFilter
from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.project import Project
from scrapy_bloom.errors import JobInUseError, StateError
from scrapy_bloom.file import FORMAT
from scrapy_bloom.local.job import set_aside_if_unclean

MARKS = [bytes([n]) * 20 for n in range(10)]


def write(job, mark):
    """Let a crawl mark a page and store a request, in one commit."""
    store = job.store
    store.filter.add(mark)
    store.push(store.queue("0", None), stored(Request("http://example.com/more")))
    store.commit()


def test_a_job_with_a_link_to_its_file_is_locked_by_both_names_and_resumes(job, tmp_path):
    larger, killed = tmp_path / "larger", tmp_path / "killed"
    larger.mkdir()
    kept_job(job, known=MARKS[:1], urls=[f"http://example.com/{n}" for n in range(3)])
    shutil.move(job / NAME, larger / NAME)
    (job / NAME).symlink_to(larger / NAME)
    run = open_job(job, requests=True)
    for folder in (job, larger):
        with pytest.raises(JobInUseError):
            open_job(folder, requests=True)
    write(run, MARKS[1])
    shutil.copytree(larger, killed, ignore=shutil.ignore_patterns("*-shm"))
    run.abandon()
    (job / NAME).unlink()
    (job / NAME).symlink_to(os.path.relpath(killed / NAME, job))
    assert LocalTarget(job, Project({})).info()["account"]["waiting"] == 4
    assert LocalFilter.load(job / NAME).contains_many(MARKS[:3]) == [True, True, False]
    run = open_job(job, requests=True)
    assert (run.killed, run.restored, len(run.store)) == (True, 2, 4)
    assert run.close()
    assert (job / NAME).is_symlink()
    assert {path.name for path in killed.iterdir()} == {NAME, "bloom.lock"}


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
@pytest.mark.parametrize("requests", [False, True])
def test_a_job_of_another_format_is_refused_by_its_number(job, requests, number):
    path = kept_job(job, requests=requests) / NAME
    header = path.read_bytes()[:100]  # nothing else can be read
    path.write_bytes(header[:60] + number.to_bytes(4, "big") + header[64:] + bytes(9_000))
    before = contents(job)
    aside = partial(set_aside_if_unclean, spider=SPIDER)
    for use in open_job, partial(open_job, requests=True), aside:
        with pytest.raises(StateError, match=f"found format {number}, expected format {FORMAT}"):
            use(job)
        assert contents(job) == before


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


@pytest.mark.parametrize("kind", ["moved", "deleted", "replaced"])
def test_a_job_directory_that_goes_away_is_noticed(job, tmp_path, kind):
    run, other, found = open_job(job, requests=True), tmp_path / "other", "no file"
    write(run, MARKS[0])
    job.rename(other)
    if kind == "deleted":
        shutil.rmtree(other)
    elif kind == "replaced":
        kept_job(job)
        found = "another file"
    with pytest.raises(StateError, match=f"{job / NAME}: found {found}, expected the one"):
        write(run, MARKS[1])
    assert not run.close()
    if kind == "moved":
        run = open_job(other, requests=True)
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


# Under Scrapy's scheduler: what is moved away after a kill, and what is never touched

KNOWN = [bytes([n]) * 20 for n in range(50)]


def assert_restored(folder, count):
    run = open_job(folder)
    assert run.restored == count
    run.abandon()


@pytest.fixture
def beside(tmp_path):
    """A job of ours that has stopped cleanly with requests that wait."""
    folder = tmp_path / "job"
    (folder / "requests.queue").mkdir(parents=True)
    queue = LifoDiskQueue(folder / "requests.queue" / "0")
    for number in range(10):
        queue.push(b"request %d" % number)
    queue.close()
    (folder / "requests.queue" / "active.json").write_text("[0]")
    (folder / "spider.state").write_bytes(b"state")
    (folder / "requests.seen").write_bytes(b"seen")
    stored_job(folder, KNOWN)
    return folder


def dupefilter_of(beside):
    """Return the filter of a crawl whose spider is still to be opened."""
    crawler = get_crawler(settings_dict={"JOBDIR": str(beside)})
    crawler.spidercls.name = SPIDER
    return BloomDupeFilter.from_crawler(crawler)


def kill(folder):
    open_job(folder).abandon()


def take_the_queue_away(folder):
    shutil.rmtree(folder / "requests.queue")


def use_the_queue_without_us(folder):
    queue = LifoDiskQueue(folder / "requests.queue" / "0")
    queue.pop()
    queue.close()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (kill, "the last run (process "),
        (take_the_queue_away, "requests.queue is not as the last run with this filter left it"),
        (use_the_queue_without_us, "requests.queue is not as the last run"),
    ],
)
def test_a_job_whose_requests_may_be_lost_is_put_aside_as_a_whole(beside, harm, words, caplog):
    harm(beside)
    before, aside = contents(beside), beside / "unclean" / "1"
    assert set_aside_if_unclean(beside, SPIDER)
    assert contents(aside) == before
    assert {path.name for path in beside.iterdir()} == {"unclean", "bloom.lock"}
    [record] = caplog.records
    assert record.levelname == "WARNING"
    said = "the crawl starts over: no page is lost", f"{aside}", "scrapy_bloom.Scheduler"
    assert all(text in record.message for text in (words, *said))
    assert not set_aside_if_unclean(beside, SPIDER)
    assert_restored(beside, 0)


@pytest.mark.parametrize("moved", [1, 3])
def test_a_move_that_was_interrupted_is_completed_by_the_next_run(beside, monkeypatch, moved):
    kill(beside)
    before, rename, left = contents(beside), Path.rename, [*range(moved)]

    def interrupted(path, to):
        left.pop()
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(StateError):
            set_aside_if_unclean(beside, SPIDER)
    assert set_aside_if_unclean(beside, SPIDER)
    assert contents(beside / "unclean" / "1") | contents(beside / "unclean" / "2") == before
    assert_restored(beside, 0)


def copy_without_times(folder):
    shutil.copytree(folder, folder.parent / "copy", copy_function=shutil.copyfile)
    shutil.rmtree(folder)
    (folder.parent / "copy").rename(folder)


def leave_what_is_scrapys(folder):
    for name in ("bloom.sqlite", "bloom.lock"):
        (folder / name).unlink()
    (folder / "requests.queue" / "active.json").unlink()  # a kill in the first run


@pytest.mark.parametrize(
    ("harm", "spider", "known"),
    [
        *((lambda _: None, SPIDER, len(KNOWN)), (copy_without_times, SPIDER, len(KNOWN))),
        *((leave_what_is_scrapys, SPIDER, 0), (kill, "another", None)),
    ],
)
def test_what_stopped_cleanly_or_is_not_ours_is_not_touched(beside, harm, spider, known):
    harm(beside)
    before = contents(beside)
    assert not set_aside_if_unclean(beside, spider)
    assert contents(beside) == before
    assert known != 0 or not (beside / "bloom.lock").exists()
    if known is not None:
        assert_restored(beside, known)


def damage(folder):
    (folder / "bloom.sqlite").write_bytes(b"damaged")


def have_no_room_for_it(folder):
    (folder / "unclean").write_bytes(b"")


@pytest.mark.parametrize(
    ("harm", "said"),
    [(damage, "expected a file of scrapy-bloom"), (have_no_room_for_it, "unclean")],
)
def test_what_is_damaged_or_cannot_be_moved_away_refuses_the_crawl(beside, harm, said):
    kill(beside)
    harm(beside)
    before = contents(beside)
    with pytest.raises(StateError, match=said):
        set_aside_if_unclean(beside, SPIDER)
    dupefilter = dupefilter_of(beside)
    with pytest.raises(CloseSpider):
        dupefilter.open()
    assert contents(beside) == before


def test_a_job_that_runs_is_not_touched_and_a_crawl_that_came_then_does_not_start(beside):
    """Scrapy has opened the queue by then, and does not know what the other one did to it."""
    run = open_job(beside)
    before = contents(beside)
    with pytest.raises(JobInUseError):
        set_aside_if_unclean(beside, SPIDER)
    dupefilter = dupefilter_of(beside)
    assert contents(beside) == before
    assert run.close()
    before = contents(beside)
    with pytest.raises(CloseSpider):
        dupefilter.open()
    assert contents(beside) == before


def test_a_job_directory_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "job").write_bytes(b"a file")
    with pytest.raises(StateError, match=f"{tmp_path / 'job'}"):
        open_job(tmp_path / "job")
    assert (tmp_path / "job").read_bytes() == b"a file"
