"""A site that answers from within the crawler's process, for what a network would blur."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterator
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from bitarray import bitarray
from scrapy import Request, Spider
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.http import Response
from support.localsite import SiteMap, SteadySite

from scrapy_bloom import BloomDupeFilter, Scheduler
from scrapy_bloom.core.sizing import BLOCK_BYTES
from scrapy_bloom.session.session import OnMark, Session
from scrapy_bloom.storage.snapshot import PendingSnapshot

LINKS: Final = 4
ANSWER: Final = 0.005
"""Seconds from a request to its answer."""

SETTINGS: Final[dict[str, Any]] = {"DOWNLOAD_HANDLERS": {"http": "bench.inside.Handler"}}


class Pages(Spider):
    """Crawls all pages of the site."""

    name = "pages"

    def __init__(self, pages: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = ["http://127.0.0.1/"]
        self.site: SiteMap = SteadySite(pages=pages, links=LINKS)
        self.fetched: set[int] = set()

    def parse(self, response: Response) -> Iterator[Request]:
        """Follow the links, which are known without looking at the page."""
        page = response.meta["page"]
        self.fetched.add(page)
        for href in self.site.hrefs(page):
            yield Request(response.urljoin(href))


class Handler(BaseDownloadHandler):
    """Answers each request a little later."""

    async def download_request(self, request: Request) -> Response:
        """Answer as the site would."""
        spider = self.crawler.spider
        assert isinstance(spider, Pages)
        await asyncio.sleep(ANSWER)
        url = urlsplit(request.url)
        answer = spider.site.answer(f"{url.path}?{url.query}" if url.query else url.path)
        request.meta["page"] = answer.page
        headers = {"Location": answer.location} if answer.location else {}
        assert answer.status is not HTTPStatus.NOT_FOUND
        return Response(request.url, answer.status.value, headers)


class OftenStored(Scheduler):
    """Ours, whose filter is stored in mid-run more often than it would be."""

    snapshot_after = 3_000


class LargeFilter(BloomDupeFilter):
    """Ours, with marks all over the filter, and a note of when it is being stored.

    A quarter of the bits are set: all blocks are there and have to be written, and still none of
    the crawl's own pages is called seen.

    Attributes:
        storing: whether the filter is being stored.
        stored: how often it was.
    """

    storing = False
    stored = 0

    def open_journaled(self, on_mark: OnMark) -> Session:
        """Open the filter and fill it."""
        session = super().open_journaled(on_mark)
        job = session.opened.job
        assert job is not None
        for slice_ in job.filter.state().slices:
            fill(slice_.blocks)
        freeze = job.freeze

        def noted(withdrawn: Collection[bytes] = ()) -> Any:
            self.storing = True
            return Noted(self, freeze(withdrawn))

        job.freeze = noted  # type: ignore[method-assign]
        return session


class Noted:
    """A frozen filter that notes when it is stored."""

    def __init__(self, of: LargeFilter, frozen: PendingSnapshot) -> None:
        self.generation = frozen.generation
        self.write = frozen.write
        self._of = of
        self._frozen = frozen

    def put_in_place(self) -> None:
        """Give it its name."""
        self._frozen.put_in_place()
        self._of.storing = False
        self._of.stored += 1


def fill(blocks: list[bitarray]) -> None:
    """Put random bits in each block, one in four set."""
    few = []
    for _ in range(64):
        one, other = bitarray(endian="big"), bitarray(endian="big")
        one.frombytes(os.urandom(BLOCK_BYTES))
        other.frombytes(os.urandom(BLOCK_BYTES))
        few.append(one & other)
    for place in range(len(blocks)):
        blocks[place] = few[place % len(few)].copy()
