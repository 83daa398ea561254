"""A web site for crawlers to get lost in: computed from a seed, served on loopback.

The site has a fixed number of pages, each with the same number of links, and the habits of real
sites: the same link twice on a page, query parameters in any order, fragments, and redirects. The
server counts how often it delivered each page, so a crawl can be checked against it: no page
missed, no page fetched twice.
"""

from __future__ import annotations

import html
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

from testbed.served import Quiet, Served


class Kind(Enum):
    """How the site treats a page, by the form of its links."""

    PLAIN = "/page/{page}"
    QUERY = "/find?id={page}&lang=en&view=list"  # any order of the parameters will do
    ORDERED = "/list?id={page}&lang=en&view=list"  # another order redirects to this one
    BOUNCE = "/member/{page}"  # redirects to itself once, as sites do to set a cookie
    FOLDER = "/docs/{page}"  # redirects to the same with a slash
    TAGGED = "/news/{page}"  # redirects to the same with a tracking parameter


_FINAL = {Kind.FOLDER: "/docs/{page}/", Kind.TAGGED: "/news/{page}?utm_source=site"}
_MIX = (*[Kind.PLAIN] * 4, *[Kind.QUERY] * 2, *list(Kind)[2:])  # of ten pages
_ALIAS = "/go/{page}"  # every page has one; it redirects to the page
_NUMBER = re.compile(r"(?:/|[?&]id=)(\d+)")


class Answer(NamedTuple):
    """What the site says to one request.

    Attributes:
        status: the HTTP status.
        page: number of the page whose content is delivered, None for a redirect or an error.
        location: where a redirect leads, as a path.
    """

    status: HTTPStatus
    page: int | None = None
    location: str = ""


class _Handler(Quiet, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # send headers and body together

    def do_GET(self) -> None:
        site = self.server.site
        answer = site.visit(self.path)
        body = b"" if answer.page is None else site.body(answer.page)
        self.send_response(answer.status)
        if answer.location:
            self.send_header("Location", answer.location)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class LocalSite(Served):
    """A site of many pages.

    A page is a number from 0 to ``pages - 1``; page 0 is the front page ``/``. Its content is
    delivered with status 200 at one address only (for ``Kind.QUERY`` in any order of the
    parameters); every other way of writing it redirects there. Any number of crawlers, in this
    process or in others, may visit it at once.

    :param pages: how many pages there are, at least 1.
    :param links: how many links each page has, at least 1.
    :param seed: another seed gives other links between the same pages.

    Attributes:
        hits: how often each page was delivered so far.
        delivered: how many pages were.
    """

    handler = _Handler

    def __init__(self, *, pages: int = 3000, links: int = 20, seed: int = 1) -> None:
        self.pages = pages
        self.links = links
        self.seed = seed
        self._lock = threading.Lock()
        self.hits: Counter[int] = Counter()
        self.delivered = 0
        self._asked: set[str] = set()
        self._seconds: Counter[int] = Counter()
        self._alarms: dict[int, Callable[[], object]] = {}

    def kind(self, page: int) -> Kind:
        """Tell how the site treats a page."""
        return _MIX[page % len(_MIX)]

    def address(self, page: int) -> str:
        """Give the path, with the query, where the content of a page is delivered."""
        kind = self.kind(page)
        return _FINAL.get(kind, kind.value).format(page=page) if page else "/"

    def hrefs(self, page: int) -> list[str]:
        """List the links on a page, as they are written there."""
        chance = random.Random(f"{self.seed} {page}")
        # Half of the links make a tree from the front page: no page is out of reach.
        width = (self.links + 1) // 2
        first = page * width + 1
        targets = list(range(first, min(first + width, self.pages)))
        while len(targets) < self.links:
            repeat = targets and chance.random() < 0.25
            targets.append(chance.choice(targets) if repeat else chance.randrange(self.pages))
        chance.shuffle(targets)
        return [self._write(target, chance) for target in targets]

    def answer(self, target: str, *, again: bool = True) -> Answer:
        """Answer a request for a path with its query, the first time or again."""
        page = self.page(target)
        if page is None:
            return Answer(HTTPStatus.NOT_FOUND)
        kind = self.kind(page)
        address = self.address(page)
        if target != address and not (kind is Kind.QUERY and _sorted(target) == address):
            return Answer(HTTPStatus.MOVED_PERMANENTLY, location=address)
        if kind is Kind.BOUNCE and not again:
            return Answer(HTTPStatus.FOUND, location=address)
        return Answer(HTTPStatus.OK, page)

    def body(self, page: int) -> bytes:
        """Render a page as HTML."""
        items = "\n".join(f'<li><a href="{html.escape(h)}">{h}</a>' for h in self.hrefs(page))
        return f"<!doctype html>\n<title>Page {page}</title>\n<ul>\n{items}\n</ul>\n".encode()

    def page(self, target: str) -> int | None:
        """Return the page that a path with its query stands for, None if there is none."""
        if target == "/":
            return 0
        number = _NUMBER.search(target)
        page = int(number[1]) if number else self.pages
        return page if page < self.pages else None

    def _write(self, page: int, chance: random.Random) -> str:
        if chance.random() < 0.02:
            href = _ALIAS.format(page=page)
        elif page == 0:
            href = "/"
        else:
            href, _, query = self.kind(page).value.format(page=page).partition("?")
            if query:
                parameters = query.split("&")
                chance.shuffle(parameters)
                href += "?" + "&".join(parameters)
        return f"{href}#part-{chance.randrange(9)}" if chance.random() < 0.2 else href

    @property
    def url(self) -> str:
        """The address of the front page."""
        return f"http://{self.HOST}:{self.port}/"

    @property
    def missed(self) -> set[int]:
        """The pages that nobody has fetched."""
        return set(range(self.pages)) - self.hits.keys()

    @property
    def repeated(self) -> dict[int, int]:
        """The pages that were delivered more than once, and how often."""
        return {page: hits for page, hits in [*self.hits.items()] if hits > 1}

    @property
    def urls(self) -> set[str]:
        """Every URL that was answered with a page or a redirect."""
        with self._lock:
            return {self.url[:-1] + target for target in self._asked}

    @property
    def per_second(self) -> list[int]:
        """How many requests were answered in each second, the first and the last one excluded."""
        with self._lock:
            return [count for _, count in sorted(self._seconds.items())][1:-1]

    def when(self, deliveries: int, do: Callable[[], object]) -> None:
        """Call ``do`` once, in a thread of the server, at the given number of deliveries."""
        with self._lock:
            self._alarms[deliveries] = do

    def visit(self, target: str) -> Answer:
        """Answer a request and count it."""
        alarm = None
        with self._lock:
            self._seconds[int(time.monotonic())] += 1
            answer = self.answer(target, again=target in self._asked)
            if answer.status is not HTTPStatus.NOT_FOUND:
                self._asked.add(target)
            if answer.page is not None:
                self.hits[answer.page] += 1
                self.delivered += 1
                alarm = self._alarms.pop(self.delivered, None)
        if alarm:
            alarm()
        return answer


def _sorted(target: str) -> str:
    path, _, query = target.partition("?")
    return path + "?" + "&".join(sorted(query.split("&")))


class SteadySite(LocalSite):
    """A :class:`LocalSite` without pages that redirect to what Scrapy calls the same page.

    Its own filter takes such a redirect for a duplicate, so it misses the page in any crawl.
    """

    def kind(self, page: int) -> Kind:
        """Tell how the site treats a page."""
        kind = super().kind(page)
        return Kind.PLAIN if kind in {Kind.BOUNCE, Kind.ORDERED} else kind


class StormySite(LocalSite):
    """Answers the first request for every fourth page with 503, and has links to nothing."""

    def __init__(self, **arguments: int) -> None:
        super().__init__(**arguments)
        self._stormed: set[str] = set()

    def visit(self, target: str) -> Answer:
        """Answer a request, with an error at times."""
        page = self.page(target)
        if page and page % 4 == 0 and target not in self._stormed:
            self._stormed.add(target)
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE)
        return super().visit(target)

    def hrefs(self, page: int) -> list[str]:
        """List the links on a page, and one that leads nowhere."""
        return [*super().hrefs(page), f"/nothing/{page}"]
