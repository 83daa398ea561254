"""Which pages count as seen: what a callback asks and forgets, wherever their marks are known."""

import asyncio
import random
from itertools import count

import pytest
from scrapy import Request, signals
from scrapy.utils.request import fingerprint
from scrapy.utils.test import get_crawler
from support.crawling import Follower, at, crawl, settings_at, visit
from support.internals import is_settled, scheduler_of
from support.jobs import Session, page
from support.sites import Pages, fan
from support.spiders import Walled

import scrapy_bloom
from scrapy_bloom.crawl.history import CHAIN
from scrapy_bloom.signals import forget_page

pytestmark = pytest.mark.server


def stat(crawler, name):
    return crawler.stats.get_value(f"bloom/{name}", 0)


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


@pytest.mark.each_scrapy
@at("memory", "job", "kept job", "redis", "shared")
async def test_a_callback_may_ask_whether_a_page_was_seen(place):
    """In Redis what is not known here may be known to others."""
    no = None if "BLOOM_REDIS_URL" in place else False
    crawler, site = await visit(fan("a", "b"), Asking, place)
    assert crawler.spider.asked == [[no, no], [True, no], [no, no]]
    assert site.hits == {"/": 1, "/a": 1}


# A callback forgets

ONE = {"CONCURRENT_REQUESTS": 1, "RETRY_TIMES": 1}


def walls(*links):
    """Return a page that is a login page at first; that leads to a page which links to it."""
    answers = count()
    return lambda *_: list(links) if next(answers) else ["/login", "/again"]


async def crawl_walled(pages, settings, times=1):
    """Crawl a site so often; return its hits after each crawl, and the last crawler."""
    hits = []
    with Pages(pages) as site:
        for _ in range(times):
            crawler = await crawl(Walled, settings | ONE, url=site.url + "/")
            hits.append(dict(site.hits))
    return hits, crawler


@at("memory", "redis")
async def test_a_forgotten_page_is_fetched_by_the_next_link(place):
    pages = {"/": ["/a"], "/a": walls("/c"), "/again": ["/a"], "/c": ["/a", "/c", "/again"]}
    [hits], crawler = await crawl_walled(pages, place)
    assert hits == {"/": 1, "/a": 2, "/again": 1, "/c": 1}
    assert stat(crawler, "not_forgotten") == 0


@at("job", "kept job", "shared")
async def test_a_forgotten_page_is_fetched_by_the_next_run_and_by_no_later_one(place):
    pages = {"/": ["/a", "/b"], "/a": walls("/c"), "/b": [], "/c": [], "/again": []}
    hits, _ = await crawl_walled(pages, place, times=3)
    assert hits[0] == {"/": 1, "/a": 1, "/b": 1, "/again": 1}
    assert hits[1] == hits[0] | {"/": 2, "/a": 2, "/c": 1}
    assert hits[2] == hits[1] | {"/": 3}


@at("job", "shared")
async def test_a_page_is_forgotten_with_the_pages_that_redirected_to_it(place):
    pages = {"/": ["/old"], "/again": ["/old"], "/old": "/middle", "/middle": "/new"}
    pages |= {"/new": walls("/c"), "/c": ["/old", "/middle", "/new"]}
    (_, hits), _ = await crawl_walled(pages, place, times=2)
    assert hits == {"/": 2, "/again": 1, "/old": 2, "/middle": 2, "/new": 2, "/c": 1}


@at("redis", "kept job", "shared")
async def test_a_page_is_forgotten_with_the_pages_whose_redirects_to_it_were_dropped(place):
    names = ["/a", "/b", "/d", "/e"]
    pages = {"/": names, "/again": names, "/c": []} | dict.fromkeys(names, "/wall")
    # Until the wall is fetched, all have redirected to it.
    settings = place | {"REDIRECT_PRIORITY_ADJUST": -10}
    [hits], crawler = await crawl_walled(pages | {"/wall": walls("/c")}, settings)
    assert hits == {"/": 1, **dict.fromkeys(names, 2), "/wall": 2, "/again": 1, "/c": 1}
    assert stat(crawler, "not_forgotten") == 0
    assert crawler.stats.get_value("walls/known") == 1


# The same without a crawl


def redirected(request, url, **changes):
    """Return what is made of a request that is redirected."""
    chain = [*request.meta.get(CHAIN, ()), fingerprint(request).hex()]
    return request.replace(url=url, **changes, meta={CHAIN: chain})


def test_each_form_of_a_chain_is_forgotten_with_its_own_body():
    spared, first = (page("form", method="POST", body=text) for text in "ab")
    second = redirected(first, page("other").url)
    got = redirected(second, page("got").url, method="GET", body=b"")
    with Session() as session:
        assert session.seen(spared, first, second, got) == [False] * 4
        scrapy_bloom.forget(got, session.crawler)
        assert session.seen(spared, first, second, got) == [True, False, False, False]


def test_where_there_is_no_answer_nothing_is_forgotten_and_nothing_known(caplog):
    class Odd:
        def fingerprint(self, request):
            raise ValueError(f"an odd page: {request}")

    with Session({"REQUEST_FINGERPRINTER_CLASS": Odd}) as session:
        for _ in range(2):
            assert scrapy_bloom.forget(page("a"), session.crawler) is False
            assert scrapy_bloom.seen(page("a"), session.crawler) is None
    assert stat(session.crawler, "not_forgotten") == 2
    assert caplog.text.count("could not be forgotten") == 1
    assert len(caplog.records) == 2


def test_in_a_crawl_without_ours_nothing_is_known_and_the_rest_is_logged(caplog):
    assert scrapy_bloom.seen(page("a"), get_crawler()) is None
    assert scrapy_bloom.forget(page("a"), get_crawler()) is False
    assert scrapy_bloom.hold(page("a"), get_crawler(), 1) is False
    assert "has no open filter of scrapy-bloom" in caplog.text
    assert "has no open scrapy_bloom.Scheduler" in caplog.text


# A request is a duplicate if its mark is there, wherever that is known


class Steps(Follower):
    """Does one thing after the other, and notes which of its requests are taken."""

    async def start(self):
        taken, scheduler = set(), scheduler_of(self.crawler)

        def dropped(request):
            taken.discard(request.cb_kwargs["number"])

        self.crawler.signals.connect(dropped, signals.request_dropped)
        for number, (kind, path, chain, more) in enumerate(self.steps):
            marks = [fingerprint(Request(self.url + each)).hex() for each in chain]
            before = {CHAIN: marks} if chain else {}
            callback = (lambda *_, **__: None) if kind == "hold" else self.ignore
            numbered = {"cb_kwargs": {"number": number}}
            request = Request(self.url + path, callback, meta=before | more, **numbered)
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


async def take(place, steps):
    """Return the crawler that has made these steps; its spider knows which were taken."""
    crawler, _ = await visit(fan(*"abcd"), type("Steps", (Steps,), {"steps": steps}), place)
    return crawler


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
        names = ("new", "seen", "redirect_exempt", "not_forgotten")
        counts = [stat(crawler, name) for name in names]
        results.append((crawler.spider.parsed, counts))
    assert results[0] == results[1]
