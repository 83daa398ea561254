"""Spiders for crawls that workers share."""

from contextlib import suppress

from scrapy import signals

from scrapy_bloom.frontier.clock import call_later
from support.crawling import Follower
from support.gap import Gap


class Gauging(Follower):
    """Says for how long the event loop did not come to its turn."""

    name = "gauging"

    @classmethod
    def from_crawler(cls, crawler, *arguments, **keywords):
        spider = super().from_crawler(crawler, *arguments, **keywords)
        crawler.signals.connect(spider.begin, signal=signals.engine_started)
        crawler.signals.connect(spider.end, signal=signals.spider_closed)
        return spider

    def begin(self):
        self.gap = Gap(call_later)
        self.gap.tick()

    def end(self):
        self.gap.stop()
        self.logger.info("Longest stop: %.3f s", self.gap.longest)


with suppress(ModuleNotFoundError):
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import Rule
    from scrapy_redis.spiders import RedisCrawlSpider, RedisSpider

    class FromRedis(RedisSpider):
        name = "from_redis"

        def parse(self, response):
            for href in response.css("a::attr(href)").getall():
                yield response.follow(href)

    class RulesFromRedis(RedisCrawlSpider):
        name = "rules_from_redis"
        rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)]  # noqa: RUF012

        def parse_page(self, response):
            return {"url": response.url}
