"""Makes Scrapy's own request fingerprint, byte for byte, with less work.

Scrapy hashes a JSON object of method, canonical URL, body and headers with SHA-1
(``scrapy.utils.request.fingerprint``). Nearly all of that text is the same for every GET request
and is kept here. :mod:`.fast_path` is asked for the canonical URL before w3lib.

Another Scrapy or w3lib may make other fingerprints. So :func:`agrees` compares a few hundred
requests with the installed Scrapy before a crawl relies on this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha1
from typing import Protocol

from scrapy import Request
from scrapy.utils.python import to_unicode
from w3lib.url import canonicalize_url

from scrapy_bloom.canonical import fast_path

_GET = '{"body": "", "headers": {}, "method": "GET", "url": "'
_END = '"}'
_TAILS_KEPT = 64
_tails: dict[str, str] = {}


class Fingerprinter(Protocol):
    """The method that Scrapy needs of a ``REQUEST_FINGERPRINTER_CLASS``."""

    def fingerprint(self, request: Request) -> bytes:
        """Return the bytes that stand for `request`."""


def canonical(url: str) -> str:
    """Return ``w3lib.url.canonicalize_url(url)`` for the URL of a request."""
    parts = fast_path.split(url)
    return (fast_path.join(*parts) if parts else None) or canonicalize_url(url)


def digest(request: Request, url: str) -> bytes:
    """Return the fingerprint, 20 bytes, of `request` with `url` as its canonical URL."""
    tail = _tails.get(request.method) or _tail(request.method)
    text = f'{{"body": "{(request.body or b"").hex()}{tail}{json.dumps(url)}}}'
    return sha1(text.encode(), usedforsecurity=False).digest()


def digest_of_get(url: str) -> bytes:
    """Return the fingerprint of a plain GET request with `url` as its canonical URL.

    :param url: made of characters that need no escape in JSON, as :mod:`.fast_path` makes it.
    """
    return sha1(f"{_GET}{url}{_END}".encode(), usedforsecurity=False).digest()


def _tail(method: str) -> str:
    """Return the JSON text between the body and the URL."""
    tail = f'", "headers": {{}}, "method": {json.dumps(to_unicode(method))}, "url": '
    if len(_tails) < _TAILS_KEPT:  # a spider may make up any number of methods
        _tails[method] = tail
    return tail


def agrees(scrapys: Fingerprinter) -> bool:
    """Return whether this module and `scrapys` make the same fingerprints of all test requests."""
    try:
        return all(
            digest(request, canonical(request.url)) == scrapys.fingerprint(request)
            for request in _test_requests()
        )
    except Exception:  # noqa: BLE001 - another Scrapy may fail in any way
        return False


def _test_requests() -> Iterator[Request]:
    """Yield requests that reach each branch of the fast path, of w3lib and of the JSON text."""
    for url in _URLS:
        yield Request(url)
    yield Request(_URLS[0], method="POST", body=b"a=1&b=\xff\x00")
    yield Request(_URLS[0], method="PUT", body="gr\xfc\xdfe", encoding="latin-1")
    yield Request(_URLS[0], method='"\\\xfc', headers={"Cookie": "a=1"}, cookies={"b": "2"})


# All ASCII characters, raw and escaped in upper and lower case, in each part of a URL.
_CHARS = "".join(map(chr, range(0x21, 0x7F)))
_UPPER = "".join(f"%{byte:02X}" for byte in range(256))
_LOWER = _UPPER.lower()
_URLS = (
    "http://example.com/",
    "https://example.com/a/b.html",
    "http://example.com",
    "HTTP://EXAMPLE.COM/A",
    "http://example.com?b=2&a=1",
    "http://example.com:/a",
    "http://example.com:80/a",
    "https://example.com:443/a",
    "http://example.com:8080/a",
    "http://example.com:59999/a",
    "http://example.com:65535/a",
    "http://example.com./a",
    "http://127.0.0.1:6800/a",
    "http://127.1/a",
    "http://0x7f000001/a",
    "http://[::1]:8080/a",
    "http://[0:0::1]/a",
    "http://user:pa%73s@example.com/a",
    "http://b\xfccher.example/\xfc?\xfc=\xfc#\xfc",
    "http://xn--bcher-kva.example/",
    "http://a_b.example/",
    "http://example.com/a/./b/../c",
    "http://example.com/a/%2e%2E/c",
    "http://example.com/a//b/",
    "http://example.com/a;b=1/c;d=2",
    "http://example.com/a;",
    "http://example.com/a?",
    "http://example.com/a?#",
    "http://example.com/a#b?c=1",
    "http://example.com/a?b",
    "http://example.com/a?b=&c&=d&&e==f",
    "http://example.com/a?b=2&a=1&b=1&a=0",
    "http://example.com/a?a1=1&a=2&a-=3&a~=4&a+=5&A=6",
    "http://example.com/a?a=1+2&a=1-2&a=1%202&a=1%2B2",
    "http://example.com/a?b=%7E&a=%2F&b=%2f",
    "http://example.com/a?a=1;b=2&c=3",
    "http://example.com/a?q=%E4%B8%AD&p=%ff",
    "http://example.com/%zz%4?%zz=%4",
    "http://example.com/a?b=c?d/e:f",
    r"http://example.com\a\b",
    "http://example.com/" + _UPPER,
    "http://example.com/" + _LOWER,
    "http://example.com/" + _CHARS.translate({ord(char): None for char in "?#"}),
    "http://example.com/?a=" + _UPPER,
    "http://example.com/?a=" + _LOWER,
    "http://example.com/?a=" + _CHARS.replace("#", ""),
    *(f"http://example.com/{char}?{char}=1&a{char}=2" for char in "!$'()*+,-.:;=@[]^_`{|}~"),
    *(f"http://example.com/%{byte:02X}?%{byte:02X}=1" for byte in range(0x20, 0x80)),
    *(f"http://example.com/%{byte:02x}?%{byte:02x}=1" for byte in range(0x20, 0x80)),
    "data:,x",
    "about:blank",
    "file:///tmp/a",
    "ftp://example.com/a",
)
