"""A site that exists in a simulation only, and the spider that crawls it.

Page 0 leads to all others. A link may lead over redirects, wait, be fetched again after a time, or
have a callback that cannot be stored; a page may fail, also for good, be slow, be wrong for a while
(its callback forgets it, and asks for it again), or have a callback that fails or blocks. It may
redirect to another one in each second run: to a wall, which has no links, or to a page. The site
may be away for a while.
"""

import asyncio
from collections import Counter, defaultdict
from functools import partial
from math import inf
from types import SimpleNamespace

from scrapy import Request, Spider
from scrapy.exceptions import DownloadTimeoutError
from scrapy.http import HtmlResponse, TextResponse

import scrapy_bloom
from support.simulation.clock import TIME

KINDS = "page", "redirect", "twice", "itself", "moved"
"""First parts of a path: the page, what redirects to it, to that, once to its own URL, and to
another page in each second run."""


class BugError(Exception):
    """What a callback raises."""


class Site:
    """The pages of a world, and what has become of them.

    Attributes:
        links: of each page: to which page, over which kind of URL, and how that is requested.
        parsed: how often each page's callback has come to its end.
        early: pages that were fetched before the time they were to wait for.
        gaps: seconds between two requests to one host.
        away_until: when it answers again.
        moves: pages that redirect to others in each second run, to which.
        begun: how often a request was served that no retry or redirect has made.
    """

    def __init__(self, world):
        self._world, self._chance, self._features = world, world.chance, dict(world.features)
        chance = self._chance
        self.pages = range(world.pages)
        self.seeds = [0, 1][: chance.choice((1, 2))]
        self.links, self.parsed = defaultdict(list), Counter()
        self.early, self.away_until, self.begun = [], 0.0, 0
        self.gaps, self._served_at, self._not_before = [], {}, []
        walls = range(1000, 1003)
        still = [page for page in self.pages[2:] if not self._has("moves")]
        self.moves = self._some("walls", walls)
        if "moves" in self._features:
            self.moves = {page: chance.choice(still) for page in {*self.pages[2:]} - {*still}}
        for page in self.pages[1:]:
            self._link(0 if page in self.moves else chance.randrange(max(0, page - 30), page), page)
            if page not in self.moves.values():  # one link would be enough to find them
                for _ in range(chance.choice((0, 0, 1, 2))):
                    self._link(chance.randrange(world.pages), page)
        self._wrong = self._some("wrong", (1, 1, 2))
        self._fails = self._some("fails", (1, 2)) + self._some("dead", (1_000_000,))
        self._fails.update({wall: chance.choice((2, 2, 4)) for wall in walls})
        self._bugs = self._some("bugs", (1, 1, 2))
        self._slow = self._some("slow", (10, 50))
        self._blocks = self._some("blocks", (3, 12, 40))
        self._left_alone = Counter()  # hosts, each until when

    def _has(self, feature):
        return self._chance.random() < self._features.get(feature, 0)

    def _some(self, feature, values):
        choice = self._chance.choice
        return Counter({page: choice(values) for page in self.pages if self._has(feature)})

    def _link(self, by, to):
        chance, has = self._chance, self._has
        link = SimpleNamespace(page=to, kind="page", meta={}, priority=0)
        link.unstorable, link.errback = has("unstorable"), chance.random() < 0.3
        if has("redirects"):
            link.kind = chance.choice(KINDS[1:4])
        if to in self.moves:
            link.kind = "moved"
        if has("waits"):
            link.meta["bloom_delay"] = chance.choice((1, 10, 100))
        if has("ages"):
            link.meta["bloom_max_age"] = chance.choice((1, 30, 1000))
        if chance.random() < 0.3:
            link.priority = chance.choice((-5, 5, 100))
        self.links[by].append(link)

    def url(self, kind, page):
        host = page + (kind == "twice")
        return f"http://h{host % self._world.hosts}.test/{kind}/{page}"

    @property
    def lost(self):
        """Pages that were never fetched, nor where they redirect."""
        parsed, moves = self.parsed, self.moves
        return [page for page in self.pages if not parsed[page] and not parsed[moves.get(page)]]

    # What a spider does with it

    def parse(self, spider, response):
        page = page_of(response.url)
        if self._wrong[page] > 0:
            self._wrong[page] -= 1
            scrapy_bloom.forget(response.request, spider.crawler)
            yield Request(response.url, spider.parse)
            return
        if self._blocks[page] and self._world.faulty and self._chance.random() < 0.5:
            process = self._world.running
            act = self._chance.choice((process.freeze, process.block))
            act(self._blocks[page])
        for link in self.links.get(page, ()):
            yield self._request(spider, link)
        if self._bugs[page] > 0:
            self._bugs[page] -= 1
            raise BugError
        self.parsed[page] += 1
        self._world.note("parsed", self._world.running.name, page)
        yield {"page": page}

    def _request(self, spider, link):
        url, meta = self.url(link.kind, link.page), dict(link.meta)
        if "bloom_delay" in meta:  # retries and redirects have it, too, but come later
            meta["asked"] = len(self._not_before)
            self._not_before.append(TIME.now + meta["bloom_delay"])
        # A partial has no name by which it could be found again.
        callback = partial(spider.parse) if link.unstorable else spider.parse
        errback = spider.failed if link.errback else None
        return Request(url, callback, errback=errback, meta=meta, priority=link.priority)

    # What a server does with it

    async def serve(self, request):
        _, _, host, kind, _ = request.url.split("/")
        page, is_page, chance = page_of(request.url), kind == "page", self._chance
        asked = request.meta.get("asked")
        if asked is not None and TIME.now < self._not_before[asked] - 0.01:
            self.early.append(request.url)
        self.begun += not {"retry_times", "redirect_times"}.intersection(request.meta)
        self._world.note("served", self._world.running.name, request.url)
        self.gaps.append(TIME.now - self._served_at.get(host, -inf))
        self._served_at[host] = TIME.now
        await asyncio.sleep(chance.choice(self._world.answers) + is_page * self._slow[page])
        if self._world.faulty and self._has("busy"):
            until = TIME.now + chance.choice((2, 15, 60))
            self._left_alone[host] = max(self._left_alone[host], until)
        if (wait := self._left_alone[host] - TIME.now) > 0:
            status, headers = chance.choice((429, 503)), {"Retry-After": str(int(wait) + 1)}
            return TextResponse(request.url, status=status, headers=headers, request=request)
        is_away = self._world.faulty and TIME.now < self.away_until
        if is_away or (is_page and self._fails[page] > 0):
            self._fails[page] -= not is_away
            if chance.random() < 0.5:
                return TextResponse(request.url, status=500, request=request)
            raise DownloadTimeoutError
        to = {"redirect": "page", "twice": "redirect"}.get(kind)
        if kind == "itself" and not request.meta.get("redirect_times"):
            to = kind
        if to is not None:
            headers = {"Location": self.url(to, page)}
            return HtmlResponse(request.url, status=302, headers=headers, request=request)
        if kind == "moved" and len(self._world.processes) % 2:
            headers = {"Location": self.url("page", self.moves[page])}
            return HtmlResponse(request.url, status=302, headers=headers, request=request)
        return HtmlResponse(request.url, body=b"<html>", request=request)


def page_of(url):
    return int(url.rsplit("/", 1)[1])


class Handler:
    """A download handler: the network of a simulation."""

    lazy = False

    def __init__(self, crawler):
        self.download_request = crawler.spidercls.site.serve

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def close(self):
        pass


class SiteSpider(Spider):
    """Follows all links of a site, which a subclass names."""

    name = "spider"
    site = None

    def __repr__(self):
        return "<the spider>"  # without an address, which differs each time

    async def start(self):
        for page in self.site.seeds:
            yield Request(self.site.url("page", page), self.parse)

    def parse(self, response):
        yield from self.site.parse(self, response)

    def failed(self, failure):
        """Do nothing, as errbacks that only log do."""
