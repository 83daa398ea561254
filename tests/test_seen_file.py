"""Scrapy's requests.seen, in both its formats, read once and never written."""

import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queuelib.queue import FifoDiskQueue, LifoDiskQueue
from support.jobs import abandon, killed, lifo, open_job

from scrapy_bloom.errors import StateError, UncleanStopError
from scrapy_bloom.options import OnUnclean
from scrapy_bloom.storage import seen_file
from scrapy_bloom.storage.seen_file import read_seen_file
from scrapy_bloom.storage.store import make_queue_openable


def binary(fingerprint):
    return len(fingerprint).to_bytes(2, "big") + fingerprint


def text(fingerprint):
    return fingerprint.hex().encode() + b"\n"


def windows_text(fingerprint):
    return fingerprint.hex().encode() + b"\r\n"


def write(folder, *records):
    folder.mkdir(exist_ok=True)
    (folder / "requests.seen").write_bytes(b"".join(records))


records = st.lists(
    st.tuples(
        st.sampled_from([binary, text, windows_text]),
        st.one_of(st.binary(min_size=20, max_size=20), st.binary(min_size=1, max_size=300)),
    ),
    max_size=60,
)


@given(records=records, cut=st.integers(0, 30))
def test_every_whole_record_is_read_whatever_its_format(tmp_path_factory, records, cut):
    folder = tmp_path_factory.mktemp("job")
    written = [write_one(fingerprint) for write_one, fingerprint in records]
    write(folder, *written)
    assert [*read_seen_file(folder)] == [fingerprint for _, fingerprint in records]
    # Cut off anywhere in the last record, as a kill does.
    if records:
        kept = max(len(b"".join(written[:-1])), len(b"".join(written)) - 1 - cut)
        os.truncate(folder / "requests.seen", kept)
        whole = [*read_seen_file(folder)]
        # A line without its newline could be a shorter one; the binary format cannot err.
        assert whole[: len(records) - 1] == [fingerprint for _, fingerprint in records[:-1]]


def test_a_large_file_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(seen_file, "_CHUNK", 64)
    monkeypatch.setattr(seen_file, "_LONGEST", 64)
    known = [bytes([i % 256, i // 256]) * 10 for i in range(3000)]
    write(tmp_path, *(binary(fp) if i % 3 else text(fp) for i, fp in enumerate(known)))
    assert [*read_seen_file(tmp_path)] == known


def test_no_file_no_fingerprints(tmp_path):
    assert [*read_seen_file(tmp_path)] == []


@given(st.binary(max_size=500))
def test_garbage_ends_the_reading_and_nothing_else(tmp_path_factory, garbage):
    folder = tmp_path_factory.mktemp("job")
    write(folder, garbage)
    assert all(isinstance(fingerprint, bytes) for fingerprint in read_seen_file(folder))


KNOWN = [bytes([i]) * 20 for i in range(50)]


@pytest.fixture
def job_of_scrapy(tmp_path):
    """A job that Scrapy's own filter has stopped cleanly."""
    write(tmp_path, *map(binary, KNOWN[:30]), *map(text, KNOWN[30:]))
    lifo(tmp_path / "requests.queue" / "0")
    (tmp_path / "requests.queue" / "active.json").write_text("[0]")
    (tmp_path / "spider.state").write_bytes(b"")
    return tmp_path


def test_a_first_run_takes_over_and_leaves_scrapys_file_alone(job_of_scrapy):
    seen = job_of_scrapy / "requests.seen"
    before = seen.read_bytes(), seen.stat().st_mtime_ns
    job = open_job(job_of_scrapy)
    assert all(job.filter.contains_many(KNOWN))
    assert (job.restored, job.restored_from, job.unclean) == (50, "requests.seen", False)
    job.close()
    assert (seen.read_bytes(), seen.stat().st_mtime_ns) == before


def test_a_job_with_a_filter_does_not_look_at_it_again(job_of_scrapy):
    open_job(job_of_scrapy).close()
    write(job_of_scrapy, *map(binary, [b"later" * 4]))
    job = open_job(job_of_scrapy)
    assert b"later" * 4 not in job.filter
    assert (job.restored, job.restored_from) == (50, "requests.bloom")
    job.close()


def later(path, than):
    after = than.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(after, after))


def as_late_as_before(path):
    """Take the order of times away, as a copy without them does: only contents can tell."""
    for each in path.parent.parent.rglob("*"):
        os.utime(each, (0, 0))


def killed_before_it_had_written_a_mark(folder):
    path = folder / "requests.queue" / "0"
    queue = LifoDiskQueue(path)
    taken = queue.pop()
    queue.push(taken[::-1])
    killed(queue)
    later(path, folder / "requests.queue" / "active.json")


def killed_soon_after_it_had_resumed(folder):
    killed_before_it_had_written_a_mark(folder)
    later(folder / "requests.seen", folder / "spider.state")


def killed_when_it_had_taken_the_last_request(folder):
    path = folder / "requests.queue" / "0"
    path.unlink()  # as Scrapy does then
    as_late_as_before(path)


def killed_when_it_had_more_requests(folder, priority="0"):
    path = folder / "requests.queue" / priority
    queue = LifoDiskQueue(path)
    queue.push(b"another")
    killed(queue)
    as_late_as_before(path)


def killed_with_a_new_priority(folder):
    killed_when_it_had_more_requests(folder, "-1")


def killed_with_more_requests_in_a_new_chunk(folder):
    path = folder / "requests.queue" / "0"
    path.unlink()
    queue = FifoDiskQueue(path)
    queue.push(b"request")
    queue.close()
    queue = FifoDiskQueue(path)
    queue.push(b"another")
    queue.headf.close()
    queue.tailf.close()
    as_late_as_before(path)


def killed_with_its_queue_damaged(folder):
    saved = folder / "requests.queue" / "active.json"
    path = folder / "requests.queue" / "0"
    path.write_bytes((3).to_bytes(4, "big"))
    os.utime(path, (0, 0))
    for each in saved, folder / "spider.state":
        each.touch()


KILLS = [
    killed_soon_after_it_had_resumed,
    killed_before_it_had_written_a_mark,
    killed_when_it_had_taken_the_last_request,
    killed_when_it_had_more_requests,
    killed_with_a_new_priority,
]


@pytest.mark.parametrize("kill", [*KILLS, killed_with_more_requests_in_a_new_chunk])
def test_a_kill_of_scrapys_own_filter_is_told_after_a_run_of_ours(job_of_scrapy, kill, caplog):
    open_job(job_of_scrapy).close()
    kill(job_of_scrapy)
    with pytest.raises(UncleanStopError, match="with Scrapy's own filter, did not close cleanly"):
        open_job(job_of_scrapy, on_unclean=OnUnclean.FAIL)
    job = open_job(job_of_scrapy)
    assert (job.restored, job.unclean) == (50, True)
    assert "BLOOM_ON_UNCLEAN = 'reset'" in caplog.text
    job.close()


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("ours", [False, True])
def test_a_kill_is_noted_before_scrapy_opens_its_queue(job_of_scrapy, kill, ours):
    """Scrapy stores the queue anew at the end of a run that was refused for another reason."""
    if ours:
        open_job(job_of_scrapy).close()
    kill(job_of_scrapy)
    make_queue_openable(job_of_scrapy)
    lifo_of_the_refused_run = job_of_scrapy / "requests.queue" / "0"
    lifo_of_the_refused_run.unlink(missing_ok=True)
    lifo(lifo_of_the_refused_run)
    (job_of_scrapy / "requests.queue" / "active.json").write_text("[0]")
    (job_of_scrapy / "spider.state").touch()
    with pytest.raises(UncleanStopError, match="with Scrapy's own filter, did not close cleanly"):
        open_job(job_of_scrapy, on_unclean=OnUnclean.FAIL)
    job = open_job(job_of_scrapy)
    assert (job.restored, job.unclean) == (50 if ours else 0, True)
    job.close()
    assert not open_job(job_of_scrapy).unclean


@pytest.mark.parametrize("ours", [False, True])
def test_after_a_clean_stop_of_scrapys_own_filter_nothing_is_noted(job_of_scrapy, ours):
    if ours:
        open_job(job_of_scrapy).close()
        lifo(job_of_scrapy / "requests.queue" / "1")
        (job_of_scrapy / "requests.queue" / "active.json").write_text("[0, 1]")
        write(job_of_scrapy, *map(binary, [*KNOWN, b"later" * 4]))
        (job_of_scrapy / "spider.state").write_bytes(b"")
    make_queue_openable(job_of_scrapy)
    assert not (job_of_scrapy / "requests.bloom.running").exists()
    job = open_job(job_of_scrapy)
    assert (job.restored, job.unclean) == (50, False)


def test_a_fifo_queue_that_would_lose_later_requests_is_refused(job_of_scrapy):
    killed_with_more_requests_in_a_new_chunk(job_of_scrapy)
    with pytest.raises(StateError, match=r"q00000 holds more requests than .*info.json says"):
        open_job(job_of_scrapy)


@pytest.mark.parametrize("ours", [False, True])
def test_a_queue_that_scrapys_own_filter_left_unreadable_is_refused_each_time(job_of_scrapy, ours):
    if ours:
        open_job(job_of_scrapy).close()
    killed_with_its_queue_damaged(job_of_scrapy)
    for _ in range(2):
        with pytest.raises(StateError, match="start once with BLOOM_ON_UNCLEAN = 'reset'"):
            open_job(job_of_scrapy)
        for name in "requests.queue/active.json", "spider.state":
            (job_of_scrapy / name).touch()  # as Scrapy does at the end of a refused crawl
    shutil.rmtree(job_of_scrapy / "requests.queue")
    (job_of_scrapy / "requests.queue").mkdir()
    job = open_job(job_of_scrapy, on_unclean=OnUnclean.RESET)
    assert job.restored == 0
    job.close()


def test_marks_are_not_believed_either_when_a_run_was_refused_in_between(job_of_scrapy):
    killed_soon_after_it_had_resumed(job_of_scrapy)
    with pytest.raises(UncleanStopError):
        open_job(job_of_scrapy, on_unclean=OnUnclean.FAIL)
    (job_of_scrapy / "spider.state").touch()  # as Scrapy does at the end of a refused crawl
    assert open_job(job_of_scrapy).restored == 0


def test_marks_are_not_believed_without_the_queue_that_was_stored_with_them(job_of_scrapy, caplog):
    shutil.rmtree(job_of_scrapy / "requests.queue")
    (job_of_scrapy / "requests.queue").mkdir()
    job = open_job(job_of_scrapy)
    assert (job.restored, job.unclean) == (0, True)
    assert "no page is lost" in caplog.text


def test_a_lone_file_is_taken_over(tmp_path):
    write(tmp_path, *map(binary, KNOWN))
    assert open_job(tmp_path).restored == 50


def test_a_run_killed_after_the_switch_goes_back_to_it(job_of_scrapy, caplog):
    job = open_job(job_of_scrapy)
    job.filter.add(b"new" * 7)
    abandon(job)
    job = open_job(job_of_scrapy)
    assert (job.restored, job.unclean) == (50, True)
    assert "after it had resumed an earlier one" in caplog.text


def killed_in_its_first_run(folder):
    (folder / "requests.queue" / "active.json").unlink()
    (folder / "requests.queue" / "0").write_bytes(b"requests")


def killed_in_a_resumed_run(folder):
    later = (folder / "spider.state").stat().st_mtime + 3600
    os.utime(folder / "requests.seen", (later, later))


def killed_in_its_first_run_while_the_queue_was_saved_again_and_again(folder):
    (folder / "spider.state").unlink()


def killed_in_a_resumed_run_while_the_queue_was_saved_again_and_again(folder):
    killed_in_a_resumed_run(folder)
    later = (folder / "requests.seen").stat().st_mtime
    os.utime(folder / "requests.queue" / "active.json", (later, later))


@pytest.mark.parametrize(
    "kill",
    [
        killed_in_its_first_run,
        killed_in_a_resumed_run,
        *KILLS,
        killed_in_its_first_run_while_the_queue_was_saved_again_and_again,
        killed_in_a_resumed_run_while_the_queue_was_saved_again_and_again,
    ],
)
def test_marks_that_outlived_their_queue_are_not_believed(job_of_scrapy, kill, caplog):
    kill(job_of_scrapy)
    with pytest.raises(UncleanStopError, match="with Scrapy's own filter, did not close cleanly"):
        open_job(job_of_scrapy, on_unclean=OnUnclean.FAIL)
    job = open_job(job_of_scrapy)
    assert (job.restored, job.unclean) == (0, True)
    assert "did not close cleanly" in caplog.text
    assert "no page is lost" in caplog.text


def test_reset_does_not_take_over(job_of_scrapy):
    abandon(open_job(job_of_scrapy))
    assert open_job(job_of_scrapy, on_unclean=OnUnclean.RESET).restored == 0


def test_a_link_in_its_place_is_refused(tmp_path):
    (tmp_path / "requests.seen").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="a symbolic link"):
        open_job(tmp_path)
