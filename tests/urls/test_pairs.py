"""Each pair of spellings at each level and with each step, and each step's own examples."""

from typing import NamedTuple

import pytest
from scrapy import Request

from scrapy_bloom import CanonicalRequestFingerprinter
from scrapy_bloom.canonical.rules import LEVELS, OPT_IN
from scrapy_bloom.canonical.steps import STEPS


class Pair(NamedTuple):
    """Two URLs.

    Attributes:
        one: a URL.
        other: another.
        by: what makes them one page: ``scrapy`` (Scrapy itself, as the standards say), ``scrapy
            alone`` (Scrapy itself, though the standards keep them apart), ``safe``, ``usual``, the
            name of an opt-in step, or ``never``.
        why: what differs.
    """

    one: str
    other: str
    by: str
    why: str


_E = "http://example.com"

PAIRS = (
    # What w3lib does since 2.5, and the standards agree.
    Pair(f"{_E}/a/./b/../c", f"{_E}/a/c", "scrapy", "dot segments"),
    Pair(f"{_E}/a/%2E%2e/b", f"{_E}/b", "scrapy", "escaped dot segments"),
    Pair(f"{_E}/../a", f"{_E}/a", "scrapy", "dot segments above the root"),
    Pair("http://[2001:DB8:0::1]/", "http://[2001:db8::1]/", "scrapy", "forms of IPv6"),
    # What Scrapy does by itself, though the standards keep it apart.
    Pair(f"{_E}/a#b", f"{_E}/a", "scrapy alone", "a fragment"),
    Pair(f"{_E}/a?b=1&a=2", f"{_E}/a?a=2&b=1", "scrapy alone", "order of different parameters"),
    Pair(f"{_E}/a?a=2&a=1", f"{_E}/a?a=1&a=2", "scrapy alone", "order of repeated parameters"),
    Pair(f"{_E}/a?", f"{_E}/a", "scrapy alone", "an empty query"),
    Pair(f"{_E}/a?b", f"{_E}/a?b=", "scrapy alone", "a parameter with and without ="),
    Pair(f"{_E}/a?b=1&&c=2&", f"{_E}/a?b=1&c=2", "scrapy alone", "empty parameters"),
    Pair(f"{_E}/a?b=1+2", f"{_E}/a?b=1%202", "scrapy alone", "+ and a space in a query"),
    Pair(f"{_E}/a?b=c/d", f"{_E}/a?b=c%2Fd", "scrapy alone", "/ and %2F in a query"),
    Pair(f"{_E}/a?b=c=d", f"{_E}/a?b=c%3Dd", "scrapy alone", "= and %3D in a value"),
    Pair(f"{_E}/a+b", f"{_E}/a%2Bb", "scrapy alone", "+ and %2B in a path"),
    Pair(f"{_E}/a!b", f"{_E}/a%21b", "scrapy alone", "! and %21 in a path"),
    Pair(f"{_E}/a=b&c", f"{_E}/a%3Db%26c", "scrapy alone", "=, & and their escapes in a path"),
    Pair(f"{_E}/a@b:c", f"{_E}/a%40b%3Ac", "scrapy alone", "@, : and their escapes in a path"),
    Pair(f"{_E}/a%%33%46", f"{_E}/a%3F", "scrapy alone", "a stray % before escapes of an escape"),
    Pair(f"{_E}/a;", f"{_E}/a", "scrapy alone", "an empty ; at the end of the path"),
    # safe
    Pair(f"{_E}:80/a", f"{_E}/a", "safe", "default port of http"),
    Pair("https://example.com:443/a", "https://example.com/a", "safe", "default port of https"),
    Pair(f"{_E}:00080/a", f"{_E}/a", "safe", "default port with zeros before"),
    Pair("http://2130706433/a", "http://127.0.0.1/a", "safe", "IPv4 as one number"),
    Pair("http://0x7F.0.0.0x1/a", "http://127.0.0.1/a", "safe", "IPv4 in hexadecimal"),
    Pair("http://0177.0.0.01/a", "http://127.0.0.1/a", "safe", "IPv4 in octal"),
    Pair("http://127.1/a", "http://127.0.0.1/a", "safe", "IPv4 with fewer parts"),
    # usual
    Pair("http://example.com./a", f"{_E}/a", "usual", "dot after the host"),
    Pair(f"{_E}/a?utm_source=x&utm_medium=y", f"{_E}/a", "usual", "tracking parameters alone"),
    Pair(f"{_E}/a?b=1&gclid=x", f"{_E}/a?b=1", "usual", "tracking after another parameter"),
    Pair(f"{_E}/a?fbclid=x&b=1", f"{_E}/a?b=1&fbclid=y", "usual", "two values of tracking"),
    Pair(f"{_E}/a?%75tm_source=x", f"{_E}/a", "usual", "escapes in the name of tracking"),
    # opt-in steps
    Pair(f"{_E}/a/", f"{_E}/a", "trailing_slash", "slash at the end"),
    Pair(f"{_E}/a/?b=1", f"{_E}/a?b=1", "trailing_slash", "slash before the query"),
    Pair(f"{_E}/a", "https://example.com/a", "http_https", "http and https"),
    Pair("http://www.example.com/a", f"{_E}/a", "www", "www."),
    # never
    Pair(f"{_E}:80/%%34%31", f"{_E}/A", "never", "escapes that decode to an escape"),
    Pair(f"{_E}/a?utm_source=", f"{_E}/a", "never", "tracking without a value, alone"),
    Pair(f"{_E}/a?ref=x", f"{_E}/a", "never", "ref"),
    Pair(f"{_E}/a?UTM_SOURCE=x", f"{_E}/a", "never", "tracking in upper case"),
    Pair(f"{_E}/a?xutm_source=x", f"{_E}/a", "never", "a name that ends like tracking"),
    Pair(f"{_E}/a?b=utm_source=x", f"{_E}/a?b=", "never", "tracking within a value"),
    Pair(f"{_E}/utm_source=x", f"{_E}/", "never", "tracking in a path"),
    Pair(f"{_E}:8080/a", f"{_E}/a", "never", "another port"),
    Pair(f"{_E}:443/a", "https://example.com/a", "never", "http at the port of https"),
    Pair("http://www.com/", "http://com/", "never", "www. before a single label"),
    Pair(f"{_E}/a.", f"{_E}/a", "never", "a dot at the end of a path"),
    Pair(f"{_E}/web/http://b.example/", f"{_E}/web/http:/b.example/", "never", "a URL in a path"),
    # Browsers follow these, Scrapy does not: a failed download must not hide the page.
    Pair("http://ex%61mple.com/", f"{_E}/", "never", "escapes in the host, which Scrapy refuses"),
    Pair("http://@example.com/", f"{_E}/", "never", "an empty user, which Scrapy refuses"),
    Pair("http://u:p@example.com/", f"{_E}/", "never", "a user, which Scrapy refuses"),
    Pair("http:///example.com/", f"{_E}/", "never", "three slashes, which Scrapy refuses"),
    Pair("http://e.com :80/", "http://e.com /", "never", "a space in the host, which it refuses"),
    Pair("http://ex%61mple.com:80/", "http://ex%61mple.com/", "never", "the same with an escape"),
    Pair(
        "http://localhost./a", "http://localhost/a", "never", "a host that only this machine knows"
    ),
    Pair("http://127.0.0.1./", "http://127.0.0.1/", "never", "a dot after an address: no DNS name"),
)


def with_steps(*steps):
    return CanonicalRequestFingerprinter("usual", rules={"*": {"steps": list(steps)}})


AT_LEVEL = {level: CanonicalRequestFingerprinter(level) for level in LEVELS}
WITH_STEP = {step: with_steps(step) for step in OPT_IN}
WITH_ALL = with_steps(*OPT_IN)


def merges(fingerprinter, pair):
    one, other = (fingerprinter.fingerprint(Request(url)) for url in (pair.one, pair.other))
    return one == other


def test_each_level_and_step_that_merges_has_a_pair():
    assert {pair.by for pair in PAIRS} >= {*LEVELS, *OPT_IN} - {"fragment_route"}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.by}: {pair.why}")
def test_a_pair_is_merged_from_its_level_or_step_on_and_by_nothing_else(pair):
    levels = list(LEVELS)
    by = pair.by.removesuffix(" alone")
    from_level = levels.index(by) if by in levels else len(levels)
    assert {level: merges(AT_LEVEL[level], pair) for level in levels} == {
        level: place >= from_level for place, level in enumerate(levels)
    }
    if by not in levels:
        assert [step for step in OPT_IN if merges(WITH_STEP[step], pair)] == [
            step for step in OPT_IN if step == by
        ]
        assert merges(WITH_ALL, pair) == (by in OPT_IN)


def at_its_level(step):
    """Return a fingerprinter that takes this step, and as few others as can be."""
    if step.tier == "opt-in":
        return CanonicalRequestFingerprinter("scrapy", rules={"*": {"steps": [step.name]}})
    if step.tier == "setting":
        names = {"drop": ["dropped*"], "keep_only": ["id"]}[step.name]
        return CanonicalRequestFingerprinter("scrapy", rules={"*": {step.name: names}})
    return AT_LEVEL[step.tier]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_steps_example_comes_out_as_it_says(step):
    fingerprinter = at_its_level(step)
    assert fingerprinter.canonical_url(step.before) == step.after
    assert fingerprinter.canonical_url(step.after) == step.after
    assert [name for name, _ in fingerprinter.walk(step.before)] == [step.name]
    if step.reach != "none":  # what a tame URL need not take is not counted
        assert fingerprinter.resolve(Request(step.before))[1] == (step.name,)
