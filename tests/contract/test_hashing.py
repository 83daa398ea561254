"""Which bits: keyed, even, and the same for ever."""

import hashlib
from struct import unpack

import mmh3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scrapy_bloom.filter.hashing import make_probe

SECRET = bytes(range(16))


@given(fingerprint=st.binary(max_size=64), digests=st.booleans())
def test_a_probe_is_k_positions_and_a_block_number(fingerprint, digests):
    positions = make_probe(SECRET, digests=digests)(fingerprint)
    h = positions.pop()
    assert len(positions) == 14
    assert all(0 <= position < 65536 for position in positions)
    assert 0 <= h < 2**32


def test_the_layout_is_written_in_stone():
    """Filters are stored: these bytes must mean these bits in every version."""
    fingerprint = hashlib.sha1(b"page").digest()
    keyed = SECRET + fingerprint
    raw = mmh3.mmh3_x64_128_digest(keyed, 0) + mmh3.mmh3_x64_128_digest(keyed, 1)
    expected = [*unpack(">14H", raw[:28]), *unpack(">I", raw[28:])]
    assert make_probe(SECRET, digests=True)(fingerprint) == expected
    # fmt: off
    assert expected == [
        3316, 63781, 35455, 38628, 25106, 59511, 52380, 7297,
        2982, 58167, 63607, 55853, 19444, 56893, 2380176339,
    ]
    # fmt: on
    raw = hashlib.blake2b(fingerprint, key=SECRET, digest_size=32).digest()
    expected = [*unpack(">14H", raw[:28]), *unpack(">I", raw[28:])]
    assert make_probe(SECRET, digests=False)(fingerprint) == expected


def test_only_digests_of_20_bytes_are_taken_as_such():
    fast, safe = make_probe(SECRET, digests=True), make_probe(SECRET, digests=False)
    assert fast(b"x" * 20) != safe(b"x" * 20)
    for other in (b"", b"x" * 19, b"x" * 21, b"x" * 32):
        assert fast(other) == safe(other)


@pytest.mark.parametrize(
    ("digests", "kind"), [(True, "hashed"), (True, "one byte apart"), (False, "sequential")]
)
def test_bits_are_spread_evenly_and_independently(digests, kind):
    make = {
        "hashed": lambda i: hashlib.sha1(b"%d" % i).digest(),
        "sequential": lambda i: i.to_bytes(20, "big"),
        "one byte apart": lambda i: b"same" * 4 + i.to_bytes(4, "little"),
    }[kind]
    probe = make_probe(SECRET, digests=digests)
    table = np.array([probe(make(i)) for i in range(20_000)], dtype=np.uint64)
    for column in range(15):
        bits = 32 if column == 14 else 16
        counts = np.bincount((table[:, column] >> (bits - 8)).astype(int), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
    correlations = np.corrcoef(table.astype(float), rowvar=False) - np.eye(15)
    assert np.abs(correlations).max() < 0.04  # 5.6 standard deviations of 20,000 pairs
    assert len(set(map(tuple, table))) == 20_000
