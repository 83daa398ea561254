"""A request that a redirect made is no duplicate of its own chain, and what becomes of a chain.

A page may redirect to itself to set a cookie, or to another spelling of its own URL. Without this
rule it would never be parsed: the first request marks the page, and the second one is dropped.

What a request was before a redirect is not always to be seen from what it has become: 301, 302 and
303 make a GET of a POST, and its body is gone. So what is not a GET carries its mark with it.

Many pages may redirect to one login or error page. The first redirect marks it, and those that come
before its response are dropped as seen. If that page is forgotten then, the pages that were to lead
to it must be forgotten as well: they stay marked although they were never parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scrapy import Request

MARKS: Final = "bloom_marks"
"""The key in a request's meta: marks of requests that were no GET, as hex, by their URL."""

MOST_DROPPED: Final = 10_000
"""Chains of redirects that are remembered when they are dropped; then the oldest one goes."""


def note_mark(request: Request, fingerprint: bytes) -> None:
    """Note the mark of a request with it, for those that redirects will make of it.

    Notes of other requests stay only if they are earlier ones of its chain: some spiders pass
    ``response.meta`` on, and the notes would become more and more.
    """
    meta = request.meta
    known = meta.get(MARKS, {})
    before = {url: known[url] for url in meta.get("redirect_urls", ()) if url in known}
    meta[MARKS] = {**before, request.url: fingerprint.hex()}


def chain_before(
    request: Request, fingerprint_of: Callable[[Request], bytes]
) -> Iterator[tuple[int, bytes]]:
    """Yield the requests that redirects have made a request of, the nearest one first.

    Each is the number of redirects before it, and its mark. After one from a note comes that of the
    same URL with what the request is now: the note may have come with the meta of another request.

    :param fingerprint_of: the function that made the fingerprints.
    """
    urls, noted = request.meta.get("redirect_urls", ()), request.meta.get(MARKS, {})
    for step in reversed(range(len(urls))):
        url = urls[step]
        if url in noted:
            yield step, bytes.fromhex(noted[url])
        yield step, fingerprint_of(request.replace(url=url))


def step_fingerprint(step: int, fingerprint: bytes) -> bytes:
    """Return 20 bytes that stand for one step of one chain of redirects.

    With a mark of them each step is let through once. Some spiders pass ``response.meta`` on: to
    us their links look like redirects. Without the mark every one would be let through again and
    again, and a page that links to itself would be crawled without end.

    :param step: how many redirects came before.
    :param fingerprint: of the request that the last one of them made.
    """
    return blake2b(fingerprint, digest_size=20, salt=step.to_bytes(8, "big")).digest()
