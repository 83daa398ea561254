"""Hosts that keep a crawl out: their pages are unparsed one after another, for one reason."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from scrapy_bloom.crawl.outcomes import REDIRECTED, Reason

if TYPE_CHECKING:
    from scrapy_bloom.crawl.report import Report

_WALLS: Final = {"401", "403", "407", "429"}
_IN_A_ROW: Final = 10
_MOST: Final = 3  # WARNINGs a run
_MOST_HOSTS: Final = 10_000


class Walls:
    """Notices when a host keeps a crawl out, and says so once for each host and reason.

    :param report: writes to the log.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._rows: dict[str, tuple[str, int]] = {}  # by host: the reason, and how often in a row
        self._logged: set[tuple[str, str]] = set()

    def record(self, url: str, reason: Reason | None) -> None:
        """Record how a page has ended.

        :param url: of the request that the page stands for by now.
        :param reason: why no callback got it; None if one did.
        """
        if reason is None and not self._rows:
            return
        host = urlsplit(url).hostname or ""
        name = None if reason is None else _wall(reason)
        if name is None:
            self._rows.pop(host, None)
            return
        before, count = self._rows.pop(host, (name, 0))
        count = count + 1 if before == name else 1
        if len(self._rows) < _MOST_HOSTS:
            self._rows[host] = name, count
        if count >= _IN_A_ROW and len(self._logged) < _MOST and (host, name) not in self._logged:
            self._logged.add((host, name))
            assert reason is not None
            queue = f"scrapy bloom queue --spider {shlex.quote(self._report.spider_name)}"
            self._report.warn(
                f"{_IN_A_ROW} pages of {host or 'one host'} in a row were not parsed ({name}): the"
                f" site may want a login, or block this crawl. '{queue} --unparsed' lists them."
                f" Log in first, or crawl more slowly; '{queue} --retry --reason"
                f" {shlex.quote(reason.kind)}' has the next run fetch them again."
            )


def _wall(reason: Reason) -> str | None:
    """Return which wall a page has met, None if it is none."""
    if reason.kind == REDIRECTED:
        return f"redirected to {reason.message}"
    return reason.kind if reason.unparsed and reason.kind in _WALLS else None
