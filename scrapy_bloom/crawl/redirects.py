"""Redirect chains: a redirected request is not a duplicate of its own chain.

A page may redirect to itself to set a cookie, or to another spelling of its own URL. Without this
rule it would never be parsed: the first request marks the page, and the second is dropped.

A redirected request does not always show what it was before: 301, 302 and 303 turn a POST into a
GET without its body. So a request that is not a GET carries its mark with it.

Many pages may redirect to one login or error page. The first redirect marks it, and those that come
before its response are dropped as seen. If that page is then forgotten, the pages that redirected
to it must be forgotten as well: they are marked although they were never parsed.

A retry is not filtered, and redirects keep that: a page that was fetched already would be fetched
again. So what a page redirects to after a retry is filtered if the page was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Final

from scrapy import Request

RETRIED: Final = "bloom_retried"
"""Key in the meta of the retry of a filtered page: its URL, so that nothing else can inherit it."""

MARKS: Final = "bloom_marks"
"""Key in a request's meta: marks of requests other than GET, as hex, by URL."""

MOST_DROPPED: Final = 10_000
"""How many dropped redirect chains are remembered; beyond that, the oldest is discarded."""


_MOST_STEPS: Final = 5
"""Forgetting a page also forgets up to five redirect steps back to it, seen or not. More steps lead
back only by mistake, as in a loop."""


def keep_filtered(output: Any, request: Request) -> None:
    """Have a request filtered to which a filtered page redirects after a retry.

    :param output: what came out of the downloader.
    :param request: the request that went in.
    """
    meta = request.meta
    if not isinstance(output, Request):
        meta.pop(RETRIED, None)  # the spider may request the page again, and want no filter
    elif output.dont_filter and (not request.dont_filter or meta.get(RETRIED) == request.url):
        if output.url == request.url:
            output.meta[RETRIED] = request.url
        elif request.dont_filter and output.meta.get("redirect_urls", ())[-1:] == [request.url]:
            output.dont_filter = False


def note_mark(request: Request, fingerprint: bytes) -> None:
    """Store a request's mark in its meta, for the requests that redirects will make of it.

    Marks of other requests are kept only if these come earlier in its chain: some spiders pass
    ``response.meta`` on, and the marks would pile up.
    """
    meta = request.meta
    known = meta.get(MARKS, {})
    before = {url: known[url] for url in meta.get("redirect_urls", ()) if url in known}
    meta[MARKS] = {**before, request.url: fingerprint.hex()}


def chain_before(
    request: Request, fingerprint_of: Callable[[Request], bytes]
) -> Iterator[tuple[int, bytes]]:
    """Yield the earlier requests in a request's redirect chain, the latest first.

    Each is the number of redirects before it, and its mark. A mark from the meta, which may be that
    of another request, is followed by one made of the same URL and the present request.

    :param fingerprint_of: the function that made the fingerprints.
    """
    urls, noted = request.meta.get("redirect_urls", ()), request.meta.get(MARKS, {})
    for step in reversed(range(len(urls))):
        url = urls[step]
        if url in noted:
            yield step, bytes.fromhex(noted[url])
        yield step, fingerprint_of(request.replace(url=url))


def step_fingerprint(step: int, fingerprint: bytes) -> bytes:
    """Return 20 bytes that identify one step of one redirect chain.

    Once they are marked, the step is not let through again. Some spiders pass ``response.meta`` on,
    and their links then look like redirects. Without this mark each would be let through again and
    again, and a page that links to itself would be crawled endlessly.

    :param step: the number of redirects before it.
    :param fingerprint: of the request that the last of them made.
    """
    return blake2b(fingerprint, digest_size=20, salt=step.to_bytes(8, "big")).digest()


def steps_to(fingerprint: bytes) -> list[bytes]:
    """Return the marks of redirects back to a page, which must be forgotten with it.

    Otherwise it would be requested again, and dropped when it redirects to itself.
    """
    return [step_fingerprint(step, fingerprint) for step in range(1, _MOST_STEPS + 1)]
