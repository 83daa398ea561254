"""Scrapy's requests.seen, in both its formats, read when a job is taken over."""

import itertools
import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy.squeues import PickleLifoDiskQueue
from support.examples import share_of
from support.jobs import identity_of, lifo

from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.local.job import Job
from scrapy_bloom.local.scrapys import take_over
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
    assert all(map(job.store.contains, whole))
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
    job = Job(folder, identity_of())
    job.check(requests=True)
    chosen, kind = Settings({}), QueueKind.of("", PickleLifoDiskQueue)
    take_over(job, chosen, kind, None, digests=True)
    job.open(chosen, digests=True)
    return job


def test_marks_never_stay_without_their_requests(folder, monkeypatch):
    """Else a crawl that goes back to Scrapy's own scheduler would not fetch their pages."""
    job = taken_over(folder, binary(b"a mark"), 0)
    seen, queue = folder / "requests.seen", folder / "requests.queue"
    assert seen.exists()
    assert queue.exists()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: killed())
        with pytest.raises(SystemExit):
            job.begin(requests=True)
    job.abandon()
    assert not seen.exists()
    assert queue.exists()
    job = Job(folder, identity_of())
    job.open(Settings({}), digests=True)
    job.begin(requests=True)
    job.abandon()
    assert not seen.exists()
    assert not queue.exists()


def killed():
    raise SystemExit
