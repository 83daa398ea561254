"""Full disks, files that may not be written, and damage: each is said, and no page is lost."""

import json
import logging
import os
import random
import shutil
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pytest_twisted import ensureDeferred
from scrapy.pqueues import ScrapyPriorityQueue
from support.crawling import Follower, Project, crawl
from support.disks import Limited, kinds, small_disk
from support.frontiers import NAME, Restored, Texts, fill, marks_of, open_store
from support.internals import synchronous
from support.jobs import give_to_an_ordinary_user
from support.kills import urls_in
from support.localsite import LocalSite
from support.processes import PATIENCE
from support.waiting import until

from scrapy_bloom.errors import StateError
from scrapy_bloom.frontier import file
from scrapy_bloom.frontier.buckets import BucketMaker, Fifo, Lifo
from scrapy_bloom.frontier.opening import replay, start_priorities
from scrapy_bloom.frontier.requests import frame, payload_in
from scrapy_bloom.frontier.store import Store

OURS = {"SCHEDULER": "scrapy_bloom.Scheduler"}
SNAPSHOTS = {"SCHEDULER": "support.dying.Scheduler"}  # one for every 60 marks
ORDINARY = {"SCHEDULER": "support.dying.Ordinary"}
DAMAGES = 500 if int(os.environ.get("KILLS", "1")) > 1 else 40
FULL = "The crawl goes on and tries again"


# A full disk


@pytest.fixture(params=kinds())
def full(request, tmp_path):
    """A project whose job directory is on a small disk, and that disk."""
    project = Project(tmp_path)
    with small_disk(request.param, project.job) as disk:
        yield project, disk
        for run in project.runs:
            run.clear_away()


def crawl_until_full(project, disk, site, more, **settings):
    """Start a crawl, let its disk be full, and wait until it has fetched so many pages more."""
    run = project.crawl(site, LOG_LEVEL="INFO", **settings)
    until(lambda: site.delivered >= 40 or run.ended, 60)
    disk.fill(run)
    run.said(FULL)
    delivered = site.delivered
    until(lambda: site.delivered >= delivered + more or run.ended, 60)
    assert not run.ended, run.log
    return run


def test_a_crawl_on_a_full_disk_goes_on_and_survives_a_kill(full):
    project, disk = full
    with LocalSite(pages=300, links=6) as site:
        run = crawl_until_full(project, disk, site, 40, **SNAPSHOTS)
        run.kill()
        run.end()
        assert run.log.count(FULL) == 1
        assert "Traceback" not in run.log
        disk.make_room()
        run = project.crawl(site, **SNAPSHOTS)
        assert run.end(PATIENCE) == 0, run.log
        assert site.missed == set()
    assert run.reason == "finished"
    assert "resumed after a kill" in run.log


def test_a_crawl_whose_disk_has_room_again_has_lost_and_repeated_nothing(full):
    project, disk = full
    with LocalSite(pages=300, links=6) as site:
        run = crawl_until_full(project, disk, site, 40, **SNAPSHOTS)
        disk.make_room()
        run.said("commits work again")
        assert run.end(PATIENCE) == 0, run.log
        assert site.missed == set()
        assert site.repeated == {}
    assert run.log.count(FULL) == 1
    assert run.stat("bloom/not_stored") == 0


def test_items_that_a_feed_could_not_take_are_given_to_it_again(full):
    project, disk = full
    feed = project.job / "items.jsonl"
    feeds = json.dumps({str(feed): {"format": "jsonlines"}})
    with LocalSite(pages=250, links=6) as site:
        run = project.crawl(site, spider="wordy", LOG_LEVEL="INFO", FEEDS=feeds, **OURS)
        until(lambda: site.delivered >= 40 or run.ended, 60)
        disk.fill(run)
        run.said("Items could not be written out")
        delivered = site.delivered
        until(lambda: site.delivered >= delivered + 40 or run.ended, 60)
        disk.make_room()
        run.said("Items are written out again")
        assert run.end(PATIENCE) == 0, run.log
        assert site.missed == set()
        assert site.repeated == {}
    assert len(feed.read_text().splitlines()) == len(urls_in(feed)) == 250
    assert "Traceback" not in run.log
    assert run.log.count("Items could not be written out") == 1


def test_a_stop_on_a_full_disk_is_like_a_kill(full):
    project, disk = full
    with LocalSite(pages=300, links=6) as site:
        run = crawl_until_full(project, disk, site, 40, **SNAPSHOTS)
        run.interrupt()
        run.end(PATIENCE)
        assert run.stat("bloom/not_stored") == 1
        assert run.log.count("could not be stored before the end") == 1
        assert "Traceback" not in run.log
        disk.make_room()
        run = project.crawl(site, **SNAPSHOTS)
        assert run.end(PATIENCE) == 0, run.log
        assert site.missed == set()


def test_a_crawl_does_not_start_where_there_is_no_room(full):
    project, disk = full
    with LocalSite(pages=200, links=6) as site:
        run = crawl_until_full(project, disk, site, 20, **OURS)
        run.kill()
        run.end()
        if isinstance(disk, Limited):  # binds a run that goes on only
            return
        delivered = site.delivered
        run = project.crawl(site, **OURS)
        assert run.end() == 1, run.log
        assert site.delivered == delivered
        assert "No space left on device" in run.log or "disk is full" in run.log
        disk.make_room()
        run = project.crawl(site, **OURS)
        assert run.end(PATIENCE) == 0, run.log
        assert site.missed == set()


# Files that may not be written


@pytest.fixture
def shared():
    """A project that an ordinary user gets to: the folders of other tests are root's alone."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        project = Project(Path(folder))
        yield project
        for run in project.runs:
            run.clear_away()
        for path in (project.job, *project.job.rglob("*")):
            path.chmod(0o755)


def written(log):
    """Return what counts of SQLite's log: behind it may be frames from before a checkpoint.

    https://sqlite.org/fileformat2.html#walformat
    """
    page, salts, end = int.from_bytes(log[8:12], "big"), log[16:24], 32
    while log[end + 8 : end + 16] == salts:
        end += 24 + page
    return log[:end]


@pytest.mark.scrapy
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "mode", "named"),
    [
        ("requests.sqlite", 0o444, "requests.sqlite: "),
        ("requests.sqlite", 0o000, "requests.sqlite: found Permission denied"),
        ("requests.sqlite-wal", 0o444, "requests.sqlite: "),
        ("requests.sqlite-wal", 0o000, "requests.sqlite: "),
        ("requests.bloom", 0o000, "requests.bloom: found Permission denied"),
        ("", 0o555, "job"),
    ],
)
def test_what_may_not_be_written_is_refused_and_untouched(shared, name, mode, named):
    job = shared.job
    with LocalSite(pages=120, links=6) as site:
        run = shared.crawl(site, **SNAPSHOTS, CLOSESPIDER_PAGECOUNT=30)
        assert run.end() == 0, run.log
        run = shared.crawl(site, **SNAPSHOTS)
        site.when(site.delivered + 25, run.kill)
        run.end()
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
        for kept in ("requests.sqlite", "requests.bloom"):
            assert after[kept] == before[kept], run.log
        log = "requests.sqlite-wal"
        assert after[log].startswith(written(before[log])), run.log  # it may have a note more
        run = shared.crawl(site, **OURS)
        assert run.end(PATIENCE) == 0, run.log
        assert site.missed == set()


def contents(job):
    return {path.name: path.read_bytes() for path in job.iterdir() if path.is_file()}


# Damage


class Framed(Texts):
    """Stores numbers as requests are stored, and counts those that cannot be read."""

    unreadable = 0

    def encode(self, request):
        return frame(b"%d" % request)

    def take(self, row, body):
        try:
            number = int(payload_in(body))
        except ValueError:
            self.unreadable += 1
            return None
        self.taken[number] = row
        return number


PATHS = {"0": Lifo, "-3": Lifo, "7s": Fifo, "2": Fifo}


def make_queues(store, texts, paths=PATHS):
    return [
        BucketMaker(store, "/job", PATHS.get(path, Lifo), texts).from_crawler(None, f"/job/{path}")
        for path in paths
    ]


def damaged_store(folder):
    """Fill a store; return all of its requests, marks, withheld marks and a note."""
    store, texts = open_store(folder), Framed()
    queues = make_queues(store, texts)
    for number in range(600):
        queues[number % len(queues)].push(number)
    store.withhold([b"withheld %d" % number for number in range(40)])
    store.note("clean", 0)
    store.commit()
    assert file.checkpoint(store.path)
    for number in range(600, 800):
        queues[number % len(queues)].push(number)
        store.mark([b"%020d" % number])
        if number % 20 == 0:
            store.commit()
    store.commit()
    store.abandon()


def read_all(path):
    """Read a store as a run does: return its requests, withheld marks and note, and what is said.

    None stands for what was not read since an error was raised.
    """
    texts = Framed()
    try:
        store = Store(path)
    except StateError as error:
        return None, None, None, str(error)
    found = withheld = note = None
    said = ""
    try:
        withheld = store.withheld
        note = store.noted("clean")
        if note is None:
            raise LookupError("a run does not start without its notes")
        priorities = start_priorities(store, ScrapyPriorityQueue)
        assert replay(store, Restored()) == store.journal
        names = [name for each in priorities for name in (str(each), f"{each}s")]
        queues = make_queues(store, texts, names)
        if sum(map(len, queues)) != len(store):
            said = "queues that this run would not read"
        found = set()
        for queue in queues:
            while (number := queue.pop()) is not None:
                found.add(number)
        for row in list(store.busy):
            store.done(row)
        store.commit()
    except (sqlite3.Error, LookupError, StateError) as error:
        said = said or repr(error)
    finally:
        store.abandon()
    if texts.unreadable:
        said = said or "a stored request cannot be read"
    return found, withheld, note, said


def flip(content, dice):
    """Change some bytes."""
    for _ in range(dice.choice([1, 3, 30])):
        place = dice.randrange(100, len(content))  # the header is SQLite's, and checked apart
        content[place] ^= dice.randint(1, 255)


def overwrite(content, dice):
    """Overwrite a page with anything."""
    page = 4096 * dice.randrange(len(content) // 4096)
    content[max(page, 100) : page + 4096] = dice.randbytes(page + 4096 - max(page, 100))


def zero(content, dice):
    """Overwrite a page with zeros."""
    page = 4096 * dice.randrange(len(content) // 4096)
    content[max(page, 100) : page + 4096] = bytes(page + 4096 - max(page, 100))


def swap(content, dice):
    """Overwrite a page with another one."""
    one, other = (4096 * n for n in dice.sample(range(1, len(content) // 4096), 2))
    content[one : one + 4096] = content[other : other + 4096]


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("hurt", [flip, overwrite, zero, swap])
def test_damage_anywhere_is_said_or_harmless(tmp_path, monkeypatch, hurt, checked):
    """Whatever is hurt, no request and no withheld mark is missing in silence."""
    if not checked:  # as a large file, which is not read through when it is opened
        monkeypatch.setattr(file, "_CHECKED_WHOLE", 0)
    whole = tmp_path / "whole"
    whole.mkdir()
    damaged_store(whole)
    withheld = {b"withheld %d" % number for number in range(40)}
    dice = random.Random(f"{hurt.__name__} {checked}")
    silent, refused = 0, 0
    for number in range(DAMAGES):
        again = tmp_path / str(number)
        shutil.copytree(whole, again)
        content = bytearray((again / NAME).read_bytes())
        hurt(content, dice)
        (again / NAME).write_bytes(content)
        before = {path.name: path.read_bytes() for path in again.glob("*[!m]")}
        found, found_withheld, note, said = read_all(again / NAME)
        if not said:
            silent += 1
            assert found == set(range(800)), number
            assert found_withheld == withheld, number
            assert note == 0, number
        elif found_withheld is None:
            refused += 1
            assert str(again / NAME) in said
            assert "It was left as it is" in said
            after = {path.name: path.read_bytes() for path in again.glob("*[!m]")}
            assert after == before, number
        shutil.rmtree(again)
    assert silent < DAMAGES
    assert refused


@pytest.mark.parametrize("hurt", ["cut", "flipped"])
def test_a_log_that_is_hurt_leaves_one_of_the_commits(tmp_path, hurt):
    whole = tmp_path / "whole"
    whole.mkdir()
    store = open_store(whole)
    queue = fill(store, 0)
    for number in range(60):
        queue.push(number)
        store.mark([b"%02d" % number])
        store.commit()
        if number == 20:
            assert file.checkpoint(store.path)
    store.abandon()
    log = (whole / (NAME + "-wal")).read_bytes()
    assert len(log) > 30 * 4096
    dice = random.Random(hurt)
    lengths = set()
    for number in range(DAMAGES):
        again = tmp_path / str(number)
        shutil.copytree(whole, again)
        content = bytearray(log)
        if hurt == "cut":
            del content[dice.randrange(len(log)) :]
        else:
            content[dice.randrange(len(log))] ^= dice.randint(1, 255)
        (again / (NAME + "-wal")).write_bytes(content)
        store = open_store(again)
        rows = [int(body) for _, body in store.read(0, 1 << 62, 500, newest_first=False)]
        assert rows == list(range(len(rows)))
        assert marks_of(store) == [b"%02d" % number for number in rows]
        lengths.add(len(rows))
        store.abandon()
        shutil.rmtree(again)
    assert min(lengths) >= 21  # what is in the file itself
    assert len(lengths) > 5


# What commits are written for, and how long a start takes


class Looking(Follower):
    """Notes how SQLite writes the commits of its crawl."""

    name = "looking"
    mode = None

    def parse(self, response):
        self.mode = synchronous(self.crawler)
        return super().parse(response)


@pytest.mark.scrapy
@pytest.mark.long
@ensureDeferred
@pytest.mark.parametrize(("setting", "mode"), [("process", 1), ("machine", 2)])
async def test_a_commit_is_written_for_what_it_is_to_survive(tmp_path, setting, mode):
    with LocalSite(pages=20, links=6) as site:
        settings = {**OURS, "JOBDIR": str(tmp_path / "job"), "BLOOM_COMMIT_SYNC": setting}
        crawler = await crawl(Looking, settings, url=site.url)
    assert crawler.spider.mode == mode


def test_a_long_journal_shows_how_far_it_was_read(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    store = open_store(tmp_path)
    for first in range(0, 220_000, 20_000):
        store.mark([b"%020d" % number for number in range(first, first + 20_000)])
        store.commit()
    seconds = iter(range(0, 1000, 2))
    restored = Restored()
    assert replay(store, restored, clock=lambda: next(seconds)) == 220_000
    assert len(set(restored.known)) == 220_000
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == f"{tmp_path / NAME}: 40,000 of 220,000 marks read"
    caplog.clear()
    replay(store, Restored(), clock=lambda: 0)
    assert caplog.text == ""
    store.close()
