"""The filter in memory: the contract, growth, the window, its file, and ages of pages."""

import copy
import pickle
import shutil
import sqlite3
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from scrapy.utils.request import fingerprint
from support.contract import FilterContract, fingerprints, share_of
from support.jobs import Session, page
from support.windows import WINDOW, Clock, WindowMachine

from scrapy_bloom import file
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.file import FORMAT
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.filter.sizing import (
    BLOCK_BITS,
    HASHES,
    false_positive_rate,
    next_slice,
)


class TestLocalFilter(FilterContract):
    @pytest.fixture
    def make(self):
        return LocalFilter


class TestLocalFilterOfAnyBytesWithAWindow(FilterContract):
    @pytest.fixture
    def make(self):
        return partial(LocalFilter, digests=False, window=3600)


# What users write, and what they are told


def test_sizes_and_spans_may_be_written_as_in_settings_and_are_shown():
    filter_ = LocalFilter("2k", "1e-6", window=timedelta(days=1))
    assert (filter_.capacity, filter_.error_rate, filter_.window) == (2000, 1e-6, 86_400)
    assert not filter_.add_aged(b"list", "1h")
    assert filter_.add_aged(b"list", timedelta(minutes=30))
    filter_.add_many(fingerprints(1199))
    filter_.forget(fingerprints(1)[0])
    assert len(filter_) == 1199
    assert repr(filter_) == (
        "<LocalFilter: 1,199 of 2,000 fingerprints, error_rate=1e-06, window='1d'>"
    )


def test_a_wrong_call_is_told_in_its_own_words():
    seen = LocalFilter()
    for method in (seen.add, seen.forget, seen.__contains__, partial(seen.add_aged, max_age=1)):
        for wrong in ("text", 20, None):
            with pytest.raises(TypeError, match=r"a fingerprint must be bytes.*, not "):
                method(wrong)
    assert seen.info().items == 0
    with pytest.raises(TypeError, match=r"^LocalFilter.__init__\(\) .*'capactiy'"):
        LocalFilter(capactiy=5)


# Growth


@given(
    # As the user changes it between runs.
    capacities=st.lists(st.integers(1, 10**7), min_size=1, max_size=10),
    error_rate=st.floats(1e-12, 0.9),
)
def test_the_errors_of_all_slices_stay_within_the_error_rate(capacities, error_rate):
    specs = []
    for capacity in capacities:
        specs.append(next_slice(specs, capacity, error_rate))
    assert sum(spec.error_rate for spec in specs) < error_rate
    for spec in specs:
        assert false_positive_rate(spec.capacity, spec.blocks) <= spec.error_rate


def test_growth_is_logged_once_when_the_capacity_is_reached(caplog):
    seen = LocalFilter(capacity=2000)
    seen.add_many(fingerprints(2000))
    assert not caplog.records
    seen.add_many(fingerprints(30_000))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "2,000" in record.getMessage()


# Forgetting


def test_what_is_let_through_again_counts_and_grows_the_filter():
    clock = Clock()
    seen = LocalFilter(1000, 1e-6, window=WINDOW, clock=clock)
    known = fingerprints(1000)
    seen.add_many(known)
    for _ in range(7):  # each time into another generation
        clock.now += 100
        seen.forget_many(known)
        assert seen.add_many(known) == [False] * 1000
    info = seen.info()
    assert info.items == 8000
    assert info.estimated_fp_rate <= 1e-6
    rates = (
        sum((block.count() / BLOCK_BITS) ** HASHES for block in one.blocks) / len(one.blocks)
        for one in seen.slices
    )
    assert sum(rates) <= 1e-6


class LocalWindow(WindowMachine):
    def open(self):
        self.folder = Path(mkdtemp())
        self.filter = LocalFilter(20, 1e-9, window=WINDOW, clock=self.clock)

    def teardown(self):
        shutil.rmtree(self.folder)

    @rule()
    def save_and_load(self):
        self.filter.save(self.folder / "filter")
        self.filter = LocalFilter.load(self.folder / "filter", clock=self.clock)


TestWindow = pytest.mark.long(LocalWindow.TestCase)
TestWindow.settings = settings(deadline=None, max_examples=share_of(20), stateful_step_count=30)


# Files


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_filter_is_not_copied_or_pickled(twin):
    """Two filters on the same bits would not count each other's items."""
    with pytest.raises(TypeError, match="save it to a file, and load that"):
        twin(LocalFilter())


def test_a_filter_comes_back_from_its_file(tmp_path):
    path, seen = tmp_path / "filter", LocalFilter(1000, 1e-4)
    seen.add_many(fingerprints(5000))
    seen.forget_many(fingerprints(3))
    seen.add_aged(b"aged", 60)
    seen.save(path)
    other = LocalFilter.load(path)
    assert other.info() == seen.info()
    assert other.contains_many(fingerprints(5000)) == [False] * 3 + [True] * 4997
    assert other.add_aged(b"aged", 60)
    assert [entry.name for entry in tmp_path.iterdir()] == ["filter"]
    assert path.stat().st_mode & 0o777 == 0o600
    seen.save(path)  # over what is there


@pytest.fixture
def copies(tmp_path):
    """Two filters with the same 500 items, from one file."""
    one = LocalFilter(1000)
    one.add_many(fingerprints(500))
    one.save(tmp_path / "filter")
    return one, LocalFilter.load(tmp_path / "filter")


def test_two_copies_that_grew_apart_are_united(copies):
    one, other = copies
    one.add_many(fingerprints(100, "one"))
    other.add_many(fingerprints(300, "other"))
    one.forget(fingerprints(1, "one")[0])
    one.forget(fingerprints(1)[0])  # the other one still has it
    one.update(other)
    assert all(one.contains_many([*fingerprints(500), *fingerprints(300, "other")]))
    assert one.contains_many(fingerprints(2, "one")) == [False, True]
    assert one.add_many(fingerprints(5000, "more")) == [False] * 5000
    assert fingerprints(1, "more")[0] not in other


@pytest.mark.parametrize("reason", ["secret", "size", "hold"])
def test_a_union_that_would_not_keep_its_promise_is_refused(copies, reason):
    one, other = (copies[0], LocalFilter(2000)) if reason == "secret" else copies
    if reason == "size":
        other.capacity = 5000
        other.clear()
    one.add_many(fingerprints(450, "one"))
    other.add_many(fingerprints(450, "other"))
    before = one.info()
    with pytest.raises(SettingError, match=f"{reason}.*add_many"):
        one.update(other)
    assert one.info() == before


def run(path, statement):
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda path: path.write_bytes(b""), "found b''"),
        (lambda path: path.write_bytes(b"hello" * 100), "found b'hello"),
        (lambda path: (path.unlink(), run(path, "CREATE TABLE t (x)")), "another program"),
        (lambda path: run(path, f"PRAGMA user_version = {FORMAT + 1}"), f"{FORMAT + 1}, expected"),
        (lambda path: path.write_bytes(path.read_bytes()[:-5000]), "damage"),
        (lambda path: (path.unlink(), path.mkdir()), "directory"),
        (lambda path: path.unlink(), "found nothing, expected a file of"),
    ],
)
def test_a_file_that_is_no_filter_is_refused_and_left_as_it_is(tmp_path, change, found):
    path = tmp_path / "filter"
    LocalFilter().save(path)
    change(path)
    before = path.read_bytes() if path.is_file() else None
    left = "(left as it is|Nothing was changed)" if path.exists() else ""
    with pytest.raises(StateError, match=f"{path}.*{found}.*{left}"):
        LocalFilter.load(path)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "folder" / "filter"
    with pytest.raises(StateError, match=r"folder.*This path must be readable and writable"):
        LocalFilter().save(path)
    assert file.log_size(path) == 0


# Ages of pages, in the filter of a crawl


def due(name, age, **meta):
    return page(name, meta={"bloom_max_age": age, **meta})


@pytest.mark.parametrize("age", [-1, "30 days", 1e30, "soon", [], {}, b"1h", True, float("nan")])
def test_a_page_whose_age_cannot_be_read_is_filtered_and_that_is_said_once(caplog, age):
    with Session() as crawl:
        assert crawl.seen(due("a", age), due("a", age), page("a")) == [False, True, True]
    assert not crawl.crawler.stats.get_value("bloom/errors")
    [record] = [r for r in caplog.records if r.levelname == "ERROR"]
    said = record.getMessage()
    assert "<GET https://example.com/a> has no maximum age: meta['bloom_max_age'] = " in said
    assert f"{age!r:.20}" in said
    assert "must be a time from 0 to 100 years: seconds, or '45s', '90m'" in said
    assert not record.exc_info


@pytest.mark.parametrize("target", ["list", "list/1"])
def test_a_redirect_of_a_page_that_is_due_is_let_through_once(clock, target):
    is_own = target == "list"  # of its own chain, which is never dropped
    with Session() as crawl:
        for _ in range(3):
            redirected = due(target, "1h", bloom_chain=[fingerprint(page("list")).hex()])
            asked = due("list", "1h"), redirected, redirected
            assert crawl.seen(*asked) == [False, False, not is_own]
            clock[0] += 3600 - 1
            assert crawl.seen(due("list", "1h")) == [True]
            clock[0] += 1
