"""URLs for property tests: pieces that are odd, and pieces of which escapes are made."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st
from scrapy import Request


def _words(text, *more):
    return (*text.split(), *more)


SCHEMES = _words("http http https https HTTP HttpS ftp ws data file x-y")
HOSTS = _words(
    """
    example.com www.example.com EXAMPLE.COM localhost a_b.example a-b.example example.com. www.com
    b\xfccher.example xn--bcher-kva.example \uff45x.example 127.0.0.1 127.1 0x7f.1 2130706433
    0177.0.0.1 256.1.1.1 1.2.3.4. 08 [::1] [0:0::1] [2001:DB8::1] [::ffff:1.2.3.4] [fe80::1%25eth0]
    1.example.0x ex%61mple.com example..com .example.com _ - \xdf.example
    """,
    "a" * 70 + ".example",
)
USERS = _words("@ u@ u:p@ :@ u%40:p%3a@", *[""] * 9)
PORTS = _words(": :80 :443 :8080 :0080 :21 :65535 :59999 :60000 :0", *[""] * 6)
WORDS = _words(
    """
    a b A page id caf\xe9 \u4e2d index.html index.php x.y ~u . .. ... .a %2e %2E%2e %2F %2f a;b=1 ;
    a;jsessionid=1 %41 %7e %7E %zz % %4 %25 %2525 a+b a%2Bb a%20b !'()* a,b:c@d $&= [x] a|b a^b "
    <> ` {} \\ %5C %ff %00
    """,
    *("", "", "a b", "\x7f"),
)
NAMES = _words(
    """
    a b a1 a- id page q A utm_source utm_ gclid fbclid %75tm_x _ga ref sid PHPSESSID caf\xe9 a%20b
    a+b a[] a%5B%5D ~
    """,
    "",
)

# Of these, escapes, half escapes, escaped escapes and dot segments are made.
PIECES = (
    *("%", "25", "2", "5", "e", "E", "2e", "%2e", "%2E", "%65", "%45", "%32", "%252e", ".", ".."),
    *("/", "//", "a", "A", "41", "%41", "%2F", "%5C", ";", "%3B", ";x", "+", "%2B", "&", "=", "@"),
    *(":", "é", "(S(abcdefghijklmnopqrstuvwx))", ";jsessionid=1", "index.html", "http:", "%3A"),
)
TEXT = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
ESCAPED = st.builds(
    lambda path, mark, query: f"/{path}{mark}{query if mark else ''}",
    *(TEXT, st.sampled_from(("", "?", "?b=1&utm_source=")), TEXT),
)


def parts_of(words, most):
    """Return a strategy for up to `most` of the words, each perhaps with a character more."""
    some = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Z")), max_size=2)
    word = st.tuples(st.sampled_from(words), st.just("") | some).map("".join)
    return st.lists(word, max_size=most)


FIELDS = st.tuples(
    st.sampled_from(NAMES), st.sampled_from(("", "=")), parts_of(WORDS, 2).map("".join)
)
PAGES = ESCAPED | st.builds(
    lambda path, query, fragment: (
        "".join("/" + word for word in path)
        + (f"?{'&'.join(query)}" if query else "")
        + (f"#{fragment}" if fragment else "")
    ),
    parts_of(WORDS, 4),
    st.lists(FIELDS.map("".join), max_size=4),
    st.sampled_from(("", "a", "!a", "/a", "a b")),
)
URLS = st.builds(
    lambda scheme, user, host, port, page: f"{scheme}://{user}{host}{port}{page}",
    *(st.sampled_from(each) for each in (SCHEMES, USERS, HOSTS, PORTS)),
    PAGES,
)


def request_for(url, **options):
    """Return a request; give the example up if Scrapy takes no such URL."""
    try:
        request = Request(url, **options)
    except ValueError:
        request = None
    assume(request is not None)
    return request
