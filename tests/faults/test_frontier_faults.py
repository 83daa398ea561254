"""Full disks, files that may not be written, and damage: each is said, and no page is lost."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pytest_twisted import ensureDeferred
from support.crawling import Follower, Project, crawl
from support.disks import Small, kinds, small_disk
from support.filters import contents
from support.internals import synchronous
from support.jobs import give_to_an_ordinary_user
from support.kills import urls_in
from support.localsite import LocalSite
from support.waiting import until

from scrapy_bloom.local import frontier

OURS = {"SCHEDULER": "scrapy_bloom.Scheduler"}
PASSES = {"SCHEDULER": "support.dying.Scheduler"}  # one for every 60 marks
ORDINARY = {"SCHEDULER": "support.dying.Ordinary"}
FULL = "The crawl continues and retries"


# A full disk


@pytest.fixture
def full(tmp_path):
    """A project whose job directory is on a small disk, and that disk."""
    with (
        small_disk(kinds()[-1], tmp_path / "job") as disk,
        Project(tmp_path) as project,
    ):
        yield project, disk


def crawl_until_full(project, disk, site, *, said=FULL, **settings):
    """Start a crawl, let its disk be full, and wait until it has fetched some pages more."""
    run = project.crawl(site, LOG_LEVEL="INFO", **settings)
    until(lambda: site.delivered >= 40 or run.ended)
    disk.fill(run)
    run.said(said)
    delivered = site.delivered
    until(lambda: site.delivered >= delivered + 30 or run.ended)
    assert not run.ended, run.log
    return run


def test_a_crawl_on_a_full_disk_goes_on_and_survives_a_kill(full):
    project, disk = full
    with LocalSite(pages=150, links=6) as site:
        run = crawl_until_full(project, disk, site, **PASSES)
        run.kill()
        run.end()
        # A small commit may find room, and the next one none, or be the last before the kill.
        assert run.log.count(FULL) - run.log.count("commits work again") in (0, 1)
        assert "Traceback" not in run.log, run.log
        if isinstance(disk, Small):  # the other kind binds a run that goes on only
            delivered = site.delivered
            run = project.crawl(site, **PASSES)
            assert run.end() == 1, run.log
            assert site.delivered == delivered
            assert "No space left on device" in run.log or "disk is full" in run.log
        disk.make_room()
        run = project.finish(site, **PASSES)
        assert site.missed == set()
    assert run.reason == "finished"
    assert "resumed after a kill" in run.log


@pytest.mark.parametrize(
    ("spider", "said", "again"),
    [
        ("follower", FULL, "commits work again"),
        ("wordy", "Items could not be written out", "Items can be written again"),
    ],
)
def test_a_crawl_whose_disk_has_room_again_has_lost_and_repeated_nothing(full, spider, said, again):
    project, disk = full
    feed = project.job / "items.jsonl"
    feeds = json.dumps({str(feed): {"format": "jsonlines"}})
    with LocalSite(pages=150, links=6) as site:
        run = crawl_until_full(project, disk, site, said=said, spider=spider, FEEDS=feeds, **PASSES)
        disk.make_room()
        run.said(again)
        assert run.end() == 0, run.log
        assert site.missed == set()
        assert site.repeated == {}
    if spider == "wordy":
        assert len(feed.read_text().splitlines()) == len(urls_in(feed)) == 150
    assert "Traceback" not in run.log
    assert run.log.count(said) == 1
    assert run.stat("bloom/not_stored") == 0


def test_a_stop_on_a_full_disk_is_like_a_kill(full):
    project, disk = full
    with LocalSite(pages=150, links=6) as site:
        run = crawl_until_full(project, disk, site, **PASSES)
        run.interrupt()
        run.end()
        assert run.stat("bloom/not_stored") == 1
        assert run.log.count("the last changes could not be stored") == 1
        # Only where Scrapy stores the spider's state, for which there is no room either.
        assert run.log.count("Traceback") == run.log.count("extensions/spiderstate.py"), run.log
        disk.make_room()
        run = project.finish(site, **PASSES)
        assert site.missed == set()


# Files that may not be written


@pytest.fixture
def shared():
    """A project that an ordinary user gets to: the folders of other tests are root's alone."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with Project(Path(folder)) as project:
            yield project
        for path in (project.job, *project.job.rglob("*")):
            path.chmod(0o755)


def stored(files):
    """Return the rows of a database and its log; what notes that it was opened is left out."""
    with TemporaryDirectory() as folder:
        for name in ("bloom.sqlite", "bloom.sqlite-wal"):
            Path(folder, name).write_bytes(files[Path(name)])
        with closing(sqlite3.connect(Path(folder, "bloom.sqlite"))) as database:
            names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            tables = {name for (name,) in names} - {"meta", "counters"}
            return {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in tables}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "mode", "named"),
    [
        ("bloom.sqlite", 0o444, "bloom.sqlite: "),
        ("", 0o555, "job"),
    ],
)
def test_what_may_not_be_written_is_refused_and_untouched(shared, name, mode, named):
    job = shared.job
    with LocalSite(pages=120, links=6) as site:
        shared.kill_at(40, site, **PASSES)
        delivered = site.delivered
        give_to_an_ordinary_user(job)
        before = contents(job)
        (job / name).chmod(mode)
        run = shared.crawl(site, **ORDINARY)
        assert run.end() == 1, run.log
        assert site.delivered == delivered
        assert named in run.log, run.log
        for path in (job, *job.rglob("*")):
            path.chmod(0o755)
        after = contents(job)
        # What SQLite shares among processes, and who held the job last, means nothing after a kill.
        file = Path("bloom.sqlite")
        assert after[file] == before[file], run.log
        assert stored(after) == stored(before), run.log
        run = shared.finish(site, **OURS)
        assert site.missed == set()


def test_a_run_that_is_refused_after_a_kill_changes_no_row(project):
    with LocalSite(pages=120, links=6) as site:
        project.kill_at(40, site, **PASSES)
        delivered, before = site.delivered, stored(contents(project.job))
        for name, value, found in (("BLOOM_EXACT", True, False), ("BLOOM_WINDOW", "30d", None)):
            run = project.crawl(site, **OURS, **{name: value})
            run.end()
            assert f"{name} = {value!r}: " in run.log, run.log
            assert f"was made with {name} = {found!r}. It was left as it is" in run.log
            assert stored(contents(project.job)) == before
        assert site.delivered == delivered
        assert before["requests"]


# What commits are written for


class Looking(Follower):
    """Notes how SQLite writes the commits of its crawl."""

    name = "looking"
    mode = None

    def parse(self, response):
        self.mode = synchronous(self.crawler)
        return super().parse(response)


@pytest.mark.long
@ensureDeferred
@pytest.mark.parametrize(("setting", "mode"), [("process", (1, 0)), ("machine", (2, 1))])
async def test_a_commit_is_written_for_what_it_is_to_survive(tmp_path, monkeypatch, setting, mode):
    monkeypatch.setattr(frontier, "INTERVAL", 0)  # else a quick crawl ends before the first one
    with LocalSite(pages=5, links=2) as site:
        settings = {**OURS, "JOBDIR": str(tmp_path / "job"), "BLOOM_COMMIT_SYNC": setting}
        crawler = await crawl(Looking, settings, url=site.url)
    assert crawler.spider.mode == mode
