import http.client
from urllib.parse import urlsplit

from parsel import Selector
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.localsite import LocalSite


def crawl(url):
    """Fetch what is linked, each URL once by Scrapy's fingerprint, redirects always."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    seen, queue = set(), ["/"]
    while queue:
        target = queue.pop().partition("#")[0]
        name = fingerprint(Request(url[:-1] + target))
        if name in seen:
            continue
        while True:
            seen.add(name)
            connection.request("GET", target)
            response = connection.getresponse()
            body = response.read().decode()
            if response.status == 200:
                queue += Selector(body).css("a::attr(href)").getall()
                break
            target, before = response.headers["Location"], name
            name = fingerprint(Request(url[:-1] + target))
            if name in seen and name != before:
                break
    connection.close()


def test_the_server_counts_what_it_delivers():
    with LocalSite(pages=40, links=8, seed=3) as site:
        assert site.missed == set(range(40))
        crawl(site.url)
        assert site.hits == dict.fromkeys(range(40), 1)
        connection = http.client.HTTPConnection(urlsplit(site.url).netloc)
        for _ in range(2):
            connection.request("GET", site.address(5))
            connection.getresponse().read()
        connection.request("GET", "/robots.txt")
        assert connection.getresponse().status == 404
        connection.close()
    assert site.repeated == {5: 3}
    assert site.missed == set()
    assert site.url + "page/10" in site.urls
    assert site.url + "robots.txt" not in site.urls
