"""What an audit is: an exact sample of fingerprints, and what has come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from scrapy_bloom.core.intervals import wilson


@dataclass(frozen=True)
class AuditReport:
    """What an audit has found.

    Attributes:
        checked: new pages of the sample.
        observed: how many of them the filter called seen.
        predicted: how many of them it was expected to.
        low: the lower end of the interval that holds the error rate with a probability of 95 %.
        high: its upper end.
        ended: whether it has ended, because the server has lost the sample.
    """

    checked: int
    observed: int
    predicted: float
    low: float
    high: float
    ended: bool = False

    @classmethod
    def of(
        cls, checked: int, observed: int, predicted: float, *, ended: bool = False
    ) -> AuditReport:
        """Return the report on these counts."""
        return cls(checked, observed, predicted, *wilson(observed, checked), ended)


def make_sampler(secret: bytes, share: float) -> Callable[[bytes], bool]:
    """Return what tells whether a fingerprint falls into the sample.

    :param secret: of the filter; without it nobody can tell.
    :param share: of all fingerprints that do, above 0, at most 1.
    """
    limit = share * 2**64
    keyed = blake2b(key=secret, digest_size=8, person=b"audit")

    def is_sampled(fingerprint: bytes) -> bool:
        hasher = keyed.copy()
        hasher.update(fingerprint)
        return int.from_bytes(hasher.digest(), "big") < limit

    return is_sampled
