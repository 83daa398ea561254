"""The error rate is what the theory says, and never more than what was asked."""

import hashlib
from functools import cache

import pytest
from scipy import stats

from scrapy_bloom import LocalFilter

KINDS = {
    "random": lambda i: hashlib.blake2b(b"%d" % i, digest_size=20).digest(),
    "sequential": lambda i: i.to_bytes(20, "big"),
    "one host": lambda i: hashlib.sha1(
        b'{"body": "", "headers": {}, "method": "GET", "url": "https://example.com/p/%d"}' % i
    ).digest(),
}


@cache
def made(kind):
    """Return the first so many fingerprints of a kind: as many as any test asks for."""
    return list(map(KINDS[kind], range(100_000 + 10 * 10_000)))


SIZES = [(1000, 1000), (100_000, 100_000), (100_000, 3_000)]
RATES = [1e-2, 1e-3, 1e-4]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "items", "capacity", "error_rate"),
    [(kind, *size, rate) for kind, size, rate in zip(KINDS, SIZES, RATES, strict=True)],
)
def test_the_rate_is_the_predicted_one_and_at_most_the_asked_one(kind, error_rate, items, capacity):
    queries = round(10 / error_rate)
    seen = LocalFilter(capacity, error_rate)
    lost = sum(seen.add_many(made(kind)[:items]))
    wrong = sum(seen.contains_many(made(kind)[items : items + queries]))
    info = seen.info()
    # Each run has its own secret, and must not fail by chance: these are six standard deviations.
    low, high = stats.poisson.interval(1 - 1e-9, info.estimated_fp_rate * queries)
    assert low <= wrong <= high
    assert info.estimated_fp_rate <= error_rate
    low, high = stats.poisson.interval(1 - 1e-9, info.expected_lost)
    assert low <= lost <= high
