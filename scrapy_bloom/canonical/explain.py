"""Why two URLs are one page, or are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from scrapy import Request

from scrapy_bloom.canonical.fingerprint import SCRAPY, CanonicalFingerprinter

REQUEST: Final = "request"


class Taken(NamedTuple):
    """One step that changed a URL.

    Attributes:
        step: name of the step; :data:`REQUEST` for what Scrapy does when it makes a request,
            :data:`SCRAPY` for what its fingerprints do.
        before: the URL before it.
        after: the URL after it.
    """

    step: str
    before: str
    after: str


@dataclass(frozen=True)
class Explanation:
    """The way from a URL to its fingerprint.

    Attributes:
        url: as it was given.
        steps: what changed it, in order.
        canonical: what the fingerprint is made from.
        fingerprint: in hexadecimal.
    """

    url: str
    steps: tuple[Taken, ...]
    canonical: str
    fingerprint: str


def explain(url: str, fingerprinter: CanonicalFingerprinter) -> Explanation:
    """Follow `url` step by step.

    :raises ValueError: if Scrapy makes no request of it.
    """
    request = Request(url)
    steps = []
    now = request.url
    if now != url:
        steps.append(Taken(REQUEST, url, now))
    for step, after in fingerprinter.walk(request.url):
        steps.append(Taken(step, now, after))
        now = after
    return Explanation(url, tuple(steps), now, fingerprinter.fingerprint(request).hex())


def reasons(one: str, other: str, fingerprinter: CanonicalFingerprinter) -> tuple[str, ...] | None:
    """Return the steps without which the two URLs would not be one page; None if they are not one.

    No step at all means that they are one for Scrapy itself. Where either of two steps would do,
    all that were taken are named.
    """
    requests = Request(one), Request(other)
    if not _same(requests, fingerprinter):
        return None
    walked = [step for request in requests for step, _ in fingerprinter.walk(request.url)]
    taken = dict.fromkeys(step for step in walked if step != SCRAPY)
    needed = tuple(step for step in taken if not _same(requests, fingerprinter.without(step)))
    untouched = {fingerprinter.untouched(request) for request in requests}
    return needed if needed or len(untouched) == 1 else tuple(taken)


def _same(requests: tuple[Request, Request], fingerprinter: CanonicalFingerprinter) -> bool:
    one, other = requests
    return fingerprinter.fingerprint(one) == fingerprinter.fingerprint(other)
