"""For crawls that workers share: a spider of scrapy-redis, and its fingerprints."""

import json
from contextlib import suppress
from hashlib import sha1

from w3lib.url import canonicalize_url

with suppress(ModuleNotFoundError):
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import Rule
    from scrapy_redis.spiders import RedisCrawlSpider

    class RulesFromRedis(RedisCrawlSpider):
        name = "rules_from_redis"
        rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)]  # noqa: RUF012

        def parse_page(self, response):
            return {"url": response.url}


class TheirFingerprints:
    """Makes fingerprints as scrapy-redis's own filter does."""

    def fingerprint(self, request):
        told = {
            "method": request.method,
            "url": canonicalize_url(request.url),
            "body": request.body.hex(),
        }
        return sha1(json.dumps(told, sort_keys=True).encode()).digest()
