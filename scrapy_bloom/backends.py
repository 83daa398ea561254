"""The backends by name: how each is opened for a crawl."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scrapy_bloom.filters.base import Filter
from scrapy_bloom.filters.local import LocalFilter
from scrapy_bloom.job.directory import JobFilter
from scrapy_bloom.job.snapshot import Identity
from scrapy_bloom.settings import Settings


@dataclass(frozen=True)
class Crawl:
    """What a backend is told of the crawl.

    Attributes:
        identity: whose marks the filter holds.
        digests: whether its fingerprints are SHA-1 digests.
        job_dir: where the crawl keeps its state between runs; None if it keeps none.
    """

    identity: Identity
    digests: bool
    job_dir: Path | None


@dataclass(frozen=True)
class Opened:
    """A filter ready for use, and how it came to be.

    Attributes:
        filter: the filter.
        place: where it lives, in words.
        restored: how many fingerprints it started with.
        restored_from: where they came from; empty if there were none.
        unclean: whether the last run was killed.
        filled_with: what its fingerprints were made with, as in the identity; empty if unknown.
    """

    filter: Filter
    place: str
    restored: int = 0
    restored_from: str = ""
    unclean: bool = False
    filled_with: Mapping[str, Any] = field(default_factory=dict)


def open_local(settings: Settings, crawl: Crawl) -> Opened:
    """Open a filter in memory, kept in the job directory if there is one.

    :raises BloomError: as :class:`JobFilter` does.
    """
    if crawl.job_dir is None:
        memory = LocalFilter(settings.capacity, settings.error_rate, digests=crawl.digests)
        return Opened(memory, "in memory")
    job = JobFilter(
        crawl.job_dir,
        crawl.identity,
        capacity=settings.capacity,
        error_rate=settings.error_rate,
        digests=crawl.digests,
        on_unclean=settings.on_unclean,
    )
    place = f"in memory, kept in {crawl.job_dir}"
    return Opened(
        job,
        place,
        job.restored,
        job.restored_from,
        unclean=job.unclean,
        filled_with=job.filled_with,
    )


BACKENDS: Final[dict[str, Callable[[Settings, Crawl], Opened]]] = {"local": open_local}
