"""Power failures of a real file system: a block device is copied while a crawl writes to it."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
from contextlib import contextmanager

import pytest
from support.crawling import KEPT
from support.kills import until_delivered
from testbed.localsite import LocalSite, SteadySite

KILLS = int(os.environ.get("KILLS", "1"))
FAILURES = 2 * KILLS

AT_ONCE = 12  # copies of the disk that there are at one time
NEEDED = "mkfs.ext4", "mount", "umount"
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0

pytestmark = [
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.kills,
    pytest.mark.skipif(
        not (IS_ROOT and all(map(shutil.which, NEEDED))),
        reason="it needs root and mkfs.ext4",
    ),
]


def make_disk(image):
    """Make a file that has a file system."""
    with image.open("wb") as one:
        one.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)


@contextmanager
def mounted(image, folder):
    """Have the file system in a file at a folder."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def items_once(folder, pages):
    """Check that two feeds have each item of so many pages once."""
    lines = (folder / "items.jsonl").read_text().splitlines()
    found = [(item["url"], item["number"]) for item in map(json.loads, lines)]
    assert len(found) == len({*found}) == 3 * pages
    with (folder / "items.csv").open(newline="") as file:
        rows = [(row["url"], int(row["number"])) for row in csv.DictReader(file)]
    assert sorted(rows) == sorted(found)


@contextmanager
def crawling(project, site, **settings):
    """Start a crawl, and kill it in the end."""
    run = project.crawl(site, **settings)
    try:
        yield run
    finally:
        run.kill()
        run.end()


def test_a_crawl_resumes_after_each_power_failure_and_loses_no_page(project, tmp_path):
    dice, failures, again = random.Random(FAILURES), 0, 0
    image = tmp_path / "disk"
    make_disk(image)
    with LocalSite(pages=700, links=6) as site, mounted(image, tmp_path / "at") as folder:
        while failures < FAILURES:
            site.hits.clear()
            job, left = folder / f"job-{failures}", []
            with crawling(project, site, JOBDIR=job, DOWNLOAD_DELAY=0.02, **KEPT) as run:
                until_delivered(site, 300, [run])  # a checkpoint later
                while not run.ended and len(left) < min(AT_ONCE, FAILURES - failures):
                    copy = tmp_path / f"copy-{len(left)}"
                    run.freeze()
                    shutil.copyfile(image, copy)
                    left.append((copy, site.hits.copy()))
                    run.send_signal(signal.SIGCONT)
                    until_delivered(site, dice.randint(1, 60), [run])
            for copy, site.hits in left:
                with mounted(copy, tmp_path / "resumed") as after:
                    before = {*site.hits}
                    run = project.finish(site, JOBDIR=after / job.name, **KEPT)
                    assert site.missed == set(), run.log
                    again += sum(site.hits[page] > 1 for page in before)
            failures += len(left)
    print(f"{failures} power failures: {again} pages again")  # noqa: T201


def test_each_item_is_there_once_after_each_power_failure(project, tmp_path):
    """Feeds and job are on the disk that fails, and each commit is synced to it."""
    dice, failures, cut = random.Random(FAILURES), 0, 0
    image, pages = tmp_path / "disk", 120
    make_disk(image)
    with SteadySite(pages=pages, links=6) as site, mounted(image, tmp_path / "at") as folder:
        while failures < FAILURES:
            name, left = str(failures), []
            (folder / name).mkdir()
            with crawling(project, site, **once(folder / name)) as run:
                while not run.ended and len(left) < min(AT_ONCE, FAILURES - failures):
                    until_delivered(site, dice.randint(1, 20), [run])
                    copy = tmp_path / f"copy-{len(left)}"
                    run.freeze()
                    shutil.copyfile(image, copy)
                    left.append(copy)
                    run.send_signal(signal.SIGCONT)
            for copy in left:
                with mounted(copy, folder):  # on top: feeds are noted with their paths
                    run = project.finish(site, **once(folder / name))
                    items_once(folder / name, pages)
                    cut += "Cut off" in run.log
            failures += len(left)
    print(f"{failures} power failures, {cut} feeds cut: {3 * pages} items, each once")  # noqa: T201


def test_what_was_synced_before_a_commit_that_never_came_is_cut_off(project, tmp_path):
    """The disk has items of pages that are not done there."""
    image, point = tmp_path / "disk", "scrapy_bloom.crawl.scrapy.feeds:Feeds.flush:after:3"
    make_disk(image)
    with SteadySite(pages=60, links=6) as site, mounted(image, tmp_path / "at") as folder:
        settings = once(folder) | {"SCHEDULER": "support.kill_points.Scheduler"}
        assert project.crawl(site, environment={"DIE": point}, **settings).end() == -9
        shutil.copyfile(image, copy := tmp_path / "copy")
        with mounted(copy, folder):
            run = project.finish(site, **settings)
            items_once(folder, 60)
    assert "Cut off" in run.log


def once(folder):
    """Return the settings of a crawl with job and feeds in a folder."""
    feeds = {f"{folder}/items.jsonl": {"format": "jsonlines"}}
    feeds[f"{folder}/items.csv"] = {"format": "csv"}
    settings = {"FEEDS": json.dumps(feeds), "JOBDIR": folder / "job", "spider": "thrice"}
    return KEPT | settings | {"BLOOM_COMMIT_SYNC": "machine", "DOWNLOAD_DELAY": 0.01}
