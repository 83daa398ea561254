"""How many bits, against the textbook and against simulation; and which: the same for ever."""

import math
import operator
from hashlib import sha1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.filter import sizing
from scrapy_bloom.filter.hashing import make_probe

FAST, SAFE = (make_probe(bytes(range(16)), digests=digests) for digests in (True, False))

rates = st.floats(min_value=1e-15, max_value=0.9)
sizes = st.integers(min_value=1, max_value=10**8)


@given(capacity=sizes, error_rate=rates)
def test_the_blocks_are_enough_and_one_less_is_not(capacity, error_rate):
    blocks = sizing.blocks_for(capacity, error_rate)
    assert sizing.false_positive_rate(capacity, blocks) <= error_rate
    if blocks > 1:
        assert sizing.false_positive_rate(capacity, blocks - 1) > error_rate


@pytest.mark.parametrize(
    ("error_rate", "bits", "most"),
    [(1e-2, 9.585, 1.15), (1e-3, 14.378, 1.06), (1e-4, 19.170, 1.06), (1e-6, 28.755, 1.06)],
)
def test_space_is_close_to_the_textbook_optimum(error_rate, bits, most):
    """Optimal bits per item are ``log2(1 / p) / ln 2`` (Bloom 1970)."""
    assert bits == pytest.approx(-math.log2(error_rate) / math.log(2), rel=1e-3)
    blocks = sizing.blocks_for(10_000_000, error_rate)
    assert blocks * sizing.BLOCK_BITS / 10_000_000 <= most * bits


@pytest.mark.parametrize("mean", [1, 63, 64, 300, 5000, 60_000])
def test_the_rate_is_the_average_over_all_loads_of_a_block(mean):
    spread = range(max(0, mean - 9 * math.isqrt(mean) - 9), mean + 9 * math.isqrt(mean) + 9)
    chances = [math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in spread]
    rates = [sizing.false_positive_rate(n, 1) for n in spread]
    average = sum(map(operator.mul, chances, rates))
    assert sizing.false_positive_rate(5 * mean, 5) == pytest.approx(average, rel=1e-9)


@pytest.mark.parametrize(("items", "blocks"), [(10_000, 3), (1_000_000, 531)])
def test_expected_false_positives_are_the_integral_of_the_rate(items, blocks):
    step = items / 2000
    middles = (step * (part + 0.5) for part in range(2000))
    exact = step * sum(sizing.false_positive_rate(middle, blocks) for middle in middles)
    assert sizing.expected_false_positives(items, blocks) == pytest.approx(exact, rel=0.005)


def test_the_layout_of_the_bits_does_not_change():
    """Filters are stored: these bytes must mean these bits in every version."""
    page = sha1(b"page").digest()
    # fmt: off
    assert FAST(page) == [
        3316, 63781, 35455, 38628, 25106, 59511, 52380, 7297,
        2982, 58167, 63607, 55853, 19444, 56893, 2380176339,
    ]
    assert SAFE(page) == [
        7931, 21598, 35427, 35369, 41408, 6758, 33444, 4828,
        14025, 57148, 35865, 59374, 21466, 8237, 780104577,
    ]
    # fmt: on


def test_only_digests_of_20_bytes_are_taken_as_such():
    assert FAST(b"x" * 20) != SAFE(b"x" * 20)
    for other in (b"", b"x" * 19, b"x" * 21, b"x" * 32):
        assert FAST(other) == SAFE(other)
