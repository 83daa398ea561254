"""Marks pages without a crawl, and lets marked ones through once more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.tools.lines import fingerprints_of
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import Where, target_of
from scrapy_bloom.tools.target import Adder


@contextmanager
def adding(
    where: Where | None, *, key: str = "", project: Project | None = None
) -> Iterator[tuple[Adder, CanonicalFingerprinter]]:
    """Open a filter that is there to add to it; yield it, and what makes its fingerprints.

    What is added to a file is kept when the ``with`` statement ends without an error, all of it or
    nothing. What is added in Redis is there at once, also for a crawl that runs.

    :param where: a target, see :func:`target_of`, like `key`.
    :param project: as for :func:`asking`.
    :raises JobInUseError: if it is in a job directory, and a crawl runs there.
    :raises BloomError: if it cannot be used.
    """
    project = project or Project()
    target = target_of(where, key=key, project=project)
    with target.adding() as adder:
        fingerprinter, _ = project.fingerprinter_for(adder.identity)
        yield adder, fingerprinter


def add(
    where: Where | None,
    urls: Iterable[str] = (),
    *,
    fingerprints: Iterable[bytes] = (),
    key: str = "",
    project: Project | None = None,
) -> list[bool]:
    """Mark pages as seen; return for each URL, then for each fingerprint, whether it was before.

    >>> add("job", ["http://example.com/"])  # doctest: +SKIP
    [False]

    :param where: as for :func:`adding`, like `key` and `project`.
    :raises ValueError: if Scrapy cannot make a request for a URL. Then nothing was marked.
    :raises BloomError: as :func:`adding`.
    """
    with adding(where, key=key, project=project) as (adder, fingerprinter):
        return adder.add_many(fingerprints_of(fingerprinter, urls, fingerprints))


def forget(
    where: Where | None,
    urls: Iterable[str] = (),
    *,
    fingerprints: Iterable[bytes] = (),
    key: str = "",
    project: Project | None = None,
) -> list[bool]:
    """Let pages through once more; return for each whether the filter had it.

    A Bloom filter cannot take a mark back: its bits are those of others, too. So it keeps an exact
    list of such pages beside it, and the next request for one is new, and seen from then on.

    Arguments and errors are those of :func:`add`.
    """
    with adding(where, key=key, project=project) as (adder, fingerprinter):
        return adder.forget_many(fingerprints_of(fingerprinter, urls, fingerprints))
