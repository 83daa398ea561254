"""Canonical fingerprints: Scrapy's bytes, the laws that the steps keep, and what they merge."""

from collections import Counter
from fnmatch import fnmatchcase
from functools import reduce
from urllib.parse import unquote_plus

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter, fingerprint
from support.internals import repeat_the_self_check
from w3lib.url import canonicalize_url, parse_qsl_to_bytes, parse_url

from scrapy_bloom import CanonicalRequestFingerprinter, SettingError
from scrapy_bloom.canonical import fast_path, scrapy_form
from scrapy_bloom.canonical.names import TRACKING_PARAMS
from scrapy_bloom.canonical.parts import split_url
from scrapy_bloom.canonical.rules import LEVELS, OPT_IN
from scrapy_bloom.canonical.steps import STEPS

try:
    import can_ada
except ImportError:  # pyproject.toml says where it has no wheels
    can_ada = None

# URLs for property tests: pieces that are odd, and pieces of which escapes are made.


def words_of(text, *more):
    return (*text.split(), *more)


SCHEMES = words_of("http http https https HTTP HttpS ftp ws data file x-y")
HOSTS = words_of(
    """
    example.com www.example.com EXAMPLE.COM localhost a_b.example a-b.example example.com. www.com
    b\xfccher.example xn--bcher-kva.example \uff45x.example 127.0.0.1 127.1 0x7f.1 2130706433
    0177.0.0.1 256.1.1.1 1.2.3.4. 08 [::1] [0:0::1] [2001:DB8::1] [::ffff:1.2.3.4] [fe80::1%25eth0]
    1.example.0x ex%61mple.com example..com .example.com _ - \xdf.example
    """,
    "a" * 70 + ".example",
)
USERS = words_of("@ u@ u:p@ :@ u%40:p%3a@", *[""] * 9)
PORTS = words_of(": :80 :443 :8080 :0080 :21 :65535 :59999 :60000 :0", *[""] * 6)
WORDS = words_of(
    """
    a b A page id caf\xe9 \u4e2d index.html index.php x.y ~u . .. ... .a %2e %2E%2e %2F %2f a;b=1 ;
    a;jsessionid=1 %41 %7e %7E %zz % %4 %25 %2525 a+b a%2Bb a%20b !'()* a,b:c@d $&= [x] a|b a^b "
    <> ` {} \\ %5C %ff %00
    """,
    *("", "", "a b", "\x7f"),
)
NAMES = words_of(
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


AT = {level: CanonicalRequestFingerprinter(level) for level in LEVELS}


def with_steps(*steps):
    return CanonicalRequestFingerprinter("usual", rules={"*": {"steps": list(steps)}})


WITH_ALL = with_steps(*OPT_IN)


class Asked:
    """A fingerprinter of a project that gives away which URL it is shown."""

    def fingerprint(self, request):
        return request.url.encode()


SHOWS_SAFE = CanonicalRequestFingerprinter("safe", wrapped=Asked())


@pytest.mark.each_scrapy
@given(
    URLS | st.text().map("http://{}".format),
    st.sampled_from(("GET", "POST", "x y")) | st.text(max_size=3),
    st.binary(max_size=3) | st.text(max_size=3),
    st.dictionaries(st.just("verbatim_url"), st.integers(0, 1)),
)
@example("http://[::1%25]:80/", "GET", "", {})
@example("http://example.com/a b?b=1&a=2", "GET", "", {"verbatim_url": True})
@example("data:,a?b=1&a=2", "GET", "", {})
def test_a_request_has_scrapys_bytes_and_none_makes_it_raise(url, method, body, meta):
    request = request_for(url, method=method, body=body, meta=meta)
    assert AT["scrapy"].fingerprint(request) == fingerprint(request)
    for fingerprinter in (*AT.values(), WITH_ALL):
        assert len(fingerprinter.fingerprint(request)) == 20


@given(URLS, st.sampled_from((*LEVELS, "all")))
@example("http://www.www.example.com/a/;/;", "all")
@example("http://www.127.1/", "all")
def test_the_canonical_form_is_idempotent(url, how):
    fingerprinter = WITH_ALL if how == "all" else AT[how]
    canonical = fingerprinter.canonical_url(request_for(url).url)
    assume(canonicalize_url(canonical, keep_fragments=True) == canonical)  # w3lib's own doing
    assert fingerprinter.canonical_url(canonical) == canonical
    request = Request(canonical)
    assert fingerprinter.fingerprint(request) == fingerprinter.fingerprint(Request(url))


@pytest.mark.skipif(can_ada is None, reason="can_ada has no wheel for this Python")
@given(URLS)
@example("http://example.com/..//a")
@example("http://example.com/./b;")
@example("http://example.com:80/a//..")
@example("http://example.com:80/%41%2Fb")
@example("http://example.com/..;a/.")
def test_safe_leaves_a_url_the_same_for_whatwg(url):
    url = request_for(url).url
    shown = SHOWS_SAFE.fingerprint(Request(url)).decode()
    try:
        expected = can_ada.parse(url).href
    except ValueError:  # no URL for WHATWG: the steps may not make it one
        with pytest.raises(ValueError, match="parse"):
            can_ada.parse(shown)
        return
    assert can_ada.parse(shown).href == expected


@given(URLS)
@example("http://example.com/a/;")
@example("http://example.com/a;b=1/;")
@example("http://example.com/a/.")
@example("http://example.com/a/b/%2e./")
@example("http://example.com/a%3A//b")
@example("http://example.com/a/..;x/")
def test_what_is_one_page_for_scrapy_is_one_page_with_every_rule(url):
    """Scrapy's form of a URL that stays as it is in that form is the same page as the URL."""
    assume("#" not in url)  # a step may keep a fragment, which Scrapy drops
    assume(";" not in url or "%" not in url)  # w3lib decodes before the last ; but not behind it
    canonical = AT["scrapy"].canonical_url(request_for(url).url)
    assume(AT["scrapy"].canonical_url(canonical) == canonical)
    for fingerprinter in (*AT.values(), WITH_ALL):
        one, other = (fingerprinter.fingerprint(Request(each)) for each in (url, canonical))
        assert one == other


def is_tracking(name, value):
    known = any(fnmatchcase(name.decode("utf-8", "replace"), entry) for entry in TRACKING_PARAMS)
    return known and value != b""


@given(URLS)
def test_the_query_is_the_original_without_what_is_dropped(url):
    url = request_for(url).url

    def params(spelled):
        return Counter(parse_qsl_to_bytes(parse_url(spelled).query, keep_blank_values=True))

    original = params(canonicalize_url(url))
    left = original
    if split_url(url) is not None:  # else no step applies
        left = {param: count for param, count in original.items() if not is_tracking(*param)}
    assert params(AT["safe"].canonical_url(url)) == original
    assert params(AT["usual"].canonical_url(url)) == left


@given(URLS, st.sampled_from(("usual", "drop", "keep_only")), st.lists(st.sampled_from(NAMES[1:])))
def test_the_fast_path_agrees_with_all_steps_and_w3lib(url, how, names):
    names = [unquote_plus(name) for name in names if name]
    rules = {"*": {} if how == "usual" else {how: names}}
    fingerprinter = CanonicalRequestFingerprinter("usual", rules=rules)
    request = request_for(url)
    stepped = CanonicalRequestFingerprinter("usual", rules=rules, wrapped=Asked())
    walked = stepped.fingerprint(request).decode()
    assert fingerprinter.fingerprint(request) == fingerprint(Request(walked))


@pytest.mark.each_scrapy
def test_the_self_check_finds_another_way_of_making_fingerprints(monkeypatch, caplog):
    class Other(RequestFingerprinter):
        def fingerprint(self, request):
            return super().fingerprint(request)[::-1]

    assert scrapy_form.agrees(RequestFingerprinter())
    assert not scrapy_form.agrees(Other())
    monkeypatch.setattr(fast_path, "canonicalize_url", lambda url: url)
    repeat_the_self_check()
    fingerprinter = CanonicalRequestFingerprinter("usual")
    repeat_the_self_check()
    assert "asks Scrapy's own fingerprinter instead" in caplog.text
    request = Request("http://example.com/?b=1&a=\xe9")
    assert fingerprinter.fingerprint(request) == fingerprint(request)
    one, other = Request("http://example.com:80/?b=1&utm_id=1"), Request("http://example.com/?b=1")
    assert fingerprinter.fingerprint(one) == fingerprint(other)


def test_a_custom_fingerprinter_is_shown_what_the_steps_make_of_a_url():
    fingerprinter = CanonicalRequestFingerprinter("usual", wrapped=Asked())
    changed = Request("http://example.com:80/?b=1&utm_id=1&a=2#c", meta={"x": 1})
    assert fingerprinter.fingerprint(changed) == b"http://example.com/?b=1&a=2#c"
    untouched = changed.replace(meta={"bloom_canonical": False})
    assert fingerprinter.fingerprint(untouched) == changed.url.encode()


def test_a_fragment_that_is_a_route_names_a_page():
    rules = {"*": {"steps": ["fragment_route"]}}
    fingerprinter = CanonicalRequestFingerprinter(rules=rules)
    _, route, *_ = urls = [f"http://a.example/{route}" for route in ("", "#!b", "#!c", "#/b")]
    assert len({fingerprinter.fingerprint(Request(url)) for url in urls}) == 4
    for url, keeps in ((route, True), ("http://a.example/#b", False)):
        request = Request(url)
        expected = fingerprint(request, keep_fragments=keeps)
        assert fingerprinter.fingerprint(request) == expected
    shown = CanonicalRequestFingerprinter(rules=rules, wrapped=Asked())
    assert shown.fingerprint(Request(route)) == route.encode()


@pytest.mark.parametrize(
    ("wishes", "canonical"),
    [
        ([None, True, "usual"], "http://example.com/"),
        ([False, "scrapy", "unusual", []], "http://example.com.:80/?utm_id=1"),
        (["safe"], "http://example.com./?utm_id=1"),
    ],
)
def test_a_request_may_choose_its_level(wishes, canonical, caplog):
    """What is no level is reported once."""
    fingerprinter = CanonicalRequestFingerprinter("usual")
    for wish in wishes * 2:
        request = Request("http://example.com.:80/?utm_id=1", meta={"bloom_canonical": wish})
        assert fingerprinter.fingerprint(request) == fingerprint(Request(canonical))
    assert caplog.text.count("expected False or one of") == ("unusual" in wishes)


RULES = {
    "*": {"steps": ["www"], "drop": ["everywhere"]},
    "example.com": {"steps": ["trailing_slash"], "drop": ["sid", "x_*"], "keep": ["x_1"]},
    "shop.Example.com.": {"level": "scrapy", "keep_only": ["id"]},
    "b\xfccher.example": {"level": "usual", "keep": ["utm_id"]},
}


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://www.a.example/b/?sid=1&everywhere=1", "http://a.example/b/?sid=1"),
        ("http://www.example.com/b/?sid=1&everywhere=1", "http://example.com/b"),
        ("http://a.example.com:80/b/?x_1=1&x_2=2", "http://a.example.com/b?x_1=1"),
        ("http://notexample.com/b/?sid=1", "http://notexample.com/b/?sid=1"),
        ("http://shop.example.com:80/b/?id=1&c=2&x_1=3", "http://shop.example.com:80/b?id=1&x_1=3"),
        ("http://u:p@shop.example.com:80/?c=2", "http://u:p@shop.example.com:80/"),
        ("http://B\xdcCHER.example/?utm_id=1&utm_x=1", "http://xn--bcher-kva.example/?utm_id=1"),
        ("http://[::1]:80/?everywhere=1", "http://[::1]/"),
        ("http://example.com?sid=1", "http://example.com/"),
    ],
)
def test_a_domains_rule_adds_to_the_general_one(url, canonical):
    fingerprinter = CanonicalRequestFingerprinter(rules=RULES)
    assert fingerprinter.canonical_url(url) == canonical
    assert fingerprinter.fingerprint(Request(url)) == fingerprint(Request(canonical))


def test_names_of_parameters_go_by_the_settings():
    fingerprinter = CanonicalRequestFingerprinter(
        "usual", drop_params=["caf\xe9", "a[]", "a b", "s_*"], keep_params=["utm_id", "s_2"]
    )
    dropped = "caf%C3%A9=1&a%5B%5D=&a[]=2&a%20b=1&a+b=2&s_1&utm_x=1"
    url = f"http://example.com/?{dropped}&s_2=&s=1&utm_id=1&utm_y="
    assert fingerprinter.canonical_url(url) == "http://example.com/?s=1&s_2=&utm_id=1&utm_y="


def nested(depth):
    return reduce(lambda inner, _: [inner], range(depth), "a")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"level": "unusual"}, "level = 'unusual': must be one of 'scrapy', 'safe', 'usual'"),
        ({"drop_params": [1]}, r"drop_params = \[1\]: must be a list of parameter names"),
        ({"drop_params": nested(200_000)}, "drop_params = <list that cannot be shown>: must be"),
        ({"rules": "x" * 10_000}, "rules = 'xxxx[x]*…: must be a dict"),
        ({"drop_params": ["*id*"]}, r"drop_params = \['\*id\*'\]"),
        ({"rules": {"a.example": "www"}}, r"rules\['a.example'\] = 'www': must be a dict"),
        ({"rules": {"a.example": {"step": []}}}, "must be a dict with any of 'level', 'steps'"),
        ({"rules": {"a.example": {"steps": ["tracking"]}}}, "has 'tracking': must be one of"),
        ({"rules": {"a.example": {"keep_only": 1}}}, r"\['keep_only'\] = 1"),
        ({"rules": {"http://a.example/": {}}}, "has the domain 'http://a.example/': must be a h"),
    ],
)
def test_an_invalid_canonical_setting_is_refused_by_name(options, error):
    with pytest.raises(SettingError, match=error):
        CanonicalRequestFingerprinter(**options)


# Pairs of spellings at each level and with each step, and each step's own example

_E = "http://example.com"

PAIRS = {
    "scrapy": [
        # What w3lib does since 2.5, and the standards agree.
        (f"{_E}/a/./b/../c", f"{_E}/a/c", "dot segments"),
        (f"{_E}/a/%2E%2e/b", f"{_E}/b", "escaped dot segments"),
        (f"{_E}/../a", f"{_E}/a", "dot segments above the root"),
        ("http://[2001:DB8:0::1]/", "http://[2001:db8::1]/", "forms of IPv6"),
        # What it does although the standards keep them apart.
        (f"{_E}/a#b", f"{_E}/a", "a fragment"),
        (f"{_E}/a?a=2&a=1", f"{_E}/a?a=1&a=2", "order of repeated parameters"),
        (f"{_E}/a?b=c/d", f"{_E}/a?b=c%2Fd", "/ and %2F in a query"),
        (f"{_E}/a+b", f"{_E}/a%2Bb", "+ and %2B in a path"),
        (f"{_E}/a%%33%46", f"{_E}/a%3F", "a stray % before escapes of an escape"),
    ],
    "safe": [
        (f"{_E}:80/a", f"{_E}/a", "default port of http"),
        ("https://example.com:443/a", "https://example.com/a", "default port of https"),
        (f"{_E}:00080/a", f"{_E}/a", "default port with zeros before"),
        ("http://2130706433/a", "http://127.0.0.1/a", "IPv4 as one number"),
        ("http://0x7F.0.0.0x1/a", "http://127.0.0.1/a", "IPv4 in hexadecimal"),
        ("http://0177.0.0.01/a", "http://127.0.0.1/a", "IPv4 in octal"),
        ("http://127.1/a", "http://127.0.0.1/a", "IPv4 with fewer parts"),
    ],
    "usual": [
        ("http://example.com./a", f"{_E}/a", "dot after the host"),
        (f"{_E}/a?utm_source=x&utm_medium=y", f"{_E}/a", "tracking parameters alone"),
        (f"{_E}/a?b=1&gclid=x", f"{_E}/a?b=1", "tracking after another parameter"),
        (f"{_E}/a?fbclid=x&b=1", f"{_E}/a?b=1&fbclid=y", "two values of tracking"),
        (f"{_E}/a?%75tm_source=x", f"{_E}/a", "escapes in the name of tracking"),
    ],
    "trailing_slash": [
        (f"{_E}/a/", f"{_E}/a", "slash at the end"),
        (f"{_E}/a/?b=1", f"{_E}/a?b=1", "slash before the query"),
    ],
    "http_https": [
        (f"{_E}/a", "https://example.com/a", "http and https"),
    ],
    "www": [
        ("http://www.example.com/a", f"{_E}/a", "www."),
    ],
    "never": [
        (f"{_E}:80/%%34%31", f"{_E}/A", "escapes that decode to an escape"),
        (f"{_E}/a?utm_source=", f"{_E}/a", "tracking without a value, alone"),
        (f"{_E}/a?ref=x", f"{_E}/a", "ref"),
        (f"{_E}/a?UTM_SOURCE=x", f"{_E}/a", "tracking in upper case"),
        (f"{_E}/a?xutm_source=x", f"{_E}/a", "a name that ends like tracking"),
        (f"{_E}/a?b=utm_source=x", f"{_E}/a?b=", "tracking within a value"),
        (f"{_E}/utm_source=x", f"{_E}/", "tracking in a path"),
        (f"{_E}:8080/a", f"{_E}/a", "another port"),
        (f"{_E}:443/a", "https://example.com/a", "http at the port of https"),
        ("http://www.com/", "http://com/", "www. before a single label"),
        (f"{_E}/a.", f"{_E}/a", "a dot at the end of a path"),
        (f"{_E}/web/http://b.example/", f"{_E}/web/http:/b.example/", "a URL in a path"),
        # Browsers follow these, Scrapy does not: a failed download must not hide the page.
        ("http://ex%61mple.com/", f"{_E}/", "escapes in the host, which Scrapy refuses"),
        ("http://@example.com/", f"{_E}/", "an empty user, which Scrapy refuses"),
        ("http://u:p@example.com/", f"{_E}/", "a user, which Scrapy refuses"),
        ("http:///example.com/", f"{_E}/", "three slashes, which Scrapy refuses"),
        ("http://e.com :80/", "http://e.com /", "a space in the host, which it refuses"),
        ("http://ex%61mple.com:80/", "http://ex%61mple.com/", "the same with an escape"),
        ("http://localhost./a", "http://localhost/a", "a host that only this machine knows"),
        ("http://127.0.0.1./", "http://127.0.0.1/", "a dot after an address: no DNS name"),
    ],
}
"""Two URLs and what differs, by what makes them one page: a level, an opt-in step, or nothing."""


WITH_STEP = {step: with_steps(step) for step in OPT_IN}


def merges(fingerprinter, *urls):
    one, other = (fingerprinter.fingerprint(Request(url)) for url in urls)
    return one == other


def test_each_level_and_step_that_merges_has_a_pair():
    assert {*PAIRS} >= {*LEVELS, *OPT_IN} - {"fragment_route"}


@pytest.mark.parametrize(
    ("by", "one", "other"),
    [
        pytest.param(by, one, other, id=f"{by}: {why}")
        for by, pairs in PAIRS.items()
        for one, other, why in pairs
    ],
)
def test_a_pair_is_merged_from_its_level_or_step_on_and_by_nothing_else(by, one, other):
    levels = [level for level in LEVELS if merges(AT[level], one, other)]
    assert levels == [*LEVELS][[*LEVELS].index(by) if by in LEVELS else len(LEVELS) :]
    if by not in LEVELS:
        assert [step for step in OPT_IN if merges(WITH_STEP[step], one, other)] == [
            step for step in OPT_IN if step == by
        ]
        assert merges(WITH_ALL, one, other) == (by in OPT_IN)


def at_its_level(step):
    """Return a fingerprinter that takes this step, and as few others as can be."""
    if step.tier == "opt-in":
        return CanonicalRequestFingerprinter("scrapy", rules={"*": {"steps": [step.name]}})
    if step.tier == "setting":
        names = {"drop": ["dropped*"], "keep_only": ["id"]}[step.name]
        return CanonicalRequestFingerprinter("scrapy", rules={"*": {step.name: names}})
    return AT[step.tier]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_steps_example_comes_out_as_it_says(step):
    fingerprinter = at_its_level(step)
    assert fingerprinter.canonical_url(step.before) == step.after
    assert fingerprinter.canonical_url(step.after) == step.after
    assert [name for name, _ in fingerprinter.walk(step.before)] == [step.name]
    one, other = map(fingerprinter.fingerprint, map(Request, (step.before, step.after)))
    assert one == other
