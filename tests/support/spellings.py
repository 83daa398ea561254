"""Random requests, odd ones more often than the web has them."""

from __future__ import annotations

from scrapy import Request

SCHEMES = ("http", "http", "https", "https", "HTTP", "HttpS", "ftp", "ws", "data", "file", "x-y")
HOSTS = (
    *("example.com", "www.example.com", "EXAMPLE.COM", "localhost", "a_b.example", "a-b.example"),
    *("example.com.", "www.com", "b\xfccher.example", "xn--bcher-kva.example", "\uff45x.example"),
    *("127.0.0.1", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "256.1.1.1", "1.2.3.4.", "08"),
    *("[::1]", "[0:0::1]", "[2001:DB8::1]", "[::ffff:1.2.3.4]", "[fe80::1%25eth0]", "1.example.0x"),
    *(
        "ex%61mple.com",
        "example..com",
        ".example.com",
        "a" * 70 + ".example",
        "_",
        "-",
        "\xdf.example",
    ),
)
USERS = ("",) * 9 + ("@", "u@", "u:p@", ":@", "u%40:p%3a@")
PORTS = ("",) * 6 + (
    ":",
    ":80",
    ":443",
    ":8080",
    ":0080",
    ":21",
    ":65535",
    ":59999",
    ":60000",
    ":0",
)
WORDS = (
    *("a", "b", "A", "page", "id", "caf\xe9", "\u4e2d", "index.html", "index.php", "x.y", "~u"),
    *(
        ".",
        "..",
        "...",
        ".a",
        "",
        "",
        "%2e",
        "%2E%2e",
        "%2F",
        "%2f",
        "a;b=1",
        ";",
        "a;jsessionid=1",
    ),
    *(
        "%41",
        "%7e",
        "%7E",
        "%zz",
        "%",
        "%4",
        "%25",
        "%2525",
        "a+b",
        "a%2Bb",
        "a%20b",
        "a b",
        "!'()*",
    ),
    *(
        "a,b:c@d",
        "$&=",
        "[x]",
        "a|b",
        "a^b",
        '"',
        "<>",
        "`",
        "{}",
        "\\",
        "%5C",
        "%ff",
        "%00",
        "\x7f",
    ),
)
NAMES = (
    *("a", "b", "a1", "a-", "id", "page", "q", "A", "", "utm_source", "utm_", "gclid", "fbclid"),
    *(
        "%75tm_x",
        "_ga",
        "ref",
        "sid",
        "PHPSESSID",
        "caf\xe9",
        "a%20b",
        "a+b",
        "a[]",
        "a%5B%5D",
        "~",
    ),
)


def random_url(rng):
    """Return one URL; most can be requested, not all."""
    path = "".join("/" + _word(rng) for _ in range(rng.randrange(5)))
    query = "&".join(_field(rng) for _ in range(rng.randrange(5))) if rng.random() < 0.6 else None
    fragment = _word(rng) if rng.random() < 0.2 else None
    return (
        f"{rng.choice(SCHEMES)}://{rng.choice(USERS)}{rng.choice(HOSTS)}{rng.choice(PORTS)}{path}"
        + ("" if query is None else f"?{query}")
        + ("" if fragment is None else f"#{rng.choice(('', '!', '/'))}{fragment}")
    )


def random_request(rng):
    """Return one request, or None where Scrapy takes no such URL."""
    options = {}
    if rng.random() < 0.1:
        options["method"] = rng.choice(("POST", "put", "HEAD", 'A"B', "\xdc"))
    if rng.random() < 0.1:
        options["body"] = rng.choice((b"a=1", b"\xff\x00", "caf\xe9", ""))
    if rng.random() < 0.05:
        options["encoding"] = "latin-1"
    if rng.random() < 0.05:
        options["meta"] = rng.choice(({"verbatim_url": True}, {"verbatim_url": False}, {"a": 1}))
    if rng.random() < 0.05:
        options["headers"] = {"Cookie": "a=1"}
    try:
        return Request(random_url(rng), **options)
    except ValueError:
        return None


def _word(rng):
    word = "".join(rng.choice(WORDS) for _ in range(rng.choice((1, 1, 1, 2, 3))))
    return word + chr(rng.randrange(0x20, 0x7F)) if rng.random() < 0.2 else word


def _field(rng):
    name = rng.choice(NAMES) + (rng.choice(NAMES) if rng.random() < 0.1 else "")
    return name if rng.random() < 0.1 else f"{name}={_word(rng) if rng.random() < 0.8 else ''}"
