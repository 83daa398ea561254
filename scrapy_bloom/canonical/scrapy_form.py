"""Makes Scrapy's own request fingerprint, byte for byte, with less work.

Scrapy hashes a JSON object of method, canonical URL, body and headers with SHA-1
(``scrapy.utils.request.fingerprint``). All of that text but the URL is the same for every GET
request without a body. :mod:`.fast_path` makes the canonical URL, or asks w3lib for it.

Another Scrapy or w3lib may make other fingerprints. So :func:`agrees` compares a few hundred
requests with the installed Scrapy before a crawl relies on this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha1
from json.encoder import encode_basestring_ascii as _as_json

from scrapy import Request
from scrapy.utils.python import to_unicode
from scrapy.utils.request import RequestFingerprinterProtocol

from scrapy_bloom.canonical import fast_path

_GET = '{"body": "", "headers": {}, "method": "GET", '


def digest(request: Request, url: str) -> bytes:
    """Return the fingerprint, 20 bytes, of `request` with `url` as its canonical URL."""
    head = _GET
    if request.method != "GET" or request.body:
        method = _as_json(to_unicode(request.method))
        head = f'{{"body": "{(request.body or b"").hex()}", "headers": {{}}, "method": {method}, '
    return sha1(f'{head}"url": {_as_json(url)}}}'.encode(), usedforsecurity=False).digest()


def agrees(scrapys: RequestFingerprinterProtocol) -> bool:
    """Return whether this module and `scrapys` make the same fingerprints of all test requests."""
    try:
        return all(
            digest(request, fast_path.canonical(request.url)) == scrapys.fingerprint(request)
            for request in _test_requests()
        )
    except Exception:  # another Scrapy may fail in any way
        return False


def _test_requests() -> Iterator[Request]:
    """Yield requests that reach each branch of the fast path, of w3lib and of the JSON text."""
    for url in _URLS:
        yield Request(url)
    yield Request(_URLS[0], method="POST", body=b"a=1&b=\xff\x00")
    yield Request(_URLS[0], method="PUT", body="gr\xfc\xdfe", encoding="latin-1")
    yield Request(_URLS[0], method='"\\\xfc', headers={"Cookie": "a=1"}, cookies={"b": "2"})


_HOSTS = """
    example.com example.com: example.com:80 example.com:8080 example.com:59999 example.com:65535
    example.com. a_b.example xn--bcher-kva.example 127.0.0.1:6800 127.1 0x7f000001 [::1]:8080
    [0:0::1] user:pa%73s@example.com User:pass@Example.com
    user:pass@example.com
"""
_PAGES = r"""
    / /a/b.html /a/./b/../c /a/%2e%2E/c /a//b/ /../a/.. /a/..;b /a;b=1/c;d=2 /a; /a;; /a? /a?#
    /a#b?c=1
    /a?b /a?b=&c&=d&&e==f /a?b=2&a=1&b=1&a=0 /a?a1=1&a=2&a-=3&a~=4&a+=5&A=6
    /a?a=1+2&a=1-2&a=1%202&a=1%2B2 /a?b=%7E&a=%2F&b=%2f /a?a=1;b=2&c=3 /a?q=%E4%B8%AD&p=%ff
    /a?a%5B%5D=2&a[]=1&a=3&a%21=4&a+=5&a%00=6 /%zz%4?%zz=%4 /a?b=c?d/e:f \a\b
"""
# All ASCII characters, raw and escaped in upper and lower case, in each part of a URL.
_CHARS = "".join(map(chr, range(0x21, 0x7F)))
_UPPER = "".join(f"%{byte:02X}" for byte in range(256))
_LOWER = _UPPER.lower()
_URLS = (
    "HTTP://EXAMPLE.COM/A",
    "http://b\xfccher.example/\xfc?\xfc=\xfc#\xfc",
    *(f"http://{host}/a?b=1" for host in _HOSTS.split()),
    *(f"http://example.com{page}" for page in _PAGES.split()),
    "http://example.com/" + _UPPER,
    "http://example.com/" + _LOWER,
    "http://example.com/" + _CHARS.translate({ord(char): None for char in "?#"}),
    "http://example.com/?a=" + _UPPER,
    "http://example.com/?a=" + _LOWER,
    "http://example.com/?a=" + _CHARS.replace("#", ""),
    *(f"http://example.com/{char}?{char}=1&a{char}=2" for char in "!$'()*+,-.:;=@[]^_`{|}~"),
    *(f"http://example.com/{escapes}?{escapes}=1" for escapes in (_UPPER, _LOWER)),
    *("http://example.com", "https://example.com:443?b=2&a=1", "data:,x", "about:blank"),
    *("file:///tmp/a", "ftp://example.com/a"),
)
