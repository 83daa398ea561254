"""Canonical forms in one crawl: fingerprints for its filter, and an account of what they did."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_bloom import stats as keys
from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter, Change
from scrapy_bloom.canonical.merges import Merges
from scrapy_bloom.canonical.provenance import difference, record
from scrapy_bloom.canonical.rules import Rules
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.errors import StateError
from scrapy_bloom.options import CANONICAL, DROP_PARAMS, KEEP_PARAMS, RULES
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.merges_file import read_merges, write_merges

if TYPE_CHECKING:
    from scrapy.statscollectors import StatsCollector

logger = logging.getLogger(__name__)


def rules_of(settings: Settings) -> Rules:
    """Return what a project's settings say of canonical URLs."""
    return Rules.of(
        settings[CANONICAL], settings[DROP_PARAMS], settings[KEEP_PARAMS], settings[RULES]
    )


class Spelling:
    """What makes requests one page in a crawl.

    :param rules: what the settings say.
    :param folder: the job directory, which keeps a sample of merged URLs; None if there is none.
    :raises StateError: if the sample in the folder is not one of ours.

    Attributes:
        fingerprinter: makes the fingerprints.
        record: what a filter remembers of how they were made.
    """

    def __init__(self, crawler: Crawler, rules: Rules, folder: Path | None) -> None:
        assert crawler.stats is not None  # noqa: S101 - Scrapy makes it before any component
        self._stats: StatsCollector = crawler.stats
        self._stats.inc_value(keys.MERGED, 0)
        self._folder = folder
        self.fingerprinter = CanonicalFingerprinter.wrapping(crawler.request_fingerprinter, rules)
        self.record = record(self.fingerprinter.rules)
        self._merges = Merges(self.fingerprinter.untouched, _new_marks)
        if folder:
            read_merges(folder, self._merges)

    def note(
        self, request: Request, fingerprint: bytes, change: Change | None, *, seen: bool
    ) -> None:
        """Count what the steps did to a request, and whether that made the verdict.

        To be called for every request that a step changed, and every one that was called seen.
        """
        if change:
            keys.count_steps(self._stats, change.steps)
        if self._merges.note(request, fingerprint, change, seen=seen):
            self._stats.inc_value(keys.MERGED)

    def tell(self, filled_with: Mapping[str, Any]) -> None:
        """Say in the log if the filter was filled with fingerprints made in another way."""
        if filled_with and (changed := difference(filled_with, self.record)):
            logger.warning("%s", changed)

    def close(self) -> None:
        """Store the sample. Where that fails it is said in the log: a crawl does not need it."""
        if self._folder:
            try:
                write_merges(self._folder, self._merges)
            except StateError as error:
                logger.warning("%s", error)


def _new_marks() -> LocalFilter:
    """Return a filter for the URLs met so far. It is a help for statistics and grows silently."""
    return LocalFilter(capacity=100_000, error_rate=1e-3, on_growth=lambda _: None)
