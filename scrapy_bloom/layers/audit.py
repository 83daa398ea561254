"""A filter that is held against an exact sample, to see how many new pages it calls seen.

The sample has those fingerprints whose keyed hash falls into a given share, all of them that were
met. So of these it is known which were new. A new one that the filter calls seen is counted, and is
let through, since it is known to be new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from scrapy_bloom.core.intervals import wilson
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.layers.around import FilterAround
from scrapy_bloom.storage import fields

COUNTS: Final = "audit"
"""Key of the note with what was counted so far; empty if there is no audit."""

SAMPLE: Final = "audit sample"
"""Key of the note with the fingerprints of the sample, each after its length in a byte."""

_ANY: Final = 1 << 63
_LONGEST: Final = 255


@dataclass(frozen=True)
class AuditReport:
    """What an audit has found.

    Attributes:
        checked: new pages of the sample.
        observed: how many of them the filter called seen.
        predicted: how many of them it was expected to.
        low: the lower end of the interval that holds the error rate with a probability of 95 %.
        high: its upper end.
    """

    checked: int
    observed: int
    predicted: float
    low: float
    high: float


def report_of(counts: str) -> AuditReport | None:
    """Return what a note tells; None if it is empty.

    :raises ValueError: if it makes no sense.
    """
    if not counts:
        return None
    checked, observed, predicted = _read(fields.read_object(counts.encode()))
    return AuditReport(checked, observed, predicted, *wilson(observed, checked))


def _read(noted: Mapping[str, Any]) -> tuple[int, int, float]:
    checked = fields.integer(noted, "checked", 0, _ANY)
    observed = fields.integer(noted, "observed", 0, checked)
    return checked, observed, float(noted.get("predicted", 0))


class AuditFilter(FilterAround):
    """A :class:`Filter` around a local one, which is not to be used by anybody else.

    :param inner: the filter. If it has marks, :meth:`begin` or :meth:`resume` has to be called.
    :param share: of all fingerprints that are in the sample, above 0, at most 1.

    Attributes:
        inner: the filter.
        share: as above.
        checked: new fingerprints of the sample.
        observed: how many of them the filter called seen.
        predicted: how many of them it was expected to.
    """

    def __init__(self, inner: LocalFilter, share: float) -> None:
        super().__init__(inner)
        self.share = share
        self._limit = share * 2**64
        self._start()

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""
        if not self._is_sampled(fingerprint) or fingerprint in self._sample:
            return self.inner.add(fingerprint)
        if self._old and self.inner.was_in(fingerprint, self._old):
            return self.inner.add(fingerprint)  # it may be old, or not: nobody knows
        self.predicted += self.inner.expected_rate(self._old)
        self.checked += 1
        self.observed += self.inner.add(fingerprint)
        self._sample.add(fingerprint)
        return False

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether a page was let through less than `max_age` seconds ago; if not, do so."""
        seen = self.inner.add_aged(fingerprint, max_age)
        if not seen and self._is_sampled(fingerprint):
            self._sample.add(fingerprint)  # it is old from now on, and was not asked about
        return seen

    def restore(
        self,
        fingerprints: Iterable[bytes],
        since: float | None = None,  # noqa: ARG002 - there is no window
    ) -> None:
        """Add marks of an earlier run; they are not counted."""
        fingerprints = list(fingerprints)
        self.inner.add_many(fingerprints)
        self._sample.update(one for one in fingerprints if self._is_sampled(one))

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether the fingerprint was added. Changes nothing."""
        return fingerprint in self.inner

    def contains_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Return for each fingerprint, in order, whether it was added. Changes nothing."""
        return self.inner.contains_many(fingerprints)

    def forget(self, fingerprint: bytes) -> bool:
        """Make one fingerprint new once more; return whether it was there."""
        return self.inner.forget(fingerprint)

    def forget_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Make a batch new once more; return for each, in order, whether it was there."""
        return self.inner.forget_many(fingerprints)

    def clear(self) -> bool:
        """Forget everything, and begin to count anew."""
        self.inner.clear()
        self._start()
        return True

    def report(self) -> AuditReport:
        """Return what was found so far."""
        low, high = wilson(self.observed, self.checked)
        return AuditReport(self.checked, self.observed, self.predicted, low, high)

    def notes(self) -> dict[str, str | bytes]:
        """Return what :meth:`resume` needs."""
        counts = {
            "share": self.share,
            "old": self._old,
            "checked": self.checked,
            "observed": self.observed,
            "predicted": self.predicted,
        }
        some = (one for one in self._sample if len(one) <= _LONGEST)
        return {
            COUNTS: json.dumps(counts),
            SAMPLE: b"".join(bytes([len(one)]) + one for one in some),
        }

    def begin(self) -> None:
        """Begin with a filter that may have marks already: of those nothing is known."""
        self._begin(self.inner.marked_slices())

    def resume(self, counts: str, sample: bytes) -> None:
        """Go on with what an earlier run has counted, if that had the same share; else begin anew.

        :raises ValueError: if the notes make no sense.
        """
        noted = fields.read_object(counts.encode())
        if noted.get("share") != self.share:
            self.begin()
            return
        self.checked, self.observed, self.predicted = _read(noted)
        self._begin(fields.integer(noted, "old", 0, _ANY))
        at = 0
        while at < len(sample):
            end = at + 1 + sample[at]
            self._sample.add(sample[at + 1 : end])
            at = end

    def _start(self) -> None:
        """Begin to count."""
        self._hasher = blake2b(key=self.inner.secret, digest_size=8, person=b"audit")
        self._sample: set[bytes] = set()
        self.checked = self.observed = 0
        self._old = 0
        self.predicted = 0.0

    def _begin(self, old: int) -> None:
        """Let the first slices be, and add to others."""
        self._old = old
        self.inner.begin_slice(old)

    def _is_sampled(self, fingerprint: bytes) -> bool:
        hasher = self._hasher.copy()
        hasher.update(fingerprint)
        return int.from_bytes(hasher.digest(), "big") < self._limit
