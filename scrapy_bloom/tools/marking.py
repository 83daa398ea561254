"""Marks pages without a crawl, and lets marked ones through once more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.core.window import WindowedFilter
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import CAPACITY, ERROR_RATE, WINDOW
from scrapy_bloom.storage import scrapy_queue, seen_file
from scrapy_bloom.tools.contents import Contents
from scrapy_bloom.tools.lines import SetInRedis, fingerprints_of
from scrapy_bloom.tools.local_target import LocalAdder
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import SCHEMES, Where, target_of
from scrapy_bloom.tools.target import Adder, Target


@contextmanager
def adding(
    where: Where | None, *, key: str = "", project: Project | None = None, make: bool = False
) -> Iterator[tuple[Adder, CanonicalFingerprinter]]:
    """Open a filter to add to it; yield it, and what makes its fingerprints.

    What is added to a file, or to a new filter, is kept when the ``with`` statement ends without an
    error, all of it or nothing. What is added to a filter in Redis is there at once, also for a
    crawl that runs.

    :param where: a target, see :func:`target_of`, like `key`.
    :param project: as for :func:`asking`. A new filter gets its capacity, error rate and window,
        and belongs to its spider.
    :param make: whether to make a filter where there is none.
    :raises JobInUseError: if it is in a job directory, and a crawl runs there.
    :raises BloomError: if it cannot be used.
    """
    project = project or Project()
    target = target_of(where, key=key, project=project)
    if make and not target.exists():
        target.check_identity(project.identity)
        new = LocalAdder(_new_filter(project), target.name)
        with target.making() as change:
            yield new, project.fingerprinter
            change.put(new.contents())
        return
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

    Where there is no filter, one is made.

    >>> add("job", ["http://example.com/"])  # doctest: +SKIP
    [False]

    :param where: as for :func:`adding`, like `key` and `project`.
    :raises ValueError: if Scrapy cannot make a request for a URL. Then nothing was marked.
    :raises BloomError: as :func:`adding`.
    """
    with adding(where, key=key, project=project, make=True) as (adder, fingerprinter):
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


def warning_of(path: Path) -> str:
    """Return what to know before the marks of Scrapy's own filter are taken from a file."""
    folder = path.parent
    if path.name == seen_file.NAME and (why := seen_file.why_unclean(folder)):
        return (
            f"The crawl of {path} was killed ({why}): some of its marks are those of requests that"
            f" are lost, and their pages are not fetched."
        )
    return ""


def check_marks(source: str, target: Target) -> None:
    """Refuse the marks of a crawl where requests wait: all of their pages would count as seen.

    :param source: a ``requests.seen``, or a set of scrapy-redis in Redis, as people write it; or
        another text for marks that come through a pipe.
    :param target: where the marks would go.
    :raises SettingError: if requests wait there, or in the queue of that crawl.
    """
    if source.startswith(SCHEMES):
        queue = SetInRedis(source).queue()
    else:
        queue = scrapy_queue.waiting_in(Path(source).parent) if source != "-" else ""
    if queue := queue or (target.name if target.has_requests() else ""):
        raise SettingError(
            f"requests wait in {queue}. With these marks and without those requests all of their"
            f" pages would count as seen, and never be fetched. Nothing was changed. A crawl with"
            f" our filter takes over a stopped job with its marks; 'scrapy bloom copy' takes a"
            f" crawl of scrapy-redis, its queue first"
        )


def _new_filter(project: Project) -> Contents:
    settings = project.settings
    capacity, rate, window = settings[CAPACITY], settings[ERROR_RATE], settings[WINDOW]
    digests = project.fingerprinter.digests
    new = (
        LocalFilter(capacity, rate, digests=digests, on_growth=int)
        if window is None
        else WindowedFilter(window, capacity, rate, digests=digests, on_growth=int)
    )
    return Contents(project.identity, rate, [new.state()])
