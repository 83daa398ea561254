"""The spiders of the example do what the docs say of them, and ask for a site."""

import time
from itertools import pairwise

import pytest
from demo import DemoError
from demo_distributed import judge
from example.spiders.news import NewsSpider
from example.spiders.site import SiteSpider
from example.spiders.watch import WatchSpider
from support.crawling import KEPT, crawl
from support.sites import Pages

pytestmark = pytest.mark.server


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


@pytest.mark.parametrize("spider", [SiteSpider, NewsSpider, WatchSpider])
async def test_without_a_site_one_line_says_how_to_name_it(spider, caplog):
    await crawl(spider)
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert said == "No site to crawl: name one with -a url=https://example.com"


def test_the_demo_of_workers_judges_by_what_the_site_received(capsys):
    judge(9, set(), {3, 4}, in_flight={3, 4, 5})
    assert capsys.readouterr().out.strip().startswith("PASSED: each of 9 pages was fetched, 2 of")
    for missed, twice in (({7}, set()), (set(), {3, 8})):
        with pytest.raises(DemoError, match=f"{len(missed)} of 9 pages missed, {8 in twice:d} f"):
            judge(9, missed, twice, in_flight={3, 4, 5})
