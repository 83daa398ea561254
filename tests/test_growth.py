"""Growth: doubled each time, under one budget of errors."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.core.growth import filter_hashes, next_slice
from scrapy_bloom.core.sizing import BLOCK_BYTES, false_positive_rate


def grow(count, capacity, error_rate, specs=()):
    specs = list(specs)
    for _ in range(count):
        specs.append(next_slice(specs, capacity, error_rate, filter_hashes(error_rate)))
    return specs


@pytest.mark.unmeasured
@given(
    capacity=st.integers(1, 10**7),
    error_rate=st.floats(1e-12, 0.9),
    count=st.integers(1, 12),
)
def test_the_errors_of_all_slices_stay_within_the_error_rate(capacity, error_rate, count):
    specs = grow(count, capacity, error_rate)
    hashes = filter_hashes(error_rate)
    assert sum(spec.error_rate for spec in specs) < error_rate
    for spec in specs:
        assert false_positive_rate(spec.capacity, spec.blocks, hashes) <= spec.error_rate


def test_each_slice_is_as_large_as_all_before_it():
    assert [spec.capacity for spec in grow(6, 10, 1e-6)] == [10, 10, 20, 40, 80, 160]


def test_new_settings_shape_the_slices_to_come_and_leave_the_old_ones():
    old = grow(2, 1000, 1e-6)
    larger = grow(2, 50_000, 1e-6, old)
    assert larger[:2] == old
    assert [spec.capacity for spec in larger[2:]] == [50_000, 52_000]
    smaller = grow(1, 10, 1e-6, old)
    assert smaller[2].capacity == 2000


@pytest.mark.parametrize("tightened", [1e-7, 1e-12])
def test_a_lowered_error_rate_bounds_the_slices_to_come(tightened):
    old = grow(2, 1000, 1e-6)
    assert sum(spec.error_rate for spec in grow(10, 1000, tightened, old)[2:]) < tightened


def test_bytes_per_item_at_1e_6_when_full_and_at_the_worst_moment_up_to_100_times():
    capacity = 1_000_000
    specs = grow(8, capacity, 1e-6)
    sizes = list(itertools.accumulate(spec.blocks * BLOCK_BYTES for spec in specs))
    held = [0, *itertools.accumulate(spec.capacity for spec in specs)]
    assert sizes[0] / capacity <= 4.5
    # A new slice is made for one item more than the older ones hold.
    worst = max(size / (items + 1) for size, items in zip(sizes[1:], held[1:], strict=False))
    assert worst <= 10
    assert held[-1] >= 100 * capacity
