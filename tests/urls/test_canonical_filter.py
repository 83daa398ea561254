"""Canonical fingerprints in the duplicate filter: stats, header, other fingerprinters."""

import logging

import pytest
from scrapy import Request
from scrapy.exceptions import CloseSpider
from scrapy.utils.request import fingerprint
from support.jobs import Session

from scrapy_bloom import CanonicalRequestFingerprinter

PORT = "http://example.com:80/a"
PLAIN = "http://example.com/a"
TRACKED = "http://example.com/a?utm_source=x"
TRACKED_TOO = "http://example.com/a?utm_source=y"


def stats_of(crawl):
    stats = crawl.crawler.stats.get_stats()
    prefix = "bloom/canonical/"
    return {key.removeprefix(prefix): n for key, n in stats.items() if key.startswith(prefix)}


def test_a_setting_of_each_kind_reaches_the_filter():
    settings = {
        "BLOOM_CANONICAL": "usual",
        "BLOOM_CANONICAL_DROP_PARAMS": "sid,x_*",
        "BLOOM_CANONICAL_KEEP_PARAMS": ["utm_id"],
        "BLOOM_CANONICAL_RULES": '{"example.org": {"steps": ["www"], "level": "scrapy"}}',
    }
    with Session(settings) as crawl:
        assert crawl.seen(PLAIN, f"{PLAIN}?sid=1&x_1=2", TRACKED) == [False, True, True]
        assert crawl.seen(f"{PLAIN}?utm_id=1") == [False]
        assert crawl.seen("http://example.org/", "http://www.example.org/") == [False, True]
        assert crawl.seen("http://example.org/?utm_x=1") == [False]


def test_steps_are_counted():
    with Session({"BLOOM_CANONICAL": "usual"}) as crawl:
        crawl.seen(PLAIN, TRACKED, TRACKED_TOO, PORT, PLAIN)
        crawl.seen("http://example.com:80/b?utm_id=1", "http://example.com/b")
        assert stats_of(crawl) == {"tracking": 3, "default_port": 2}


def test_a_job_resumed_with_other_rules_is_reported(tmp_path, caplog):
    job = {"JOBDIR": str(tmp_path)}
    for settings, expected in (
        ({}, 0),
        ({}, 0),
        ({"BLOOM_CANONICAL": "usual"}, 1),
        ({"BLOOM_CANONICAL": "usual"}, 0),
        ({"BLOOM_CANONICAL_RULES": {"example.com": {"steps": ["www"]}}}, 1),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING), Session(job | settings) as crawl:
            crawl.seen(PLAIN)
        said = [r.getMessage() for r in caplog.records if "was filled with" in r.getMessage()]
        assert len(said) == expected
    assert "{'*': {'level': 'usual'}}, now {'*': {'level': 'safe'}, 'example.com'" in said[0]
    assert "are fetched again" in said[0]


def test_the_fingerprinter_may_serve_all_of_scrapy():
    asked = []

    class Asked(CanonicalRequestFingerprinter):
        def resolve(self, request):
            asked.append(self)
            return super().resolve(request)

    settings = {"REQUEST_FINGERPRINTER_CLASS": Asked, "BLOOM_CANONICAL": "usual"}
    with Session(settings) as crawl:
        fingerprinter = crawl.crawler.request_fingerprinter
        assert fingerprinter.fingerprint(Request(TRACKED)) == fingerprint(Request(PLAIN))
        assert crawl.seen(TRACKED, PLAIN) == [False, True]
    assert asked == [fingerprinter] * 3  # the filter has none of its own


class FirstPathSegment(CanonicalRequestFingerprinter):
    """A project's subclass: a page is what stands before the second slash of the path."""

    def fingerprint(self, request):
        parts = request.url.split("/")
        return super().fingerprint(request.replace(url="/".join(parts[:4])))


def test_a_subclass_that_overrides_fingerprint_decides_and_its_job_names_it(tmp_path, caplog):
    job = {"JOBDIR": str(tmp_path), "BLOOM_CANONICAL": "usual"}
    own = job | {"REQUEST_FINGERPRINTER_CLASS": f"{__name__}.FirstPathSegment"}
    with Session(own) as crawl:
        assert crawl.seen(f"{PLAIN}/b", f"{PLAIN}/c") == [False, True]
        assert crawl.seen(f"{PORT}?utm_id=1", f"{PLAIN}z") == [True, False]
    with Session(own) as crawl:
        assert crawl.seen(PLAIN) == [True]
    with pytest.raises(CloseSpider), Session(job):
        pass
    assert f"found the filter of fingerprinter '{__name__}.FirstPathSegment'" in caplog.text


def test_a_subclass_that_overrides_fingerprint_is_shown_the_url_as_it_is():
    class Verbatim(CanonicalRequestFingerprinter):
        def fingerprint(self, request):
            return request.url.encode()

    settings = {"REQUEST_FINGERPRINTER_CLASS": Verbatim, "BLOOM_CANONICAL": "usual"}
    with Session(settings) as crawl:
        assert crawl.seen(PLAIN, TRACKED, TRACKED) == [False, False, True]
