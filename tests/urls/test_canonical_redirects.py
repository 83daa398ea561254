"""Every page at the end of a chain of redirects is parsed once, at every level."""

import json
from pathlib import Path

import pytest
from support.crawling import Run
from support.processes import environment
from support.redirecting import CHAINS, COOKIE, SHARED, START

pytestmark = pytest.mark.server

OURS = {"ADDONS": {"scrapy_bloom.Addon": 500}}
ALL_STEPS = ["trailing_slash", "http_https", "www"]
DISCARDER = "duplicate_url_discarder.Fingerprinter"


def crawl(settings, more=()):
    command = ["-m", "support.redirecting", json.dumps(settings), json.dumps(more)]
    run = Run(Path(__file__).parents[1], command, environment())
    try:
        assert run.end() == 0, run.log
    finally:
        run.clear_away()
    assert "ERROR" not in run.log
    return json.loads(run.output)


def final_pages():
    ends = [[url for url in chain if url != COOKIE][-1] for chain in CHAINS.values()]
    return {START, *ends, *SHARED.values()}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"BLOOM_CANONICAL": "scrapy"}, id="scrapy"),
        pytest.param(
            {"BLOOM_CANONICAL": "usual", "BLOOM_CANONICAL_RULES": {"*": {"steps": ALL_STEPS}}},
            id="usual and all steps",
        ),
        pytest.param(
            {"REQUEST_FINGERPRINTER_CLASS": DISCARDER, "BLOOM_CANONICAL": "usual"},
            id="usual over duplicate-url-discarder",
        ),
    ],
)
def test_every_final_page_is_parsed_once(settings):
    outcome = crawl({**OURS, **settings})
    assert outcome["parsed"] == dict.fromkeys(final_pages(), 1)
    assert outcome["stats"].get("bloom/errors", 0) == 0


def test_the_fingerprinter_of_scrapy_zyte_api_is_asked():
    """It needs a crawl that is on; a page rendered by a browser is another page for it.

    At the default level, `safe`, as all else here is at the others.
    """
    settings = {
        "REQUEST_FINGERPRINTER_CLASS": "scrapy_zyte_api.ScrapyZyteAPIRequestFingerprinter",
        "ZYTE_API_KEY": "none",
    }
    page, port = "http://site.example/a", "http://site.example:80/a"
    rendered, shot = {"zyte_api": {"browserHtml": True}}, {"zyte_api": {"screenshot": True}}
    more = [(page, meta) for meta in ({}, rendered, shot)] * 2 + [(port, {}), (port, rendered)]
    outcome = crawl({**OURS, **settings}, more)
    assert outcome["parsed"][page] == 3
    assert outcome["parsed"] == dict.fromkeys(final_pages(), 1) | {page: 3}
    assert outcome["stats"]["bloom/canonical/default_port"] >= 2
    assert outcome["stats"].get("bloom/errors", 0) == 0


def test_scrapys_own_filter_loses_some_of_them():
    outcome = crawl({})
    assert set(outcome["parsed"]) < final_pages()
