"""What is moved away after a kill under Scrapy's scheduler, and what is never touched."""

import shutil
from pathlib import Path

import pytest
from queuelib.queue import LifoDiskQueue
from scrapy.exceptions import CloseSpider
from scrapy.utils.test import get_crawler
from support.filters import contents
from support.jobs import SPIDER, lifo, open_job, stored_job

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.errors import JobInUseError, StateError
from scrapy_bloom.local.job import set_aside_if_unclean

KNOWN = [bytes([n]) * 20 for n in range(50)]


def assert_restored(folder, count):
    job = open_job(folder)
    assert job.restored == count
    job.abandon()


@pytest.fixture
def job(tmp_path):
    """A job of ours that has stopped cleanly with requests that wait."""
    folder = tmp_path / "job"
    lifo(folder / "requests.queue" / "0")
    (folder / "requests.queue" / "active.json").write_text("[0]")
    (folder / "spider.state").write_bytes(b"state")
    (folder / "requests.seen").write_bytes(b"seen")
    stored_job(folder, KNOWN)
    return folder


def dupefilter_of(job):
    """Return the filter of a crawl whose spider is still to be opened."""
    crawler = get_crawler(settings_dict={"JOBDIR": str(job)})
    crawler.spidercls.name = SPIDER
    return BloomDupeFilter.from_crawler(crawler)


# Clean stops


@pytest.mark.parametrize("copied", [False, True])
def test_a_clean_stop_is_left_alone(job, tmp_path, copied):
    if copied:  # without its times
        shutil.copytree(job, tmp_path / "copy", copy_function=shutil.copyfile)
        job = tmp_path / "copy"
    before = contents(job)
    assert not set_aside_if_unclean(job, SPIDER)
    assert contents(job) == before
    assert_restored(job, len(KNOWN))


# Kills, and queues that are not as they were


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
def test_a_job_whose_requests_may_be_lost_is_put_aside_as_a_whole(job, harm, words, caplog):
    harm(job)
    before = contents(job)
    assert set_aside_if_unclean(job, SPIDER)
    assert contents(job / "unclean" / "1") == before
    assert {path.name for path in job.iterdir()} == {"unclean", "bloom.lock"}
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert words in record.message
    assert "the crawl starts over: no page is lost" in record.message
    assert f"{job / 'unclean' / '1'}" in record.message
    assert "scrapy_bloom.Scheduler" in record.message
    assert not set_aside_if_unclean(job, SPIDER)
    assert_restored(job, 0)


@pytest.mark.parametrize("moved", [1, 3])
def test_a_move_that_was_interrupted_is_completed_by_the_next_run(job, monkeypatch, moved):
    kill(job)
    before, rename, left = contents(job), Path.rename, [*range(moved)]

    def interrupted(path, to):
        left.pop()
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(StateError):
            set_aside_if_unclean(job, SPIDER)
    assert set_aside_if_unclean(job, SPIDER)
    assert contents(job / "unclean" / "1") | contents(job / "unclean" / "2") == before
    assert_restored(job, 0)


def test_a_job_that_cannot_be_moved_away_refuses_the_crawl(job):
    kill(job)
    (job / "unclean").write_bytes(b"")
    before = contents(job)
    dupefilter = dupefilter_of(job)
    assert contents(job) == before
    with pytest.raises(CloseSpider):
        dupefilter.open()
    assert contents(job) == before


# What is not touched


def test_a_job_of_scrapys_alone_is_not_touched(job):
    for name in ("bloom.sqlite", "bloom.lock"):
        (job / name).unlink()
    (job / "requests.queue" / "active.json").unlink()  # a kill in the first run
    before = contents(job)
    assert not set_aside_if_unclean(job, SPIDER)
    assert contents(job) == before
    assert not (job / "bloom.lock").exists()
    assert_restored(job, 0)


def test_a_job_that_runs_is_not_touched_and_a_crawl_that_came_then_does_not_start(job):
    """Scrapy has opened the queue by then, and does not know what the other one did to it."""
    run = open_job(job)
    before = contents(job)
    with pytest.raises(JobInUseError):
        set_aside_if_unclean(job, SPIDER)
    assert contents(job) == before
    dupefilter = dupefilter_of(job)
    assert run.close()
    before = contents(job)
    with pytest.raises(CloseSpider):
        dupefilter.open()
    assert contents(job) == before


def test_the_job_of_another_spider_is_not_touched(job):
    kill(job)
    before = contents(job)
    assert not set_aside_if_unclean(job, "another")
    assert contents(job) == before


def test_a_damaged_filter_is_not_touched(job):
    kill(job)
    (job / "bloom.sqlite").write_bytes(b"damaged")
    before = contents(job)
    with pytest.raises(StateError, match="expected a file of scrapy-bloom"):
        set_aside_if_unclean(job, SPIDER)
    assert contents(job) == before


def test_a_job_directory_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "job").write_bytes(b"a file")
    with pytest.raises(StateError, match=f"{tmp_path / 'job'}"):
        open_job(tmp_path / "job")
    assert (tmp_path / "job").read_bytes() == b"a file"
