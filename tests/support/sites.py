"""A web site of a few pages on loopback."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from testbed.served import Quiet, Served

Page = Callable[..., Any]
"""Called with the path and the cookie; returns what :class:`Pages` says."""


class _Handler(Quiet, BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(f"POST {self.path} {body.decode()}")

    def do_GET(self) -> None:
        self.answer(self.path)

    def answer(self, hit: str) -> None:
        self.server.site.times[hit].append(time.monotonic())
        self.server.site.hits[hit] += 1
        answer = self.server.site.pages.get(self.path.partition("?")[0])
        if callable(answer):
            answer = answer(self.path, self.headers.get("Cookie"))
        if isinstance(answer, str):
            self.send_response(302)
            self.send_header("Location", answer)
            self.send_header("Set-Cookie", "been=here")
            self.end_headers()
            return
        if answer is ...:
            return
        answer, headers = answer if isinstance(answer, tuple) else (answer, {})
        status = 404 if answer is None else answer if isinstance(answer, int) else 200
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        listed = answer if isinstance(answer, list) else []
        if isinstance(answer, bytes):
            self.wfile.write(answer)
            return
        links = "".join(f'<a href="{href}">link</a>' for href in listed)
        self.wfile.write(f"<html><body>{links}</body></html>".encode())


class Pages(Served):
    """Serves `{path: page}`. A page is where it redirects to, or its links, or a status, or its
    bytes, or one of these with a dict of headers, or `...` for no answer at all; or what returns
    one of these when it is called with (path, cookie).

    Attributes:
        hits: how often each path (with its query) was asked for, redirects included. The path of a
            POST comes after that word and before its body.
        times: for each of these, when it was asked for, by ``time.monotonic()``.
    """

    handler = _Handler

    def __init__(self, pages: Any) -> None:
        self.pages = pages
        self.hits: Counter[str] = Counter()
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    @property
    def url(self) -> str:
        return f"http://{self.HOST}:{self.port}"


def fan(*leaves: object, **others: Any) -> dict[str, Any]:
    """Return pages to which the front page leads: leaves without links, and others as given."""
    pages = {f"/{leaf}": [] for leaf in leaves} | {
        f"/{name}": page for name, page in others.items()
    }
    return {"/": [*pages], **pages}
