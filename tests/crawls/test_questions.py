"""A request is a duplicate if its mark is there, wherever that is known."""

import asyncio
import random

import pytest
from scrapy import Request, signals
from scrapy.utils.request import fingerprint
from support.crawling import Follower, at, crawl, settings_at
from support.internals import is_settled, scheduler_of
from support.sites import Pages

from scrapy_bloom.crawl.history import CHAIN
from scrapy_bloom.signals import forget_page

pytestmark = pytest.mark.server


class Asking(Follower):
    """Does one thing after the other, and notes which of its requests are taken."""

    name = "asking"

    async def start(self):
        taken, scheduler = set(), scheduler_of(self.crawler)

        def dropped(request):
            taken.discard(request.cb_kwargs["number"])

        self.crawler.signals.connect(dropped, signals.request_dropped)
        for number, (kind, page, chain, more) in enumerate(self.steps):
            marks = [fingerprint(Request(self.url + each)).hex() for each in chain]
            before = {CHAIN: marks} if chain else {}
            callback = (lambda *_, **__: None) if kind == "hold" else self.ignore
            numbered = {"cb_kwargs": {"number": number}}
            request = Request(self.url + page, callback, meta=before | more, **numbered)
            if kind == "forget":
                self.crawler.signals.send_catch_log(forget_page, request=request)
            elif scheduler.enqueue_request(request):
                taken.add(number)
            while not is_settled(self.crawler):  # noqa: ASYNC110 - there is no event for that
                await asyncio.sleep(0.002)
        self.parsed = sorted(taken)
        for _ in ():
            yield

    def ignore(self, response, number):
        """Its links lead nowhere."""


def ask(page, *chain, held=False, **meta):
    """Return one step: a page, the redirects that led to it, and whether it cannot be stored."""
    return "hold" if held else "ask", page, chain, meta


async def take(place, steps, **settings):
    """Return the crawler that has made these steps; its spider knows which were taken."""
    pages = {f"/{page}": lambda *_: [] for page in ("a", "b", "c", "d", "broken")}
    with Pages(pages) as site:
        spider = type("Asking", (Asking,), {"steps": steps})
        return await crawl(spider, place | settings, url=f"{site.url}/")


@at("kept job", "shared")
@pytest.mark.parametrize("again", [ask("a"), ask("a", "b"), ask("a", bloom_max_age="1h")])
@pytest.mark.parametrize("held", [True, False])
async def test_a_page_held_in_memory_is_a_duplicate_however_it_is_reached(place, again, held):
    _, page, chain, meta = again
    again = ask(page, *chain, held=held, **meta)
    steps = [ask("a", held=True, **meta), again, ask("b"), again]
    assert (await take(place, steps)).spider.parsed == [0, 2]


@at("kept job", "shared")
async def test_a_held_page_that_redirects_to_itself_is_no_duplicate_but_a_link_to_it_is(place):
    steps = [ask("a", held=True), ask("a", "a", held=True), ask("a", held=True)]
    assert (await take(place, steps)).spider.parsed == [0, 1]


@pytest.mark.redis
@pytest.mark.parametrize("seed", range(8))
async def test_a_job_and_redis_take_the_same_requests_and_count_the_same(request, seed):
    """What is judged at once in a job directory is judged the same when Redis answers later."""
    dice = random.Random(seed)
    steps = [
        (kind, dice.choice("abcd"), dice.choices("abcd", k=dice.randrange(4)), {})
        for kind in dice.choices(("ask", "forget"), (14, 5), k=30)
    ]
    results = []
    for place in ("kept job", "shared"):
        crawler = await take(settings_at(place, request), steps)
        names = ("new", "seen", "redirect_exempt", "forgotten", "not_forgotten")
        counts = {name: crawler.stats.get_value(f"bloom/{name}", 0) for name in names}
        results.append((crawler.spider.parsed, counts))
    assert results[0] == results[1]
