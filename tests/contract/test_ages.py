"""``bloom_max_age`` in crawls of one site."""

import pytest
from scrapy import Request
from scrapy.core.scheduler import Scheduler
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.request import fingerprint
from scrapy.utils.test import get_crawler
from support.crawling import Follower, at, crawl
from support.sites import Pages

from scrapy_bloom import BloomDupeFilter

pytestmark = pytest.mark.server

HOUR = 3600


def open_filter(**settings):
    crawler = get_crawler(None, {"DUPEFILTER_CLASS": BloomDupeFilter, **settings})
    dupefilter = build_from_crawler(Scheduler, crawler).df
    dupefilter.open()
    return dupefilter, crawler.stats


def page(name, age=None, **meta):
    if age is not None:
        meta["bloom_max_age"] = age
    return Request(f"https://example.com/{name}", meta=meta)


@pytest.mark.parametrize("age", [-1, "30 days", 1e30, "soon", [], {}, b"1h", True, float("nan")])
def test_a_page_whose_age_cannot_be_read_is_filtered_and_that_is_said_once(caplog, age):
    seen, stats = open_filter()
    assert not seen.request_seen(page("a", age))
    assert seen.request_seen(page("a", age))
    assert seen.request_seen(page("a"))
    seen.close("finished")
    assert not stats.get_value("bloom/errors")
    [record] = [r for r in caplog.records if r.levelname == "ERROR"]
    said = record.getMessage()
    assert "<GET https://example.com/a> has no maximum age: meta['bloom_max_age'] = " in said
    assert f"{age!r:.20}" in said
    assert "must be a time from 0 to 100 years: seconds, or '45s', '90m'" in said
    assert not record.exc_info


@pytest.mark.parametrize("target", ["list", "list/1"])
def test_a_redirect_of_a_page_that_is_due_is_let_through_once(clock, target):
    seen, _ = open_filter()
    for _ in range(3):
        assert not seen.request_seen(page("list", "1h"))
        redirected = page(target, "1h", bloom_chain=[fingerprint(page("list")).hex()])
        assert not seen.request_seen(redirected)
        assert seen.request_seen(redirected) == (target != "list")  # that is its own chain
        clock[0] += HOUR - 1
        assert seen.request_seen(page("list", "1h"))
        clock[0] += 1


class PassesMetaOn(Follower):
    """Gives a response's meta to its requests: they have its age, and look like redirects."""

    def request(self, response, href):
        return response.follow(href, meta={"bloom_max_age": "1h", **response.meta})


@at("memory", "kept job", "shared")
async def test_links_that_inherit_an_age_and_a_redirect_are_fetched_once_and_again(place):
    """At most once more than others: as a redirect of their own chain."""
    links = [f"/{number}" for number in range(20)]
    pages = {"/": lambda *_: "/0", **dict.fromkeys(links, lambda *_: links)}
    settings = {**place, "CLOSESPIDER_PAGECOUNT": 200}  # else it might not end
    with Pages(pages) as site:
        crawler = await crawl(PassesMetaOn, settings, url=site.url + "/")
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert set(site.hits) == {"/", *links}
    assert sum(site.hits.values()) <= 2 * len(pages)
