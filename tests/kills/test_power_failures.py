"""Power failures of a real file system: a block device is copied while a crawl writes to it."""

import json
import os
import random
import shutil
import signal
import subprocess
from contextlib import contextmanager

import pytest
from support.kills import KILLS, faults_in, feeds_in, until_delivered
from testbed.localsite import SteadySite

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


@pytest.fixture
def image(tmp_path):
    """A file that has a file system."""
    image = tmp_path / "disk"
    with image.open("wb") as one:
        one.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    return image


@contextmanager
def mounted(image):
    """Have the file system in a file at a folder, over what is mounted there already."""
    folder = image.with_name("at")
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fail(project, site, image, folder):
    """Let the power fail again and again while a crawl runs; return copies of the disk at each
    failure, with the hits of the site until then.
    """
    dice, copies = random.Random(folder.name), []
    run = project.crawl(site, **settings_in(folder))
    while len(copies) < AT_ONCE:
        until_delivered(site, dice.randint(1, 20), [run])
        if run.ended:
            break
        copies.append((image.with_name(f"copy-{len(copies)}"), site.hits.copy()))
        run.freeze()
        shutil.copyfile(image, copies[-1][0])
        run.send_signal(signal.SIGCONT)
    run.kill()
    run.end()
    return copies


def settings_in(folder):
    """Return the settings of a crawl with job and feeds in a folder, synced by each commit.

    There is a checkpoint with every few.
    """
    settings = {"FEEDS": json.dumps(feeds_in(folder)), "JOBDIR": folder / "job", "spider": "thrice"}
    settings["SCHEDULER"] = "support.kill_points.Scheduler"
    return settings | {"BLOOM_COMMIT_SYNC": "machine", "DOWNLOAD_DELAY": 0.01}


def test_each_item_is_there_once_after_each_power_failure(project, image):
    failures = cut = 0
    with SteadySite(pages=120, links=6) as site, mounted(image) as disk:
        while failures < FAILURES:
            site.hits.clear()
            folder = disk / str(failures)
            folder.mkdir()
            for copy, hits in fail(project, site, image, folder):
                failures += 1
                site.hits = hits
                with mounted(copy):
                    run = project.finish(site, **settings_in(folder))
                    assert site.missed == set()
                    feeds = folder / "items.jsonl", folder / "items.csv"
                    assert [faults_in(site, feed) for feed in feeds] == [(0, 0, 0)] * 2
                cut += "the last run ended before it could" in run.log
    print(f"{failures} power failures, {cut} feeds completed, each item once")  # noqa: T201
