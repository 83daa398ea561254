"""A filter that is held against an exact sample, to see how many new pages it calls seen.

The sample has those fingerprints whose keyed hash falls into a given share, all of them that were
met. So of these it is known which were new. A new one that the filter calls seen is counted, and is
let through, since it is known to be new.

With a window a page may become new again. That is for the filter to say: it is not counted again
while it is in the sample, which it leaves some windows later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import repeat
from math import inf
from typing import Any, Final

from scrapy_bloom.core.audit import AuditReport, make_sampler
from scrapy_bloom.core.growth import generation_life
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.layers.around import FilterAround
from scrapy_bloom.storage import fields

COUNTS: Final = "audit"
"""Key of the note with what was counted so far; empty if there is no audit."""

SAMPLE: Final = "audit sample"
"""Key of the note with the fingerprints of the sample, each after its length in a byte."""

_ANY: Final = 1 << 63
_LONGEST: Final = 255
_FEW: Final = 10_000

_LIVES: Final = 3
"""So many lives of a generation a fingerprint stays in the sample. One would do, if no clock were
ever set: the filter keeps some for longer then.
"""


def report_of(counts: str) -> AuditReport | None:
    """Return what a note tells; None if it is empty.

    :raises ValueError: if it makes no sense.
    """
    if not counts:
        return None
    checked, observed, predicted = _read(fields.read_object(counts.encode()))
    return AuditReport.of(checked, observed, predicted)


def _read(noted: Mapping[str, Any]) -> tuple[int, int, float]:
    checked = fields.integer(noted, "checked", 0, _ANY)
    observed = fields.integer(noted, "observed", 0, checked)
    return checked, observed, float(noted.get("predicted", 0))


class AuditFilter(FilterAround):
    """A :class:`Filter` around a local one, which is not to be used by anybody else.

    :param inner: the filter. If it has marks, :meth:`begin` or :meth:`resume` has to be called.
    :param share: of all fingerprints that are in the sample, above 0, at most 1.

    Attributes:
        inner: the filter. Of marks that it has had before nothing is known.
        share: as above.
        checked: new fingerprints of the sample.
        observed: how many of them the filter called seen.
        predicted: how many of them it was expected to.
    """

    def __init__(self, inner: LocalFilter, share: float) -> None:
        super().__init__(inner)
        self._sample: dict[bytes, float] = {}
        self.share = share
        self._start()

    def add(self, fingerprint: bytes) -> bool:
        """Add one fingerprint; return whether it was there before."""
        if not self._is_sampled(fingerprint):
            return self.inner.add(fingerprint)
        known = fingerprint in self._sample
        if known or (self.old and self.inner.was_in(fingerprint, self.old)):
            seen = self.inner.add(fingerprint)  # if it is unknown, it may be old, or not
            if not seen:
                self._keep(fingerprint)
            return seen
        self.predicted += self.inner.expected_rate(self.old)
        self.checked += 1
        if self.inner.add(fingerprint):
            self.observed += 1
            self.inner.renew(fingerprint)  # what it was taken for may be dropped before it
        self._keep(fingerprint)
        return False

    def add_aged(self, fingerprint: bytes, max_age: float) -> bool:
        """Return whether a page was let through less than `max_age` seconds ago; if not, do so."""
        seen = self.inner.add_aged(fingerprint, max_age)
        if not seen and self._is_sampled(fingerprint):
            self._keep(fingerprint)  # it is old from now on, and was not asked about
        return seen

    def restored(self, fingerprints: list[bytes], since: float | None) -> None:  # noqa: ARG002 - now will do
        """Note marks of an earlier run; they are not counted."""
        for fingerprint in fingerprints:
            if self._is_sampled(fingerprint):
                self._keep(fingerprint)

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
        return AuditReport.of(self.checked, self.observed, self.predicted)

    def notes(self, *, stored: bool = False) -> dict[str, str | bytes]:
        """Return what :meth:`resume` needs.

        :param stored: whether the filter stays as it was stored; if not, it is stored as it is now.
        """
        self._let_go()
        some = {one: since for one, since in self._sample.items() if len(one) <= _LONGEST}
        counts: dict[str, Any] = {
            "share": self.share,
            "old": self.inner.old_as_stored if stored else self.old,
            "checked": self.checked,
            "observed": self.observed,
            "predicted": self.predicted,
        }
        if self.inner.window is not None:
            counts |= {"window": self.inner.window, "dates": [*some.values()]}
        return {
            COUNTS: json.dumps(counts),
            SAMPLE: b"".join(bytes([len(one)]) + one for one in some),
        }

    def begin(self) -> None:
        """Begin with a filter that may have marks already: of those nothing is known."""
        self.inner.begin_after(self.inner.until_now())

    def resume(self, counts: str, sample: bytes) -> bool:
        """Go on with what an earlier run has counted, if its share and window were the same.

        Else begin anew, and return False.

        :raises ValueError: if the notes make no sense.
        """
        noted = fields.read_object(counts.encode())
        window = self.inner.window
        if (noted.get("share"), noted.get("window")) != (self.share, window):
            self.begin()
            return False
        self.checked, self.observed, self.predicted = _read(noted)
        self.inner.begin_after(fields.number(noted, "old", 0, _ANY))
        found, at = [], 0
        while at < len(sample):
            end = at + 1 + sample[at]
            found.append(sample[at + 1 : end])
            at = end
        dates = repeat(inf, len(found)) if window is None else map(float, noted.get("dates", ()))
        self._sample = dict(zip(found, dates, strict=True))
        return True

    def _start(self) -> None:
        """Begin to count."""
        self._is_sampled = make_sampler(self.inner.secret, self.share)
        self._sample = {}
        self._many = _FEW
        self.checked = self.observed = 0
        self.predicted = 0.0

    def _keep(self, fingerprint: bytes) -> None:
        """Note that a fingerprint of the sample was let through."""
        self._sample[fingerprint] = inf if self.inner.window is None else self.inner.now()
        if len(self._sample) > self._many:
            self._let_go()
            self._many = max(_FEW, 2 * len(self._sample))

    def _let_go(self) -> None:
        """Drop what the filter has dropped for sure, even if the clock was set meanwhile."""
        if self.inner.window is not None:
            end = self.inner.now() - _LIVES * generation_life(self.inner.window)
            self._sample = {one: last for one, last in self._sample.items() if last > end}
