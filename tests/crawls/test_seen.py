"""A callback asks whether a page was seen, and marks nothing."""

import pytest
from support.crawling import Follower, at, crawl
from support.sites import Pages, fan

import scrapy_bloom

pytestmark = [pytest.mark.server, pytest.mark.each_scrapy]


class Asking(Follower):
    """Asks on the front page and the next one for the links of the former; follows the first."""

    asked = ()

    def parse(self, response):
        if not self.asked:
            self.links = [response.follow(each) for each in response.css("a::attr(href)").getall()]
            self.asked = [self.ask()]
            yield self.links[0]
        else:
            self.asked.append(self.ask())
            scrapy_bloom.forget(self.links[0], self.crawler)
            self.asked.append(self.ask())

    def ask(self):
        return [scrapy_bloom.seen(link, self.crawler) for link in self.links]


@at("memory", "job", "kept job")
async def test_whether_a_page_was_seen_is_known_at_once(place):
    with Pages(fan("a", "b")) as site:
        spider = (await crawl(Asking, place, url=site.url + "/")).spider
    no = [False, False]
    assert spider.asked == [no, [True, False], no]
    assert site.hits == {"/": 1, "/a": 1}


@at("redis", "shared")
async def test_in_redis_what_is_not_known_here_may_be_known_to_others(place):
    with Pages(fan("a", "b")) as site:
        spider = (await crawl(Asking, place, url=site.url + "/")).spider
    assert spider.asked == [[None, None], [True, None], [None, None]]
    assert site.hits == {"/": 1, "/a": 1}
