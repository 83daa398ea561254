"""The keys in a request's meta that users may set, and what is said of others like them."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.crawl.history import OURS
from scrapy_bloom.crawl.later import DELAY
from scrapy_bloom.fingerprinter import META_KEY as CANONICAL
from scrapy_bloom.settings import MAX_AGE

if TYPE_CHECKING:
    from scrapy_bloom.crawl.report import Report

_PREFIX: Final = "bloom_"
_THEIRS: Final = CANONICAL, DELAY, MAX_AGE

_MOST: Final = 1_000
"""Keys that are looked at: a project may make new ones all the time."""


class MetaKeys:
    """Warns, once a crawl, of each mistyped key.

    Attributes:
        known: those that were looked at. Most requests have only such, which is quickly asked.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.known: set[Any] = {*_THEIRS, *OURS}

    def learn(self, meta: dict[Any, Any]) -> None:
        """Look at the keys of a request that are not known."""
        for key in meta.keys() - self.known if len(self.known) < _MOST else ():
            self.known.add(key)
            if isinstance(key, str) and key.startswith(_PREFIX):
                theirs = [each.removeprefix(_PREFIX) for each in _THEIRS]
                close = get_close_matches(key.removeprefix(_PREFIX), theirs, n=1)
                hint = f"; did you mean {_PREFIX}{close[0]}?" if close else "."
                self._report.log(
                    logging.WARNING,
                    "There is no meta key %s%s It has no effect. This is logged once.",
                    key,
                    hint,
                )
