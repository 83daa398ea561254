"""The keys in a request's meta that users may set, and what is said of others like them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.crawl.history import CHAIN, ORIGINAL, START, TRIES
from scrapy_bloom.crawl.identity import START_BYTES
from scrapy_bloom.crawl.later import DELAY
from scrapy_bloom.crawl.scrapy.engine import BACK
from scrapy_bloom.fingerprinter import META_KEY as CANONICAL
from scrapy_bloom.settings import MAX_AGE

if TYPE_CHECKING:
    from scrapy_bloom.crawl.report import Report

_PREFIX: Final = "bloom_"
_THEIRS: Final = CANONICAL, DELAY, MAX_AGE
_OURS: Final[dict[str, Callable[[Any], bool]]] = {
    BACK: lambda value: value is True,
    CHAIN: lambda value: isinstance(value, list) and all(_is_hex(mark) for mark in value),
    ORIGINAL: lambda value: isinstance(value, bytes),
    START: lambda value: isinstance(value, bytes) and len(value) == START_BYTES,
    TRIES: lambda value: (
        isinstance(value, (list, tuple))
        and [type(each) for each in value] in ([int, float], [int, int])
    ),
}
"""Ours, with what each may be. A spider that hands on foreign meta may bring others."""

_HEX: Final = re.compile("(?:[0-9a-f]{2})+")

_MOST: Final = 1_000
"""Keys that are looked at: a project may make new ones all the time."""


class MetaKeys:
    """Warns, once a crawl, of each mistyped key, and removes what is not ours.

    Attributes:
        known: those that were looked at. Most requests have only such, which is quickly asked.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.known: set[Any] = {*_THEIRS}  # ours are rare, and looked at each time

    def learn(self, meta: dict[Any, Any]) -> None:
        """Look at the keys of a request that are not known."""
        for key in _OURS.keys() & meta.keys():
            if not _OURS[key](meta[key]):
                self._report.once(
                    logging.WARNING,
                    "meta[%r] = %.100r is not of this crawl, and was removed: no key of your own"
                    " may begin with bloom_. More such keys are not shown.",
                    key,
                    meta[key],
                )
                del meta[key]
        for key in meta.keys() - self.known - _OURS.keys() if len(self.known) < _MOST else ():
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


def _is_hex(mark: object) -> bool:
    return isinstance(mark, str) and _HEX.fullmatch(mark) is not None
