"""A store whose state after each commit is known from the number of that commit."""

import random
import shutil
from hashlib import sha1
from itertools import islice
from pathlib import Path

from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local import log, marks
from scrapy_bloom.local.store import Store

PER_COMMIT = 10
_WAITING = 30  # commits that a request waits


def hasty(patch=setattr):
    """Have a store do with few marks what it does with many otherwise."""
    for module, name, value in (
        (marks, "LEAST_JOURNAL", 100),
        (marks, "BLOCKS_AT_ONCE", 3),
        (marks, "SWEPT_AT_ONCE", 2),
        (marks, "OVER_AT_ONCE", 5),
        (marks, "MARKS_A_ROW", 7),
        (log, "CHECKPOINT_COMMITS", 7),
        (log, "LOG_BYTES", 200_000),
    ):
        patch(module, name, value)


def pages_of(number):
    return [sha1(b"%d of commit %d" % (which, number)).digest() for which in range(PER_COMMIT)]


def body_of(number, which):
    return random.Random(number * 100 + which).randbytes(200 + 31 * which)


class Commits:
    """Commit `n` adds ten pages with requests, and is finished with those of commit ``n - 30``."""

    def __init__(self, path):
        self.store = Store(path, LocalFilter(300, 1e-9))
        self.number = self.store.meta.get("number", 0)
        self.queue = self.store.queue("0", None)

    def step(self):
        number = self.number + 1
        for which, page in enumerate(pages_of(number)):
            assert not self.store.filter.add(page)
            self.store.push(self.queue, body_of(number, which))
        if number > _WAITING:
            for row, _ in [*islice(self.store.read(self.queue, newest=False), PER_COMMIT)]:
                self.store.delete(row)
        self.store.meta["number"] = number
        self.store.commit()
        self.number = number


def check(store, *, whole=True):
    """Compare a store with what it should hold; return the number of its last commit.

    :param whole: whether bits of the filter may not have been damaged.
    """
    number = store.meta.get("number", 0)
    waiting = range(max(0, number - _WAITING) + 1, number + 1)
    bodies = [body_of(one, which) for one in waiting for which in range(PER_COMMIT)]
    found = []
    if "0" in {queue.path for queue in store.queues.values()}:
        found = [body for _, body in store.read(store.find("0"), newest=False)]
    if whole:
        assert found == bodies
    else:  # a row that was damaged is said to be
        assert len(found) == len(bodies)
        assert all(body in {None, right} for body, right in zip(found, bodies, strict=True))
    assert len(store) == len(bodies)
    known = [page for one in range(1, number + 1) for page in pages_of(one)]
    if whole:
        assert all(one in store.filter for one in known)
    later = [page for one in range(1, 50) for page in pages_of(number + one)]
    assert not any(one in store.filter for one in later)
    return number


def copied(path, folder):
    """Copy the files of a store as a kill would leave them."""
    folder.mkdir()
    for part in ("", "-wal"):
        source = path.with_name(path.name + part)
        if source.exists():
            shutil.copy(source, folder / source.name)
    return folder / path.name


def log_of(path):
    return Path(f"{path}-wal")
