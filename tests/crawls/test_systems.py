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
    assert "resumed after a kill" in log.read_text()
