"""A web site of a few pages on loopback."""

import time
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler

from testbed.served import Quiet, Served


class _Handler(Quiet, BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self):
        site = self.server.site
        site.times[self.path].append(time.monotonic())
        site.hits[self.path] += 1
        answer = site.pages.get(self.path.partition("?")[0])
        if callable(answer):
            answer = answer(self.path, self.headers.get("Cookie"))
        if answer is ...:
            return
        answer, headers = answer if isinstance(answer, tuple) else (answer, {})
        links = answer if isinstance(answer, list) else ()
        html = "".join(f'<a href="{href}">link</a>' for href in links)
        status, body = 200, f"<html><body>{html}</body></html>".encode()
        if isinstance(answer, str):
            status, headers = 302, {"Location": answer, "Set-Cookie": "been=here", **headers}
        elif isinstance(answer, bytes):
            body = answer
        elif not isinstance(answer, list):
            status = answer or 404
        self.send_response(status)
        for name, value in {"Content-Type": "text/html", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Pages(Served):
    """Serves `{path: page}`. A page is where it redirects to, or its links, or a status, or its
    bytes, or one of these with a dict of headers, or `...` for no answer at all; or what returns
    one of these when it is called with (path, cookie).

    Attributes:
        hits: how often each path (with its query) was asked for, redirects included.
        times: for each of these, when it was asked for, by ``time.monotonic()``.
    """

    handler = _Handler

    def __init__(self, pages):
        self.pages, self.hits, self.times = pages, Counter(), defaultdict(list)

    @property
    def url(self):
        return f"http://{self.HOST}:{self.port}"


def fan(*leaves, **others):
    """Return pages to which the front page leads: leaves without links, and others as given."""
    pages = {f"/{leaf}": [] for leaf in leaves}
    pages |= {f"/{name}": page for name, page in others.items()}
    return {"/": [*pages], **pages}
