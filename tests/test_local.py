"""The local filter: the contract, and what only it promises."""

import copy
import logging
import pickle
import tracemalloc
from dataclasses import replace

import pytest
from support.contract import FilterContract, fingerprints

from scrapy_bloom import FilterInfo, LocalFilter, SettingError, WindowedFilter
from scrapy_bloom.core.state import EMPTY, Slice


class TestLocalFilter(FilterContract):
    @pytest.fixture
    def make(self):
        return LocalFilter


class TestLocalFilterOfAnyBytes(FilterContract):
    @pytest.fixture
    def make(self):
        return lambda **sizes: LocalFilter(**sizes, digests=False)


def test_an_info_says_it_all_and_cannot_be_changed():
    info = LocalFilter(1000, 0.001).info()
    assert isinstance(info, FilterInfo)
    with pytest.raises(AttributeError):
        info.items = 1


def test_the_defaults_need_no_plan():
    info = LocalFilter().info()
    assert (info.capacity, info.error_rate) == (1_000_000, 1e-6)
    assert info.bytes < 20_000


def test_memory_is_taken_as_it_is_needed():
    tracemalloc.start()
    seen = LocalFilter(capacity="1G")
    seen.add_many(fingerprints(100))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    info = seen.info()
    assert info.bytes_at_capacity > 4_000_000_000
    assert info.bytes == pytest.approx(taken, rel=0.02)
    assert taken < 6_000_000


def test_memory_told_is_memory_taken_and_at_most_4_5_bytes_an_item_when_full():
    known = fingerprints(100_000)
    tracemalloc.start()
    seen = LocalFilter(capacity=100_000)
    for fingerprint in known:
        seen.add(fingerprint)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen.info().bytes == pytest.approx(taken, rel=0.02)
    assert seen.info().bytes / 100_000 <= 4.5  # in `taken` is what other threads have taken, too


def test_a_full_filter_holds_its_capacity_before_it_grows():
    seen = LocalFilter(capacity=1000)
    seen.add_many(fingerprints(1000))
    assert seen.info().slices == 1
    seen.add(b"one more")
    assert seen.info().slices == 2


def test_growth_is_told_once(caplog):
    seen = LocalFilter(capacity=1000)
    with caplog.at_level(logging.INFO, "scrapy_bloom"):
        seen.add_many(fingerprints(1000))
        assert not caplog.records
        seen.add_many(fingerprints(20_000))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "1,000 fingerprints, as many as it was sized for" in record.getMessage()
    assert "set capacity to the number" in record.getMessage()
    assert "BLOOM_" not in record.getMessage()


def test_growth_is_told_to_whoever_asks(caplog):
    told = []
    seen = LocalFilter(1000, on_growth=told.append)
    seen.add_many(fingerprints(20_000))
    assert told == [1000]
    assert not caplog.records


def pickled(seen):
    return pickle.loads(pickle.dumps(seen))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize(("capacity", "count"), [(100_000, 0), (100_000, 20), (1000, 3000)])
def test_a_copy_is_a_filter_of_its_own(again, capacity, count):
    seen = LocalFilter(capacity)
    known, later = fingerprints(count), fingerprints(20_000, "later")
    seen.add_many(known)
    other = again(seen)
    assert all(other.contains_many(known))
    assert replace(other.info(), bytes=0) == replace(seen.info(), bytes=0)
    assert other.add_many(later) == [False] * 20_000
    assert seen.info().items == count
    assert not any(seen.contains_many(later))
    assert seen.add_many(later) == [False] * 20_000


def test_a_copy_takes_memory_as_it_is_needed():
    seen = LocalFilter(capacity="1G")
    seen.add_many(fingerprints(100))
    # A list that was copied item by item has some room at its end.
    assert copy.deepcopy(seen).info().bytes == pytest.approx(seen.info().bytes, rel=0.15)


def test_a_filter_is_closed_by_with():
    with LocalFilter() as seen:
        assert seen.add(b"one") is False
        assert b"one" in seen


def test_a_repeat_is_found_in_any_slice():
    seen = LocalFilter(capacity=100)
    known = fingerprints(3200)
    seen.add_many(known)
    assert seen.info().slices == 6
    assert seen.add_many(known) == [True] * 3200


def test_the_shared_empty_block_stays_empty():
    seen = LocalFilter(capacity=1_000_000)
    seen.add_many(fingerprints(5000))
    assert not EMPTY.any()


def test_a_value_that_is_no_bytes_is_an_error_and_adds_nothing():
    seen = LocalFilter()
    for wrong in ("text", None, 5):
        with pytest.raises(TypeError):
            seen.add(wrong)
    assert seen.info().items == 0


def test_the_secret_is_not_printed():
    seen = LocalFilter()
    assert seen.secret.hex() not in repr(seen.state())
    assert repr(seen.secret) not in repr(seen.state())


@pytest.mark.parametrize("more", [(0, 0), (300, 20), (20, 300), (2000, 5)])
def test_copies_of_one_filter_are_united(more):
    """Also if they have grown since."""
    one = LocalFilter(200, 1e-6, on_growth=int)
    one.add_many(fingerprints(150))
    one.add_aged(b"feed", 60)
    other = copy.copy(one)
    ours, theirs = fingerprints(more[0], "ours"), fingerprints(more[1], "theirs")
    one.add_many(ours)
    other.add_many(theirs)
    other.add_aged(b"list", 60)
    other.forget_many(fingerprints(2))
    before = pickle.dumps(other)
    one.update(other)
    assert pickle.dumps(other) == before
    assert one.contains_many(fingerprints(150)) == [False, False, *[True] * 148]
    assert all(one.contains_many([*ours, *theirs]))
    assert one.add_aged(b"list", 60)
    info = one.info()
    assert info.items == pytest.approx(info.estimated_items, rel=0.1)  # a full slice counts as full
    new = fingerprints(500, "new")
    assert one.add_many(new) == [False] * 500
    assert not any(other.contains_many(new))


@pytest.mark.parametrize("differs", ["secret", "slices", "window"])
def test_another_filter_is_not_united(differs):
    one = WindowedFilter(60, 200) if differs == "window" else LocalFilter(200)
    state = one.state()
    if differs == "slices":
        spec = replace(state.slices[0].spec, blocks=2)
        state = replace(state, slices=[Slice.new(spec)])
    others = {
        "secret": LocalFilter(200),
        "slices": LocalFilter.from_state(state, 200),
        "window": copy.copy(one),
    }
    one.add_many(fingerprints(9))
    with pytest.raises(SettingError, match="a copy of the same filter"):
        one.update(others[differs])
    assert one.info().items == 9
