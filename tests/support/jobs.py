"""Job directories for tests: one way to open them, and ways to hurt what is in them."""

from __future__ import annotations

import os

from queuelib.queue import LifoDiskQueue

from scrapy_bloom.storage.snapshot import Identity
from scrapy_bloom.storage.store import JobStore

IDENTITY = Identity(spider="books", fingerprinter="scrapy.utils.request.RequestFingerprinter")


def open_job(folder, identity=IDENTITY, **options):
    defaults = {
        "capacity": 1000,
        "error_rate": 1e-6,
        "digests": True,
    }
    return JobStore(folder, identity, **(defaults | options))


def stored_job(folder, known, **options):
    """Make a job that has stopped cleanly with these fingerprints; return its snapshot's path."""
    job = open_job(folder, **options)
    job.filter.add_many(known)
    job.close()
    return folder / "requests.bloom"


def abandon(job):
    """Leave a job as a kill leaves it: nothing stored, the lock given back by the system."""
    job.release()


def lifo(path, count=10):
    """Make one of Scrapy's queues as it is after a clean stop."""
    path.parent.mkdir(exist_ok=True)
    queue = LifoDiskQueue(path)
    for number in range(count):
        queue.push(b"request %d" % number)
    queue.close()


def killed(queue):
    """Leave a queue as a kill does: what was pushed may be on the disk, the count is not."""
    queue.f.flush()
    queue.f.close()


def everything_in(folder):
    """Return name, kind and bytes of all that a folder holds, but for the lock."""
    return {
        path.name: (path.lstat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in folder.iterdir()
        if path.name != "requests.bloom.lock"
    }


ORDINARY = 65534


def become_an_ordinary_user():
    """Give up root's power to open everything, if this process has it."""
    if os.geteuid() == 0:
        os.seteuid(ORDINARY)


def give_to_an_ordinary_user(folder):
    """Make that user the owner of a folder and all that is in it, if this process can."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, ORDINARY, -1)
