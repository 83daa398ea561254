"""A request that a redirect made is no duplicate of its own chain, and what becomes of a chain.

A page may redirect to itself to set a cookie, or to another spelling of its own URL. Without this
rule it would never be parsed: the first request marks the page, and the second one is dropped.

What a request was before a redirect is not always to be seen from what it has become: 301, 302 and
303 make a GET of a POST, and its body is gone. So what is not a GET carries its mark with it.

Many pages may redirect to one login or error page. The first redirect marks it, and those that come
before its response are dropped as seen. If that page is forgotten then, the pages that were to lead
to it must be forgotten as well: they stay marked, and nobody has had them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scrapy import Request

MARKS: Final = "bloom_marks"
"""The key in a request's meta: marks of requests that were no GET, as hex, by their URL."""

MOST_MARKS: Final = 50_000
"""Marks that are kept at most: with one target 6 MB, with as many targets 20 MB."""


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
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the requests that redirects have made a request of, the nearest one first.

    Each is the number of redirects before it, and its mark. After one from a note comes that of the
    same URL with what the request is now: the note may have come with the meta of another request.

    :param fingerprint_of: the function that made the fingerprints.
    """
    urls, noted = request.meta.get("redirect_urls", ()), request.meta.get(MARKS, {})
    for step in reversed(range(len(urls))):
        url = urls[step]
        marks = [bytes.fromhex(noted[url])] if url in noted else []
        yield step, [*marks, fingerprint_of(request.replace(url=url))]


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


class DroppedChains:
    """For each target the chains of redirects that ended at it, each as the marks of its pages.

    There is room for a number of marks. Where that is too little, the target to which nothing was
    redirected for the longest time is let go first.

    :param room: for how many marks.
    """

    def __init__(self, room: int = MOST_MARKS) -> None:
        self._room = room
        self._by_target: OrderedDict[bytes, list[tuple[bytes, ...]]] = OrderedDict()

    def add(self, target: bytes, marks: Iterable[bytes]) -> None:
        """Note a chain of redirects to a target, if there is room."""
        chain = tuple(marks)
        chains = self._by_target.pop(target, [])
        while self._room < len(chain) and self._by_target:
            _, oldest = self._by_target.popitem(last=False)
            self._room += sum(map(len, oldest))
        if self._room >= len(chain):
            self._room -= len(chain)
            chains.append(chain)
        if chains:
            self._by_target[target] = chains

    def pop(self, targets: Iterable[bytes]) -> list[tuple[bytes, ...]]:
        """Let go of all chains to these targets, and to the pages of these chains; return them."""
        found: list[tuple[bytes, ...]] = []
        left = [*targets] if self._by_target else []
        while left:
            for chain in self._by_target.pop(left.pop(), ()):
                self._room += len(chain)
                found.append(chain)
                left += chain
        return found
