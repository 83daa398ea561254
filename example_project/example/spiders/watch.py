"""Watch a page: fetch it again and again, also after a kill."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.url import add_http_if_no_scheme


class WatchSpider(Spider):
    """Yields ``{"url": …, "bytes": …}`` for the page at ``-a url=…``, every ``-a every=…`` seconds.

    Stop or kill it, and start it again with the same ``JOBDIR``: it keeps its rhythm.
    """

    name = "watch"

    def __init__(self, url: str = "", every: str = "3600", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = add_http_if_no_scheme(url) if url else ""
        # The age is shorter: it only drops a second chain, as a kill may start one.
        self.wait = {"bloom_delay": float(every), "bloom_max_age": float(every) / 2}

    async def start(self) -> AsyncIterator[Request]:
        """Ask for the page, through the filter: later runs go on with what waits."""
        if not self.url:
            self.logger.error("No site to crawl: name one with -a url=https://example.com")
            return
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[dict[str, Any] | Request]:
        """Report the page, and ask for it again, later."""
        yield {"url": response.url, "bytes": len(response.body)}
        assert response.request is not None
        yield response.request.replace(meta=self.wait, dont_filter=False)
