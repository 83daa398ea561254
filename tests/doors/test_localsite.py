import http.client
import threading
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsel import Selector
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.localsite import Answer, Kind, LocalSite, SiteMap, SteadySite

site_maps = st.builds(SiteMap, st.integers(1, 60), st.integers(1, 12), st.integers(-(2**70), 2**70))


def visit(site, href):
    """Follow redirects from a link to a page; return its number and how many there were."""
    target = href.partition("#")[0]
    answer = site.answer(target, again=False)
    for hops in range(5):
        if answer.page is not None:
            return answer.page, hops
        target, before = answer.location, target
        answer = site.answer(target, again=target == before)
    pytest.fail(f"{href} leads nowhere")


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


@given(site_maps)
def test_every_page_has_the_links_asked_for_and_is_reachable(site):
    seen, queue = {0}, [0]
    while queue:
        hrefs = site.hrefs(queue.pop())
        assert len(hrefs) == site.links
        found = {visit(site, href)[0] for href in hrefs} - seen
        seen |= found
        queue += found
    assert seen == set(range(site.pages))


@given(site_maps)
def test_the_same_numbers_make_the_same_site(site):
    twin = SiteMap(site.pages, site.links, site.seed)
    assert [site.body(page) for page in range(site.pages)] == [
        twin.body(page) for page in range(site.pages)
    ]


@pytest.mark.parametrize(
    ("kind", "target", "location"),
    [
        (Kind.ORDERED, "/list?view=list&id={}&lang=en", "/list?id={}&lang=en&view=list"),
        (Kind.BOUNCE, "/member/{}", "/member/{}"),
        (Kind.FOLDER, "/docs/{}", "/docs/{}/"),
        (Kind.TAGGED, "/news/{}", "/news/{}?utm_source=site"),
        (Kind.PLAIN, "/go/{}", "/page/{}"),
        (Kind.QUERY, "/go/{}", "/find?id={}&lang=en&view=list"),
    ],
)
def test_redirects(kind, target, location):
    site = SiteMap(100, 5, 1)
    page = next(page for page in range(50, 100) if site.kind(page) is kind)
    first = site.answer(target.format(page), again=False)
    assert first.status in {301, 302}
    assert first.page is None
    assert first.location == location.format(page)
    assert site.answer(first.location) == Answer(200, page)


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


def test_an_alarm_rings_once_at_its_delivery():
    rung = []
    with LocalSite(pages=40, links=8) as site:
        site.when(30, lambda: rung.append(sum(site.hits.values())))
        crawl(site.url)
        crawl(site.url)
    assert rung == [30]


def test_closing_ends_connections_threads_and_frees_the_port():
    threads = threading.active_count()
    with LocalSite(pages=40, links=8) as site:
        idle = http.client.HTTPConnection(urlsplit(site.url).netloc)
        idle.request("GET", "/")
        idle.getresponse().read()
        assert threading.active_count() == threads + 2
    assert threading.active_count() == threads
    assert idle.sock.recv(1) == b""
    idle.close()
    with LocalSite(pages=40, links=8, port=site.port) as again:
        assert again.url == site.url


def test_a_steady_site_has_no_page_that_redirects_to_what_scrapy_calls_the_same():
    site = SteadySite(pages=200)
    site.port = 80
    for page in range(site.pages):
        for href in site.hrefs(page):
            target = href.partition("#")[0]
            location = site.answer(target, again=False).location
            if location:
                from_, to = (
                    fingerprint(Request(site.url[:-1] + path)) for path in (target, location)
                )
                assert from_ != to
