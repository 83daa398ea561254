"""Steps decode nothing: what two URLs share at `safe`, the standards or Scrapy itself share."""

import can_ada
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.url_strategies import PAGES, URLS, request_for

from scrapy_bloom import CanonicalFingerprinter
from scrapy_bloom.canonical.rules import LEVELS, OPT_IN


class Echo:
    """A project's own fingerprinter that gives away which URL it was shown."""

    def fingerprint(self, request):
        return request.url.encode()


# Rules that remove nothing but what stands for the same origin.
SAME_ORIGIN = {"steps": sorted(set(OPT_IN) - {"www", "http_https"}), "drop": ["b"]}
RULES = {
    **{level: (level, {}) for level in LEVELS},
    "same origin": ("safe", {"*": SAME_ORIGIN}),
    "all": ("usual", {"*": {"steps": sorted(set(OPT_IN) - {"fragment_route"})}}),
}
OURS = {how: CanonicalFingerprinter(level, rules=rules) for how, (level, rules) in RULES.items()}
ECHO = {
    how: CanonicalFingerprinter(level, rules=rules, wrapped=Echo())
    for how, (level, rules) in RULES.items()
}


def seen(how, url):
    return OURS[how].fingerprint(Request(url))


def rewritten(how, url):
    """Return what the steps make of a request's URL: still encoded, before Scrapy's own form."""
    return ECHO[how].fingerprint(Request(url)).decode()


@given(URLS)
@example("http://example.com/..//a")
@example("http://example.com/./b;")
@example("http://example.com:80/a//..")
@example("http://example.com/..;a/.")
def test_safe_leaves_a_url_the_same_for_whatwg(url):
    url = request_for(url).url
    shown = rewritten("safe", url)
    try:
        expected = can_ada.parse(url).href
    except ValueError:  # no URL for WHATWG: the steps may not make it one
        with pytest.raises(ValueError, match="parse"):
            can_ada.parse(shown)
        return
    assert can_ada.parse(shown).href == expected


HOST_AND_PORT = st.sampled_from(
    ("example.com", "example.com:80", "EXAMPLE.com:080", "127.1", "127.0.0.1:80", "[::1]")
)


@given(HOST_AND_PORT, HOST_AND_PORT, PAGES, PAGES)
@example("example.com", "example.com", "/x/%2%65%2%65/secret", "/secret")
@example("example.com:80", "example.com", "/%%34%31", "/A")
def test_safe_merges_nothing_that_differs_for_a_server(one_host, other_host, one, other):
    """Except what Scrapy itself merges of the same two URLs in WHATWG's form."""
    urls = [
        request_for(f"http://{one_host}{one}").url,
        request_for(f"http://{other_host}{other}").url,
    ]
    if seen("safe", urls[0]) == seen("safe", urls[1]):
        hrefs = [can_ada.parse(url).href for url in urls]
        assert fingerprint(Request(hrefs[0])) == fingerprint(Request(hrefs[1]))


@given(URLS)
@example("http://example.co/(S(abcdefghijklmnopqrstuvwx))m/page")
def test_no_step_moves_text_from_the_path_into_the_host(url):
    url = request_for(url).url
    try:
        before = can_ada.parse(url)
    except ValueError:
        return
    assert can_ada.parse(rewritten("same origin", url)).origin == before.origin
    host = can_ada.parse(rewritten("all", url)).hostname.removesuffix(".")
    assert before.hostname.removesuffix(".").endswith(host)


@given(URLS)
@example("http://example.com/a/;")
@example("http://example.com/index.html;")
@example("http://example.com/(S(abcdefghijklmnopqrstuvwx));")
@example("http://example.com/a%3A//b")
@example("http://example.com/a/..;x/")
def test_what_is_one_page_for_scrapy_is_one_page_with_every_rule(url):
    """Scrapy's form of a URL that stays as it is in that form is the same page as the URL."""
    assume("#" not in url)  # a step may keep a fragment, which Scrapy drops
    assume(";" not in url or "%" not in url)  # w3lib decodes before the last ; but not behind it
    canonical = OURS["scrapy"].canonical_url(request_for(url).url)
    assume(OURS["scrapy"].canonical_url(canonical) == canonical)
    for how in RULES:
        assert seen(how, url) == seen(how, canonical)
