"""What is judged at once in a job directory is judged the same when Redis answers later."""

import asyncio
import random

import pytest
from pytest_twisted import ensureDeferred
from scrapy import Request, signals
from support.crawling import Follower, crawl, kept
from support.internals import is_settled, scheduler_of
from support.sites import Pages

from scrapy_bloom.signals import forget_page

pytestmark = pytest.mark.server

PAGES = "abcd"
KINDS = {"ask": 14, "fail": 5, "forget": 3}


class Told(Follower):
    """Does one thing after the other, and notes which of its requests are taken."""

    name = "told"

    async def start(self):
        taken, scheduler = set(), scheduler_of(self.crawler)

        def dropped(request):
            taken.discard(request.cb_kwargs["number"])

        self.crawler.signals.connect(dropped, signals.request_dropped)
        for number, (kind, page, chain) in enumerate(self.steps):
            meta = {"redirect_urls": [self.url + each for each in chain]} if chain else {}
            number_of = {"cb_kwargs": {"number": number}}
            request = Request(self.url + page, self.ignore, meta=meta, **number_of)
            if kind != "ask":
                failed = kind == "fail"
                self.crawler.signals.send_catch_log(forget_page, request=request, failed=failed)
            elif scheduler.enqueue_request(request):
                taken.add(number)
            while not is_settled(self.crawler):  # noqa: ASYNC110 - there is no event for that
                await asyncio.sleep(0.002)
        self.parsed = sorted(taken)
        for _ in ():
            yield

    def ignore(self, response, number):
        """Its links lead nowhere."""


@ensureDeferred
@pytest.mark.parametrize("seed", range(8))
async def test_a_job_and_redis_take_the_same_requests_and_count_the_same(job, server, key, seed):
    dice, told = random.Random(seed), []
    for kind in dice.choices([*KINDS], [*KINDS.values()], k=30):
        chain = dice.choices(PAGES, k=dice.randrange(4))
        told.append((kind, dice.choice(PAGES), chain))
    redis = {"BLOOM_REDIS_URL": server.url, "BLOOM_REDIS_KEY": key, "BLOOM_REDIS_TIMEOUT": 10}
    found = []
    with Pages({f"/{page}": lambda *_: [] for page in PAGES}) as site:
        for settings in (kept(job), {**kept(job), "JOBDIR": "", **redis}):
            spider = type("Told", (Told,), {"steps": told})
            crawler = await crawl(spider, settings, url=f"{site.url}/")
            names = ("new", "seen", "redirect_exempt", "failed", "forgotten", "not_forgotten")
            counts = {name: crawler.stats.get_value(f"bloom/{name}", 0) for name in names}
            found.append((crawler.spider.parsed, counts))
    assert found[0] == found[1]
