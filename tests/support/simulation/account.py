"""The account of a crawl: what has become of each page, as the next run would see it.

pages = done + failed + waiting + in flight + not known yet. What is stored must at any time be
enough to fetch all that was not fetched:

* A page that is marked is done, or has a request.
* A page whose parent is done is so, too, or has a request.

Done is what was parsed, is marked and has no request any more. A page has several URLs, one of
which is its own; the others redirect to it, and count for it.
"""

from collections import Counter, defaultdict

from scrapy import Request

from scrapy_bloom.commands.requests import decoded, read
from scrapy_bloom.crawl.history import ORIGINAL
from scrapy_bloom.crawl.outcomes import REDIRECTED
from scrapy_bloom.errors import StateError
from scrapy_bloom.redis.member import Taken, id_in
from scrapy_bloom.redis.reader import FailedRow, Reader
from support.jobs import PACKING
from support.simulation.servers import BASE, KEY, Observer
from support.simulation.site import KINDS, page_of


def by_page(found, read=read):
    """Return where the requests of each page are, of those that were found there.

    A retry or redirect stands for the page where it began.
    """
    return {
        page_of(decoded(read(each.body)["meta"].get(ORIGINAL) or each.body, read=read).url): state
        for state, requests in found.items()
        for each in requests
    }


def by_list(listed, moves, read=read):
    """Return what no callback got by what that says of its page: "listed", or "redirected".

    One that was redirected to a seen page stands for no page: that one has a request of its own.
    But it does if it may lead elsewhere the next time, as in `moves`.
    """
    found = {"listed": [], "redirected": []}
    for each in listed:
        if not (each.unparsed and each.kind == REDIRECTED):
            found["listed"].append(each)
        elif page_of(decoded(each.body, read=read).url) in moves:
            found["listed" if each.tries else "redirected"].append(each)
    return found


class Account:
    """What is stored of the crawl of a world; each call says in which store.

    A subclass says with `requests` what the request of each page is doing that has one, and with
    `marked` for each fingerprint whether it is marked.
    """

    def __init__(self, world):
        self._world = world
        self._marks = {}

    def states(self, store):
        requests, parsed = self.requests(store), self._world.site.parsed
        pages = self._world.site.pages
        marked = self._marked_pages(store, [page for page in pages if page not in requests])
        states = dict.fromkeys(pages, "unknown")
        lost = {*self._world.site.lost}  # for the others those count to which they redirect
        states |= dict.fromkeys(marked & lost, "lost")
        states |= {page: "done" for page in marked if parsed[page]}
        return states | requests

    def check(self, store):
        """Note what would be lost if the crawl went on from a store alone."""
        requests, site = self.requests(store), self._world.site
        missing = [page for page in site.lost if page not in requests]
        if not missing:  # so it is nearly always
            return
        states = self.states(store)
        self._world.note("account", Counter(states.values()))
        covered = self.covered(store, requests)
        for parent, links in site.links.items():
            for link in links if states[parent] == "done" else ():
                if states[link.page] == "unknown" and not site.parsed[link.page]:
                    states[link.page] = "lost"
        if lost := [page for page in missing if states[page] == "lost" and page not in covered]:
            self._world.wrong.append(f"neither done nor stored: {lost}")
            self._world.account = None  # once is enough

    def astray(self, requests):
        """Return pages that were redirected to others which are neither parsed nor stored."""
        site = self._world.site
        redirected = [page for page, state in requests.items() if state == "redirected"]
        there = {page for page in site.moves if site.parsed[site.moves[page]]} | {
            page for page in site.moves if site.moves[page] in requests
        }
        return {*redirected} - there

    def covered(self, store, requests):
        """Return the pages with requests, and those to which they lead again.

        A request that cannot be stored is not marked, but the page that yields it has a request.
        """
        site, held = self._world.site, defaultdict(set)
        links = [(by, link) for by in site.pages for link in site.links[by] if link.unstorable]
        marks = [self._mark(site.url(link.kind, link.page)) for _, link in links]
        for (by, link), is_marked in zip(links, self.marked(store, marks), strict=True):
            if not is_marked:
                held[by].add(link.page)
        covered = {*requests}
        under_way = {page for page, state in requests.items() if state in ("waiting", "in flight")}
        covered |= {site.moves[page] for page in under_way & {*site.moves}}
        for page in (stack := [*covered]):
            stack += held[page] - covered
            covered |= held[page]
        return covered

    def _marked_pages(self, store, pages):
        """Return those pages of which any URL is marked."""
        site = self._world.site
        urls = [(page, site.url(kind, page)) for page in pages for kind in KINDS]
        answers = self.marked(store, [self._mark(url) for _, url in urls])
        return {page for (page, _), is_marked in zip(urls, answers, strict=True) if is_marked}

    def _mark(self, url):
        if url not in self._marks:
            fingerprinter = self._world.processes[0].crawler.request_fingerprinter
            self._marks[url] = fingerprinter.fingerprint(Request(url))
        return self._marks[url]


class SharedAccount(Account):
    """What is in a Redis server; a store is one of the two."""

    def requests(self, store):
        pipeline = self._world.servers.databases[store].pipeline(transaction=False)
        for name in ("queue", "later"):
            pipeline.zrange(BASE + name, 0, -1)
        for name in ("taken", "failed", "unparsed"):
            pipeline.hvals(BASE + name)
        pipeline.hgetall(BASE + "bodies")
        queue, later, taken, failed, unparsed, bodies = pipeline.execute()

        if {*map(id_in, (*queue, *later, *taken, *failed, *unparsed))} != bodies.keys():
            self._world.wrong.append("requests without bodies, or bodies without requests")

        def with_body(heads):
            return [(each, bodies[id_in(each)]) for each in heads if id_in(each) in bodies]

        found = {
            "waiting": (Taken.read_parts(*each) for each in with_body([*queue, *later])),
            "in flight": (Taken.read(*each, 0) for each in with_body(taken)),
        }
        listed = (FailedRow.read(b"", *each).failed for each in with_body([*failed, *unparsed]))
        moves = self._world.site.moves
        return by_page(by_list(listed, moves, PACKING.fields) | found, PACKING.fields)

    def marked(self, store, fingerprints):
        try:
            return Reader(Observer(self._world.servers, store), KEY).contains_many(fingerprints)
        except StateError:  # there is nothing
            return [False] * len(fingerprints)
