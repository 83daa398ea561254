"""Items on their way out: what a page gave is written before the page is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.extensions.feedexport import FeedExporter
from twisted.python.failure import Failure

from scrapy_bloom.signals import before_commit
from scrapy_bloom.storage.files import sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.crawler import Crawler


class Items:
    """Writes out the items that a crawl has so far.

    :param to_disk: whether feeds go to the disk itself, and not only out of this process.
    """

    def __init__(self, crawler: Crawler, *, to_disk: bool) -> None:
        self._crawler = crawler
        self._to_disk = to_disk
        self._pipelines_closed = False
        self._feeds: Any = crawler.get_extension(FeedExporter)

    def flush(self) -> Exception | None:
        """Flush local feeds and have pipelines flushed; return the first error, if there is one."""
        try:
            for file in self._files():
                file.flush()
                if self._to_disk:
                    sync(file.fileno())
        except (OSError, ValueError) as error:
            return error
        if self._pipelines_closed:
            return None
        answers = self._crawler.signals.send_catch_log(before_commit)
        for _, answer in answers:
            if isinstance(answer, Failure):
                return Exception(answer.getErrorMessage())
        return None

    def pipelines_are_closed(self) -> None:
        """Ask the pipelines for nothing more: they have written out everything."""
        self._pipelines_closed = True

    def _files(self) -> Iterator[Any]:
        for slot in getattr(self._feeds, "slots", ()):
            file = getattr(slot, "file", None)
            if file is not None and not file.closed:
                yield file
