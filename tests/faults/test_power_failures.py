"""What a kill or a power failure leaves in the middle of a commit, a checkpoint or a close.

The writes and syncs of a store are recorded in their order, and what a disk may have after any of
them is opened. `make kills` has power failures of a real file system.
"""

import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support import vfs
from support.contract import share_of
from support.disk import Disk, Recorder
from support.numbered_commits import Commits, check, hasty, log_of
from support.windows import PAGES

from scrapy_bloom import file
from scrapy_bloom.errors import StateError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local.log import Log
from scrapy_bloom.local.store import Store

pytestmark = pytest.mark.skipif(vfs.find() is None, reason="SQLite's functions cannot be called")


class Recorded:
    """What was done to the files of a store, and what may be left of them.

    :param folder: where the store is.
    """

    def __init__(self, folder, steps):
        self.path, self.steps = folder / "bloom.sqlite", steps

    def checkpointing(self):
        """Return the steps before which a page is written to the file, or it is synced."""
        return [
            number
            for number, (name, path, *_) in enumerate(self.steps)
            if name in {"written", "synced"} and path == str(self.path)
        ]

    def left_after(self, steps, *, power=False):
        """Put into the folder what is there after each of these steps, and nothing else.

        :param power: whether the power fails, and not only the process.
        """
        disk = Disk()
        for number, step in enumerate(self.steps):
            disk.do(*step)
            if number in steps:
                shutil.rmtree(self.path.parent)
                self.path.parent.mkdir()
                left = disk.after_a_power_failure(number) if power else disk.after_a_kill()
                for path, content in left.items():
                    Path(path).write_bytes(content)
                yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two runs with many checkpoints and passes."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        hasty(patch.setattr)
        recorder = Recorder(patch)
        for commits in 60, 25:
            run = Commits(folder / "bloom.sqlite")
            for _ in range(commits):
                run.step()
            run.store.log.wait()
            run.store.close()
    return Recorded(folder, recorder.steps)


def opened(path):
    return Store(path, LocalFilter(300, 1e-9))


def check_file(path):
    store = opened(path)
    check(store)
    store.abandon()


def test_no_power_failure_loses_a_page_or_has_a_file_refused(recorded):
    """Whatever of what was not synced is on the disk."""
    dice = random.Random("power")
    checkpoints = dice.sample(recorded.checkpointing(), share_of(160))
    others = dice.sample(range(len(recorded.steps)), share_of(160))
    for _ in recorded.left_after({*checkpoints, *others}, power=True):
        check_file(recorded.path)


def by_another_program(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("SELECT * FROM counters").fetchone()


def by_a_start_that_is_refused(path):
    opened(path).abandon()  # for another SCHEDULER_PRIORITY_QUEUE, say


def by_scrapy_bloom_forget(path):
    store = opened(path)
    store.filter.forget(PAGES[0])
    store.commit()
    store.abandon()


@pytest.mark.parametrize(
    "closed", [by_another_program, by_a_start_that_is_refused, by_scrapy_bloom_forget]
)
def test_a_kill_in_a_checkpoint_is_mended_by_whoever_closes_the_file_next(recorded, closed):
    """It completes the checkpoint and removes the log."""
    steps = random.Random("kill").sample(recorded.checkpointing(), share_of(60))
    for _ in recorded.left_after(steps):
        closed(recorded.path)
        check_file(recorded.path)


@pytest.fixture
def interrupted(tmp_path):
    """Two commits that are being copied into a file.

    The first one is finished with a request, and the second one with another: it marks a page in
    whose place there is a new request, and a page that is held in memory.
    """
    path = tmp_path / "job" / "bloom.sqlite"
    path.parent.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(patch)
        store = Store(path)
        queue = store.queue("0", None)
        first, second, *_ = (store.push(queue, bytes(500)) for _ in range(11))
        store.close()
        store = Store(path)
        store.delete(first)
        store.commit()
        one_commit = log_of(path).stat().st_size
        store.delete(second)
        assert not store.filter.add(PAGES[0])
        store.push(store.queue("0", None), b"of the first page")
        assert not store.filter.add(PAGES[1])
        store.marks.withhold([PAGES[1]])
        store.commit()
        before = len(recorder.steps)
        store.log.checkpoint()
        steps = len(recorder.steps)
        store.abandon()
    recorded = Recorded(path.parent, recorder.steps[:steps])
    return recorded, [step for step in recorded.checkpointing() if step > before], one_commit


@pytest.mark.parametrize(
    ("harm", "guard"),
    [
        (lambda log, _: log.unlink(), (file, "check_tally", file.tally)),
        (lambda log, _: log.write_bytes(bytes(32)), (file, "check_tally", file.tally)),
        (os.truncate, (Log, "check", lambda *_, **__: None)),
    ],
    ids=["deleted", "a header of zeros", "its last commit cut off"],
)
def test_a_log_lost_in_a_checkpoint_is_refused_or_harmless(interrupted, monkeypatch, harm, guard):
    """And it is not without the guard."""
    recorded, steps, one_commit = interrupted
    assert lost_pages(recorded, steps, lambda log: harm(log, one_commit)) == 0
    monkeypatch.setattr(*guard)
    assert lost_pages(recorded, steps, lambda log: harm(log, one_commit)) > 0


def lost_pages(recorded, steps, harm):
    """Return how many pages are marked, and neither done nor stored nor let through."""
    lost = 0
    for _ in recorded.left_after(steps):
        harm(log_of(recorded.path))
        try:
            store = Store(recorded.path)
        except StateError:
            continue
        bodies = [body for queue in store.queues for _, body in store.read(queue, newest=False)]
        lost += PAGES[0] in store.filter and b"of the first page" not in bodies
        lost += PAGES[1] in store.filter
        store.abandon()
    return lost
