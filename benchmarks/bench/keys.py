"""Keys of many kinds: what a filter is asked about must not matter to how often it errs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from bench import links
from bench.fingerprints import stream
from scrapy_bloom import CanonicalFingerprinter

Keys = Callable[[int], Iterator[bytes]]
"""Takes 0 for members or 1 for strangers; yields fingerprints, no two of them equal."""

FAR = 1_000_000_000
"""Where numbered strangers begin."""


def digest(url: str) -> bytes:
    """Return a SHA-1 digest of what Scrapy makes digests of."""
    text = f'{{"body": "", "headers": {{}}, "method": "GET", "url": "{url}"}}'
    return hashlib.sha1(text.encode(), usedforsecurity=False).digest()


def drawn(draw: Callable[[Random], float]) -> Keys:
    """Return keys whose URLs end with random numbers, as exact as Python has them."""

    def keys(group: int) -> Iterator[bytes]:
        random = Random(group)
        return (digest(f"https://example.com/items/{draw(random)!r}") for _ in count())

    return keys


def numbered(make: Callable[[int], bytes]) -> Keys:
    """Return keys that are made of one number after the other."""

    def keys(group: int) -> Iterator[bytes]:
        return map(make, count(group * FAR))

    return keys


def of_a_crawl(group: int) -> Iterator[bytes]:
    """Yield the links of a real crawl: the first 45,000 pages are members, the others strangers."""
    from scrapy import Request

    fingerprint = CanonicalFingerprinter("scrapy").fingerprint
    urls = links.acceptable(links.crawled())
    pages = list(dict.fromkeys(fingerprint(Request(url)) for url in urls))
    return iter(pages[45_000:] if group else pages[:45_000])


ANY_BYTES = "numbers as text, any bytes"
CRAWL = "links of a real crawl"

KINDS: dict[str, Keys] = {
    "uniform": lambda group: stream(1 + group),
    "normal": drawn(lambda random: random.gauss(0, 1)),
    "exponential": drawn(lambda random: random.expovariate(1)),
    "sequential URLs": numbered(lambda i: digest(f"https://www.example{i}.com/")),
    "one host": numbered(lambda i: digest(f"https://example.com/books/{i % 97}/title-{i}.html")),
    "numbers, not hashed": numbered(lambda i: i.to_bytes(20, "big")),
    ANY_BYTES: numbered(lambda i: b"%d" % i),
    CRAWL: of_a_crawl,
}
