"""Read the lists of a news site again and again, and every article once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.url import add_http_if_no_scheme

import scrapy_bloom


class NewsSpider(Spider):
    """Yields ``{"url": …}`` for every article of the site at ``-a url=…`` that is new.

    Start it as often as you like, with the same ``JOBDIR``. A list is fetched again if that was an
    hour ago, an article never.
    """

    name = "news"
    lists = {"bloom_max_age": "1h"}  # noqa: RUF012 - Scrapy copies it

    def __init__(self, url: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = add_http_if_no_scheme(url) if url else ""
        self.allowed_domains = [urlsplit(self.url).hostname]

    async def start(self) -> AsyncIterator[Request]:
        """Ask for the front page, through the filter, which Scrapy's default would bypass."""
        if not self.url:
            self.logger.error("No site to crawl: name one with -a url=https://example.com")
            return
        yield Request(self.url, meta=self.lists)

    def parse(self, response: Response) -> Iterator[Request]:
        """Follow the links of a list: to other lists, and to articles."""
        for href in response.css("a::attr(href)").getall():
            if "/article/" in href:
                yield response.follow(href, self.parse_article)
            else:
                yield response.follow(href, meta=self.lists)

    def parse_article(self, response: Response) -> Iterator[dict[str, str]]:
        """Report an article. What is a login page instead is forgotten: the next link leads on."""
        if response.css('a[href="/login"]'):
            assert response.request is not None
            scrapy_bloom.forget(response.request, self.crawler)
            return
        yield {"url": response.url}
