"""Scrapy's queue beside the filter: what is removed after a kill, and what never is."""

import os
import shutil
import sqlite3

import pytest
from queuelib.queue import FifoDiskQueue, LifoDiskQueue
from scrapy.utils.test import get_crawler
from support.jobs import abandon, everything_in, killed, lifo, open_job, stored_job

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.errors import StateError
from scrapy_bloom.options import OnUnclean
from scrapy_bloom.storage import store
from scrapy_bloom.storage.scrapy_queue import find_flaw
from scrapy_bloom.storage.store import make_queue_openable

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


@pytest.mark.parametrize("saved", ['{"example.com": [0]}', "[0]"])
def test_a_queue_that_scrapy_will_read_stays(tmp_path, saved):
    abandon(open_job(tmp_path))
    queue = make_queue(tmp_path, saved)
    (queue / "example.com-1" / "-2").write_bytes(bytes(4))
    before = everything_in(queue / "example.com-1")
    open_job(tmp_path).close()
    assert everything_in(queue / "example.com-1") == before


def test_a_queue_stays_when_the_filter_knows_something(tmp_path):
    stored_job(tmp_path, KNOWN)
    abandon(open_job(tmp_path))
    queue = make_queue(tmp_path, "{}")
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


@pytest.fixture
def job_with_queue(tmp_path):
    """A job of ours that has stopped cleanly with requests that wait."""
    lifo(tmp_path / "requests.queue" / "0")
    (tmp_path / "requests.queue" / "active.json").write_text("[0]")
    stored_job(tmp_path, KNOWN)
    return tmp_path


def take_queue_away(folder):
    shutil.rmtree(folder / "requests.queue")
    (folder / "requests.queue").mkdir()  # as Scrapy does when it starts


def refused_by_something_else(folder):
    """End a crawl as Scrapy does when it is refused before the filter looks at the job."""
    (folder / "requests.queue" / "active.json").write_text("{}")


@pytest.mark.parametrize("in_between", [False, True])
def test_reset_follows_a_queue_that_was_taken_away(job_with_queue, caplog, in_between):
    take_queue_away(job_with_queue)
    if in_between:
        refused_by_something_else(job_with_queue)
    job = open_job(job_with_queue, on_unclean=OnUnclean.RESET)
    assert (job.restored, job.unclean) == (0, False)  # the last stop was a clean one
    assert "has lost its requests.queue" in caplog.text
    (job_with_queue / "requests.queue" / "active.json").write_text("[]")
    job.close()
    caplog.clear()
    job = open_job(job_with_queue, on_unclean=OnUnclean.RESET)
    job.close()
    assert caplog.text == ""


def test_reset_follows_a_queue_that_was_taken_away_when_it_was_empty(tmp_path):
    stored_job(tmp_path, KNOWN)
    (tmp_path / "requests.queue").mkdir()
    assert open_job(tmp_path, on_unclean=OnUnclean.RESET).restored == 0


@pytest.mark.parametrize("was_killed", [False, True])
@pytest.mark.parametrize("policy", [OnUnclean.ROLLBACK, OnUnclean.FAIL])
def test_the_other_policies_refuse_a_filter_without_its_queue(job_with_queue, policy, was_killed):
    if was_killed:
        abandon(open_job(job_with_queue))
    take_queue_away(job_with_queue)
    for _ in range(3):
        with pytest.raises(StateError, match="start once with BLOOM_ON_UNCLEAN = 'reset'"):
            open_job(job_with_queue, on_unclean=policy)
        refused_by_something_else(job_with_queue)
    job = open_job(job_with_queue, on_unclean=OnUnclean.RESET)
    assert (job.restored, job.unclean) == (0, was_killed)
    job.close()
    assert not open_job(job_with_queue).unclean


@pytest.mark.parametrize("policy", [OnUnclean.ROLLBACK, OnUnclean.FAIL])
def test_a_finished_job_needs_no_queue(tmp_path, policy):
    (tmp_path / "requests.queue").mkdir()
    stored_job(tmp_path, KNOWN)
    assert open_job(tmp_path, on_unclean=policy).restored == len(KNOWN)


def test_a_queue_that_scrapys_own_filter_has_finished_is_not_missed(job_with_queue):
    (job_with_queue / "requests.queue" / "0").unlink()
    (job_with_queue / "requests.queue" / "active.json").write_text("[]")
    (job_with_queue / "requests.seen").write_bytes(b"\0\x14" + bytes(20))
    (job_with_queue / "spider.state").touch()
    job = open_job(job_with_queue)
    assert (job.restored, job.unclean) == (len(KNOWN), False)


def test_a_queue_that_was_put_back_is_believed_again(job_with_queue):
    queue = job_with_queue / "requests.queue"
    queue.rename(job_with_queue / "elsewhere")
    queue.mkdir()
    with pytest.raises(StateError, match="Put the folder back"):
        open_job(job_with_queue)
    refused_by_something_else(job_with_queue)
    shutil.rmtree(queue)
    (job_with_queue / "elsewhere").rename(queue)
    job = open_job(job_with_queue)
    assert (job.restored, job.unclean) == (len(KNOWN), False)


def test_a_queue_of_an_older_version_that_was_taken_away_is_refused_and_then_told(
    job_with_queue, monkeypatch, caplog
):
    monkeypatch.setattr(store, "record_of", lambda _: None)
    open_job(job_with_queue).close()
    take_queue_away(job_with_queue)
    with pytest.raises(StateError, match="Put the folder back"):
        open_job(job_with_queue)
    refused_by_something_else(job_with_queue)
    assert open_job(job_with_queue).unclean
    assert "it was without its requests.queue" in caplog.text


def test_a_job_of_ours_may_be_copied_without_its_times(job_with_queue, caplog):
    (job_with_queue / "requests.seen").write_bytes(b"\0\x14" + bytes(20))
    (job_with_queue / "spider.state").touch()
    open_job(job_with_queue).close()
    for seconds, name in enumerate(
        ["requests.queue/active.json", "spider.state", "requests.bloom", "requests.queue/0"]
    ):
        os.utime(job_with_queue / name, (seconds, seconds))
    job = open_job(job_with_queue)
    assert (job.restored, job.unclean) == (len(KNOWN), False)
    assert caplog.text == ""


def test_what_scrapy_2_13_leaves_when_it_opens_a_queue_is_no_sign_of_a_kill(job_with_queue):
    (job_with_queue / "requests.seen").write_bytes(b"\0\x14" + bytes(20))
    (job_with_queue / "spider.state").touch()
    LifoDiskQueue(job_with_queue / "requests.queue" / "0s").f.close()
    assert not open_job(job_with_queue).unclean
    (job_with_queue / "requests.bloom").unlink()
    (job_with_queue / "requests.bloom.running").unlink()
    job = open_job(job_with_queue)
    assert (job.restored, job.restored_from) == (1, "requests.seen")


def make_database(path):
    """Make what Scrapy 2.19's SQLite queues leave: a file that is whole at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY AUTOINCREMENT, item BLOB)")
        database.execute("INSERT INTO queue (item) VALUES (x'00')")
    database.close()
    path.with_name(path.name + "-journal").write_bytes(b"what SQLite needs after a kill")


@pytest.mark.parametrize("saved", [None, "{}", "[]"])
def test_an_sqlite_queue_stays_after_a_kill(tmp_path, saved):
    abandon(open_job(tmp_path))
    queue = make_queue(tmp_path, saved)
    make_database(queue / "0")
    make_database(queue / "example.com-1" / "-5")
    before = everything_in(queue / "example.com-1"), everything_in(queue)
    open_job(tmp_path).close()
    kept = {"-5", "-5-journal"}
    assert everything_in(queue / "example.com-1") == {name: before[0][name] for name in kept}
    assert {"0", "0-journal", "example.com-1"} <= set(everything_in(queue))


@pytest.mark.parametrize("database", [True, False])
def test_what_a_kill_costs_depends_on_the_queue(tmp_path, database, caplog):
    stored_job(tmp_path, KNOWN)
    abandon(open_job(tmp_path))
    queue = tmp_path / "requests.queue"
    if database:
        make_database(queue / "0")
    else:
        lifo(queue / "0")
    (queue / "active.json").write_text("[0]")
    open_job(tmp_path)
    assert ("the requests that were under way are lost" in caplog.text) is database
    assert ("Scrapy's queue has lost requests" in caplog.text) is not database


def popped_by_a_killed_run(path):
    queue = LifoDiskQueue(path)
    queue.pop()
    killed(queue)


def emptied_by_a_killed_run(path):
    queue = LifoDiskQueue(path)
    while queue.pop():
        pass
    killed(queue)


def cut_off_by_a_kill(path):
    path.write_bytes(path.read_bytes()[:-3])


def replaced_by_a_killed_run(path):
    path.write_bytes(b"")


def full_chunk(path):
    path.unlink()
    queue = FifoDiskQueue(path, chunksize=2)
    for number in range(10):
        queue.push(b"request %d" % number)
    queue.close()


def first_chunk_read_by_a_killed_run(path):
    full_chunk(path)
    (path / "q00000").unlink()


def info_cut_off_by_a_kill(path):
    full_chunk(path)
    (path / "info.json").write_text('{"chunksize": 2, "si')


def saved_cut_off_by_a_kill(path):
    (path.parent / "active.json").write_text("[0, ")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (popped_by_a_killed_run, "0 holds 9 requests, and says that it holds 10"),
        (emptied_by_a_killed_run, "0 holds 0 requests, and says that it holds 10"),
        (cut_off_by_a_kill, "0 ends in the middle of a request"),
        (first_chunk_read_by_a_killed_run, "q00000 is missing"),
        (info_cut_off_by_a_kill, "info.json is no JSON"),
        (saved_cut_off_by_a_kill, "active.json is no JSON"),
    ],
)
@pytest.mark.parametrize("policy", [OnUnclean.ROLLBACK, OnUnclean.RESET])
def test_a_queue_that_scrapy_cannot_read_is_refused(tmp_path, harm, words, policy):
    stored_job(tmp_path, KNOWN)
    abandon(open_job(tmp_path))
    queue = tmp_path / "requests.queue"
    lifo(queue / "0")
    (queue / "active.json").write_text("[0]")
    harm(queue / "0")
    before = everything_in(queue), everything_in(tmp_path)
    with pytest.raises(StateError) as error:
        open_job(tmp_path, on_unclean=policy)
    assert words in str(error.value)
    assert f"delete {queue} and start once with BLOOM_ON_UNCLEAN = 'reset'" in str(error.value)
    assert (everything_in(queue), everything_in(tmp_path)) == before


@pytest.mark.parametrize("harm", [None, full_chunk])
def test_a_queue_that_scrapy_can_read_is_no_hindrance(tmp_path, harm):
    stored_job(tmp_path, KNOWN)
    abandon(open_job(tmp_path))
    queue = tmp_path / "requests.queue"
    lifo(queue / "0")
    (queue / "active.json").write_text("[0]")
    if harm:
        harm(queue / "0")
    assert open_job(tmp_path).restored == len(KNOWN)


@pytest.mark.parametrize("harm", [first_chunk_read_by_a_killed_run, saved_cut_off_by_a_kill])
def test_what_scrapy_fails_to_open_is_refused_before_it_tries(tmp_path, harm):
    lifo(tmp_path / "requests.queue" / "0")
    harm(tmp_path / "requests.queue" / "0")
    make_queue_openable(tmp_path)  # nobody was killed: not our business
    abandon(open_job(tmp_path))
    with pytest.raises(StateError, match="Scrapy cannot read the queue"):
        make_queue_openable(tmp_path)


@pytest.mark.scrapy
def test_the_reason_is_in_the_log_before_scrapy_fails(tmp_path, caplog):
    lifo(tmp_path / "requests.queue" / "0")
    saved_cut_off_by_a_kill(tmp_path / "requests.queue" / "0")
    abandon(open_job(tmp_path))
    BloomDupeFilter.from_crawler(get_crawler(settings_dict={"JOBDIR": str(tmp_path)}))
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "Scrapy cannot read the queue that it left" in record.message


def test_a_file_that_a_kill_has_cut_off_at_its_start_is_removed(tmp_path):
    queue = tmp_path / "requests.queue"
    lifo(queue / "-1")
    replaced_by_a_killed_run(queue / "-1")
    (queue / "0s").write_bytes(b"\0\0\0")
    (queue / "active.json").write_text("[0, -1]")
    make_queue_openable(tmp_path)
    job = open_job(tmp_path)
    make_queue_openable(tmp_path)  # a run is on: its files fill up later
    assert {path.name for path in queue.iterdir()} == {"-1", "0s", "active.json"}
    abandon(job)
    make_queue_openable(tmp_path)
    assert [path.name for path in queue.iterdir()] == ["active.json"]
    open_job(tmp_path).close()


def test_a_queue_of_many_requests_is_read_to_its_end(tmp_path):
    path = tmp_path / "requests.queue" / "0"
    lifo(path, 100_000)
    (path.parent / "active.json").write_text("[0]")
    assert find_flaw(tmp_path) == ""
