"""The spider of crawls that are killed, as a file for ``scrapy runspider``."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor


class Links(Spider):
    """Follows every link of a site; each page is an item. Its start is Scrapy's own."""

    name = "links"
    links = LinkExtractor()

    def __init__(self, url: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = [url]
        self.allowed_domains = [urlsplit(url).hostname]

    def parse(self, response: Response) -> Iterator[dict[str, str] | Request]:
        """Report the page and follow its links."""
        if not isinstance(response, HtmlResponse):
            return
        yield {"url": response.url, "text": response.text[:1000]}
        for link in self.links.extract_links(response):
            yield Request(link.url)


class UnderWay:
    """Keep in the file ``UNDER_WAY_FILE`` how many requests the engine has, one byte.

    The file is mapped into memory: what was written last stays when the process is killed.
    """

    def __init__(self, crawler: Crawler, path: Path) -> None:
        path.write_bytes(b"\0")
        with path.open("r+b") as file:
            self._count = mmap(file.fileno(), 1)
        self._crawler = crawler
        for signal in (signals.request_reached_downloader, signals.response_received):
            crawler.signals.connect(self.note, signal=signal)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> UnderWay:
        """Make the extension."""
        path = crawler.settings.get("UNDER_WAY_FILE")
        if not path:
            raise NotConfigured
        return cls(crawler, Path(path))

    def note(self) -> None:
        """Write the number."""
        engine = self._crawler.engine
        assert engine is not None
        assert engine._slot is not None  # noqa: SLF001 - shown nowhere else
        self._count[0] = min(255, len(engine._slot.inprogress))  # noqa: SLF001
