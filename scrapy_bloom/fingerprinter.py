"""The fingerprinter that a project may choose for all of Scrapy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.canonical import fingerprint
from scrapy_bloom.crawl.provenance import rules_of
from scrapy_bloom.settings import Settings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self


class CanonicalFingerprinter(fingerprint.CanonicalFingerprinter):  # noqa: D101 - has it below
    __doc__ = fingerprint.CanonicalFingerprinter.__doc__

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the fingerprinter of a crawl, with the rules of its settings.

        With this, the class may be a project's ``REQUEST_FINGERPRINTER_CLASS``: the HTTP cache and
        the media pipelines then follow the rules as well.

        :raises SettingError: if a setting cannot be used.
        """
        return cls(rules=rules_of(Settings(crawler.settings)))
