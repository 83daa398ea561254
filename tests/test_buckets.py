"""The arithmetic of the layout "sets"."""

import itertools
from math import ceil, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.core.buckets import (
    LOAD,
    MOST_NUMBERS,
    count_numbers,
    is_wide,
    next_bucket_slice,
)
from scrapy_bloom.core.info import expected_lost, filter_info


def grow(count, capacity, error_rate):
    specs = []
    for _ in range(count):
        specs.append(next_bucket_slice(specs, capacity, error_rate))
    return specs


@given(
    capacity=st.integers(1, 10**10),
    error_rate=st.floats(1e-15, 0.999),
    count=st.integers(1, 8),
)
def test_the_errors_of_all_slices_stay_within_the_error_rate(capacity, error_rate, count):
    specs = grow(count, capacity, error_rate)
    assert sum(spec.error_rate for spec in specs) < error_rate
    for spec in specs:
        bits = 63 if is_wide(spec) else 32
        assert spec.error_rate == spec.capacity / spec.blocks / 2**bits
        assert spec.capacity / spec.blocks <= LOAD
        assert 1 <= spec.blocks <= 2**32


def test_each_slice_is_as_large_as_all_before_it():
    assert [spec.capacity for spec in grow(6, 10, 1e-6)] == [10, 10, 20, 40, 80, 160]


@pytest.mark.parametrize(("error_rate", "wide"), [(1e-6, False), (1e-7, False), (1e-8, True)])
def test_low_rates_need_wide_numbers(error_rate, wide):
    assert is_wide(next_bucket_slice([], 10**6, error_rate)) is wide


@pytest.mark.parametrize("capacity", [1, 10, 384, 10**9])
def test_the_rate_tells_how_wide_the_numbers_are(capacity):
    """Also where a slice has few items, or one only."""
    assert not is_wide(next_bucket_slice([], capacity, 0.5))
    assert is_wide(next_bucket_slice([], capacity, 1e-12))


def test_a_bucket_gets_too_large_for_an_array_hardly_ever():
    assert LOAD + 6.4 * sqrt(LOAD) + 1 <= MOST_NUMBERS


def test_what_is_counted():
    spec = next_bucket_slice([], 10 * LOAD, 1e-6)
    assert spec.blocks == 10
    count = count_numbers(spec, 1000, [90, 110])
    assert count.estimated_items == 1000
    assert count.rate == count.added_rate == 100 / 2**32
    info = filter_info([[count]], error_rate=1e-6, memory=1)
    assert info.fill_ratio == pytest.approx(100 / 511)
    assert info.estimated_fp_rate == pytest.approx(100 / 2**32)
    assert info.expected_lost == pytest.approx(1000 * 50 / 2**32)


def test_lost_items_are_those_of_each_slice_and_of_the_full_ones_before_it():
    specs = grow(3, 1000, 1e-6)
    counts = [count_numbers(spec, spec.capacity, [0]) for spec in specs]
    # A brute sum: each item meets those that were there before it.
    lost, full = 0.0, 0.0
    for spec in specs:
        own = (spec.error_rate * i / spec.capacity for i in range(spec.capacity))
        lost += sum(own) + full * spec.capacity
        full += spec.error_rate
    assert expected_lost(counts) == pytest.approx(lost, rel=0.01)


@pytest.mark.parametrize("error_rate", [1e-6, 1e-12])
def test_memory_is_said_for_what_is_in_it(error_rate):
    spec = next_bucket_slice([], 10**6, error_rate)
    sizes = [count_numbers(spec, items, [0]).bytes_at_capacity for items in (0, 10**6)]
    assert sizes[0] == sizes[1]
    width = 8 if is_wide(spec) else 4
    assert width < sizes[0] / 10**6 < 1.4 * width


def test_small_capacities_take_one_bucket():
    sizes = [spec.blocks for spec in grow(3, 100, 1e-6)]
    assert sizes == [1, 1, ceil(200 / 384)]
    assert list(itertools.accumulate(sizes))[-1] == 3
