"""Sites for crawls that are killed: with storms of errors, with many hosts, with sitemaps."""

from http import HTTPStatus
from urllib.parse import urlsplit

from support.localsite import Answer, LocalSite


class StormySite(LocalSite):
    """Answers the first request for every fourth page with 503, and has links to nothing."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self._stormed = set()

    def visit(self, target):
        page = self.page(target)
        if page and page % 4 == 0 and target not in self._stormed:
            self._stormed.add(target)
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE)
        return super().visit(target)

    def hrefs(self, page):
        return [*super().hrefs(page), f"/nothing/{page}"]


class ManyHosts(LocalSite):
    """Its pages are spread over hosts that do not exist: it answers for all of them, as a proxy."""

    HOSTS = 60

    def visit(self, target):
        parts = urlsplit(target)
        page = self.page(parts.path + ("?" + parts.query if parts.query else ""))
        if page and parts.netloc != self._host(page):
            return Answer(HTTPStatus.NOT_FOUND)
        return super().visit(target.removeprefix(f"http://{parts.netloc}"))

    def hrefs(self, page):
        links = []
        for href in super().hrefs(page):
            target = self.page(href.partition("#")[0])
            links.append(f"http://{self._host(target)}{href}" if target else self.url)
        return links

    def _host(self, page):
        return f"host-{page % self.HOSTS}.test"


class SitemapSite(LocalSite):
    """Lists its pages in sitemaps, and these in another one. A sitemap counts as a page below 0."""

    EACH = 25

    def answer(self, target, *, again=True):
        if target == "/sitemap.xml":
            return Answer(HTTPStatus.OK, -1)
        if target.startswith("/sitemap-"):
            number = int(target.removeprefix("/sitemap-").removesuffix(".xml"))
            return Answer(HTTPStatus.OK, -2 - number)
        return super().answer(target, again=again)

    def body(self, page):
        if page >= 0:
            return super().body(page)
        if page == -1:
            kind, entry = "sitemapindex", "sitemap"
            paths = [f"/sitemap-{n}.xml" for n in range(-(-self.pages // self.EACH))]
        else:
            kind, entry = "urlset", "url"
            first = (-2 - page) * self.EACH
            paths = map(self.address, range(first, min(first + self.EACH, self.pages)))
        space = "http://www.sitemaps.org/schemas/sitemap/0.9"
        rows = "".join(f"<{entry}><loc>{self.url[:-1]}{path}</loc></{entry}>" for path in paths)
        return f'<?xml version="1.0"?><{kind} xmlns="{space}">{rows}</{kind}>'.encode()
