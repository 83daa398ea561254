"""From a request of a crawl to its fingerprint, and what canonicalization changed on the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from scrapy.crawler import Crawler

from scrapy_bloom import stats
from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter, Change
from scrapy_bloom.canonical.provenance import difference, record
from scrapy_bloom.canonical.rules import Rules
from scrapy_bloom.session.reporter import Reporter

logger = logging.getLogger(__name__)


class Resolver:
    """Fingerprints the requests of one crawl and counts what canonicalization changed.

    :param rules: the canonical rules that the settings choose.
    :param reporter: writes to the stats.

    Attributes:
        fingerprinter: makes the fingerprints.
        record: how the fingerprints are made, in the form that is stored with a filter.
        resolve: returns the fingerprint of a request, and the change if a step changed its URL.
    """

    def __init__(self, crawler: Crawler, rules: Rules, reporter: Reporter) -> None:
        self._reporter = reporter
        self.fingerprinter = CanonicalFingerprinter.wrapping(crawler.request_fingerprinter, rules)
        self.resolve = self.fingerprinter.resolve
        self.record = record(self.fingerprinter.rules)

    def count(self, change: Change) -> None:
        """Count the steps that changed a request."""
        for step in change.steps:
            self._reporter.add(stats.STEP.key.format(step=step))

    def compare(self, filled_with: Mapping[str, Any]) -> None:
        """Warn if the filter was filled with fingerprints that were made in another way."""
        if filled_with and (changed := difference(filled_with, self.record)):
            logger.warning("%s", changed)
