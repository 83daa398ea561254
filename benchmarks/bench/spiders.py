"""The spider of crawls that are killed, as a file for ``scrapy runspider``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
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
