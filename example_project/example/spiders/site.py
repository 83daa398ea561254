"""Follow every link of one site."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.url import add_http_if_no_scheme

from example.localsite import LocalSite


class SiteSpider(Spider):
    """Yields ``{"url": …}`` for every page of the site at ``-a url=…``.

    Without ``url`` the spider serves a local site and crawls that.
    """

    name = "site"
    links = LinkExtractor()

    def __init__(self, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = add_http_if_no_scheme(url) if url else None
        self.local_site: LocalSite | None = None
        self.allowed_domains = [urlsplit(self.url).hostname if self.url else LocalSite.HOST]

    async def start(self) -> AsyncIterator[Request]:
        """Ask for the front page, through the filter, which Scrapy's default would bypass."""
        if self.url is None:
            self.url = self._serve_local_site()
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[dict[str, str] | Request]:
        """Report the page and follow its links."""
        if not isinstance(response, HtmlResponse):
            return
        yield {"url": response.url}
        for link in self.links.extract_links(response):
            yield Request(link.url)

    def closed(self, reason: str) -> None:  # noqa: ARG002 - Scrapy's signature
        """Shut the local site, if it was ours."""
        if self.local_site is not None:
            self.local_site.close()

    def _serve_local_site(self) -> str:
        # Requests left in a job directory name the port, so a resumed crawl takes the same one.
        # Scrapy gives a spider its `state` only when there is a job directory.
        state: dict[str, int] = getattr(self, "state", {})
        self.local_site = LocalSite(port=state.get("port", 0))
        self.local_site.open()
        state["port"] = self.local_site.port
        return self.local_site.url
