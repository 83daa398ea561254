"""A job directory with Scrapy's queue, while the filter is elsewhere: who has it, and how runs end.

Its file has notes only, the same as with a filter in it, so that :mod:`local.unclean` finds a run
that was killed.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from pathlib import Path

from scrapy_bloom.errors import StateError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local.job import ELSEWHERE, FILTER, QUEUE, Identity, Job, read_meta
from scrapy_bloom.local.store import NAME, Store
from scrapy_bloom.local.unclean import DIGEST, digest
from scrapy_bloom.options import BACKEND


def check_unused(folder: Path) -> None:
    """Look whether a crawl whose requests and marks are in Redis may use a job directory.

    :raises StateError: if it has requests or marks. Everything is left as it is.
    """
    stored, way = folder / NAME, f"set {BACKEND.setting} = 'local'"
    if not stored.exists() or not read_meta(stored)[0]:
        stored, way = folder / QUEUE, "remove your SCHEDULER"
        if not digest(folder):
            return
    raise StateError(
        f"{stored}: found requests or marks of this job's earlier runs, expected none, because with"
        f" scrapy_bloom.Scheduler and the filter in Redis they are kept there. They were left as"
        f" they are. To resume with them {way}; to start over choose another JOBDIR."
    )


class JobBeside:
    """The job directory of one run.

    :param folder: the job directory.
    :param spider: name of the spider.
    :raises JobInUseError: if another crawl holds it.
    :raises StateError: if it has marks or requests that this crawl would not use.

    Attributes:
        first: whether no earlier run has left a note.
    """

    def __init__(self, folder: Path, spider: str) -> None:
        with ExitStack() as undo:
            job = self._job = Job(folder, Identity(spider, "", {}))
            undo.callback(job.release)
            job.check(requests=False)
            if job.kind == FILTER:
                raise StateError(
                    f"{job.path}: found the marks of this job's earlier runs, which a filter in"
                    f" Redis cannot take over. They were left as they are. To resume with them set"
                    f" {BACKEND.setting} = 'local'; to start over choose another JOBDIR."
                )
            self.first = not job.kind
            job.store = Store(job.path, LocalFilter(1))
            job.killed = not job.store.clean
            undo.pop_all()

    def begin(self) -> None:
        """Note that a run is on.

        :raises StateError: if that cannot be written.
        """
        self._job.begin(requests=False, kind=ELSEWHERE)

    def close(self) -> bool:
        """Note that the run has ended, and how Scrapy's queue is now; return whether that worked.

        To be called after Scrapy has stored its queue, and before marks are let go.
        """
        try:
            self._job.store.note(DIGEST, digest(self._job.folder))
            return self._job.close()
        except (sqlite3.Error, OSError):
            self.abandon()
            return False

    def abandon(self) -> None:
        """Leave the job directory to others, as if this run had been killed."""
        self._job.abandon()
