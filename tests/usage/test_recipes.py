"""The recipes of the docs and the spiders of the example do what is said of them."""

import re
import time
from datetime import datetime, timezone
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import scrapy
from example.spiders.news import NewsSpider
from example.spiders.watch import WatchSpider
from scrapy import Request, signals
from scrapy.http import JsonRequest, Response
from scrapy.utils.request import fingerprint
from scrapy.utils.test import get_crawler
from support.crawling import KEPT, at, crawl, make_crawler
from support.sites import Pages

from scrapy_bloom.signals import hold_slot

RECIPES = Path(__file__).parents[2] / "docs" / "guides" / "recipes.md"

pytestmark = pytest.mark.server


@pytest.fixture
def recipe(tmp_path):
    """Return what runs the code of a recipe with another site; that returns what it defines."""

    def recipe(title, site="", changes=()):
        part = RECIPES.read_text().partition(f"\n## {title}\n")[2]
        code = re.search(r"```python\n(.*?)```", part, re.DOTALL).group(1)
        for before, after in dict(changes).items():
            assert before in code
            code = code.replace(before, after)
        path = tmp_path / "recipe.py"  # Scrapy reads the source of callbacks
        path.write_text(re.sub(r"https://\w+\.example", site, code))
        spec = spec_from_file_location("recipe", path)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return vars(module)

    return recipe


@pytest.mark.skipif(scrapy.version_info < (2, 14), reason="the page says what it is there")
@at("kept job", "shared")
async def test_the_login_comes_before_all_that_waits(place, recipe):
    """Also after a stop, and with another session; without one nothing is sent."""
    paths = [f"/{number}" for number in range(20)]
    valid, seen = [], []

    def page(path, cookie):
        if not valid or f"session={valid[-1]}" not in (cookie or ""):
            return "/wall"
        seen.append(path)
        return paths if path == "/" else []

    def log_in(*_):
        valid.append(len(valid))
        return [], {"Set-Cookie": f"session={valid[-1]}; Path=/"}

    pages = dict.fromkeys(["/", *paths], page) | {"/login": 403, "/wall": []}
    with Pages(pages) as site:
        spider = recipe("Log in before anything is sent", site.url)["Members"]
        crawler = await crawl(spider, place)
        assert crawler.stats.get_value("finish_reason") == "no_login"
        assert site.hits["/"] == 0
        site.pages["/login"] = log_in
        await crawl(spider, {**place, "CLOSESPIDER_ITEMCOUNT": 5, "CONCURRENT_REQUESTS": 1})
        assert len({*seen}) < 21
        valid.append("of a server that has forgotten all")
        await crawl(spider, place)
        assert {*seen} == {"/", *paths}
        assert site.hits["/wall"] == 0


@at("kept job", "job")
async def test_the_pages_of_a_list_are_fetched_until_an_article_is_known(place, recipe):
    articles = list("hgfedcba")

    def listed(path, _):
        first = 2 * int(path.rpartition("/")[2].replace("news", "0"))
        links = (f'<a class="article" href="/{each}">x</a>' for each in articles[first:][:2])
        more = f'<a class="next" href="/news/{first // 2 + 1}">x</a>' if first < 6 else ""
        return "".join([*links, more]).encode()

    lists = ["/news", *(f"/news/{number}" for number in range(1, 6))]
    with Pages(dict.fromkeys(lists, listed) | {f"/{each}": [] for each in "abcdefghijk"}) as site:
        spider = recipe("Stop at known articles", site.url, {'"10m"': "0"})["Latest"]
        await crawl(spider, place)
        assert site.hits == dict.fromkeys([*lists[:4], *(f"/{each}" for each in articles)], 1)
        site.hits.clear()
        articles[:0] = "kji"
        await crawl(spider, place)
        assert site.hits == dict.fromkeys([*lists[:2], "/i", "/j", "/k"], 1)


@at("kept job", "shared")
async def test_each_run_fetches_only_what_is_new_or_has_changed_in_a_sitemap(place, recipe):
    def sitemap(kind, *paths):
        entries = "".join(
            f"<{kind}><loc>{site.url}{path}</loc>{changed.get(path, '')}</{kind}>" for path in paths
        )
        name = "sitemapindex" if kind == "sitemap" else "urlset"
        space = "http://www.sitemaps.org/schemas/sitemap/0.9"
        return f'<{name} xmlns="{space}">{entries}</{name}>'.encode()

    listed, changed = ["/old", "/dated"], {"/dated": "<lastmod>2026-01-02T03:04:05Z</lastmod>"}
    pages = {
        "/sitemap.xml": lambda *_: sitemap("sitemap", "/part.xml"),
        "/part.xml": lambda *_: sitemap("url", *listed),
        **{f"/{name}": [] for name in ("old", "dated", "new")},
    }
    with Pages(pages) as site:
        title = "Only the new and changed pages of a sitemap"
        spider = recipe(title, site.url, {'"10m"': "0"})["News"]
        for _ in range(2):
            await crawl(spider, place)
        assert site.hits == {"/sitemap.xml": 2, "/part.xml": 2, "/old": 1, "/dated": 1}
        listed.append("/new")
        today = datetime.now(timezone.utc).date()
        changed["/dated"] = f"<lastmod>{today}</lastmod>"  # perhaps after it was fetched
        await crawl(spider, place)
        assert (site.hits["/old"], site.hits["/dated"], site.hits["/new"]) == (1, 2, 1)


@at("kept job", "shared")
async def test_a_captcha_has_failed_and_is_fetched_by_the_next_run(place, recipe):
    with Pages(pages := {"/": ["/a"], "/a": b'<form id="captcha">'}) as site:
        spider = recipe("Captcha pages with status 200", site.url, {'"10m"': "0.1"})["Shop"]
        crawler = await crawl(spider, place)
        assert crawler.stats.get_value("bloom/failed/Captcha in parse") == 1
        pages["/a"] = []
        crawler = await crawl(spider, place)
        assert crawler.stats.get_value("item_scraped_count") == 2
        assert site.hits["/a"] == 2


def test_a_page_is_one_for_each_account_and_whatever_its_nonce_is(recipe):
    by_account = recipe("Many accounts at one URL")["ByAccount"]().fingerprint
    without_nonce = recipe("GraphQL with a nonce")["WithoutNonce"]().fingerprint
    url = "https://a.test/graphql"
    anna, *others = (Request(url, meta={"cookiejar": name}) for name in ("anna", "anna", "ben"))
    assert [by_account(each) == by_account(anna) for each in others] == [True, False]
    pages = [{"variables": {"page": page, "nonce": nonce}} for page, nonce in ("1x", "1y", "2x")]
    first, *others = (without_nonce(JsonRequest(url, data=data)) for data in pages)
    assert [each == first for each in others] == [True, False]
    request = Request("https://a.test/")
    assert without_nonce(request) == fingerprint(request)


@at("kept job", "shared")
async def test_an_item_is_handed_on_from_page_to_page(place, recipe):
    items = []

    def scraped(item):
        items.append(item)

    with Pages({"/": ["/a", "/b"], "/a": ["/a/r"], "/b": ["/b/r"], "/a/r": [], "/b/r": []}) as site:
        spider = recipe("Gather an item from several pages", site.url)["Books"]
        crawler = make_crawler(spider, place)
        crawler.signals.connect(scraped, signals.item_scraped)
        await crawler.crawl()
        assert sorted(item["reviews"] for item in items) == [f"{site.url}/{x}/r" for x in "ab"]
        assert all(item["reviews"] == item["url"] + "/r" for item in items)


def test_a_host_that_blocks_is_left_alone_each_time_for_twice_as_long(monkeypatch, recipe):
    now, held = [1000.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    crawler, request = get_crawler(), Request("http://a.test/")
    crawler.spider = SimpleNamespace(crawler=crawler)

    def hold(seconds):
        held.append(seconds)
        return True

    crawler.signals.connect(hold, signal=hold_slot)
    back_off = recipe("Back off by rules of your own")["BackOff"].from_crawler(crawler)
    # The second answer of each pause was in flight when that began.
    for status, seconds in [(403, 1), (403, 500)] * 3 + [(200, 0), (403, 0)]:
        answer = Response(request.url, status=status)
        retried = back_off.process_response(request.copy(), answer)
        assert isinstance(retried, Request) is (status == 403)
        now[0] += seconds
    assert held == [30, 60, 120, 30]


LISTS = ("/", "/sport", "/art")
ARTICLES = {page: [f"/article{page}/{number}" for number in range(8)] for page in LISTS}


def news():
    """Return a news site that shows each article of its front page after a login page only."""
    walls = set(ARTICLES["/"])

    def article(path, _cookie):
        if path in walls:
            walls.remove(path)
            return ["/login"]
        return [*LISTS]

    pages = {page: lambda *_, page=page: [*LISTS, *ARTICLES[page]] for page in LISTS}
    return pages | {path: article for paths in ARTICLES.values() for path in paths}


async def test_lists_are_read_in_each_run_articles_once_and_login_pages_again(
    tmp_path, monkeypatch
):
    begun = time.time()
    with Pages(news()) as site:
        for hours in (0, 2, 4):
            monkeypatch.setattr(time, "time", lambda hours=hours: begun + 3600 * hours)
            await crawl(NewsSpider, {"JOBDIR": str(tmp_path / "job")}, url=site.url)
    for page, articles in ARTICLES.items():
        assert {site.hits[article] for article in articles} == {1 + (page == "/")}
    assert {site.hits[page] for page in LISTS} == {3}


async def test_a_page_is_watched_in_one_rhythm_from_run_to_run(tmp_path):
    times = []
    with Pages({"/": lambda *_: times.append(time.monotonic()) or []}) as site:
        for pages in (1, 2, 2):  # each run has one waiting at its end
            settings = {"JOBDIR": str(tmp_path / "job"), "CLOSESPIDER_PAGECOUNT": pages}
            await crawl(WatchSpider, settings | KEPT, url=site.url, every="1")
    assert len(times) == 5
    assert all(later - sooner >= 0.95 for sooner, later in pairwise(times))
