"""A job directory while requests and marks are in Redis."""

from __future__ import annotations

from pathlib import Path

from scrapy_bloom.errors import StateError
from scrapy_bloom.local.job import QUEUE, read_meta
from scrapy_bloom.local.store import NAME
from scrapy_bloom.local.unclean import digest
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
