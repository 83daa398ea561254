"""Opening a filter for reading only: what is there is found, and nothing is touched."""

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from support.localredis import LocalRedis

from scrapy_bloom.backends.base import backend_of
from scrapy_bloom.errors import StateError
from scrapy_bloom.session.reporter import Reporter
from scrapy_bloom.session.session import Session
from scrapy_bloom.settings import Settings

PAGES = [Request(f"https://example.com/{number}") for number in range(20)]


class Named(Spider):
    name = "named"


def crawl(settings):
    """Mark the pages as a crawl does; return their fingerprints and the class that made them."""
    crawler = get_crawler(Named, settings)
    marks = []
    session = Session.open(crawler, Reporter(crawler), on_mark=marks.append)
    session.check_many(PAGES)
    session.close()
    return marks, session.resolver.fingerprinter.wrapped


def look(settings, job_dir, spider="named"):
    read = Settings(settings)
    backend = backend_of(read, shared_queue=False)
    return backend.open_to_read(read, spider=spider, job_dir=job_dir)


def test_a_job_directory_is_read_and_not_touched(tmp_path):
    marks, made_by = crawl({"JOBDIR": str(tmp_path)})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    opened = look({}, tmp_path)
    assert opened.filter.contains_many([*marks, b"x" * 20]) == [True] * 20 + [False]
    assert opened.filter.info().items == 20
    assert opened.fingerprinter == made_by
    assert opened.filled_with["rules"] == {"*": {"level": "safe"}}
    assert str(tmp_path) in opened.place
    opened.filter.close()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_what_is_no_job_of_the_spider_is_refused_and_nothing_created(tmp_path):
    with pytest.raises(StateError, match="has no filter"):
        look({}, tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StateError, match="without JOBDIR"):
        look({}, None)
    crawl({"JOBDIR": str(tmp_path)})
    with pytest.raises(StateError, match="spider 'named', expected that of 'other'"):
        look({}, tmp_path, "other")


def test_a_filter_in_redis_is_read_and_not_touched(tmp_path):
    with LocalRedis() as server:
        settings = {"BLOOM_REDIS_URL": server.url, "JOBDIR": str(tmp_path)}
        marks, made_by = crawl(settings)
        keys = sorted(server.client().keys())
        header = server.client().hgetall("named:bloom")
        opened = look(settings, tmp_path)
        assert opened.filter.contains_many([*marks, b"x" * 20]) == [True] * 20 + [False]
        assert opened.fingerprinter == made_by
        assert opened.filled_with["rules"] == {"*": {"level": "safe"}}
        assert "key named:bloom" in opened.place
        opened.filter.close()
        assert server.client().hgetall("named:bloom") == header
        with pytest.raises(StateError, match="other:bloom"):
            look(settings, tmp_path, "other")
        assert sorted(server.client().keys()) == keys
