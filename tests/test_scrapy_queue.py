"""Scrapy's queue beside the filter: what is removed after a kill, and what never is."""

import pytest
from support.jobs import abandon, everything_in, open_job, stored_job

from scrapy_bloom.options import OnUnclean

KNOWN = [bytes([n]) * 20 for n in range(50)]


def make_queue(folder, saved=None):
    """Make what a run leaves: requests of two priorities, the later ones cut off by a kill."""
    slot = folder / "requests.queue" / "example.com-1"
    slot.mkdir(parents=True)
    (slot / "0").write_bytes(bytes(100))
    (slot / "-2").touch()
    if saved is not None:
        (folder / "requests.queue" / "active.json").write_text(saved)
    return folder / "requests.queue"


@pytest.mark.parametrize("saved", [None, "{}", "[]"])
def test_a_queue_that_scrapy_will_not_read_goes_after_a_kill_in_a_first_run(tmp_path, saved):
    abandon(open_job(tmp_path))
    queue = make_queue(tmp_path, saved)
    open_job(tmp_path).close()
    assert [path.name for path in queue.iterdir()] == ([] if saved is None else ["active.json"])


@pytest.mark.parametrize("saved", ['{"example.com": [0]}', "[0]", "{dam"])
def test_a_queue_that_scrapy_will_read_stays(tmp_path, saved):
    abandon(open_job(tmp_path))
    queue = make_queue(tmp_path, saved)
    before = everything_in(queue / "example.com-1")
    open_job(tmp_path).close()
    assert everything_in(queue / "example.com-1") == before


def test_a_queue_stays_when_the_filter_knows_something(tmp_path):
    stored_job(tmp_path, KNOWN)
    abandon(open_job(tmp_path))
    queue = make_queue(tmp_path)
    open_job(tmp_path).close()
    assert (queue / "example.com-1" / "0").exists()


def test_a_queue_stays_when_nothing_was_killed(tmp_path):
    queue = make_queue(tmp_path)
    open_job(tmp_path).close()
    assert (queue / "example.com-1" / "0").exists()


def test_a_link_in_the_queue_is_removed_and_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    job = tmp_path / "job"
    abandon(open_job(job))
    queue = make_queue(job)
    (queue / "link").symlink_to(elsewhere)
    open_job(job).close()
    assert list(queue.iterdir()) == []
    assert (elsewhere / "file").exists()


def test_a_kill_of_scrapys_own_filter_in_a_first_run_starts_the_crawl_anew(tmp_path, caplog):
    queue = make_queue(tmp_path)
    (tmp_path / "requests.seen").write_bytes(b"".join(b"\0\x14" + known for known in KNOWN))
    job = open_job(tmp_path)
    assert job.unclean
    assert job.restored == 0
    assert "no page is lost" in caplog.text
    assert list(queue.iterdir()) == []
    job.close()


def test_reset_follows_a_queue_that_was_taken_away(tmp_path, caplog):
    stored_job(tmp_path, KNOWN)
    (tmp_path / "requests.queue").mkdir()
    job = open_job(tmp_path, on_unclean=OnUnclean.RESET)
    assert job.unclean
    assert job.restored == 0
    assert "requests.queue" in caplog.text
    job.close()
    make_queue(tmp_path, "{}")
    job = open_job(tmp_path, on_unclean=OnUnclean.RESET)
    assert not job.unclean
    job.close()


@pytest.mark.parametrize("policy", [OnUnclean.ROLLBACK, OnUnclean.FAIL])
def test_the_other_policies_keep_the_filter_without_its_queue(tmp_path, policy, caplog):
    stored_job(tmp_path, KNOWN)
    (tmp_path / "requests.queue").mkdir()
    job = open_job(tmp_path, on_unclean=policy)
    assert job.restored == len(KNOWN)
    assert not job.unclean
    assert caplog.text == ""
    job.close()
