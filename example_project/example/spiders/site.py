"""Follow every link of one site."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.url import add_http_if_no_scheme


class SiteSpider(Spider):
    """Yields ``{"url": …}`` for every page of the site at ``-a url=…``."""

    name = "site"
    links = LinkExtractor()

    def __init__(self, url: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = add_http_if_no_scheme(url) if url else ""
        self.allowed_domains = [urlsplit(self.url).hostname]

    async def start(self) -> AsyncIterator[Request]:
        """Ask for the front page, through the filter, which Scrapy's default would bypass."""
        if not self.url:
            self.logger.error("No site to crawl: name one with -a url=https://example.com")
            return
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[dict[str, str] | Request]:
        """Report the page and follow its links."""
        if not isinstance(response, HtmlResponse):
            return
        yield {"url": response.url}
        for link in self.links.extract_links(response):
            yield Request(link.url)
