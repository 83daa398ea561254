"""A backend is one file and one row: a toy one passes the contract, and a crawl uses it."""

import logging

import pytest
from pytest_twisted import ensureDeferred
from support.contract import FilterContract
from support.crawling import crawl
from support.localsite import LocalSite
from support.toy import ToyFilter

from scrapy_bloom import registry


class TestToyFilter(FilterContract):
    SMALL = 200  # it is slow

    @pytest.fixture
    def make(self):
        return ToyFilter


@pytest.fixture
def row(monkeypatch):
    monkeypatch.setitem(registry.BACKENDS, "toy", "support.toy:ToyBackend")


@ensureDeferred
@pytest.mark.usefixtures("row")
async def test_a_crawl_on_it_stops_and_goes_on(tmp_path, caplog):
    settings = {"BLOOM_BACKEND": "toy", "JOBDIR": str(tmp_path)}
    with LocalSite(pages=100, links=8) as site, caplog.at_level(logging.INFO):
        half = await crawl(settings={**settings, "CLOSESPIDER_PAGECOUNT": 50}, url=site.url)
        assert half.stats.get_value("finish_reason") == "closespider_pagecount"
        assert site.missed
        rest = await crawl(settings=settings, url=site.url)
        assert site.missed == set()
        assert site.repeated == {}
    assert f"Bloom filter in {tmp_path / 'toy.pickle'}: capacity 1,000,000" in caplog.text
    assert rest.stats.get_value("bloom/restored") == half.stats.get_value("bloom/items") > 0
    assert rest.stats.get_value("bloom/seen") > 0


@ensureDeferred
async def test_without_the_row_it_is_unknown(caplog):
    with LocalSite(pages=20, links=8) as site:
        refused = await crawl(settings={"BLOOM_BACKEND": "toy"}, url=site.url)
        assert site.hits == {}
    assert refused.stats.get_value("finish_reason") == "bloom_setting"
    assert "BLOOM_BACKEND = 'toy': give one of 'auto', 'local', 'redis'" in caplog.text
