"""What other systems and file systems do differently, as far as it can be tried here."""

import os
import sqlite3
import subprocess
import sys

import pytest
from support.waiting import PATIENCE
from testbed.localsite import LocalSite

from scrapy_bloom import file
from scrapy_bloom.local.store import Store


@pytest.mark.parametrize("name", ["a b?c#d%20é", "%41;&=+", os.fsdecode(b"\xe9")])
def test_sqlite_opens_strange_paths(tmp_path, name):
    path = tmp_path / name / "bloom.sqlite"
    path.parent.mkdir()
    for mode, known in (("new", False), ("old", True)):
        store = Store(path)
        assert store.filter.add(b"page") is known, mode
        store.close()
    assert [one.name for one in path.parent.iterdir()] == ["bloom.sqlite"]
    with pytest.raises(sqlite3.OperationalError):
        file.connect(tmp_path / "none", "ro").execute("SELECT 1 FROM meta")


BOOKS = """
from scrapy import Spider

class Books(Spider):
    name = "books"
    start_urls = ["URL"]
    custom_settings = {"ADDONS": {"scrapy_bloom.Addon": 500}, "JOBDIR": "job"}

    def parse(self, response):
        yield from response.follow_all(css="a")
"""


@pytest.mark.server
def test_a_crawl_is_killed_and_resumes_by_means_that_every_system_has(tmp_path):
    command = [sys.executable, "-m", "scrapy", "runspider", "books.py"]
    with LocalSite(pages=150, links=6) as site:
        (tmp_path / "books.py").write_text(BOOKS.replace("URL", site.url))
        for deliveries in (40, 90, None):
            log = tmp_path / f"{deliveries}.log"
            with log.open("wb") as errors:
                run = subprocess.Popen(command, cwd=tmp_path, stderr=errors)
            if deliveries is not None:
                site.when(deliveries, run.kill)
            assert (run.wait(PATIENCE) == 0) == (deliveries is None), log.read_text()
    assert site.missed == set()
    assert "resumed after an unclean stop" in log.read_text()


OPEN = """
import sys
from twisted.internet import reactor
from scrapy import Spider
from scrapy.crawler import Crawler

settings = {"ADDONS": {"scrapy_bloom.Addon": 500}, "JOBDIR": "job", "TWISTED_REACTOR": None}

def look():
    crawler = Crawler(type("Books", (Spider,), {"name": "books"}), settings)
    crawler.crawl()
    print(len(crawler.stats.get_value("start_time").isoformat()) > 0)
    crawler.stop().addBoth(lambda _: reactor.stop())

reactor.callWhenRunning(look)
reactor.run()
"""


def test_a_crawl_is_open_at_once_where_scrapys_is(tmp_path):
    """Without asyncio: tests of others look at a crawl once `crawl()` has returned."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", OPEN], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout == "True\n", done.stderr
