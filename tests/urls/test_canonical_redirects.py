"""Every page at the end of a chain of redirects is parsed once, at every level."""

from collections import Counter
from functools import partial
from urllib.parse import urljoin, urlsplit

import pytest
from scrapy import Request
from scrapy.http import HtmlResponse
from support.crawling import RFP, Follower, crawl

pytestmark = [
    pytest.mark.each_scrapy,
    pytest.mark.filterwarnings("ignore:The scrapy.utils.url"),  # theirs, on the oldest Scrapy
]

START = "http://site.example/"
COOKIE = "cookie:"  # in the place of a redirect: to the same URL, with a cookie set
# From what a page links to, over the redirects, to the page that is to be parsed; a path stands for
# that path of this site.
CHAINS = {
    "to itself with a cookie": ["/cookie", COOKIE],
    "parameters reordered": ["/order?b=1&a=2", "/order?a=2&b=1"],
    "tracking added": ["/track", "/track?utm_source=x"],
    "slash added": ["/slash", "/slash/"],
    "slash taken": ["/noslash/", "/noslash"],
    "http to https": ["/tls", "https://site.example/tls"],
    "www added": ["/www", "http://www.site.example/www"],
    "port added": ["/port", "http://site.example:80/port"],
    "dot taken": ["http://site.example./dot", "/dot"],
    "index taken": ["/i/index.html", "/i/"],
    "there and back": ["/there", "/back", COOKIE],
    "all of them": [
        "/all?b=1&a=2",
        "https://site.example/all?b=1&a=2",
        "https://www.site.example/all?b=1&a=2",
        COOKIE,
        "https://www.site.example/all/?a=2&b=1",
        COOKIE,
        "https://www.site.example/all/?a=2&b=1&utm_source=x",
    ],
    "over another page": ["/one?gclid=x", "/login", "/one"],
    "two links to one page": ["/shared1", "/shared/"],
    "the other one": ["/shared2", "/shared/"],
}
CHAINS = [[urljoin(START, url) for url in chain] for chain in CHAINS.values()]
LINKS = [*(chain[0] for chain in CHAINS), "http://site.example/slash/"]


def steps():
    """Return where each URL leads, by URL and number of cookies that are to be there."""
    found = {}
    for chain in CHAINS:
        url, cookies = chain[0], 0
        for target in chain[1:]:
            there = (url, cookies + 1) if target == COOKIE else (target, cookies)
            found[url, cookies] = there
            url, cookies = there
    return found


STEPS = steps()


class Site:
    """Stands in the place of the downloader, so that its URLs need no ports and no certificates."""

    def process_request(self, request, spider=None):  # noqa: ARG002 - Scrapy's signature
        name = "c" + "".join(filter(str.isalpha, urlsplit(request.url).path))
        sent = (request.headers.get("Cookie") or b"").decode()
        cookies = int(sent.partition(f"{name}=")[2].partition(";")[0] or 0)
        target, cookies_there = STEPS.get((request.url, cookies), (None, 0))
        headers = {"Location": target} if target else {}
        if cookies_there > cookies:
            headers["Set-Cookie"] = f"{name}={cookies_there}; Domain=site.example; Path=/"
        links = LINKS if request.url == START else []
        body = "".join(f'<a href="{link.replace("&", "&amp;")}">x</a>' for link in links)
        make = partial(HtmlResponse, request.url, body=body.encode(), request=request)
        return make(status=302 if target else 200, headers=headers)


class Further(Follower):
    """Follows the links of the first page, and makes some requests more."""

    more = ()

    def parse(self, response):
        yield from super().parse(response)
        if response.url == START:
            for url, meta in self.more:
                yield Request(url, meta=meta)


async def crawl_chains(**settings):
    """Crawl them; return how often each page was parsed, and the stats."""
    site = {"DOWNLOADER_MIDDLEWARES": {Site: 950}}
    crawler = await crawl(Further, {**site, **settings}, url=START)
    return Counter(crawler.spider.parsed), crawler.stats


def final_pages():
    ends = [[url for url in chain if url != COOKIE][-1] for chain in CHAINS]
    return {START, *ends}


STEPS_ALL = {"*": {"steps": ["trailing_slash", "http_https", "www"]}}


@pytest.mark.parametrize(
    "settings",
    [
        {"BLOOM_CANONICAL": "scrapy"},
        {"BLOOM_CANONICAL": "usual", "BLOOM_CANONICAL_RULES": STEPS_ALL},
        {
            "BLOOM_CANONICAL": "usual",
            "REQUEST_FINGERPRINTER_CLASS": "duplicate_url_discarder.Fingerprinter",
        },
    ],
    ids=["scrapy", "usual and all steps", "usual over duplicate-url-discarder"],
)
async def test_every_page_behind_redirects_is_parsed_once(settings, tmp_path):
    """In this run, and not in the next one."""
    kept = {**settings, "JOBDIR": str(tmp_path)}
    parsed, stats = await crawl_chains(**kept)
    assert parsed == dict.fromkeys(final_pages(), 1)
    assert stats.get_value("bloom/errors", 0) == 0
    assert (await crawl_chains(**kept))[0] == {}


async def test_the_fingerprinter_of_scrapy_zyte_api_is_asked(monkeypatch):
    """It needs a crawl that is on; a page rendered by a browser is another page for it.

    At the default level, `safe`, as all else here is at the others.
    """
    settings = {
        "REQUEST_FINGERPRINTER_CLASS": "scrapy_zyte_api.ScrapyZyteAPIRequestFingerprinter",
        "ZYTE_API_KEY": "none",
    }
    page, port = "http://site.example/a", "http://site.example:80/a"
    rendered, shot = {"zyte_api": {"browserHtml": True}}, {"zyte_api": {"screenshot": True}}
    more = [(page, meta) for meta in ({}, rendered, shot)] * 2 + [(port, {}), (port, rendered)]
    monkeypatch.setattr(Further, "more", more)
    parsed, stats = await crawl_chains(**settings)
    assert parsed == dict.fromkeys(final_pages(), 1) | {page: 3}
    assert stats.get_value("bloom/errors", 0) == 0


async def test_scrapys_own_filter_loses_pages_behind_redirects():
    parsed, _ = await crawl_chains(DUPEFILTER_CLASS=RFP)
    assert set(parsed) < final_pages()
