"""Random URLs made from pieces of real ones, and where the short way differs from the long one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from random import Random

from scrapy import Request
from scrapy.utils.request import RequestFingerprinter
from w3lib.url import canonicalize_url

from scrapy_bloom import CanonicalFingerprinter
from scrapy_bloom.canonical.parts import split_url
from scrapy_bloom.canonical.pipeline import Pipelines
from scrapy_bloom.canonical.rules import LEVELS, OPT_IN
from support.spellings import HOSTS, MARKS, NAMES, PORTS, USERS, WORDS

_SCRAPYS = RequestFingerprinter()
_OURS = {level: CanonicalFingerprinter(level) for level in LEVELS} | {
    "drop": CanonicalFingerprinter(
        "usual", drop_params=["id", "a*", "caf\xe9"], keep_params=["ab"]
    ),
    "keep only": CanonicalFingerprinter("safe", rules={"*": {"keep_only": ["id", "q", "page"]}}),
    "all": CanonicalFingerprinter("usual", rules={"*": {"steps": OPT_IN}}),
}
_PIPELINES = {how: Pipelines(ours.rules).of("", None) for how, ours in _OURS.items()}

_found = re.compile(r"https?://[^\s<>\"'`)\]}|\\]+").findall


def of_packages() -> list[str]:
    """Return the URLs that the metadata of installed distributions has."""
    texts = (one.read_text("METADATA") or "" for one in distributions())
    return sorted({url for text in texts for url in _found(text)})


def mutants(real: list[str], rng: Random) -> Iterator[str]:
    """Yield URLs without end: two real ones cut and joined, and changed in some places."""
    while True:
        one, other = rng.choice(real), rng.choice(real)
        url = one[: rng.randrange(8, len(one) + 1)] + other[rng.randrange(8, len(other) + 1) :]
        if rng.random() < 0.3:
            rest = re.sub(r"^https?://[^/?#]*", "", url)
            user, host, port = (rng.choice(some) for some in (USERS, HOSTS, PORTS))
            url = f"{rng.choice(('http', 'https'))}://{user}{host}{port}{rest}"
        if rng.random() < 0.3:
            url += f"{'&' if '?' in url else '?'}{rng.choice(NAMES)}={rng.choice(WORDS)}"
        for _ in range(rng.randrange(4)):
            at = rng.randrange(8, len(url) + 1)
            until = at if rng.random() < 0.6 else at + rng.randrange(4)
            url = url[:at] + rng.choice(rng.choice((MARKS, MARKS, WORDS))) + url[until:]
        yield url.swapcase() if rng.random() < 0.02 else url


def differences(urls: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield how, URL, expected and found for each URL that the short way treats in another way.

    What is expected is the long way: every step taken one by one, then w3lib; at level ``scrapy``
    Scrapy's own fingerprint.
    """
    for url in urls:
        try:
            request = Request(url)
            scrapys, form = _SCRAPYS.fingerprint(request), canonicalize_url(request.url)
        except ValueError:
            continue
        if _OURS["scrapy"].fingerprint(request) != scrapys:
            yield "scrapy's bytes", url, scrapys.hex(), _OURS["scrapy"].fingerprint(request).hex()
        for how, ours in _OURS.items():
            parts = split_url(request.url)
            taken = _PIPELINES[how].take(parts) if parts else []
            changed = taken[-1][1] if taken else None
            expected = (
                canonicalize_url(changed.url(), keep_fragments=changed.route) if changed else form
            )
            alone, found = ours.resolve_url(url)
            fingerprint, steps = ours.resolve(request)
            if found != expected or fingerprint != alone:
                yield how, url, expected, found
            if expected != form and not steps:
                yield f"steps of {how}", url, expected, str(steps)
