"""The spiders of the example do what the docs say of them, and ask for a site."""

import time
from itertools import pairwise

import pytest
from example.spiders.news import NewsSpider
from example.spiders.site import SiteSpider
from example.spiders.watch import WatchSpider
from pytest_twisted import ensureDeferred
from support.crawling import KEPT, crawl
from support.sites import News, Pages

pytestmark = pytest.mark.server


class Walled(News):
    """Shows a login page to whoever asks for an article of the front page first."""

    def __init__(self, now):
        super().__init__(now)
        self.walls = set(self.articles("/"))

    def get(self, path):
        if path in self.walls:
            self.walls.remove(path)
            return lambda *_: ["/login"]
        return super().get(path)


@ensureDeferred
async def test_lists_are_read_in_each_run_articles_once_and_login_pages_again(
    tmp_path, monkeypatch
):
    begun = time.time()
    news = Walled(lambda: begun)
    with Pages(news) as site:
        for hours in (0, 2, 4):
            monkeypatch.setattr(time, "time", lambda hours=hours: begun + 3600 * hours)
            await crawl(NewsSpider, {"JOBDIR": str(tmp_path / "job")}, url=site.url)
    walled = set(news.articles("/"))
    for article in news.all_articles():
        assert site.hits[article] == 1 + (article in walled)
    assert {site.hits[path] for path in news.LISTS} == {3}


@ensureDeferred
async def test_a_page_is_watched_in_one_rhythm_from_run_to_run(tmp_path):
    times = []
    with Pages({"/": lambda *_: times.append(time.monotonic()) or []}) as site:
        for pages in (1, 2, 2):  # each run has one waiting at its end
            settings = {"JOBDIR": str(tmp_path / "job"), "CLOSESPIDER_PAGECOUNT": pages}
            await crawl(WatchSpider, settings | KEPT, url=site.url, every="1")
    assert len(times) == 5
    assert all(later - sooner >= 0.95 for sooner, later in pairwise(times))


@ensureDeferred
@pytest.mark.parametrize("spider", [SiteSpider, NewsSpider, WatchSpider])
async def test_without_a_site_one_line_says_how_to_name_it(spider, caplog):
    await crawl(spider)
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert said == "No site to crawl: name one with -a url=https://example.com"
