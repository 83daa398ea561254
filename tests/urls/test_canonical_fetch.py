"""Level `safe` merges only what Scrapy fetches; what it refuses must not hide a page."""

import pytest
from pytest_twisted import ensureDeferred
from scrapy import Request, Spider
from support.crawling import crawl
from support.sites import Pages

from scrapy_bloom import CanonicalFingerprinter

pytestmark = pytest.mark.each_scrapy

FETCHED = ("127.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.0x1")
REFUSED = ("%31%32%37.0.0.1", "@127.0.0.1", ":@127.0.0.1", "u:p@127.0.0.1", "127.0.0.1.")


class Hosts(Spider):
    """Asks for one page under many hosts."""

    name = "hosts"

    def __init__(self, port, **arguments):
        super().__init__(**arguments)
        self.port = port
        self.fetched, self.refused = [], []

    async def start(self):
        for host in (*FETCHED, *REFUSED):
            yield Request(
                f"http://{host}:{self.port}/",
                cb_kwargs={"host": host},
                errback=self.refuse,
                dont_filter=True,
            )

    def parse(self, _response, host):
        self.fetched.append(host)

    def refuse(self, failure):
        self.refused.append(failure.request.cb_kwargs["host"])


@ensureDeferred
async def test_scrapy_fetches_what_safe_merges_and_refuses_what_it_leaves_alone():
    with Pages({"/": lambda *_: []}) as site:
        port = int(site.url.rpartition(":")[2])
        settings = {"RETRY_ENABLED": False, "LOG_LEVEL": "CRITICAL"}
        spider = (await crawl(Hosts, settings, port=port)).spider
    assert sorted(spider.fetched) == sorted(FETCHED)
    assert sorted(spider.refused) == sorted(REFUSED)
    safe = CanonicalFingerprinter("safe")
    page = f"http://127.0.0.1:{port}/"
    for host in FETCHED:
        assert safe.canonical_url(f"http://{host}:{port}/") == page
    for host in REFUSED:
        assert safe.canonical_url(f"http://{host}:{port}/") != page
