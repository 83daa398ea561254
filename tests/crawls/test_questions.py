"""A request is a duplicate if all its marks are there, wherever that is known."""

import asyncio

import pytest
from pytest_twisted import ensureDeferred
from scrapy import Request, signals
from scrapy.utils.request import RequestFingerprinter
from support.crawling import Follower, crawl, kept
from support.internals import is_settled, scheduler_of
from support.sites import Pages

pytestmark = pytest.mark.server


class Failing(RequestFingerprinter):
    """Raises for one page."""

    def fingerprint(self, request):
        if request.url.endswith("/broken"):
            raise ValueError("no fingerprint for this one")
        return super().fingerprint(request)


class Asking(Follower):
    """Enqueues requests one after the other, and notes which of them are taken."""

    name = "asking"

    async def start(self):
        taken, scheduler = set(), scheduler_of(self.crawler)

        def dropped(request):
            taken.discard(request.cb_kwargs["number"])

        self.crawler.signals.connect(dropped, signals.request_dropped)
        for number, (page, chain, held, more) in enumerate(self.steps):
            before = {"redirect_urls": [self.url + each for each in chain]} if chain else {}
            callback = (lambda *_, **__: None) if held else self.ignore
            numbered = {"cb_kwargs": {"number": number}}
            request = Request(self.url + page, callback, meta=before | more, **numbered)
            if scheduler.enqueue_request(request):
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
    return page, chain, held, meta


@pytest.fixture(params=["kept job", "shared"])
def storage_settings(request, job):
    """Settings of a crawl, for each place of filter and queue."""
    if request.param == "kept job":
        return kept(job)
    server, key = request.getfixturevalue("server"), request.getfixturevalue("key")
    redis = {"BLOOM_REDIS_URL": server.url, "BLOOM_REDIS_KEY": key, "BLOOM_REDIS_TIMEOUT": 10}
    return kept(job) | {"JOBDIR": ""} | redis


async def taken(storage_settings, steps, **settings):
    """Return which of these steps were taken, and how many could not be checked."""
    pages = {"/a": lambda *_: [], "/b": lambda *_: [], "/broken": lambda *_: []}
    with Pages(pages) as site:
        spider = type("Asking", (Asking,), {"steps": steps})
        crawler = await crawl(spider, storage_settings | settings, url=f"{site.url}/")
    return crawler.spider.parsed, crawler.stats.get_value("bloom/errors", 0)


@ensureDeferred
@pytest.mark.parametrize("chain", [("a", "broken"), ("broken", "a")])
async def test_a_redirect_whose_chain_has_no_fingerprint_is_let_through(storage_settings, chain):
    """It is needed to ask for the step, or to note what was dropped with it."""
    steps = [ask("a"), ask("a"), ask("a", *chain), ask("a", *chain), ask("a", *chain)]
    settings = {"REQUEST_FINGERPRINTER_CLASS": Failing}
    first_is_a_step = chain[-1] == "a"  # found before the page without a fingerprint
    assert await taken(storage_settings, steps, **settings) == ([0, 2, 3, 4], 3 - first_is_a_step)


@ensureDeferred
@pytest.mark.parametrize("again", [ask("a"), ask("a", "b"), ask("a", bloom_max_age="1h")])
@pytest.mark.parametrize("held", [True, False])
async def test_a_page_held_in_memory_is_a_duplicate_however_it_is_reached(
    storage_settings, again, held
):
    first = ask("a", held=True, **again[3])
    page, chain, _, meta = again
    steps = [first, (page, chain, held, meta), ask("b"), (page, chain, held, meta)]
    assert (await taken(storage_settings, steps))[0] == [0, 2]


@ensureDeferred
async def test_a_held_page_that_redirects_to_itself_is_no_duplicate_but_the_next_is(
    storage_settings,
):
    steps = [ask("a", held=True), ask("a", "a", held=True), ask("a", "a", held=True)]
    assert (await taken(storage_settings, steps))[0] == [0, 1]
