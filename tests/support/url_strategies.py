"""URLs for property tests: pieces that are odd, and pieces of which escapes are made."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st
from scrapy import Request

from support.url_pieces import HOSTS, NAMES, PORTS, SCHEMES, USERS, WORDS

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
