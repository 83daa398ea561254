"""What the filter can say about a request."""

from __future__ import annotations

from scrapy_bloom.crawl.report import Verdict

__all__ = ["Verdict"]
