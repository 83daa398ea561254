"""A request that a redirect made is not a duplicate of the request that was redirected.

A page may redirect to itself to set a cookie, or to another spelling of its own URL. Without this
rule it would never be parsed: the first request marks the page, and the second one is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from scrapy import Request


def follows_itself(
    request: Request, fingerprint: bytes, fingerprint_of: Callable[[Request], bytes]
) -> bool:
    """Return whether an earlier request of the same chain of redirects has the same fingerprint.

    :param fingerprint: the fingerprint of `request`.
    :param fingerprint_of: the function that made it.
    """
    return any(
        fingerprint_of(request.replace(url=url)) == fingerprint
        for url in request.meta.get("redirect_urls", ())
    )


def step_fingerprint(step: int, fingerprint: bytes) -> bytes:
    """Return 20 bytes that stand for one step of one chain of redirects.

    With a mark of them each step is let through once. Some spiders pass ``response.meta`` on: to
    us their links look like redirects. Without the mark every one would be let through again and
    again, and a page that links to itself would be crawled without end.

    :param step: how many redirects came before.
    :param fingerprint: of the request that the last one of them made.
    """
    return blake2b(fingerprint, digest_size=20, salt=step.to_bytes(8, "big")).digest()
