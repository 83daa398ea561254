"""What other systems and file systems do differently, as far as it can be tried here."""

import os
import sqlite3
import subprocess
import sys

import pytest
from support.internals import full_syncs
from support.localsite import LocalSite
from support.waiting import PATIENCE

from scrapy_bloom.errors import StateError
from scrapy_bloom.filter import file
from scrapy_bloom.local.store import Store


@pytest.mark.parametrize("name", ["a b?c#d%20é", "%41;&=+", os.fsdecode(b"\xe9")])
def test_sqlite_opens_strange_paths(tmp_path, name):
    path = tmp_path / name / "bloom.sqlite"
    path.parent.mkdir()
    for mode, known in (("new", False), ("old", True)):
        store = Store(path)
        assert store.mark(b"page") is known, mode
        store.close()
    assert [one.name for one in path.parent.iterdir()] == ["bloom.sqlite"]
    with pytest.raises(sqlite3.OperationalError):
        file.connect(tmp_path / "none", "ro").execute("SELECT 1 FROM meta")


@pytest.mark.parametrize("sync", [False, True])
def test_a_commit_for_the_machine_asks_macos_for_the_disk_itself(tmp_path, sync):
    store = Store(tmp_path / "bloom.sqlite")
    store.commit(sync=sync)
    assert full_syncs(store) is sync
    store.close()


@pytest.mark.parametrize("link", [False, True])
def test_what_is_no_file_is_refused(tmp_path, link):
    path = tmp_path / "bloom.sqlite"
    (tmp_path / "there").mkdir()
    if link:
        path.symlink_to(tmp_path / "there")
    else:
        path.mkdir()
    with pytest.raises(StateError, match=f"{path}: .*Is a directory"):
        Store(path)


BOOKS = """
from scrapy import Spider

class Books(Spider):
    name = "books"
    start_urls = ["URL"]
    custom_settings = {"ADDONS": {"scrapy_bloom.Addon": 500}, "JOBDIR": "job"}

    def parse(self, response):
        yield from response.follow_all(css="a")
"""


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
