"""Which bits: keyed, even, and the same for ever."""

import hashlib
from struct import unpack

import mmh3

from scrapy_bloom.filter.hashing import make_probe

SECRET = bytes(range(16))


def test_the_layout_of_the_bits_does_not_change():
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
