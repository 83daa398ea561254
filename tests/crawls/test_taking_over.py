"""Scrapy's requests.seen, in both its formats, read when a job is taken over."""

import itertools
import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy.squeues import PickleLifoDiskQueue
from support.contract import share_of
from support.jobs import identity_of, lifo

from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.local.job import REQUESTS, Job
from scrapy_bloom.local.scrapys import take_over, why_unclean
from scrapy_bloom.settings import Settings


def binary(fingerprint):
    return len(fingerprint).to_bytes(2, "big") + fingerprint


def text(fingerprint):
    return fingerprint.hex().encode() + b"\n"


def windows_text(fingerprint):
    return fingerprint.hex().encode() + b"\r\n"


records = st.lists(
    st.tuples(
        st.sampled_from([binary, text, windows_text]),
        st.one_of(st.binary(min_size=20, max_size=20), st.binary(min_size=1, max_size=300)),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def folder():
    folder = Path(mkdtemp())
    yield folder
    shutil.rmtree(folder)


@settings(max_examples=share_of(20))
@given(records=records, cut=st.integers(0, 30))
def test_every_mark_is_taken_over_and_none_is_invented(folder, records, cut):
    """Whichever version of Scrapy wrote it, also if its last record was cut off by a full disk."""
    job = taken_over(folder, b"".join(write(mark) for write, mark in records), cut)
    ends = [*itertools.accumulate(len(write(mark)) for write, mark in records)]
    left = ends[-1] - cut if records else 0
    whole = [mark for end, (_, mark) in zip(ends, records, strict=True) if end <= left]
    assert all(one in job.store for one in whole)
    assert job.restored <= len({mark for _, mark in records})
    assert len(job.store) == 10
    job.abandon()


def taken_over(folder, seen, cut):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    lifo(folder / "requests.queue" / "0")
    (folder / "requests.seen").write_bytes(seen[: max(0, len(seen) - cut)])
    (folder / "requests.queue" / "active.json").write_text("[0]")
    (folder / "spider.state").write_bytes(b"state")
    job = Job(folder, identity_of(), REQUESTS)
    chosen, kind = Settings({}), QueueKind.of("", PickleLifoDiskQueue)
    take_over(job, chosen, kind, None, digests=True)
    job.open(chosen, digests=True)
    assert not (folder / "requests.seen").exists()
    assert not (folder / "requests.queue").exists()
    return job


def test_requests_that_no_queue_is_named_for_show_that_a_run_was_killed(folder):
    """A later run was stopped cleanly, and Scrapy reads them never again."""
    queue = folder / "orphans" / "requests.queue"
    for name in ("0", "7"):
        lifo(queue / name)
    (queue / "active.json").write_text("[0, 7]")
    (queue.parent / "requests.seen").write_bytes(binary(b"a mark"))
    (queue.parent / "spider.state").touch()
    assert not why_unclean(queue.parent)
    (queue / "active.json").write_text("[0]")
    assert "7 holds requests" in why_unclean(queue.parent)


def test_marks_never_stay_without_their_requests(folder, monkeypatch):
    """Else a crawl that goes back to Scrapy's own scheduler would not fetch their pages."""
    remove = shutil.rmtree

    def removing(path, **keywords):
        if path.name == "requests.queue":
            raise SystemExit  # as a kill
        remove(path, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", removing)
        with pytest.raises(SystemExit):
            taken_over(folder, binary(b"a mark"), 0)
    assert (folder / "requests.queue" / "0").exists()
    assert not (folder / "requests.seen").exists()
    assert (folder / "bloom.sqlite").exists()
