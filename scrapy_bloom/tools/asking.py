"""Asks a filter whether it has seen pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.tools.lines import Batch, Lines, fingerprints_of
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import Where, target_of
from scrapy_bloom.tools.target import Open


@dataclass(frozen=True)
class Question:
    """A filter that is open to be asked.

    Attributes:
        open: the filter.
        fingerprinter: makes the fingerprints that it was filled with.
        warning: what makes its answers doubtful; empty if nothing does.
    """

    open: Open
    fingerprinter: CanonicalFingerprinter
    warning: str


@contextmanager
def asking(
    where: Where | None, *, key: str = "", project: Project | None = None
) -> Iterator[Question]:
    """Open a filter to ask it about URLs or fingerprints, also while a crawl uses it.

    :param where: a target, see :func:`target_of`, like `key`.
    :param project: whose rules make fingerprints of URLs; by default those around the working
        directory or, outside of a project, those that the filter was filled with.
    :raises BloomError: if the filter cannot be read, or is filled with other fingerprints.
    """
    project = project or Project()
    with target_of(where, key=key, project=project).open() as found:
        fingerprinter, warning = project.fingerprinter_for(found.identity)
        yield Question(found, fingerprinter, warning)


def answers(
    question: Question, lines: Lines, stream: BinaryIO
) -> Iterator[tuple[Batch, list[bool]]]:
    """Yield the lines of a stream, some at a time, and for each whether a crawl would call it seen.

    While Redis answers, the next lines are read.

    :raises SettingError: at the first bad line, if `lines` are strict.
    :raises BackendError: if Redis cannot be used any more.
    """
    ask = question.open.contains_many
    with ThreadPoolExecutor(1, "scrapy-bloom") as beside:
        asked: tuple[Batch, Future[list[bool]]] | None = None
        for batch in lines.of_stream(stream):
            before, asked = asked, (batch, beside.submit(ask, batch.fingerprints))
            if before:
                yield before[0], before[1].result()
        if asked:
            yield asked[0], asked[1].result()


def contains(
    where: Where | None,
    urls: Iterable[str] = (),
    *,
    fingerprints: Iterable[bytes] = (),
    key: str = "",
    project: Project | None = None,
) -> list[bool]:
    """Return for each URL, then for each fingerprint, whether a crawl would call it seen.

    >>> contains("job", ["http://example.com/"])  # doctest: +SKIP
    [True]

    :param where: as for :func:`asking`, like `key` and `project`.
    :raises ValueError: if Scrapy cannot make a request for a URL.
    :raises BloomError: as :func:`asking`.
    """
    with asking(where, key=key, project=project) as question:
        return question.open.contains_many(
            fingerprints_of(question.fingerprinter, urls, fingerprints)
        )
