"""What a worker of `scrapy_bloom.Scheduler` has in flight, as Redis has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scrapy_bloom.redis.member import Taken, id_in
from scrapy_bloom.redis.packing import read
from testbed.localredis import LocalRedis
from testbed.localsite import LocalSite


def taken_by(server: LocalRedis, pid: int) -> list[str]:
    """Return the URLs of the requests that a process has taken and that nobody has put back.

    A URL is there twice if it redirects to itself: the request and the redirect are two.
    """
    client: Any = server.client()
    return [
        read(Taken.read(row, body, 0).body)["url"]
        for key in client.scan_iter("*:taken")
        for field, row in client.hgetall(key).items()
        if f":{pid}:".encode() in field and (body := client.hget(_bodies(key), id_in(row)))
    ]


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


def _bodies(taken: bytes) -> bytes:
    """Return the key of the bodies beside that of the requests that were taken."""
    return taken.removesuffix(b"taken") + b"bodies"
