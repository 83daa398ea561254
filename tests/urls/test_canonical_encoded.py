"""Steps decode nothing: what two URLs share at `safe`, the standards or Scrapy itself share."""

import can_ada
import pytest
from hypothesis import assume, example, given
from scrapy import Request
from support.url_strategies import URLS, request_for

from scrapy_bloom import CanonicalFingerprinter
from scrapy_bloom.canonical.rules import LEVELS, OPT_IN


class Echo:
    """A project's own fingerprinter that gives away which URL it was shown."""

    def fingerprint(self, request):
        return request.url.encode()


RULES = {
    **{level: (level, {}) for level in LEVELS},
    "all": ("usual", {"*": {"steps": sorted(set(OPT_IN) - {"fragment_route"})}}),
}
OURS = {how: CanonicalFingerprinter(level, rules=rules) for how, (level, rules) in RULES.items()}
SHOWN = CanonicalFingerprinter("safe", wrapped=Echo())


def seen(how, url):
    return OURS[how].fingerprint(Request(url))


@given(URLS)
@example("http://example.com/..//a")
@example("http://example.com/./b;")
@example("http://example.com:80/a//..")
@example("http://example.com/..;a/.")
def test_safe_leaves_a_url_the_same_for_whatwg(url):
    url = request_for(url).url
    shown = SHOWN.fingerprint(Request(url)).decode()
    try:
        expected = can_ada.parse(url).href
    except ValueError:  # no URL for WHATWG: the steps may not make it one
        with pytest.raises(ValueError, match="parse"):
            can_ada.parse(shown)
        return
    assert can_ada.parse(shown).href == expected


@given(URLS)
@example("http://example.com/a/;")
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
