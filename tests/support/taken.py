"""What a worker of `scrapy_bloom.Scheduler` has under way, as Redis has it."""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Iterable
from typing import Any

from scrapy_bloom.redis.queue import member
from support.localredis import LocalRedis
from support.localsite import LocalSite

CHECKSUM = 4  # bytes before each request
PICKLE = 0x80  # its first byte, if it is one


def taken_by(server: LocalRedis, pid: int) -> list[str]:
    """Return the URLs of the requests that a process has taken and that nobody has put back.

    A URL is there twice if it redirects to itself: the request and the redirect are two.
    """
    client: Any = server.client()
    values = [
        value
        for key in client.scan_iter("*:taken")
        for field, value in client.hgetall(key).items()
        if f":{pid}:".encode() in field
    ]
    bodies = [member.read(value).body for value in values]
    return [_request(body[CHECKSUM:])["url"] for body in bodies if body]


def pages_of(site: LocalSite, urls: Iterable[str], *, direct: bool = False) -> set[int]:
    """Return the numbers of the pages at these URLs.

    Args:
        site: the site.
        urls: the URLs.
        direct: whether to leave out those that redirect to their page.
    """
    targets = [url.removeprefix(site.url[:-1]).partition("#")[0] for url in urls]
    if direct:
        targets = [target for target in targets if not site.answer(target).location]
    return {page for page in map(site.page, targets) if page is not None}


def _request(payload: bytes) -> dict[str, Any]:
    loads: Any = pickle.loads if payload[0] == PICKLE else marshal.loads
    request: dict[str, Any] = loads(payload)
    return request
