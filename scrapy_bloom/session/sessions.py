"""Which crawl has which session, for those who know only the crawler."""

from __future__ import annotations

from scrapy_bloom.crawl.session import forgets_of as session_of
from scrapy_bloom.crawl.session import note_forgets as note_session

__all__ = ["note_session", "session_of"]
