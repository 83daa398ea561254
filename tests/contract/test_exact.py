"""``BLOOM_EXACT``: no new page is called seen, over stops and kills."""

import pytest
from pytest_twisted import ensureDeferred
from scrapy.exceptions import CloseSpider
from scrapy.utils.test import get_crawler
from support.crawling import Follower, crawl, kept
from support.graceful_stop import Stopping
from support.localsite import LocalSite

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.filter import dated
from scrapy_bloom.local import marks

pytestmark = pytest.mark.server


@pytest.fixture
def lossy(monkeypatch):
    """A filter takes all fingerprints with the same first byte for one."""
    make = dated.make_probe

    def make_lossy(*arguments, **options):
        probe = make(*arguments, **options)
        return lambda fingerprint: probe(fingerprint[:1])

    monkeypatch.setattr(dated, "make_probe", make_lossy)


class Stopping35(Stopping):
    pages = 35


@pytest.mark.usefixtures("lossy")
@ensureDeferred
async def test_no_page_is_missed_over_stops_though_the_filter_loses_many(
    job, tmp_path, monkeypatch
):
    for name in ("LEAST_JOURNAL", "SMALL_JOURNAL"):
        monkeypatch.setattr(marks, name, 30)
    with LocalSite(pages=130, links=6) as pages:
        for _ in range(20):
            crawler = await crawl(
                Stopping35, kept(job, BLOOM_CAPACITY=50, BLOOM_EXACT=True), url=pages.url
            )
            if crawler.stats.get_value("bloom/frontier/pending") == 0:
                break
    assert pages.missed == set()
    with LocalSite(pages=130, links=6) as pages:
        await crawl(Follower, kept(tmp_path / "alone"), url=pages.url)
        assert len(pages.missed) > 20  # what it catches


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "it needs SCHEDULER = 'scrapy_bloom"),
        ({"JOBDIR": "job"}, "it needs SCHEDULER = 'scrapy_bloom"),
        ({"BLOOM_BACKEND": "redis"}, "BLOOM_ERROR_RATE = 1e-12 instead, about 13 bytes per page"),
    ],
)
def test_exact_is_refused_where_it_cannot_be_kept(more, told, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    dupefilter = BloomDupeFilter.from_crawler(
        get_crawler(settings_dict={"BLOOM_EXACT": True, **more})
    )
    with pytest.raises(CloseSpider):
        dupefilter.open()
    assert "BLOOM_EXACT = True: " in caplog.text
    assert told in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
