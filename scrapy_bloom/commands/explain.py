"""Why two URLs are one page, or are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from scrapy import Request

from scrapy_bloom.canonical.fingerprint import SCRAPY, CanonicalFingerprinter

REQUEST: Final = "request"
"""Stands among the names of steps for what Scrapy changes when it makes a request."""


class AppliedStep(NamedTuple):
    """One step that changed a URL.

    Attributes:
        step: name of the step, :data:`REQUEST`, or :data:`SCRAPY` for what Scrapy's own canonical
            form changes.
        before: the URL before the step.
        after: the URL after the step.
    """

    step: str
    before: str
    after: str


@dataclass(frozen=True)
class Explanation:
    """How a fingerprint is made from a URL.

    Attributes:
        url: the URL as it was given.
        steps: what changed it, in order.
        canonical: the URL that the fingerprint is made from.
        fingerprint: the fingerprint in hexadecimal.
    """

    url: str
    steps: tuple[AppliedStep, ...]
    canonical: str
    fingerprint: str


def explain(url: str, fingerprinter: CanonicalFingerprinter) -> Explanation:
    """Follow `url` step by step to its fingerprint.

    :raises ValueError: if Scrapy cannot make a request for `url`.
    """
    request = Request(url)
    steps = []
    now = request.url
    if now != url:
        steps.append(AppliedStep(REQUEST, url, now))
    for step, after in fingerprinter.walk(request.url):
        steps.append(AppliedStep(step, now, after))
        now = after
    return Explanation(url, tuple(steps), now, fingerprinter.fingerprint(request).hex())


def reasons(one: str, other: str, fingerprinter: CanonicalFingerprinter) -> tuple[str, ...] | None:
    """Return the steps that make two URLs one page, or None if they are two pages.

    A step is a reason if the URLs would be two pages without it. If they would be one page without
    any step, there is no reason: the tuple is empty. If each of two steps would be enough by
    itself, all steps that changed a URL are returned.

    :raises ValueError: if Scrapy cannot make a request for one of the URLs.
    """
    requests = Request(one), Request(other)
    if not _same(requests, fingerprinter):
        return None
    walked = [step for request in requests for step, _ in fingerprinter.walk(request.url)]
    applied = dict.fromkeys(step for step in walked if step != SCRAPY)
    needed = tuple(step for step in applied if not _same(requests, fingerprinter.without(step)))
    untouched = {fingerprinter.untouched(request) for request in requests}
    return needed if needed or len(untouched) == 1 else tuple(applied)


def _same(requests: tuple[Request, Request], fingerprinter: CanonicalFingerprinter) -> bool:
    one, other = requests
    return fingerprinter.fingerprint(one) == fingerprinter.fingerprint(other)
