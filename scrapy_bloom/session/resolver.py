"""From a request of a crawl to its fingerprint, and what canonicalization merged on the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_bloom import stats
from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter, Change
from scrapy_bloom.canonical.merges import Merges
from scrapy_bloom.canonical.provenance import difference, record
from scrapy_bloom.canonical.rules import Rules
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.errors import StateError
from scrapy_bloom.session.reporter import Reporter
from scrapy_bloom.storage.merges_file import read_merges, write_merges

logger = logging.getLogger(__name__)


class Resolver:
    """Fingerprints the requests of one crawl and records what canonicalization merged.

    :param rules: the canonical rules that the settings choose.
    :param folder: the job directory, which keeps a sample of merged URLs; None if there is none.
    :param reporter: writes to the stats.
    :raises StateError: if the sample in the folder is not one of ours.

    Attributes:
        fingerprinter: makes the fingerprints.
        record: how the fingerprints are made, in the form that is stored with a filter.
        resolve: returns the fingerprint of a request, and the change if a step changed its URL.
    """

    def __init__(
        self, crawler: Crawler, rules: Rules, folder: Path | None, reporter: Reporter
    ) -> None:
        self._reporter = reporter
        self._reporter.add(stats.MERGED.key, 0)
        self._folder = folder
        self.fingerprinter = CanonicalFingerprinter.wrapping(crawler.request_fingerprinter, rules)
        self.resolve = self.fingerprinter.resolve
        self.record = record(self.fingerprinter.rules)
        self._merges = Merges(self.fingerprinter.untouched, _new_marks)
        if folder:
            read_merges(folder, self._merges)

    def note(
        self, request: Request, fingerprint: bytes, change: Change | None, *, seen: bool
    ) -> None:
        """Count the steps that changed a request, and whether it was seen only because of them.

        To be called for every request that a step changed, and for every one that was called seen.
        """
        if change:
            for step in change.steps:
                self._reporter.add(stats.STEP.key.format(step=step))
        if self._merges.note(request, fingerprint, change, seen=seen):
            self._reporter.add(stats.MERGED.key)

    def compare(self, filled_with: Mapping[str, Any]) -> None:
        """Warn if the filter was filled with fingerprints that were made in another way."""
        if filled_with and (changed := difference(filled_with, self.record)):
            logger.warning("%s", changed)

    def close(self) -> None:
        """Store the sample of merged URLs. If that fails, it is logged, and the crawl goes on."""
        if self._folder:
            try:
                write_merges(self._folder, self._merges)
            except StateError as error:
                logger.warning("%s", error)


def _new_marks() -> LocalFilter:
    """Return an auxiliary filter of URLs met so far. It is for statistics, and grows silently."""
    return LocalFilter(capacity=100_000, error_rate=1e-3, on_growth=lambda _: None)
