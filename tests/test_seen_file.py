"""Scrapy's requests.seen, in both its formats, read once and never written."""

import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queuelib.queue import FifoDiskQueue, LifoDiskQueue
from scrapy.pqueues import _path_safe
from support.jobs import everything_in, killed, lifo, open_job

from scrapy_bloom.errors import StateError
from scrapy_bloom.storage import seen_file
from scrapy_bloom.storage.seen_file import read_seen_file


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


def open_with_our_scheduler(folder):
    return open_job(folder, journaled=True)


def test_our_scheduler_takes_over_and_leaves_scrapys_file_alone(job_of_scrapy):
    seen = job_of_scrapy / "requests.seen"
    before = seen.read_bytes(), seen.stat().st_mtime_ns
    job = open_with_our_scheduler(job_of_scrapy)
    assert all(job.filter.contains_many(KNOWN))
    assert (job.restored, job.restored_from) == (50, "requests.seen")
    job.close()
    assert (seen.read_bytes(), seen.stat().st_mtime_ns) == before


def test_the_filter_alone_takes_nothing_over(job_of_scrapy, caplog):
    job = open_job(job_of_scrapy)
    assert (job.restored, job.restored_from) == (0, "")
    assert "requests.seen: the marks of Scrapy's own filter stay unread" in caplog.text
    job.close()
    caplog.clear()
    open_job(job_of_scrapy).close()
    assert caplog.text == ""


def later(path, than):
    after = than.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(after, after))


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


def killed_with_a_new_priority(folder):
    queue = LifoDiskQueue(folder / "requests.queue" / "-1")
    queue.push(b"another")
    killed(queue)
    later(folder / "requests.queue" / "-1", folder / "spider.state")


def killed_in_its_first_run(folder):
    (folder / "requests.queue" / "active.json").unlink()
    (folder / "requests.queue" / "0").write_bytes(b"requests")


def killed_in_a_resumed_run(folder):
    later(folder / "requests.seen", folder / "spider.state")


def killed_in_its_first_run_while_the_queue_was_saved_again_and_again(folder):
    (folder / "spider.state").unlink()


def killed_when_it_had_taken_all_requests(folder):
    queue = folder / "requests.queue"
    (queue / "0").unlink()  # as queuelib does
    os.utime(queue, ns=(0, 0))


def killed_when_it_had_taken_all_requests_of_a_slot(folder):
    queue = folder / "requests.queue"
    (queue / "active.json").write_text('{"a": [0], "b": [0]}')
    slots = [queue / _path_safe(slot) for slot in "ab"]
    for slot in slots:
        slot.mkdir()
        (slot / "0s").write_bytes((queue / "0").read_bytes())
    (queue / "0").unlink()
    (slots[1] / "0s").write_bytes(bytes(4))  # Scrapy 2.13 leaves this when it opens a queue
    for path in (queue, *slots, *queue.glob("*/0s")):
        os.utime(path, ns=(0, 0))


def killed_when_it_had_taken_all_but_start_requests(folder):
    queue = folder / "requests.queue"
    (queue / "0").rename(queue / "0s")
    later(queue, folder / "spider.state")


def robbed_of_its_queue(folder):
    shutil.rmtree(folder / "requests.queue")
    (folder / "requests.queue").mkdir()  # as Scrapy does


@pytest.mark.parametrize(
    "harm",
    [
        killed_soon_after_it_had_resumed,
        killed_before_it_had_written_a_mark,
        killed_with_a_new_priority,
        killed_in_its_first_run,
        killed_in_a_resumed_run,
        killed_in_its_first_run_while_the_queue_was_saved_again_and_again,
        robbed_of_its_queue,
        killed_when_it_had_taken_all_requests,
        killed_when_it_had_taken_all_requests_of_a_slot,
        killed_when_it_had_taken_all_but_start_requests,
    ],
)
def test_only_a_clean_stop_is_taken_over(job_of_scrapy, harm):
    harm(job_of_scrapy)
    before = everything_in(job_of_scrapy), everything_in(job_of_scrapy / "requests.queue")
    for _ in range(2):
        with pytest.raises(StateError, match="Only one that has stopped cleanly can be taken over"):
            open_with_our_scheduler(job_of_scrapy)
    after = everything_in(job_of_scrapy), everything_in(job_of_scrapy / "requests.queue")
    assert after == before


def test_a_clean_stop_of_fifo_queues_in_slots_is_taken_over(job_of_scrapy):
    queue = job_of_scrapy / "requests.queue"
    (queue / "0").unlink()
    (queue / "active.json").write_text('{"a": [0]}')
    fifo = FifoDiskQueue(queue / _path_safe("a") / "0s")
    fifo.push(b"request")
    fifo.close()
    (job_of_scrapy / "spider.state").write_bytes(b"")
    assert open_with_our_scheduler(job_of_scrapy).restored == 50


def test_a_lone_file_is_taken_over(tmp_path):
    write(tmp_path, *map(binary, KNOWN))
    assert open_with_our_scheduler(tmp_path).restored == 50


def test_a_link_in_its_place_is_refused(tmp_path):
    (tmp_path / "elsewhere").touch()
    (tmp_path / "requests.seen").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="a symbolic link"):
        open_with_our_scheduler(tmp_path)
