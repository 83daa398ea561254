"""The error rate is what the theory says, and never more than what was asked."""

import hashlib
import math
from functools import cache

import pytest

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
    assert is_likely(wrong, info.estimated_fp_rate * queries)
    assert info.estimated_fp_rate <= error_rate
    assert is_likely(lost, info.expected_lost)


def is_likely(count, mean):
    """Return whether a Poisson variable is so many but for one time in a thousand million.

    Each run has its own secret, and must not fail by chance.
    """

    def chance(counts):
        return sum(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in counts)

    return min(chance(range(count + 1)), chance(range(count, 10 * count + 100))) > 5e-10
