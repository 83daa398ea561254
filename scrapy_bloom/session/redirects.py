"""A request that a redirect made is not a duplicate of the request that was redirected.

A page that redirects to itself to set a cookie, or to another spelling of its own URL, would
otherwise never be parsed: the first request has marked it, and the second one is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from scrapy import Request


def follows_itself(
    request: Request, fingerprint: bytes, fingerprint_of: Callable[[Request], bytes]
) -> bool:
    """Return whether the request's own chain of redirects has been at its page before.

    :param fingerprint: the request's own.
    :param fingerprint_of: what made it.
    """
    return any(
        fingerprint_of(request.replace(url=url)) == fingerprint
        for url in request.meta.get("redirect_urls", ())
    )


def step_fingerprint(request: Request, fingerprint: bytes) -> bytes:
    """Return 20 bytes that stand for one step of one chain, so that it is let through once.

    Spiders that pass ``response.meta`` on make links which look like redirects of their page. Each
    would be let through for ever, and a page that links to itself crawled without end.
    """
    step = len(request.meta["redirect_urls"])
    return blake2b(fingerprint, digest_size=20, salt=step.to_bytes(8, "big")).digest()
