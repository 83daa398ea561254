"""Power failures of a real file system: a block device is copied while a crawl writes to it."""

import os
import random
import shutil
import signal
import subprocess
from contextlib import contextmanager

import pytest
from support.crawling import KEPT
from support.kills import until_delivered
from testbed.localsite import LocalSite

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


@contextmanager
def mounted(image, folder):
    """Have the file system in a file at a folder."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


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
    with image.open("wb") as one:
        one.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
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
